"""Another database server takes over that had not heard of the claim: two may hold a name, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

import aioelect
from aioelect import LeaseLost, Term
from guarantees.conftest import Participant, assert_two_hold_and_a_guard_refuses_the_older, at_hand, on
from support.modes import Mode, until_reached
from support.postgres import Postgres, execute
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

Pair = tuple[Participant, Participant]
TTL = 3.0


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Postgres]:
    """A database server that takes over, and has not heard of any claim."""
    with at_hand(Postgres) as server:
        execute(server.url, "CREATE SEQUENCE fence START 1000")
        execute(server.url, aioelect.PostgresStore(server.url).ddl)
        yield server


@on("postgres")
async def test_after_a_failover_to_a_database_without_the_row_two_hold_a_name_until_the_older_ones_next_renewal(
    mode: Mode, pair: Pair, elsewhere: Postgres
) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    for participant in pair:
        (line,) = participant.network.lines.values()
        line.upstream = elsewhere.port
        line.cut()
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
    with pytest.raises(LeaseLost):
        await until_reached(lambda: _renewed(first))
    assert second.is_leader


@on("advisory")
async def test_after_a_failover_two_hold_a_name_until_a_holder_that_hears_nothing_has_stopped(
    mode: Mode, pair: Pair, elsewhere: Postgres
) -> None:
    one, other = pair
    name = mode.name()
    begun: list[Term] = []

    async def work() -> None:
        with suppress(LeaseLost):
            async with one.lock(name, ttl=TTL) as term:
                begun.append(term)
                await asyncio.get_running_loop().create_future()

    working = asyncio.create_task(work())
    await until(lambda: begun, limit=10)
    one.network.stop()
    (line,) = other.network.lines.values()
    line.upstream = elsewhere.port
    line.cut()
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(begun[0], second)
    await working  # at 0.8 ttl
    assert not begun[0].is_leader and second.is_leader
    one.network.cut()


async def _renewed(term: Term) -> bool:
    await term.renew()
    return True
