"""Work that does not give in, work that ends by itself, and children of a term."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest

from aioelect import (
    Elector,
    FencedLock,
    LeaseExpired,
    LeaseTaken,
    ReleaseOutcome,
    StoreUnavailable,
    Term,
)
from aioelect.testing._memory import MemoryServer
from aioelect.testing._virtual import virtual_loop
from runtime.world import LATENCY, NAME, TTL, quiet, refuse_renewals, turns, verbs
from support.process import Process

DOWN = StoreUnavailable("connection refused")

# -- work that does not give in ----------------------------------------------------------------------------------------


async def test_p8_work_that_swallows_cancellation_is_asked_again_but_does_not_spin(
    server: MemoryServer, ours: Process
) -> None:
    loop, asked = virtual_loop(), list[float]()
    with pytest.raises(LeaseTaken):
        async with FencedLock(ours, NAME, ttl=TTL, observers=()):
            server.seize(NAME)
            while not asked or loop.time() < asked[0] + 5:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    asked.append(loop.time())
    for second in range(1, 5):
        deliveries = [at for at in asked if second <= at - asked[0] < second + 1]
        assert 1 <= len(deliveries) <= 30


def test_p2_work_in_a_thread_sees_the_end_by_itself() -> None:
    """In real time: a thread can't be cancelled, so it asks the term, without the loop."""
    server = MemoryServer()
    store = Process(server)
    store.before = refuse_renewals(DOWN)
    stopped = threading.Event()

    def poll(term: Term) -> None:
        while term.is_valid:
            pass
        stopped.set()

    async def main() -> None:
        async with FencedLock(store, NAME, ttl=0.5, observers=()) as term:
            await asyncio.to_thread(poll, term)

    with pytest.raises(LeaseExpired):
        asyncio.run(main())
    assert stopped.wait(10)


# -- work that ends by itself ------------------------------------------------------------------------------------------


async def returns() -> str:
    return "done"


async def raises() -> str:
    raise ValueError("bad")


async def cancels_itself() -> str:
    raise asyncio.CancelledError


@pytest.mark.parametrize("end", [returns, raises, cancels_itself], ids=lambda end: end.__name__.replace("_", " "))
async def test_p13_when_the_work_ends_renewal_stops_and_the_next_leads_within_one_round_trip(
    ours: Process, other: Process, end: Callable[[], Awaitable[str]]
) -> None:
    loop, times = virtual_loop(), dict[str, float]()

    async def work(term: Term) -> str:
        await asyncio.sleep(2)
        times["ended"] = loop.time()
        return await end()

    async def next_work(term: Term) -> None:
        times["next"] = loop.time()

    first = asyncio.create_task(Elector(ours, NAME, ttl=TTL, observers=()).run(work))
    await asyncio.sleep(0.1)
    await Elector(other, NAME, ttl=TTL, observers=()).run(next_work)
    await asyncio.wait({first})
    assert times["next"] - times["ended"] < 4 * LATENCY + 0.002
    if end is cancels_itself:
        assert first.cancelled()
    elif end is raises:
        assert isinstance(first.exception(), ValueError)
    else:
        assert first.result() == "done"
    assert verbs(ours)[-1] == "release"
    assert await quiet(ours)


# -- children ----------------------------------------------------------------------------------------------------------


async def fails(error: Exception, after: float = 0.0, shielded: bool = False) -> None:
    try:
        await asyncio.sleep(after if not shielded else 60)
    finally:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(after * shielded)
        raise error


async def test_p8_a_childs_error_ends_the_term_and_comes_out_bare_and_later_ones_as_notes(
    server: MemoryServer, ours: Process
) -> None:
    first, second, third = ValueError("first"), KeyError("second"), OSError("third")
    with pytest.raises(ValueError, match="first") as caught:
        async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
            term.start_soon(fails, third, 0.2, True)
            term.start_soon(fails, second, 0.1, True)
            term.start_soon(fails, first, 0.5)
            await asyncio.sleep(60)
    assert caught.value is first
    assert [note for note in caught.value.__notes__ if "second" in note]
    assert [note for note in caught.value.__notes__ if "third" in note]
    assert server.holder(NAME) is None


async def test_p8_the_bodys_error_comes_out_before_a_childs_which_is_a_note(ours: Process) -> None:
    mine = OSError("the body")
    with pytest.raises(OSError, match="the body") as caught:
        async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
            term.start_soon(fails, ValueError("the child"), 0.1, True)
            await asyncio.sleep(0.1)
            raise mine
    assert caught.value is mine
    assert "the child" in "".join(mine.__notes__)


@pytest.mark.parametrize("end", ["returned", "cancelled", "resigned", "taken"])
async def test_p7_children_are_cancelled_and_joined_before_the_release(
    server: MemoryServer, ours: Process, end: str
) -> None:
    ended: list[bool] = []

    async def child(term: Term) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.3)
            ended.append(server.holder(NAME) is not None)

    async def body() -> None:
        async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
            term.start_soon(child, term)
            term.start_soon(child, term)
            await asyncio.sleep(1)
            if end == "cancelled":
                task.cancel()
            elif end == "resigned":
                term.resign()
            elif end == "taken":
                server.seize(NAME)
            if end != "returned":
                await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await asyncio.wait({task})
    assert ended == [True, True]
    assert task.cancelled() == (end == "cancelled")
    if not task.cancelled():
        assert isinstance(task.exception(), LeaseTaken) == (end == "taken")
    await turns(3)


async def test_p7_nothing_is_started_in_a_term_that_has_ended(ours: Process) -> None:
    started: list[int] = []

    async def child() -> None:
        started.append(1)

    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        await term.release()
        term.start_soon(child)
    term.start_soon(child)
    await asyncio.sleep(0.1)
    assert not started


async def test_p8_a_child_may_release_its_own_term(server: MemoryServer, ours: Process) -> None:
    outcomes: list[ReleaseOutcome] = []

    async def child(term: Term) -> None:
        await asyncio.sleep(0.1)
        outcomes.append(await term.release())

    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        term.start_soon(child, term)
        await asyncio.sleep(60)
    assert outcomes == [ReleaseOutcome.RELEASED]
    assert server.holder(NAME) is None
