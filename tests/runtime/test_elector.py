"""One leader's work at a time: the four forms of an elector, its losses, its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aioelect import (
    AioelectError,
    ConfigurationError,
    Elector,
    EndReason,
    FencedLock,
    LeaseLost,
    LeaseTaken,
    NotHeld,
    StoreRejected,
    Term,
    TermStarted,
)
from aioelect._store import Claim
from aioelect.facts import TermBegan, TermOver
from aioelect.testing._memory import MemoryServer
from aioelect.testing._virtual import virtual_loop
from runtime.conftest import LATENCY, Heard
from runtime.world import NAME, TTL, quiet
from support.process import Process


def elector(store: Process, *heard: Heard, identity: str | None = None) -> Elector:
    return Elector(store, NAME, ttl=TTL, identity=identity, observers=heard)


async def forever(term: Term) -> None:
    await asyncio.get_running_loop().create_future()


# -- run() -------------------------------------------------------------------------------------------------------------


async def test_p13_run_returns_what_the_work_returned_in_the_callers_task(server: MemoryServer, ours: Process) -> None:
    async def work(term: Term) -> tuple[str, object]:
        return "done", asyncio.current_task()

    assert await elector(ours).run(work) == ("done", asyncio.current_task())
    assert server.holder(NAME) is None


async def test_p13_run_raises_what_the_work_raised_in_the_callers_task(ours: Process) -> None:
    error = ValueError("bad")

    async def work(term: Term) -> None:
        assert asyncio.current_task() is here
        raise error

    here = asyncio.current_task()
    with pytest.raises(ValueError, match="bad") as caught:
        await elector(ours).run(work)
    assert caught.value is error


@pytest.mark.parametrize("how", ["taken", "gone", "silent"])
async def test_p13_after_a_loss_the_candidate_stands_again_with_a_higher_token(
    server: MemoryServer, ours: Process, heard: Heard, how: str
) -> None:
    tokens: list[int] = []

    async def work(term: Term) -> str:
        tokens.append(term.token)
        if len(tokens) == 4:
            return "done"
        if how == "taken":
            server.seize(NAME, ttl=2)
        elif how == "gone":
            server.erase(NAME)
        else:
            ours.delay(60.0, LATENCY)
            virtual_loop().call_later(TTL, _heal, ours)
        await forever(term)
        return "never"

    assert await elector(ours, heard).run(work) == "done"
    assert tokens == sorted(set(tokens)) and len(tokens) == 4
    reasons = [fact.reason for fact in heard if isinstance(fact, TermOver)]
    assert reasons == [EndReason.EXPIRED if how == "silent" else EndReason.TAKEN] * 3 + [EndReason.RELEASED]


def _heal(store: Process) -> None:
    store.delay(LATENCY)


@pytest.mark.parametrize("raised", ["of another lock", "made by the work"])
async def test_p13_the_works_own_lease_lost_of_another_lock_is_an_error_and_no_loss(
    server: MemoryServer, ours: Process, raised: str
) -> None:
    terms: list[Term] = []

    async def work(term: Term) -> None:
        terms.append(term)
        if raised == "made by the work":
            raise LeaseTaken("something of mine")
        async with FencedLock(ours, "another", ttl=TTL, observers=()):
            server.seize("another")
            await asyncio.sleep(10)

    with pytest.raises(LeaseLost) as caught:
        await elector(ours).run(work)
    assert len(terms) == 1 and caught.value.term_id != terms[0].id
    assert server.holder(NAME) is None


@pytest.mark.parametrize("notices", [True, False], ids=["with notices", "polling"])
async def test_p13_a_candidate_that_resigns_pauses_so_that_another_gets_it(
    server: MemoryServer, ours: Process, other: Process, notices: bool
) -> None:
    if not notices:
        server.mute()
    led: list[str] = []

    def work_of(who: str) -> Callable[[Term], Awaitable[None]]:
        async def work(term: Term) -> None:
            led.append(who)
            virtual_loop().call_later(5 * TTL, term.resign)
            await forever(term)

        return work

    async with elector(ours).running(work_of("ours")):
        await asyncio.sleep(0.1)
        async with elector(other).running(work_of("other")):
            await asyncio.sleep(28 * TTL)
    assert led[:5] == ["ours", "other", "ours", "other", "ours"]


# -- a candidacy in the background -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["run", "running", "lead", "enter"])
async def test_p13_an_elector_that_is_entered_refuses_another_use(ours: Process, form: str) -> None:
    standing = elector(ours)

    async def use() -> None:
        if form == "run":
            await standing.run(forever)
        elif form == "running":
            async with standing.running(forever):
                raise AssertionError
        elif form == "lead":
            async with standing.lead():
                raise AssertionError
        else:
            async with standing:
                raise AssertionError

    for entered in (standing, standing.running(forever)):
        async with entered:
            with pytest.raises(ConfigurationError, match="standing already"):
                await use()
            assert (await standing.wait_elected()).is_leader
    async with standing.lead():  # after leaving it may be used again
        pass


async def test_p14_an_elector_that_is_not_entered_has_no_events(ours: Process) -> None:
    with pytest.raises(ConfigurationError, match="not standing"):
        await elector(ours).wait_elected()
    with pytest.raises(ConfigurationError, match="not standing"):
        aiter(elector(ours))


@pytest.mark.parametrize("end", ["fatal", "child", "work"])
async def test_p13_what_ends_a_candidacy_comes_out_of_the_iterator_of_wait_elected_and_of_leaving(
    server: MemoryServer, ours: Process, end: str
) -> None:
    error: Exception = ValueError("bad") if end != "fatal" else StoreRejected("NOPERM")

    async def fail(*_: object) -> None:
        await asyncio.sleep(0.1)
        raise error

    def refuse(verb: str, claim: Claim) -> None:
        if end == "fatal":
            raise error

    ours.before = refuse
    standing = elector(ours)
    came_out: list[BaseException] = []

    async def follow() -> None:
        try:
            async for event in standing:
                if isinstance(event, TermStarted) and end == "child":
                    event.term.start_soon(fail)
        except Exception as exc:
            came_out.append(exc)

    async def wait() -> None:
        try:
            while True:
                await standing.wait_elected()
                await asyncio.sleep(0.05)
        except Exception as exc:
            came_out.append(exc)

    with pytest.raises(type(error)) as caught:
        async with standing.running(fail) if end == "work" else standing:
            async with asyncio.timeout(5):
                await asyncio.gather(follow(), follow(), wait())
    assert caught.value is error
    assert came_out == [error] * 3
    assert server.holder(NAME) is None
    assert await quiet(ours)


async def test_p13_leaving_with_an_error_keeps_it_and_notes_what_ended_the_candidacy(ours: Process) -> None:
    async def fail(term: Term) -> None:
        raise KeyError("the work")

    with pytest.raises(ValueError, match="the body") as caught:
        async with elector(ours).running(fail):
            await asyncio.sleep(0.1)
            raise ValueError("the body")
    assert "the work" in "".join(caught.value.__notes__)


async def test_p13_a_candidacy_whose_work_returned_is_over_and_says_so(ours: Process) -> None:
    async def work(term: Term) -> None:
        pass

    async with elector(ours).running(work) as standing:
        async for event in standing:
            assert not isinstance(event, TermStarted) or event.term.token
        with pytest.raises(NotHeld, match="ended"):
            await standing.wait_elected()


async def test_p13_work_in_the_background_that_cancels_itself_ends_the_candidacy_with_an_error(
    ours: Process, other: Process
) -> None:
    async def work(_: Term) -> None:
        raise asyncio.CancelledError

    with pytest.raises(AioelectError, match="not by aioelect"):
        async with Elector(ours, NAME, ttl=TTL, observers=()).running(work) as elector:
            with pytest.raises(AioelectError, match="not by aioelect"):
                while True:
                    await elector.wait_elected()
                    await asyncio.sleep(0)
            async with FencedLock(other, NAME, ttl=TTL, wait=0, observers=()):
                pass  # it has released


async def test_a_candidacy_may_be_entered_in_one_task_and_left_in_another(server: MemoryServer, ours: Process) -> None:
    for context in (elector(ours).running(forever), elector(ours)):
        standing = await asyncio.create_task(context.__aenter__())
        await asyncio.create_task(standing.wait_elected())
        assert standing.is_leader
        await asyncio.create_task(context.__aexit__(None, None, None))
        assert server.holder(NAME) is None


# -- one leader --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidates", ["one elector", "electors of one process", "two processes"])
async def test_p13_candidates_with_one_identity_are_never_two_leaders(
    server: MemoryServer, ours: Process, other: Process, heard: Heard, candidates: str
) -> None:
    one = elector(ours, heard, identity="same")
    two = {
        "one elector": one,
        "electors of one process": elector(ours, heard, identity="same"),
        "two processes": elector(other, heard, identity="same"),
    }[candidates]
    at_work = most = 0

    async def work(term: Term) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        virtual_loop().call_later(0.7, term.resign)
        try:
            await asyncio.sleep(10)
        finally:
            await _shielded(0.05)
            at_work -= 1

    running = [asyncio.create_task(candidate.run(work)) for candidate in (one, two)]
    await asyncio.sleep(20)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    assert most == 1
    assert len(heard.of(TermBegan)) == len(heard.of(TermOver)) > 15
    assert server.holder(NAME) is None


async def _shielded(seconds: float) -> None:
    inner = asyncio.ensure_future(asyncio.sleep(seconds))
    while not inner.done():
        try:
            await asyncio.shield(inner)
        except asyncio.CancelledError:
            continue


async def test_p13_of_many_candidates_one_works_at_a_time_while_they_resign_and_are_cancelled(
    server: MemoryServer,
) -> None:
    at_work: set[int] = set()
    terms: list[int] = []

    def work_of(who: int) -> Callable[[Term], Awaitable[None]]:
        async def work(term: Term) -> None:
            assert not at_work
            at_work.add(who)
            terms.append(term.token)
            virtual_loop().call_later(0.2 + 0.1 * (len(terms) % 4), term.resign)
            try:
                await forever(term)
            finally:
                at_work.discard(who)

        return work

    stores = [Process(server, key=f"process {n % 3}", latency=0.001 * n) for n in range(6)]
    tasks = [asyncio.create_task(elector(store).run(work_of(n))) for n, store in enumerate(stores)]
    for task in tasks:
        await asyncio.sleep(3)
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert terms == sorted(set(terms)) and len(terms) > 10
    assert server.holder(NAME) is None
