"""Guards for what is written to PostgreSQL, through asyncpg, psycopg 3 or SQLAlchemy 2."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from aioelect._core.timing import Duration
from aioelect._errors import AioelectError, ConfigurationError, StaleToken
from aioelect._term import Term

from . import _sql
from ._drivers import Link, driver_for, sqlstate, thorough
from ._offer import Offer, check_resource, check_token, refuse_stale, stale

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    import psycopg_pool
    from sqlalchemy.ext import asyncio as sqlalchemy

__all__ = ["PostgresGuard", "PostgresSequence", "stale_token"]

C = TypeVar("C")
PsycopgConnection = TypeVar("PsycopgConnection", bound="psycopg.AsyncConnection[Any]")

_ADMISSION = 5.0  # seconds that a bare admission may take
_HAIR = 0.01  # seconds by which the server may be early: it counts in whole milliseconds
_STALE = "ZF001"  # our trigger's
_NO_SERIAL_ORDER = "40001"
_NO_TABLE = "42P01"

# Set before the row is locked: a holder that is paused from here on is thrown out when its life is over, and does not
# stand in its successor's way. Stricter limits that are set already stay.
_LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


def _claim_statement(table: str) -> str:
    def bounded(name: str) -> str:
        present = f"extract(epoch FROM CAST(current_setting('{name}') AS interval)) * 1000"
        return f"CAST(ceil(least(nullif({present}, 0), life)) AS text)"

    limits = ", ".join(f"set_config('{name}', {bounded(name)}, true)" for name in _LIMITS)
    # PostgreSQL 17 and up: for the whole transaction. It takes no notice of a change while it runs, hence off and on.
    off = "left(set_config('transaction_timeout', '0', true), 0)"
    whole = f"set_config('transaction_timeout', concat({bounded('transaction_timeout')}, {off}), true)"
    # A statement whose client is gone goes on otherwise, and its locks stay: PostgreSQL 14 and up, not on Windows.
    watched = "set_config('client_connection_check_interval', '100', true)"
    return f"""\
