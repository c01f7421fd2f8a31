"""A machine that slept, a loop that was blocked, and objects that outlive a loop or wander between tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aioelect import (
    ConfigurationError,
    Elector,
    EndReason,
    FencedLock,
    Lease,
    LeaseExpired,
    LeaseLost,
    NotAcquired,
    ReleaseOutcome,
    Term,
)
from aioelect.facts import TermOver
from aioelect.testing._memory import MemoryServer
from aioelect.testing._virtual import virtual_loop, virtual_time
from runtime.conftest import Heard
from runtime.world import NAME, TTL, quiet, verbs
from support.process import Process


def gates(term: Term) -> tuple[bool, bool]:
    """What the term says of itself, read afresh."""
    return term.is_leader, term.is_valid


OPEN, SHUT = (True, True), (False, False)

# -- suspend -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken_over", [False, True])
async def test_p2_after_a_suspend_the_term_is_lost_at_once_and_the_candidate_stands_again(
    server: MemoryServer, ours: Process, heard: Heard, taken_over: bool
) -> None:
    """The clock jumps by 60 s while the loop's time moves by 0.1 s."""
    loop = virtual_loop()
    stopped: list[float] = []
    terms: list[Term] = []

    async def work(term: Term) -> None:
        terms.append(term)
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.append(loop.time())

    async with Elector(ours, NAME, ttl=15, observers=[heard]).running(work) as standing:
        await asyncio.sleep(100)
        (first,) = terms
        assert gates(first) == OPEN
        loop.suspend(60)
        if taken_over:
            server.seize(NAME, ttl=20)
        assert gates(first) == SHUT and not standing.is_leader
        with pytest.raises(LeaseExpired):
            first.check()
        woke = loop.time()
        await asyncio.sleep(0.1)
        assert gates(first) == SHUT
        await asyncio.sleep(1)
        assert stopped and stopped[0] - woke <= 1.01  # one tick
        second = await standing.wait_elected()
        assert second.token > first.token
        assert loop.time() - woke < (21 if taken_over else 1.2)
    (over, _) = [fact for fact in heard if isinstance(fact, TermOver)]
    assert over.reason is EndReason.EXPIRED and over.outcome is None


async def test_p2_a_short_suspend_is_survived(ours: Process) -> None:
    loop = virtual_loop()
    async with FencedLock(ours, NAME, ttl=15, observers=()) as term:
        for _ in range(10):
            await asyncio.sleep(7)
            loop.suspend(6)
            assert term.is_valid
            await asyncio.sleep(1.1)  # the tick finds what fell due meanwhile
            assert term.remaining() > 9


async def test_p2_every_gate_reads_the_clock_again(server: MemoryServer, ours: Process) -> None:
    """Ticks of `every`, `renew()` and a renewal in flight all find the suspend by themselves."""
    loop = virtual_loop()
    lost: list[str] = []
    with pytest.raises(LeaseLost):
        async with FencedLock(ours, NAME, ttl=15, observers=()) as term:
            ticks = term.every(0.5)
            await anext(ticks)
            loop.suspend(60)
            with pytest.raises(StopAsyncIteration):
                await anext(ticks)
            lost.append("tick")
            with pytest.raises(LeaseExpired):
                await term.renew()
            lost.append("renew")
    assert lost == ["tick", "renew"]
    assert "renew" not in verbs(ours)


# -- a loop that was blocked -------------------------------------------------------------------------------------------


async def test_p2_after_the_loop_was_blocked_for_longer_than_the_ttl_nothing_is_valid_without_an_await(
    server: MemoryServer, ours: Process
) -> None:
    loop = virtual_loop()
    with pytest.raises(LeaseLost):
        async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
            await asyncio.sleep(1)
            loop.pause(1.5 * TTL)
            assert not term.is_valid and not term.is_leader and term.remaining() == 0
            with pytest.raises(LeaseLost):
                term.check()
    assert server.holder(NAME) is None


@pytest.mark.parametrize("at", ["before the request left", "request on its way", "answer on its way"])
async def test_p1_a_late_renewal_revives_nothing(server: MemoryServer, at: str) -> None:
    slow = Process(server, latency=0.02)
    loop = virtual_loop()
    after: list[tuple[bool, bool]] = []
    renewed_at = 1 / 3 * TTL
    moment = {"before the request left": -0.005, "request on its way": 0.01, "answer on its way": 0.03}[at]
    with pytest.raises(LeaseLost):
        async with FencedLock(slow, NAME, ttl=TTL, observers=()) as term:
            await asyncio.sleep(renewed_at - 0.04 + moment)
            asked = verbs(slow)
            loop.pause(TTL)
            assert not term.is_leader
            try:
                while True:
                    await asyncio.sleep(0.001)
                    after.append(gates(term))
            finally:
                after.append(gates(term))
                assert asked.count("renew") == (at != "before the request left")
    assert set(after) == {SHUT}
    assert await quiet(slow)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.44])
