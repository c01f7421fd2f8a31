"""The network between a participant and the servers is cut, both ways or one way, or loses a single answer."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from aioelect import LeaseLost, Term
from guarantees.conftest import LONG, Participant, on
from support.lines import BOTH, Direction
from support.modes import MODES, Mode
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

Pair = tuple[Participant, Participant]
TTL = 0.7
SLACK = 2.0
"""Seconds that a busy machine may add."""


@dataclass
class Work:
    """Work under a lock that is renewed; it remembers when it was stopped."""

    one: Participant
    name: str
    terms: list[Term] = field(default_factory=list)
    stopped: float | None = None

    async def run(self) -> None:
        """Work until told to stop, and put up with a loss."""
        with suppress(LeaseLost):
            async with self.one.lock(self.name, ttl=TTL) as term:
                self.terms.append(term)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.stopped = time.monotonic()


async def cut_off(mode: Mode, pair: Pair, *directions: Direction) -> tuple[float, float]:
    """Cut a holder off; the seconds until its work was over, and until the other one got in."""
    one, other = pair
    work = Work(one, mode.name())
    task = asyncio.create_task(work.run())
    await until(lambda: work.terms, limit=10)
    one.network.stop(*directions)
    cut = time.monotonic()
    if mode.kind == "advisory":
        await until(lambda: work.stopped)
        assert await other.takes(work.name) is None  # the server can't know; it ends such a session after 1.5 ttl
        await task
        one.network.cut()
    second = await other.holds(work.name)
    won = time.monotonic()
    (first,) = work.terms
    assert not first.is_leader and not first.is_valid and second.is_leader
    assert second.token > first.token
    assert work.stopped is not None and work.stopped < won
    await task
    return work.stopped - cut, won - cut


@on(*MODES)
async def test_a_holder_that_is_cut_off_both_ways_has_stopped_before_another_gets_in(mode: Mode, pair: Pair) -> None:
    stopped, followed = await cut_off(mode, pair, *BOTH)
    assert stopped < 0.8 * TTL + SLACK
    assert followed < TTL + SLACK or mode.kind == "advisory"


@on(*MODES)
async def test_a_holder_that_gets_no_answers_has_stopped_before_another_gets_in(mode: Mode, pair: Pair) -> None:
    stopped, followed = await cut_off(mode, pair, "answers")
    assert stopped < 0.8 * TTL + SLACK
    assert followed < 1.8 * TTL + SLACK or mode.kind == "advisory"


@on(*MODES)
async def test_a_candidate_that_gets_no_answers_is_no_holder_and_somebody_gets_in_when_it_is_over(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    begun: list[Term] = []

    async def stand() -> None:
        async with one.lock(name, ttl=TTL) as term:
            begun.append(term)

    one.network.stop("answers")
    standing = asyncio.create_task(stand())
    await until(lambda: one.network.kept("answers"))
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.shield(standing)
    assert not begun
    one.network.cut()
    one.network.go()
    await asyncio.wait_for(standing, 20)
    assert len(begun) == 1
    await other.holds(name)


@on(*MODES)
async def test_an_acquisition_whose_answer_was_lost_is_one_acquisition(mode: Mode, pair: Pair) -> None:
    one, other = pair
    name = mode.name()
    one.network.stop("answers")

    async def lose_it() -> None:
        await until(lambda: one.network.kept("answers"))
        one.network.cut()
        one.network.go()

    losing = asyncio.create_task(lose_it())
    async with one.lock(name, ttl=LONG, wait=LONG / 3) as first:  # else it would wait for its own ttl
        assert await other.takes(name) is None
        await first.renew()
    await losing
    second = await other.takes(name, LONG)
    assert second is not None and second.token > first.token
