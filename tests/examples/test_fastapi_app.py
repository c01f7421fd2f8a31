"""examples/fastapi_app.py under uvicorn with four workers: the leader's worker ends under a load of requests."""

import asyncio
import itertools
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from redis.asyncio import Redis

from aioelect import observe
from support.examples import EXAMPLES, Example
from support.servers import Server, free_port
from support.wait import until

pytestmark = pytest.mark.timeout(240)


@dataclass
class Service:
    """The service on its port, and a client that opens a connection for each request."""

    base: str
    process: Example
    session: aiohttp.ClientSession
    answered: int = 0
    asked_again: int = 0
    lost: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str) -> dict[str, Any]:
        """One request; its answer has to be a 200."""
        async with self.session.request(method, self.base + path) as response:
            assert response.status == 200, await response.text()
            found: dict[str, Any] = await response.json()
            return found

    async def led(self) -> dict[str, Any] | None:
        """What a worker says that knows who leads; None: this one doesn't yet."""
        try:
            found = await self.ask("GET", "/leader")
        except aiohttp.ClientConnectionError:
            return None
        return found if found["leader"] else None

    def figures(self) -> str:
        """How the load fared."""
        return f"{self.answered} requests answered, {self.asked_again} of them at the second try, {len(self.lost)} lost"

    async def load(self) -> None:
        """Ask and write for ever; count what is answered, and keep what isn't."""
        for number in itertools.count():
            for method, path in (("GET", "/leader"), ("PUT", f"/stock/SKU-{number % 7}?qty={number}")):
                try:
                    await self.ask_again(method, path)
                    self.answered += 1
                except (aiohttp.ClientError, AssertionError) as error:
                    self.lost.append(repr(error))

    async def ask_again(self, method: str, path: str) -> None:
        """Do as a proxy does: a worker that ends may close a connection before it has read the request from it."""
        try:
            await self.ask(method, path)
        except aiohttp.ClientConnectionError:
            self.asked_again += 1
            await self.ask(method, path)

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        """Four clients that ask all the time."""
        load = [asyncio.create_task(self.load()) for _ in range(4)]
        try:
            await self.has_answered(200)
            yield
        finally:
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)

    async def has_answered(self, more: int) -> None:
        """Wait until so many further requests were answered."""
        wanted = self.answered + more
        await until(lambda: self.answered >= wanted, 20)


@asynccontextmanager
async def service(folder: Path, **env: str) -> AsyncIterator[Service]:
    """Four workers that serve, one of whom leads."""
    port = free_port()
    argv: tuple[str, ...] = (
        "-m",
        "uvicorn",
        "--app-dir",
        str(EXAMPLES),
        "fastapi_app:app",
        "--workers",
        "4",
        "--port",
        str(port),
    )
    # uvicorn asks its workers for a sign of life, and kills one that takes longer than this: by default 5 s, which is
    # little on a busy machine. If a worker ends just when it is asked, uvicorn stands still for as long.
    argv += ("--log-level", "warning", "--timeout-worker-healthcheck", "20")
    with Example(folder, *argv, env=env) as process:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            found = Service(f"http://127.0.0.1:{port}", process, session)
            await until(found.led, 60)
            yield found
        process.process.terminate()
        assert await process.ended(60) == 0  # and without complaint


async def newer(redis: Redis, token: int) -> int:
    """Wait for a leader with a higher token, and return that."""
    async with asyncio.timeout(60):
        async for leader in observe(redis, "example-app"):
            if leader is not None and leader.token is not None and leader.token > token:
                return leader.token
    raise AssertionError


async def test_p7_sigterm_to_the_leaders_worker_hands_over_and_loses_no_request(
    server: Server, redis: Redis, tmp_path: Path
) -> None:
    async with service(tmp_path, REDIS_URL=server.url, EVERY="0.2") as running, running.loaded():
        old = await until(running.led)
        os.kill(int(old["leader"].rpartition(":")[2]), signal.SIGTERM)
        sent = time.monotonic()
        new = await newer(redis, old["token"])
        took = time.monotonic() - sent

        await running.process.says(f"token {new}")  # the work goes on
        await running.has_answered(200)
        sys.stdout.write(f"hand-over after {took * 1000:.0f} ms; {running.figures()}\n")
        assert running.lost == []
        assert took < 10, "the ttl is 15 s"
    assert server.call("EXISTS", "aioelect:{example-app}") == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_p9_a_write_that_is_out_of_date_is_a_conflict(
    kind: str, server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    env = {"REDIS_URL": server.url}
    if kind == "postgres":
        env["DATABASE_URL"] = request.getfixturevalue("database")
    async with service(tmp_path, **env) as running:
        written = [await running.ask("PUT", f"/stock/SKU-001?qty={qty}") for qty in range(8)]
        tokens = [answer["token"] for answer in written]
        assert tokens == sorted(set(tokens))

        # As if a newer holder had written while this one was paused.
        newest = "UPDATE stock SET qty = 95, fence_token = 9000000000000000"
        if kind == "postgres":
            connection = await asyncpg.connect(env["DATABASE_URL"])
            assert await connection.fetchval("SELECT qty FROM stock") == 7
            await connection.execute(newest)
            await connection.close()
        else:
            with closing(sqlite3.connect(tmp_path / "stock.db")) as db, db:
                assert db.execute("SELECT qty FROM stock").fetchall() == [(7,)]
                db.execute(newest)
        async with running.session.put(f"{running.base}/stock/SKU-001?qty=120") as response:
            assert response.status == 409
            assert "9000000000000000" in await response.text()
