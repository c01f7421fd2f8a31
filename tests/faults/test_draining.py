"""Work that takes its time after it was told to stop: who may begin when, and what it costs."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from dataclasses import dataclass

import pytest

from aioelect import LeaseExpired, Term
from aioelect.facts import DrainOverrun, TermOver
from faults.conftest import MakePeer, claim_key, releasing
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

NAME = "role"
SLACK = 1.5
"""Seconds that a busy machine may add."""


@dataclass
class Worked:
    """One stretch of work, clean-up included."""

    term: Term
    began: float
    ended: float = math.inf


class Working:
    """Work that goes on until it is told to stop, and then cleans up, shielded, for a while."""

    def __init__(self, cleanup: float):
        self.cleanup = cleanup
        self.stretches: list[Worked] = []

    async def __call__(self, term: Term) -> None:
        stretch = Worked(term, time.monotonic())
        self.stretches.append(stretch)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            # A thread, so that nothing can cut the clean-up short: neither a cancellation nor term.cleanup()'s limit.
            done = asyncio.get_running_loop().run_in_executor(None, time.sleep, self.cleanup)
            while not done.done():
                try:
                    await asyncio.wait([done])
                except asyncio.CancelledError:
                    pass
            stretch.ended = time.monotonic()

    async def begun(self, number: int = 1) -> Worked:
        """Wait for the n-th stretch to begin."""
        await until(lambda: len(self.stretches) >= number, limit=15)
        return self.stretches[number - 1]


async def stopped(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize("who", ["the work", "a child"])
async def test_p7_a_successor_elsewhere_begins_after_the_clean_up_of_one_that_resigned(
    make_peer: MakePeer, who: str
) -> None:
    ttl, cleanup = 0.6, 1.0  # the clean-up outlasts the ttl: renewal has to go on meanwhile
    old, new = await make_peer(), await make_peer()
    works = Working(cleanup), Working(0.0)

    async def with_child(term: Term) -> None:
        term.start_soon(works[0], term)
        await asyncio.get_running_loop().create_future()

    work = works[0] if who == "the work" else with_child
    first = asyncio.create_task(old.elector(NAME, ttl=ttl, drain_limit=5).run(work))
    stretch = await works[0].begun()
    second = asyncio.create_task(new.elector(NAME, ttl=ttl).run(works[1]))
    await asyncio.sleep(ttl / 6)  # between two renewals: none is in flight
    stretch.term.resign()
    assert not stretch.term.is_leader
    assert stretch.term.is_valid
    successor = await works[1].begun()
    assert stretch.ended <= successor.began
    assert stretch.term.token < successor.term.token
    await stopped(first, second)


@pytest.mark.parametrize("how", ["resigned", "lost"])
async def test_p13_a_successor_in_the_same_process_begins_after_the_clean_up_however_the_term_ended(
    server: Server, make_peer: MakePeer, how: str
) -> None:
    ttl, cleanup = 0.5, 1.0
    peer = await make_peer()
    works = Working(cleanup), Working(0.0)
    first = asyncio.create_task(peer.elector(NAME, ttl=ttl).run(works[0]))
    stretch = await works[0].begun()
    second = asyncio.create_task(peer.elector(NAME, ttl=ttl).run(works[1]))
    await asyncio.sleep(0.1)
    if how == "lost":
        server.call("DEL", claim_key(NAME))
    else:
        stretch.term.resign()
    successor = await works[1].begun()
    assert stretch.ended <= successor.began
    await stopped(first, second)


async def test_p7_past_the_drain_limit_nothing_is_released_and_the_process_stands_back_until_the_work_is_over(
    server: Server, make_peer: MakePeer
) -> None:
    ttl, drain_limit, cleanup = 1.0, 0.3, 3.0
    old, new = await make_peer(), await make_peer()
    working, elsewhere, beside = Working(cleanup), Working(0.0), Working(0.0)
    first = asyncio.create_task(old.elector(NAME, ttl=ttl, drain_limit=drain_limit).run(working))
    stretch = await working.begun()
    sent = sum(map(releasing, old.proxy.commands))
    resigned = time.monotonic()
    stretch.term.resign()
    # Another candidate of the same process, and one of another.
    local = asyncio.create_task(old.elector(NAME, ttl=ttl).run(beside))
    remote = asyncio.create_task(new.elector(NAME, ttl=ttl).run(elsewhere))

    await until(lambda: old.journal.of(DrainOverrun))
    assert time.monotonic() - resigned >= drain_limit
    assert server.call("EXISTS", claim_key(NAME))
    successor = await elsewhere.begun()  # by the ttl
    assert successor.began < resigned + cleanup, "the claim outlived the drain limit by more than a ttl"
    assert not stretch.term.is_valid
    assert stretch.ended == math.inf
    assert not beside.stretches
    await stopped(remote)  # now the name is free, and still this process stands back

    at_last = await beside.begun()
    assert stretch.ended <= at_last.began
    assert sum(map(releasing, old.proxy.commands)) == sent
    over = old.journal.of(TermOver)[0]
    assert over.outcome is None
    assert len(old.journal.of(DrainOverrun)) == 1
    await stopped(first, local)


async def test_p2_work_in_a_thread_polls_is_valid_and_stops_before_another_gets_in(make_peer: MakePeer) -> None:
    ttl = 1.0
    peer, rival = await make_peer(), await make_peer()
    last_valid = [0.0]
    done = threading.Event()

    def work(term: Term) -> None:
        while True:
            at = time.monotonic()
            if not term.is_valid:
                break
            last_valid[0] = at
            time.sleep(0.005)
        done.set()

    async def hold(held: asyncio.Event) -> None:
        async with peer.lock(NAME, ttl=ttl) as term:
            held.set()
            await asyncio.to_thread(work, term)

    held = asyncio.Event()
    task = asyncio.create_task(hold(held))
    await held.wait()
    peer.proxy.black_hole()
    async with rival.lock(NAME, ttl=ttl, wait=3 * ttl + SLACK):
        won = time.monotonic()
        assert await asyncio.to_thread(done.wait, SLACK), "the thread did not stop by itself"
        assert 0.0 < last_valid[0] < won
    with pytest.raises(LeaseExpired):
        await task


async def test_p8_a_body_that_swallows_cancellation_does_not_spin_the_cpu_and_is_waited_for(
    make_peer: MakePeer,
) -> None:
    peer = await make_peer()
    deliveries: list[float] = []

    async def stubborn() -> None:
        async with peer.lock(NAME, ttl=30) as term:
            term.resign()
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                try:
                    await asyncio.sleep(0.5)
                except asyncio.CancelledError:
                    deliveries.append(time.monotonic())

    start = time.monotonic()
    await stubborn()
    assert time.monotonic() - start >= 2.0
    # Asked again and again, but some times a second and not at every turn of the loop.
    later = [at for at in deliveries if at > start + 0.5]
    assert 2 <= len(later) <= 90