INSERT INTO {table} AS fence (resource, token, seen_at)
SELECT CAST($1 AS text), CAST($2 AS bigint), clock_timestamp()
FROM (
    SELECT {limits},
        CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN {whole} END,
        CASE WHEN current_setting('client_connection_check_interval', true) = '0'
            AND version() !~* 'mingw|visual|msvc' THEN {watched} END
    FROM (SELECT CAST($3 AS bigint) AS life) AS given
) AS limits
ON CONFLICT (resource) DO UPDATE
SET token = greatest(fence.token, excluded.token), seen_at = excluded.seen_at
RETURNING token"""  # noqa: S608 - the name is checked


class PostgresGuard(Generic[C]):
    """Lets only holders write that are not out of date.

    Three forms. `transaction` protects whatever is written inside it, by a row of the fence table that it locks;
    `update` writes one row that has a column for the token; a trigger (`fence_trigger`) protects a table from programs
    that know nothing of this. Tokens are compared per resource: all writers of a resource take their tokens from one
    name, which is why the name is the resource unless you say otherwise.

    Args:
        target: an asyncpg pool or connection, a psycopg `AsyncConnectionPool` or `AsyncConnection`, or SQLAlchemy's
            `AsyncEngine`, `AsyncConnection` or `AsyncSession`. Making a guard is cheap: make one per session.
        table: the fence table, see `fence_table`.

    Raises:
        ConfigurationError: an argument is refused.

    Examples:
        >>> guard = PostgresGuard(pool)  # doctest: +SKIP
        >>> async with FencedLock(redis, "stock") as term, guard.transaction(term) as connection:
        ...     await connection.execute("UPDATE stock SET qty = qty - 5 WHERE sku = $1", "SKU-001")
    """

    @overload
    def __init__(
        self: PostgresGuard[PsycopgConnection],
        target: psycopg_pool.AsyncConnectionPool[PsycopgConnection],
        *,
        table: str = ...,
    ) -> None: ...
    @overload
    def __init__(self: PostgresGuard[PsycopgConnection], target: PsycopgConnection, *, table: str = ...) -> None: ...
    @overload
    def __init__(
        self: PostgresGuard[sqlalchemy.AsyncConnection],
        target: sqlalchemy.AsyncEngine | sqlalchemy.AsyncConnection,
        *,
        table: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: PostgresGuard[sqlalchemy.AsyncSession], target: sqlalchemy.AsyncSession, *, table: str = ...
    ) -> None: ...
    @overload
    def __init__(
        self: PostgresGuard[asyncpg.Connection], target: asyncpg.Pool | asyncpg.Connection, *, table: str = ...
    ) -> None: ...
    def __init__(self, target: object, *, table: str = "aioelect_fence") -> None:
        self._driver = driver_for(target)
        self._table = table
        self._claim = _claim_statement(_sql.identifier("table", table))

    @asynccontextmanager
    async def transaction(
        self, term: Term | int, *, resource: str | None = None, limit: Duration | None = None
    ) -> AsyncIterator[C]:
        """A transaction that begins with the claim of the token: what is written inside is refused if it is stale.

        One transaction at a time for each resource; a second waits for the first. The server ends the transaction when
        the life is over that the term had left as it began, so that a paused holder does not keep its successor
        waiting: let it be short. (Before PostgreSQL 17, each statement of it begins that life anew.)

        Waits for the row of the resource, at most for that life. A cancellation, or whatever else the body raises,
        rolls back and comes out unchanged.

        Args:
            term: the term, or a token that came from elsewhere, with a resource and a limit.
            resource: what is written to; default: the term's name.
            limit: seconds that it may take; default, and at most: the life that the term has left.

        Raises:
            StaleToken: a newer token has been seen; before the body, or from a trigger inside it.
            LeaseLost, NotHeld: the claim could not be proved any more, before the body or before the commit.
            ConfigurationError: there is no fence table, or the connection is in a transaction already.
        """
        offer = Offer.of(term, resource, limit)
        while True:
            begun = over = False
            first: BaseException | None = None
            try:
                async with thorough(self._driver.link()) as link:
                    self._refuse_if_begun(link)
                    async with thorough(link.transaction()):
                        try:
                            await self._admit(link, offer)
                            begun = True
                            yield cast("C", link.handle)
                            over = True
                            offer.check()
                        except BaseException as exc:
                            first = exc  # what a failing roll-back raises afterwards says less
                            raise
                return
            except Exception as exc:
                error = exc if first is None else first
                if not begun and sqlstate(error) == _NO_SERIAL_ORDER and offer.life() > 0:
                    continue  # somebody else's claim came between; ours begins anew, and sees what it left
                self._explain(error, offer, begun=begun, over=over)
                if error is not exc:
                    raise error from error.__cause__
                raise

    async def update(
        self,
        term: Term | int,
        table: str,
        where: Mapping[str, object],
        values: Mapping[str, object],
        *,
        column: str = "fence_token",
    ) -> int:
        """Write one row that has a column for the token: `UPDATE ... WHERE key AND fence_token <= token`.

        On a pool or an engine this is one committed statement; on a connection or session of yours it is part of what
        you do there. Waits for the statement. A cancelled call may or may not have written.

        Args:
            term: the term, or a token that came from elsewhere.
            table: the table, a schema before a dot.
            where: the key of the row.
            values: the columns to set, and their values.
            column: the column for the token, a BIGINT.

        Returns:
            How many rows were written; 0: there is no such row.

        Raises:
            StaleToken: the row has a newer token.
        """
        token = check_token(term.token if isinstance(term, Term) else term)
        resource = _sql.row_label(table, where)
        async with self._driver.unit() as link:
            sql, parameters = _sql.update_of_row(table, where, values, column, token)
            try:
                written = await link.rows(f"{sql} RETURNING 1", parameters)
            except Exception as exc:
                refused = stale_token(exc)
                if refused is not None:
                    raise refused from exc
                raise
            if not written:
                for (newest,) in await link.rows(*_sql.newest_in_row(table, where, column)):
                    refuse_stale(resource, token, newest)
        return len(written)

    async def admit(self, resource: str, token: int) -> None:
        """Let a token in and remember it, without a write of yours; see `Gate`. Waits at most 5 s for the row.

        Raises:
            StaleToken: a newer one has been let in before.
        """
        async with self.transaction(token, resource=check_resource(resource), limit=_ADMISSION):
            pass

    async def _admit(self, link: Link, offer: Offer) -> None:
        offer.check()
        life = max(1, int(offer.life() * 1000))
        ((newest,),) = await link.rows(self._claim, [offer.resource, offer.token, life])
        refuse_stale(offer.resource, offer.token, newest)
        if not await link.in_transaction():
            raise ConfigurationError(
                "the connection commits every statement by itself (AUTOCOMMIT), so nothing would be guarded: give the "
                "guard an engine with another isolation level",
                reason="autocommit",
            )

    def _refuse_if_begun(self, link: Link) -> None:
        if link.begun:
            raise ConfigurationError(
                "the connection is in a transaction already, and what came before the claim would be unguarded: commit "
                "it first, or give the guard a pool or an engine",
                reason="transaction",
            )

    def _explain(self, error: BaseException, offer: Offer, *, begun: bool, over: bool) -> None:
        """Raise something that says more than the driver's error does, if there is something."""
        if begun and sqlstate(error) != _STALE and offer.life() < _HAIR:
            error.add_note(
                "a guarded transaction lasts as long as the claim had left when it began, then the server ends it: let"
                " it be shorter, or call term.renew() before it"
            )
        if begun and not over:
            refused = stale_token(error)
            if refused is not None:
                raise refused from error
        elif sqlstate(error) == _NO_TABLE and not begun:
            raise ConfigurationError(
                f"there is no fence table {self._table!r}: run the DDL that fence_table({self._table!r}) gives",
                reason="table",
            ) from error
        elif not isinstance(error, AioelectError):
            try:
                offer.check()
            except AioelectError as lost:
                raise lost from error


def stale_token(error: BaseException) -> StaleToken | None:
    """What the trigger's refusal means, whichever driver it came through; None if it is another error."""
    if sqlstate(error) != _STALE:
        return None
    text = str(getattr(error, "orig", None) or error)
    match = re.search(r"(\S+): token (\d+) is older than (\d+)", text)
    return None if match is None else stale(match[1], int(match[2]), int(match[3]))


class PostgresSequence:
    """Fencing tokens from a sequence in the database that is written to: they survive the loss of Redis altogether.

    One sequence may serve any number of names. Give it as `tokens=`; it is asked once for every term.

    Args:
        target: as for `PostgresGuard`; a pool or an engine suits best.
        sequence: its name, see `token_sequence`.

    Raises:
        ConfigurationError: an argument is refused.

    Examples:
        >>> lock = FencedLock(redis, "stock", tokens=PostgresSequence(pool))  # doctest: +SKIP
    """

    def __init__(self, target: object, *, sequence: str = "aioelect_token") -> None:
        self._driver = driver_for(target)
        self._sequence = _sql.identifier("sequence", sequence)

    async def __call__(self, name: str) -> int:  # noqa: ARG002 - one sequence serves all names
        """The next number; waits for one statement."""
        async with self._driver.unit() as link:
            ((token,),) = await link.rows("SELECT nextval(CAST(CAST($1 AS text) AS regclass))", [self._sequence])
        return int(token)
