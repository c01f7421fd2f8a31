"""Hand-over and step-down among real processes: who follows, how soon, and what a leader that listens costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from redis.asyncio import Redis

from aioelect import Elector, aclose, info, step_down
from conftest import Connect
from support.candidate import assert_one_at_a_time, candidate
from support.processes import Child
from support.proxy import Proxy
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

TTL = 3.0


@pytest.fixture
def crowd(the_server: Server) -> Iterator[list[Child]]:
    """Four candidates."""
    with ExitStack() as stack:
        yield [stack.enter_context(candidate(the_server, "name", ttl=TTL)) for _ in range(4)]


async def leader_and_candidates(redis: Redis) -> tuple[str, list[str]]:
    """Identities; when all have tried."""
    async with asyncio.timeout(20):
        while True:
            found = await info(redis, "name")
            others = [c.identity for c in found.candidates]
            if found.leader is not None and len(others) == 3:
                assert found.leader.identity is not None
                return found.leader.identity, others
            await asyncio.sleep(0.02)


async def test_p7_whoever_is_named_leads_next_long_before_any_renewal(crowd: list[Child], redis: Redis) -> None:
    took = []
    for turn in range(3):
        leader, others = await leader_and_candidates(redis)
        heir = others[turn % 3]
        began = asyncio.get_running_loop().time()
        asked = await step_down(redis, "name", to=heir)
        assert asked is not None and asked.identity == leader

        async def changed(before: str = leader) -> str | None:
            now = (await info(redis, "name")).leader
            return None if now is None or now.identity == before else now.identity

        assert await until(changed, limit=TTL / 3) == heir
        took.append(asyncio.get_running_loop().time() - began)
    print(f"hand-over on request: {sorted(took)[1] * 1000:.0f} ms")  # noqa: T201
    assert min(took) < TTL / 6
    assert_one_at_a_time(crowd)
    assert not [line for child in crowd for line in child.lines if line["event"] == "log"]


async def test_p10_a_leader_that_listens_for_requests_sends_its_renewals_and_nothing_else(
    server: Server, proxy: Proxy, connect: Connect
) -> None:
    peer = connect(proxy)
    async with Elector(peer, "name", ttl=0.9, observers=()) as elector:
        await elector.wait_elected()
        await until(lambda: proxy.names("SUBSCRIBE"))
        await asyncio.sleep(0.1)
        proxy.commands.clear()
        await asyncio.sleep(3.0)
        sent = [command.name for command in proxy.commands]
        assert set(sent) <= {"EVALSHA", "EVAL"} and 8 <= len(sent) <= 11
        proxy.commands.clear()
    assert len([c for c in proxy.commands if c.name != "UNSUBSCRIBE"]) <= 4  # the release, or its script and the probe
    await aclose(peer)
