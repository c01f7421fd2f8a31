"""TALK: asyncpg, psycopg 3 and SQLAlchemy 2 behind one small face. None of them is imported before it is used.

Which one it is is told by the type of what the user hands in, so that nobody needs a driver that he doesn't use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

import anyio

from aioelect._errors import ConfigurationError

from ._sql import numbered

__all__ = ["Driver", "Link", "driver_for", "sqlstate", "thorough"]

T = TypeVar("T")
Row = tuple[Any, ...]

_UNDOING = 2.0  # seconds that a roll-back may take, whatever is cancelled


class Link(Protocol):
    """One connection in hand."""

    handle: Any  # what the user's statements go through

    @property
    def begun(self) -> bool:
        """Whether it is in a transaction already, as far as the driver knows."""

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Begin; commit at the end of the block, or roll back if it raises."""

    async def rows(self, sql: str, parameters: Sequence[object]) -> list[Row]:
        """Carry out one statement and return its rows."""

    async def in_transaction(self) -> bool:
        """Whether the server keeps a transaction open for it."""


Borrow = Callable[[], AbstractAsyncContextManager[Link]]


class Driver(Protocol):
    """The way to a database: a pool or an engine, or one connection of the user's."""

    def link(self) -> AbstractAsyncContextManager[Link]:
        """A connection, for a transaction to be begun on it."""

    def unit(self) -> AbstractAsyncContextManager[Link]:
        """A connection for single statements: committed at the end if borrowed, else part of what the user does."""


class _Asyncpg:
    def __init__(self, connection: Any) -> None:
        self.handle = connection

    @property
    def begun(self) -> bool:
        return bool(self.handle.is_in_transaction())

    def transaction(self) -> AbstractAsyncContextManager[object]:
        transaction: AbstractAsyncContextManager[object] = self.handle.transaction()
        return transaction

    async def rows(self, sql: str, parameters: Sequence[object]) -> list[Row]:
        return [tuple(record) for record in await self.handle.fetch(sql, *parameters)]

    async def in_transaction(self) -> bool:
        return self.begun


class _Psycopg:
    def __init__(self, connection: Any) -> None:
        self.handle = connection

    @property
    def begun(self) -> bool:
        return _psycopg_in_transaction(self.handle)

    def transaction(self) -> AbstractAsyncContextManager[object]:
        transaction: AbstractAsyncContextManager[object] = self.handle.transaction()
        return transaction

    async def rows(self, sql: str, parameters: Sequence[object]) -> list[Row]:
        from psycopg.rows import tuple_row

        text = numbered(sql, lambda number: f"%(p{number})s")
        async with self.handle.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(text, _named(parameters))
            rows: list[Row] = await cursor.fetchall()
            return rows

    async def in_transaction(self) -> bool:
        return self.begun


class _SQLAlchemy:
    """An AsyncConnection or an AsyncSession: both can do what is needed here."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @property
    def begun(self) -> bool:
        return bool(self.handle.in_transaction())

    def transaction(self) -> AbstractAsyncContextManager[object]:
        transaction: AbstractAsyncContextManager[object] = self.handle.begin()
        return transaction

    async def rows(self, sql: str, parameters: Sequence[object]) -> list[Row]:
        from sqlalchemy import text

        result = await self.handle.execute(text(numbered(sql, lambda number: f":p{number}")), _named(parameters))
        return [tuple(row) for row in result]

    async def in_transaction(self) -> bool:
        # Under the isolation level AUTOCOMMIT it begins nothing and does not say so: ask the driver below.
        is_connection = hasattr(self.handle, "get_raw_connection")
        connection = self.handle if is_connection else await self.handle.connection()
        driver = (await connection.get_raw_connection()).driver_connection
        if hasattr(driver, "is_in_transaction"):
            return bool(driver.is_in_transaction())
        return _psycopg_in_transaction(driver)


def _psycopg_in_transaction(connection: Any) -> bool:
    return int(connection.info.transaction_status) != 0  # IDLE


def _named(parameters: Sequence[object]) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(parameters, 1)}


class _Borrowed:
    """A connection for each use."""

    def __init__(self, link: Borrow, unit: Borrow) -> None:
        self.link, self.unit = link, unit


def _given(link: Link) -> Driver:
    @asynccontextmanager
    async def borrow() -> AsyncIterator[Link]:
        yield link

    return _Borrowed(borrow, borrow)


def _lent(wrap: Callable[[Any], Link], link: Callable[[], Any], unit: Callable[[], Any]) -> Driver:
    def borrowing(lend: Callable[[], Any]) -> Borrow:
        @asynccontextmanager
        async def borrow() -> AsyncIterator[Link]:
            async with lend() as connection:
                yield wrap(connection)

        return borrow

    return _Borrowed(borrowing(link), borrowing(unit))


_KINDS: dict[tuple[str, str], Callable[[Any], Driver]] = {
    ("asyncpg", "Pool"): lambda pool: _lent(_Asyncpg, pool.acquire, pool.acquire),
    ("asyncpg", "Connection"): lambda connection: _given(_Asyncpg(connection)),
    ("asyncpg", "PoolConnectionProxy"): lambda connection: _given(_Asyncpg(connection)),
    ("psycopg_pool", "AsyncConnectionPool"): lambda pool: _lent(_Psycopg, pool.connection, pool.connection),
    ("psycopg", "AsyncConnection"): lambda connection: _given(_Psycopg(connection)),
    ("sqlalchemy", "AsyncEngine"): lambda engine: _lent(_SQLAlchemy, engine.connect, engine.begin),
    ("sqlalchemy", "AsyncConnection"): lambda connection: _given(_SQLAlchemy(connection)),
    ("sqlalchemy", "AsyncSession"): lambda session: _given(_SQLAlchemy(session)),
}


def driver_for(target: object) -> Driver:
    """The adapter for what the user handed in, or ConfigurationError."""
    for kind in type(target).__mro__:
        make = _KINDS.get((kind.__module__.split(".", maxsplit=1)[0], kind.__name__))
        if make is not None:
            if kind.__module__.startswith("sqlalchemy") and _dialect(target) != "postgresql":
                break
            return make(target)
    raise ConfigurationError(
        f"target: {type(target).__module__}.{type(target).__qualname__} is no way to PostgreSQL that is known here; "
        "wanted: an asyncpg pool or connection, a psycopg AsyncConnectionPool or AsyncConnection, or SQLAlchemy's "
        'AsyncEngine, AsyncConnection or AsyncSession on PostgreSQL (pip install "aioelect[postgres]" brings asyncpg)',
        reason="target",
    )


def _dialect(target: Any) -> str:
    bind = target.get_bind() if hasattr(target, "get_bind") else target
    name: str = bind.dialect.name
    return name


@asynccontextmanager
async def thorough(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """The same, but what undoes a failed block can't be cancelled for a while: a lock in the database would be left."""
    value = await context.__aenter__()
    try:
        yield value
    except BaseException as exc:
        with anyio.move_on_after(_UNDOING, shield=True):
            await context.__aexit__(type(exc), exc, exc.__traceback__)
        raise
    await context.__aexit__(None, None, None)


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, under whatever it was wrapped in."""
    for one in (error, getattr(error, "orig", None)):
        code = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if isinstance(code, str):
            return code
    return None
