"""Services behind HTTP: the token travels in a header, and an older one gets a 409 with both numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import Depends, FastAPI

from aioelect import ConfigurationError
from aioelect.fencing.http import HEADER, aiohttp_middleware, fastapi_dependency, headers
from fencing.conftest import TOKEN, Way


def fastapi_service(gate: Any) -> FastAPI:
    app = FastAPI()
    fenced = Depends(fastapi_dependency(gate, lambda request: request.path_params["sku"]))

    @app.put("/stock/{sku}")
    async def put(sku: str, token: int = fenced) -> dict[str, int]:
        return {"written with": token}

    return app


def aiohttp_service(gate: Any) -> web.Application:
    async def put(request: web.Request) -> web.Response:
        return web.json_response({"written with": int(request.headers[HEADER])})

    async def get(request: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application(middlewares=[aiohttp_middleware(gate, lambda request: request.match_info["sku"])])
    app.router.add_put("/stock/{sku}", put)
    app.router.add_get("/stock/{sku}", get)
    return app


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[httpx.AsyncClient]:
    async with TestServer(app) as server, httpx.AsyncClient(base_url=str(server.make_url("/"))) as client:
        yield client


@pytest.fixture(params=["fastapi", "aiohttp"])
async def client(request: pytest.FixtureRequest, pool: Way) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that stands behind a gate."""
    if request.param == "fastapi":
        transport = httpx.ASGITransport(fastapi_service(pool.guard()))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            yield client
    else:
        async with served(aiohttp_service(pool.guard())) as client:
            yield client


async def test_older_tokens_get_a_409_with_both_numbers_and_newer_ones_reach_the_handler(
    client: httpx.AsyncClient,
) -> None:
    for token in (TOKEN, TOKEN + 1, TOKEN + 1):
        answer = await client.put("/stock/SKU-001", headers=headers(token))
        assert (answer.status_code, answer.json()) == (200, {"written with": token})
    answer = await client.put("/stock/SKU-001", headers=headers(TOKEN))
    assert answer.status_code == 409
    assert answer.json()["detail"] == {
        "error": "stale fencing token",
        "resource": "SKU-001",
        "token": TOKEN,
        "newest": TOKEN + 1,
    }
    assert (await client.put("/stock/SKU-002", headers=headers(TOKEN))).status_code == 200


async def test_a_request_without_a_token_gets_428_and_one_with_something_else_400(client: httpx.AsyncClient) -> None:
    answer = await client.put("/stock/SKU-001")
    assert (answer.status_code, answer.json()["detail"]["header"]) == (428, "Fencing-Token")
    for value in ("", "-1", "0", "1.5", "33a", "٣٣", "9223372036854775808", "1" * 500):
        answer = await client.put("/stock/SKU-001", headers={HEADER.encode(): value.encode()})
        assert answer.status_code == 400, value
    assert (await client.put("/stock/SKU-001", headers=headers(1))).status_code == 200, "a bad token was let in"


async def test_reading_needs_no_token(pool: Way) -> None:
    async with served(aiohttp_service(pool.guard())) as client:
        assert (await client.get("/stock/SKU-001")).status_code == 200


def test_p14_a_header_holds_a_token_and_nothing_else() -> None:
    assert headers(34) == {"Fencing-Token": "34"}
    with pytest.raises(ConfigurationError):
        headers(0)
