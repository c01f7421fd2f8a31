"""What a health check says of a leader, a candidate, and of either in trouble; and that the documented routes work."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aioelect import Elector, StoreRejected, Term
from aioelect._store import Claim
from aioelect.health import Health, health
from aioelect.testing._faults import Silence
from aioelect.testing._memory import MemoryServer
from runtime.world import NAME
from support.process import Process

TTL = 15.0
PAGE = Path(__file__).parent.parent.parent / "docs" / "operations.md"


def silent(verb: str, claim: Claim) -> None:
    """No answer to anything."""
    raise Silence


async def _forever(_: Term) -> None:
    await asyncio.sleep(10**9)


@asynccontextmanager
async def leading(store: Process) -> AsyncIterator[Elector]:
    """An elector that leads."""
    async with Elector(store, NAME, ttl=TTL, observers=[]).running(_forever) as elector:
        await asyncio.sleep(1)
        assert elector.is_leader
        yield elector


async def test_a_leader_is_well(ours: Process) -> None:
    async with leading(ours) as elector:
        assert health(elector) == Health(live=True, ready=True, leading=True, standing=True, problems=())


async def test_a_candidate_that_waits_is_just_as_well(server: MemoryServer, ours: Process) -> None:
    server.seize(NAME, ttl=600)
    async with Elector(ours, NAME, ttl=TTL, observers=[]).running(_forever) as elector:
        await asyncio.sleep(60)
        assert health(elector) == Health(live=True, ready=True, leading=False, standing=True, problems=())


async def test_a_leader_whose_renewals_fail_is_live_and_says_so_until_one_is_confirmed(ours: Process) -> None:
    async with leading(ours) as elector:
        ours.before = silent
        await asyncio.sleep(8)
        state = health(elector)
        assert (state.live, state.ready, state.leading) == (True, False, True)
        assert "the last renewal failed: no answer" in state.problems[0]
        ours.before = lambda verb, claim: None
        await asyncio.sleep(3)
        assert health(elector).ready


async def test_a_candidate_that_cannot_reach_the_store_is_live_and_says_so_until_it_can(ours: Process) -> None:
    ours.before = silent
    async with Elector(ours, NAME, ttl=TTL, observers=[]).running(_forever) as elector:
        await asyncio.sleep(60)
        state = health(elector)
        assert (state.live, state.ready, state.standing) == (True, False, True)
        assert "the store does not serve: no answer" in state.problems[0]
        ours.before = lambda verb, claim: None
        await asyncio.sleep(10)
        assert health(elector).ready


async def test_a_candidacy_that_has_died_is_not_live(ours: Process) -> None:
    def refuse(verb: str, claim: Claim) -> None:
        raise StoreRejected("lacks a permission", reason="noperm")

    ours.before = refuse
    elector = Elector(ours, NAME, ttl=TTL, observers=[])
    with pytest.raises(StoreRejected):
        async with elector.running(_forever):
            await asyncio.sleep(10)
            state = health(elector)
            assert (state.live, state.ready, state.standing) == (False, False, False)
            assert "the candidacy has ended: StoreRejected: lacks a permission" in state.problems[0]


async def test_work_that_raises_is_a_candidacy_that_has_died(ours: Process) -> None:
    async def broken(_: Term) -> None:
        raise KeyError("job")

    with pytest.raises(KeyError):
        async with Elector(ours, NAME, ttl=TTL, observers=[]).running(broken) as elector:
            await asyncio.sleep(10)
            assert not health(elector).live


async def test_work_that_outlives_the_drain_limit_is_not_live_until_it_has_ended(ours: Process) -> None:
    async def deaf(_: Term) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + 60
        while (left := until - loop.time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(left)

    async with Elector(ours, NAME, ttl=TTL, observers=[]).running(deaf) as elector:
        await asyncio.sleep(1)
        assert elector.term is not None
        elector.term.resign()
        await asyncio.sleep(10)
        assert health(elector).live, "it may take its time, up to the drain limit"
        await asyncio.sleep(10)
        state = health(elector)
        assert (state.live, state.leading) == (False, False)
        assert "drain limit" in state.problems[0]
        await asyncio.sleep(50)
        assert health(elector).live


async def test_an_unfit_candidate_is_live(ours: Process) -> None:
    async with Elector(ours, NAME, ttl=TTL, observers=[], ready=lambda: False).running(_forever) as elector:
        await asyncio.sleep(5)
        state = health(elector)
        assert (state.live, state.ready) == (True, False)
        assert "not fit" in state.problems[0]


async def test_an_elector_that_is_not_used_yet_or_any_more_is_live_and_not_ready(ours: Process) -> None:
    elector = Elector(ours, NAME, ttl=TTL, observers=[])
    unused = Health(live=True, ready=False, leading=False, standing=False, problems=("it does not stand",))
    assert health(elector) == unused
    async with elector:
        await elector.wait_elected()
    assert health(elector) == unused


def _route(framework: str) -> str:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if framework in block]
    return found


async def test_the_documented_route_for_fastapi_answers(ours: Process) -> None:
    from fastapi import FastAPI
    from httpx import ASGITransport, AsyncClient

    app = FastAPI()
    async with leading(ours) as elector:
        exec(_route("fastapi"), {"app": app, "elector": elector})
        async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
            answer = await client.get("/health/live")
            assert (answer.status_code, answer.json()["leading"]) == (200, True)
            elector._vitals.died = KeyError("job")
            answer = await client.get("/health/live")
            assert (answer.status_code, answer.json()["live"]) == (503, False)


async def test_the_documented_route_for_aiohttp_answers(ours: Process) -> None:
    from aiohttp import web
    from aiohttp.test_utils import make_mocked_request

    async with leading(ours) as elector:
        space: dict[str, object] = {"elector": elector}
        exec(_route("aiohttp"), space)
        routes = space["routes"]
        assert isinstance(routes, web.RouteTableDef)
        (route,) = routes
        assert isinstance(route, web.RouteDef) and route.path == "/health/live"
        answer = await route.handler(make_mocked_request("GET", "/health/live"))
        assert isinstance(answer, web.Response) and answer.status == 200
        elector._vitals.died = KeyError("job")
        answer = await route.handler(make_mocked_request("GET", "/health/live"))
        assert isinstance(answer, web.Response) and answer.status == 503
