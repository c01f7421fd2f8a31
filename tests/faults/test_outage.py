"""The server goes away and comes back, empty or with what it had saved."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from functools import partial

import pytest

from conftest import MakeServer
from support.candidate import assert_one_at_a_time, candidate, reigns
from support.processes import Child
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

SLACK = 1.0
"""Seconds that a busy machine may add."""


def logged(children: list[Child], level: str, text: str) -> list[int]:
    """How often each candidate has logged something so far."""
    return [
        sum(text in line["text"] for line in list(child.lines) if line.matches({"event": "log", "level": level}))
        for child in children
    ]


def all_served_again(children: list[Child], times: int) -> bool:
    """Whether each has told of so many outages, at their beginning and at their end."""
    ends = logged(children, "WARNING", "the store serves")
    return min(ends) >= times and ends == logged(children, "ERROR", "")


async def leader_since(index: int, children: list[Child], limit: float) -> None:
    """Wait for the next term."""
    await until(lambda: len(reigns(children)) > index, limit)


async def outage(server: Server, length: float, *, empty: bool) -> float:
    """Take the server away, and return the time of its return."""
    if empty:
        server.kill()
    else:
        server.save()
        await server.astop()
    await asyncio.sleep(length)
    await server.astart()
    return time.monotonic()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_p13_after_each_of_ten_outages_of_5_ttl_there_is_one_leader_within_ttl_and_a_second(
    make_server: MakeServer,
) -> None:
    ttl = 0.3
    server = make_server()
    with ExitStack() as stack:
        children = [stack.enter_context(candidate(server, "role", ttl=ttl)) for _ in range(3)]
        await leader_since(0, children, limit=15)
        for child in children:
            await child.expect(event="stands")
        for number, empty in enumerate([True, False] * 5, start=1):
            before = len(reigns(children))
            back = await outage(server, 5 * ttl, empty=empty)
            await leader_since(before, children, limit=15)
            took = time.monotonic() - back
            print(f"a leader {took * 1000:.0f} ms after the return")  # noqa: T201
            assert took < ttl + 1.0 + SLACK, f"outage {number}, {empty=}: {took:.3f} s"
            # One word from each at either end, however often it tried; a busy machine may have added an outage.
            await until(partial(all_served_again, children, number), limit=10)
            assert max(logged(children, "ERROR", "")) <= 2 * number
            assert [child.returncode for child in children] == [None] * 3
        assert len(assert_one_at_a_time(children)) >= 11
