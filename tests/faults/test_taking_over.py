"""Real processes: a leader that is told to end hands over at once, one that is killed is replaced after its ttl."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from support.candidate import assert_one_at_a_time, candidate, now, reigns
from support.processes import Child
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

NAME = "role"
SLACK = 1.5
"""Seconds that a busy machine may add."""


class Company:
    """Three candidates, one of which leads."""

    def __init__(self, stack: ExitStack, server: Server, ttl: float, cleanup: float = 0.0):
        self.members = [stack.enter_context(candidate(server, NAME, ttl=ttl, cleanup=cleanup)) for _ in range(3)]

    async def leader(self, above: int = 0) -> Child:
        """Wait for a leader with a token above the given one, and until it has worked and the others stand."""
        await until(lambda: reigns(self.members)[-1:] and reigns(self.members)[-1].token > above, limit=15)
        token = reigns(self.members)[-1].token
        leader = next(child for child in self.members if child.find(event="leads", token=token))
        await leader.expect(event="works", token=token)
        for child in self.members:
            await child.expect(event="stands")
        return leader

    @property
    def token(self) -> int:
        """The highest token so far."""
        return reigns(self.members)[-1].token


@pytest.fixture
async def stack() -> AsyncIterator[ExitStack]:
    """What is ended after the test."""
    with ExitStack() as stack:
        yield stack


async def test_p7_a_leader_that_gets_sigterm_cleans_up_and_then_hands_over_at_once(
    server: Server, stack: ExitStack
) -> None:
    ttl, cleanup = 10.0, 0.3
    company = Company(stack, server, ttl, cleanup)
    for _ in range(2):
        leader, token = await company.leader(), company.token
        await asyncio.sleep(0.3)  # the others have subscribed
        start = time.monotonic()
        leader.terminate()
        successor = await company.leader(above=token)
        handed_over = successor.expect_sync(event="leads").at - start
        cleaned = leader.expect_sync(event="cleaned", token=token)
        assert cleaned["valid"]
        assert cleanup <= handed_over < cleanup + SLACK  # and not by the ttl
        assert cleaned["at"] < reigns(company.members)[-1].began
        assert await leader.exited() == 0
        print(f"handed over {(handed_over - cleanup) * 1000:.1f} ms after the clean-up")  # noqa: T201
    assert len(assert_one_at_a_time(company.members)) == 3


async def test_p10_a_leader_that_is_killed_is_replaced_when_its_ttl_is_up_and_not_before(
    server: Server, stack: ExitStack
) -> None:
    ttl = 1.0
    company = Company(stack, server, ttl)
    for _ in range(2):
        leader, token = await company.leader(), company.token
        await asyncio.sleep(0.3)
        leader.kill()
        left = server.call("PTTL", f"aioelect:{{{NAME}}}") / 1000
        asked = now()
        await company.leader(above=token)
        late = reigns(company.members)[-1].began - (asked + left)
        # PTTL rounds, and it was answered before `asked`.
        assert -0.05 < late < SLACK
        print(f"taken over {late * 1000:.1f} ms after the end of the ttl")  # noqa: T201
    assert len(assert_one_at_a_time(company.members)) == 3
