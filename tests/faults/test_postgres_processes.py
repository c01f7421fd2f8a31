"""Elections on PostgreSQL, in real processes that end, die, pause, and lose their server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from aioelect import PostgresStore
from support.candidate import assert_one_at_a_time, candidate, now, reigns
from support.postgres import Postgres, execute
from support.processes import Child
from support.wait import until

pytestmark = pytest.mark.faults

SLACK = 3.0
"""Seconds that a busy machine may add."""


class Company:
    """Three candidates for one role, in processes of their own."""

    def __init__(self, stack: ExitStack, source: str, ttl: float, cleanup: float = 0.0):
        made = [candidate(source, "role", ttl=ttl, cleanup=cleanup) for _ in range(3)]
        self.members = [stack.enter_context(child) for child in made]

    async def leader(self, above: int = 0, limit: float = 20.0) -> Child:
        """Wait for a leader with a token above the given one, and until the others stand."""
        for child in self.members:
            await child.expect(event="stands", limit=limit)
        await until(lambda: reigns(self.members)[-1:] and reigns(self.members)[-1].token > above, limit)
        leader = next(child for child in self.members if child.find(event="leads", token=self.token))
        await leader.expect(event="works", token=self.token)
        return leader

    @property
    def token(self) -> int:
        """The highest token so far."""
        return reigns(self.members)[-1].token


async def until_two_wait(database: str) -> None:
    """Wait until two candidates listen, have asked once more, and sleep."""
    listening = "SELECT count(*) >= 2 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
    await until(lambda: execute(database, listening) == [(True,)])
    await asyncio.sleep(0.5)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is ended after the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["postgres", "advisory"])
async def source(request: pytest.FixtureRequest, database: str) -> str:
    """Where the claims are: rows, or sessions."""
    execute(database, "CREATE SEQUENCE fence")
    await PostgresStore(database).create()
    return database if request.param == "postgres" else f"advisory+{database}"


async def test_p7_a_leader_that_gets_sigterm_cleans_up_and_then_hands_over_at_once(
    source: str, database: str, stack: ExitStack
) -> None:
    company = Company(stack, source, ttl=60.0, cleanup=0.2)
    leader, token = await company.leader(), company.token
    await until_two_wait(database)
    leader.terminate()
    await company.leader(above=token, limit=5.0)
    cleaned = await leader.expect(event="cleaned", token=token)
    began = reigns(company.members)[-1].began
    assert cleaned["at"] < began < cleaned["at"] + SLACK  # without a notice it would be 6 s, or the ttl
    assert_one_at_a_time(company.members)


async def test_p10_a_leader_that_is_killed_is_replaced_after_its_ttl_or_soon_where_claims_are_sessions(
    source: str, database: str, stack: ExitStack
) -> None:
    by_session = source.startswith("advisory")
    ttl = 30.0 if by_session else 4.0
    company = Company(stack, source, ttl)
    leader, token = await company.leader(), company.token
    await until_two_wait(database)
    leader.kill()
    killed = now()
    await company.leader(above=token)
    took = reigns(company.members)[-1].began - killed
    if by_session:
        assert took < 1.1 * ttl / 10 + SLACK  # nobody tells of it, so whoever waits looks ten times a ttl
    else:
        assert ttl * 2 / 3 - 0.5 < took < ttl + SLACK  # a renewal may have come just before
    assert_one_at_a_time(company.members)


async def test_p2_a_leader_that_is_paused_for_3_ttl_is_replaced_by_rows_and_blocks_the_others_by_sessions(
    source: str, stack: ExitStack
) -> None:
    ttl = 1.0
    company = Company(stack, source, ttl)
    leader, token = await company.leader(), company.token
    leader.pause()
    paused_until = time.monotonic() + 3 * ttl
    if source.startswith("advisory"):
        await asyncio.sleep(paused_until - time.monotonic())
        assert company.token == token  # nobody else got in: a session lasts as long as its process is paused
        leader.resume()
        await leader.expect(event="stops", token=token)
        await company.leader(above=token)
    else:
        await company.leader(above=token)
        await asyncio.sleep(max(0.0, paused_until - time.monotonic()))
        leader.resume()
        await leader.expect(event="stops", token=token)
    assert_one_at_a_time(company.members)


async def test_p11_after_the_server_crashed_and_was_away_for_3_ttl_one_leads_again(
    make_postgres: Callable[..., Postgres], stack: ExitStack
) -> None:
    server = make_postgres(fsync="on")
    execute(server.url, "CREATE SEQUENCE fence")
    await PostgresStore(server.url).create()
    ttl = 1.0
    companies = [Company(stack, source, ttl) for source in (server.url, f"advisory+{server.url}")]
    leaders = [(company, await company.leader(), company.token) for company in companies]
    server.crash()
    await asyncio.sleep(3 * ttl)
    server.start()
    for company, leader, token in leaders:
        await leader.expect(event="stops", token=token)
        await company.leader(above=token)
        assert_one_at_a_time(company.members)