async def test_p3_a_loop_that_is_blocked_for_less_is_survived(ours: Process, share: float) -> None:
    loop = virtual_loop()
    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        for _ in range(20):
            await asyncio.sleep(0.21 * TTL)
            loop.pause(share * TTL)
            assert term.is_leader
            term.check()
        await asyncio.sleep(TTL)
        assert term.is_leader


async def test_p2_a_side_effect_that_asks_first_is_not_done_after_a_block(ours: Process) -> None:
    loop, done = virtual_loop(), list[int]()
    with pytest.raises(LeaseLost):
        async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
            for step in range(3):
                term.check()
                done.append(step)
                loop.pause(0.6 * TTL)  # no await in here
    assert done == [0, 1]


# -- objects that live longer than a loop, and claims that wander ------------------------------------------------------

SERVER = MemoryServer()
STORE = Process(SERVER, latency=0.001)
LOCK = FencedLock(STORE, "module", ttl=TTL, observers=())
LEASE = Lease(STORE, "module", ttl=TTL, observers=())
ELECTOR = Elector(STORE, "module", ttl=TTL, observers=())


async def with_lock(body: Callable[[Term], Awaitable[None]]) -> None:
    async with LOCK as term:
        await body(term)


async def with_decorated_lock(body: Callable[[Term], Awaitable[None]]) -> None:
    @LOCK
    async def section() -> None:
        (held,) = [holder for holder in [SERVER.holder("module")] if holder]
        assert held.token is not None
        await body(held)  # type: ignore[arg-type]

    await section()


async def with_lease(body: Callable[[Term], Awaitable[None]]) -> None:
    while True:
        try:
            async with LEASE as term:
                return await body(term)
        except NotAcquired:
            await asyncio.sleep(0.01)


async def with_elector(body: Callable[[Term], Awaitable[None]]) -> None:
    await ELECTOR.run(body)


async def with_lead(body: Callable[[Term], Awaitable[None]]) -> None:
    async with ELECTOR.lead() as term:
        await body(term)


@pytest.mark.parametrize(
    "use",
    [with_lock, with_decorated_lock, with_lease, with_elector, with_lead],
    ids=lambda use: use.__name__.replace("_", " "),
)
def test_p15_a_module_level_object_serves_ten_tasks_in_two_successive_loops(
    use: Callable[[Callable[[Term], Awaitable[None]]], Awaitable[None]],
) -> None:
    tokens: list[int] = []
    at_work = 0

    async def body(term: Term) -> None:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        tokens.append(term.token)
        await asyncio.sleep(0.4 * TTL)
        at_work -= 1

    async def main() -> None:
        await asyncio.gather(*(use(body) for _ in range(10)))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for _ in range(2):
        virtual_time(main)()
    assert len(tokens) == 20 and tokens == sorted(set(tokens))
    assert SERVER.record("module").owner is None


def test_p15_a_claim_that_a_loop_left_behind_does_not_trouble_the_next_loop() -> None:
    """The loop is closed with a term held, as a crash of `asyncio.run` would."""
    server = MemoryServer()
    lock = FencedLock(Process(server, latency=0.001), NAME, ttl=TTL, observers=())

    async def leave_it() -> None:
        async with lock:
            raise SystemExit

    async def again() -> None:
        async with asyncio.timeout(3 * TTL), lock:
            pass

    with pytest.raises(SystemExit):
        virtual_time(leave_it)()
    virtual_time(again)()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_p8_an_exit_from_the_work_of_an_elector_reaches_the_caller_of_run(error: type[BaseException]) -> None:
    server = MemoryServer()

    async def work(term: Term) -> None:
        await asyncio.sleep(0.1)
        raise error

    async def main() -> None:
        await Elector(Process(server, latency=0.001), NAME, ttl=TTL, observers=()).run(work)

    with pytest.raises(error):
        virtual_time(main)()
    assert server.record(NAME).owner is None


async def test_p6_a_term_that_was_acquired_in_one_task_may_be_released_in_another(
    server: MemoryServer, ours: Process
) -> None:
    lease = Lease(ours, NAME, ttl=TTL, observers=())
    term = await asyncio.create_task(lease.try_acquire())
    assert term is not None
    await asyncio.create_task(term.renew())
    first, second = await asyncio.gather(term.release(), term.release())
    assert first is second is ReleaseOutcome.RELEASED
    assert server.holder(NAME) is None


async def test_a_section_that_is_left_in_another_task_is_refused_and_ends_with_the_task_that_entered_it(
    server: MemoryServer, ours: Process
) -> None:
    lock = FencedLock(ours, NAME, ttl=TTL, observers=())
    await asyncio.create_task(lock.__aenter__())
    with pytest.raises(ConfigurationError, match="another task"):
        await asyncio.create_task(lock.__aexit__(None, None, None))
    await asyncio.sleep(0.01)
    assert server.holder(NAME) is None
