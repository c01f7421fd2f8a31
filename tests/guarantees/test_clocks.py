"""Wall clocks of servers that are set forward, or run fast: a ttl is over too soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from aioelect import LeaseLost, Term
from guarantees.conftest import LONG, Participant, assert_two_hold_and_a_guard_refuses_the_older, at_hand, on
from support.faketime import WrongClock, library
from support.modes import POSTGRES, QUORUMS, REDIS, Mode, deployed, on_postgres, until_reached
from support.postgres import Postgres
from support.wait import until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.skipif(library() is None, reason="no libfaketime on this machine: make faketime"),
]

Pair = tuple[Participant, Participant]
ENDS = (*REDIS, *QUORUMS, "postgres")
UNMOVED = (*(f"minority of {kind}" for kind in QUORUMS), "advisory")
"""Where it does not matter: a majority keeps time, or claims don't end by time."""
TTL = 2.0
SPEED = 2.5
SLACK = 0.7
"""Seconds that a busy machine may add."""


@pytest.fixture(scope="session")
def clock() -> Iterator[WrongClock]:
    """The clock of the servers."""
    clock = WrongClock()
    yield clock
    clock.close()


@pytest.fixture(scope="session")
def postgres_of_that_clock(clock: WrongClock) -> Iterator[Postgres]:
    """A database server that has it, too."""
    with at_hand(lambda: Postgres(environment=clock.environment)) as server:
        yield server


@pytest.fixture(scope="session")
def mode(request: pytest.FixtureRequest, clock: WrongClock) -> Iterator[Mode]:
    """A deployment whose servers have that clock, all of them or a minority."""
    if request.param in POSTGRES:
        yield on_postgres(request.param, request.getfixturevalue("postgres_of_that_clock"))
        return
    _, _, kind = request.param.rpartition("minority of ")
    with at_hand(lambda: deployed(kind, clock.environment, minority=request.param != kind)) as mode:
        yield mode


@on(*ENDS)
async def test_when_the_clock_is_set_forward_two_hold_a_name_until_the_older_ones_next_renewal(
    mode: Mode, pair: Pair, clock: WrongClock
) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    clock.step(LONG + 10)
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
    with pytest.raises(LeaseLost):
        await first.renew()
    assert second.is_leader


@on(*UNMOVED)
async def test_a_clock_that_is_set_forward_where_no_majority_has_it_lets_nobody_in(
    mode: Mode, pair: Pair, clock: WrongClock
) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    clock.step(LONG + 10)
    assert await other.takes(name) is None
    await first.renew()
    assert first.is_leader


@on(*ENDS, "advisory")
async def test_a_clock_that_is_set_back_lets_nobody_in(mode: Mode, pair: Pair, clock: WrongClock) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    clock.step(-20.0)
    assert await other.takes(name) is None
    await until_reached(lambda: _renewed(first))
    await first.release()
    second = await other.holds(name)
    assert second.token > first.token


async def _renewed(term: Term) -> bool:
    await term.renew()
    return True


async def cut_off(mode: Mode, pair: Pair, clock: WrongClock) -> float:
    """Cut a holder off while the clock runs fast; for how long two were leaders when another had got in."""
    one, other = pair
    name, ttl = mode.name(), TTL
    begun: list[Term] = []
    stopped: list[float] = []

    async def work() -> None:
        with suppress(LeaseLost):
            async with one.lock(name, ttl=ttl) as term:
                begun.append(term)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    stopped.append(time.monotonic())

    async with clock.running(SPEED):
        task = asyncio.create_task(work())
        await until(lambda: begun, limit=10)
        one.network.stop()
        while (second := await other.takes(name, ttl=LONG)) is None:
            await asyncio.sleep(0.02)
            if mode.kind == "advisory" and stopped:
                one.network.cut()
        won = time.monotonic()
        leads = begun[0].is_leader
        if leads:
            assert_two_hold_and_a_guard_refuses_the_older(begun[0], second)
        await until(lambda: stopped, limit=10)
    await task
    assert not begun[0].is_leader and begun[0].token < second.token
    return stopped[0] - won if leads else 0.0


@on(*ENDS)
async def test_where_the_clock_runs_fast_two_hold_a_name_until_a_holder_that_was_cut_off_has_stopped(
    mode: Mode, pair: Pair, clock: WrongClock
) -> None:
    assert 0.0 < await cut_off(mode, pair, clock) < 0.8 * TTL - TTL / SPEED + SLACK


@on(*UNMOVED)
async def test_a_fast_clock_that_no_majority_has_lets_nobody_in_too_soon(
    mode: Mode, pair: Pair, clock: WrongClock
) -> None:
    assert await cut_off(mode, pair, clock) == 0.0
