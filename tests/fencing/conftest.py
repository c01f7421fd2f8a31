"""What the tests of guards share: every way to PostgreSQL that a guard takes, as a user would make it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aioelect.fencing import PostgresGuard, fence_table, fence_trigger, token_sequence
from support.postgres import execute

STOCK = "CREATE TABLE stock (sku TEXT PRIMARY KEY, qty INTEGER, fence_token BIGINT)"
TOKEN = 2**53 + 32
"""A double can't tell this number from the next one."""


@dataclass
class Way:
    """One way to a database: what a guard is made from, and how statements go through what it hands out."""

    kind: str
    target: Any
    run: Callable[..., Awaitable[Any]]  # (handle, sql) -> first column of the first row, if there is one
    commit: Callable[[], Awaitable[None]]

    def guard(self, **options: Any) -> PostgresGuard[Any]:
        """Make a guard for it."""
        return PostgresGuard(self.target, **options)


async def run_asyncpg(handle: Any, sql: str) -> Any:
    return await handle.fetchval(sql)


async def run_psycopg(handle: Any, sql: str) -> Any:
    cursor = await handle.execute(sql.encode())
    return (await cursor.fetchone() or [None])[0] if cursor.description else None


async def run_sqlalchemy(handle: Any, sql: str) -> Any:
    result = await handle.execute(text(sql))
    return result.scalar() if result.returns_rows else None


async def nothing() -> None:
    """Statements were committed already."""


KINDS = (
    "asyncpg pool",
    "asyncpg connection",
    "psycopg pool",
    "psycopg connection",
    "sqlalchemy engine on asyncpg",
    "sqlalchemy engine on psycopg",
    "sqlalchemy connection",
    "sqlalchemy session",
)

MakeWay = Callable[..., Awaitable[Way]]


@pytest.fixture
async def make_way() -> AsyncIterator[MakeWay]:
    """Make ways to a database; closed after the test."""
    async with AsyncExitStack() as stack:

        async def make(kind: str, url: str, **options: Any) -> Way:
            library, _, what = kind.partition(" ")
            if library == "asyncpg":
                maker = asyncpg.create_pool(url, min_size=0) if what == "pool" else asyncpg.connect(url)
                target = await maker
                stack.push_async_callback(target.close)
                return Way(kind, target, run_asyncpg, nothing)
            if library == "psycopg":
                if what == "pool":
                    pool = psycopg_pool.AsyncConnectionPool(url, min_size=0, max_size=10, open=False)
                    await stack.enter_async_context(pool)
                    return Way(kind, pool, run_psycopg, nothing)
                connection = await psycopg.AsyncConnection.connect(url)
                stack.push_async_callback(connection.close)
                return Way(kind, connection, run_psycopg, connection.commit)
            driver = "psycopg" if what.endswith("psycopg") else "asyncpg"
            engine = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"), **options)
            stack.push_async_callback(engine.dispose)
            if what == "connection":
                opened = await stack.enter_async_context(engine.connect())
                return Way(kind, opened, run_sqlalchemy, opened.commit)
            if what == "session":
                session = await stack.enter_async_context(AsyncSession(engine))
                return Way(kind, session, run_sqlalchemy, session.commit)
            return Way(kind, engine, run_sqlalchemy, nothing)

        yield make


@pytest.fixture
def stocked(database: str) -> str:
    """URL of a database with a fence table, a sequence, and one article in stock."""
    stock(database)
    return database


def stock(url: str, *, trigger: bool = False) -> None:
    """Make the tables."""
    for statement in (fence_table(), token_sequence(), STOCK, "INSERT INTO stock VALUES ('SKU-001', 100, NULL)"):
        execute(url, statement)
    if trigger:
        execute(url, fence_trigger("stock"))


@pytest.fixture(params=KINDS)
async def way(request: pytest.FixtureRequest, stocked: str, make_way: MakeWay) -> Way:
    """Every way to a database that a guard takes."""
    return await make_way(request.param, stocked)


@pytest.fixture
async def pool(stocked: str, make_way: MakeWay) -> Way:
    """One of them."""
    return await make_way("asyncpg pool", stocked)


def article(url: str) -> Any:
    """The quantity and the token in the row."""
    (row,) = execute(url, "SELECT qty, fence_token FROM stock")
    return row


def fence(url: str) -> Any:
    """The newest token of each resource."""
    return dict(execute(url, "SELECT resource, token FROM aioelect_fence"))
