"""The store on PostgreSQL: a row per claim. Asks the questions of `_store.Store`, and answers in its terms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Hashable
from importlib import resources

from aioelect._errors import ConfigurationError, StoreError
from aioelect._floors import Floors
from aioelect._store import Capabilities, Claim, Contended, Granted, Refused, Released, Renewed, Watch

from . import wire
from .connections import bounded, say_goodbye
from .runtime import Runtime, close_runtime, runtime_of
from .source import Pool, Row, source_of

__all__ = ["PostgresStore"]

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DDL_LIMIT = 8.0

_floors = Floors(65536)


class PostgresStore:
    """Claims as rows of a PostgreSQL table: for whoever has no Redis, or wants claims and data in one place.

    Give it to `Lease`, `FencedLock` or `Elector` in place of a Redis client; all of their promises hold. Making one
    touches no event loop and no network. It opens connections of its own: one that works, a warm spare, and one that
    listens while somebody waits; they are shared by stores with equal settings, per event loop, and closed by
    `aclose()`.

    The database needs a table, a sequence and some functions, in a schema of their own: `create()` makes them once.

    Args:
        dsn_or_pool: `postgresql://user@host/database` (several hosts for a failover: `host1,host2`), or an
            `asyncpg.Pool`, of which the settings are taken and no connection.
        schema: where table, sequence and functions lie; stores contend if server, database and schema are the same.

    Raises:
        ConfigurationError: an argument is refused, or asyncpg is not installed.

    Examples:
        >>> store = PostgresStore("postgresql://app@db/app")  # doctest: +SKIP
        >>> await store.create()  # once, as a user who may
        >>> async with FencedLock(store, "inventory:SKU-001", ttl=10, wait=5) as term: ...
    """

    def __init__(self, dsn_or_pool: str | Pool, *, schema: str = "aioelect") -> None:
        if not _SCHEMA.fullmatch(str(schema)):
            raise ConfigurationError(
                f"schema={schema!r}; wanted: 1 to 63 small letters, digits and underscores, no digit first",
                reason="schema",
            )
        self._source = source_of(dsn_or_pool)
        self._schema = schema
        self._greeting = self._placed("SELECT aioelect.greet()")
        self._key = ("postgres", self._source.place, schema)
        self._acquire = self._placed("SELECT * FROM aioelect.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)")
        self._renew = self._placed("SELECT * FROM aioelect.renew($1, $2, $3, $4)")
        self._release = self._placed("SELECT * FROM aioelect.release($1, $2, $3, $4, $5, $6, $7, $8, $9)")

    def __repr__(self) -> str:
        return f"<PostgresStore {self._source.place} schema={self._schema}>"

    @property
    def key(self) -> Hashable:
        """Server, database and schema."""
        return self._key

    @property
    def capabilities(self) -> Capabilities:
        """All that a store can do."""
        return Capabilities()

    @property
    def ddl(self) -> str:
        """The SQL that makes the schema, for a migration of yours; safe to repeat."""
        return self._placed(resources.files(__package__).joinpath("schema.sql").read_text())

    async def create(self) -> None:
        """Make table, sequence and functions, or what is missing of them. Waits, at most 8 s; all or nothing.

        Safe to repeat, and from many processes at once. Needs the right to create a schema, or to create in it.

        Raises:
            StoreUnavailable: no answer.
            StoreRejected: the database refuses.
        """
        deadline = asyncio.get_running_loop().time() + _DDL_LIMIT
        connection = await self._source.dial()
        try:
            # One after the other: CREATE ... IF NOT EXISTS is no protection from somebody who does the same just now.
            script = f"SELECT pg_advisory_xact_lock(hashtextextended('aioelect.create', 0));\n{self.ddl}"
            await bounded(connection, connection.execute(script), deadline)
        finally:
            await say_goodbye(connection)

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Claim the name if it is free."""
        known = (self._key, claim.name)
        channel, ears, own = self._where(claim.name)
        arguments = (
            claim.name,
            wire.digest(claim),
            claim.ttl,
            claim.id,
            claim.identity,
            _floors.get(known),
            _milliseconds(limit),
            channel,
            ears,
            own,
        )
        row = await self._ask(self._acquire, arguments, claim, limit)
        token = row["token"]
        assert isinstance(token, int)
        _floors.saw(known, token)
        if row["won"]:
            return Granted(token)
        holder = wire.holder_of(row, claim)
        assert holder is not None
        return Contended(holder)

    async def renew(self, claim: Claim, *, limit: float) -> Renewed | Refused:
        """Prolong the claim if it is ours."""
        arguments = (claim.name, wire.digest(claim), claim.ttl, _milliseconds(limit))
        row = await self._ask(self._renew, arguments, claim, limit)
        return Renewed() if row["ours"] else Refused(wire.holder_of(row, claim))

    async def release(self, claim: Claim, *, keep: float = 0.0, limit: float) -> Released | Refused:
        """Give the claim up if it is ours."""
        channel, ears, own = self._where(claim.name)
        arguments = (
            claim.name,
            wire.digest(claim),
            keep,
            claim.id,
            claim.identity,
            _milliseconds(limit),
            channel,
            ears,
            own,
        )
        row = await self._ask(self._release, arguments, claim, limit)
        told = row["told"]
        return Released(told) if isinstance(told, int) else Refused(wire.holder_of(row, claim))

    def watch(self, name: str) -> Watch:
        """Listen to the notices of a name."""
        return self._runtime.listener.watch(wire.channel_of(self._schema, name))

    async def aclose(self) -> None:
        """Close what is open in the running loop, for all stores with the same settings."""
        await close_runtime(self._source, self._greeting)

    def _placed(self, text: str) -> str:
        return re.sub(r"\baioelect(?=[.;])", self._schema, text)

    @property
    def _runtime(self) -> Runtime:
        return runtime_of(self._source, self._greeting)

    def _where(self, name: str) -> tuple[str, int, int]:
        channel = wire.channel_of(self._schema, name)
        return channel.decode(), wire.ears_of(channel), self._runtime.listener.pid

    async def _ask(self, query: str, arguments: tuple[object, ...], claim: Claim, limit: float) -> Row:
        runtime = self._runtime
        try:
            return await runtime.in_turn(
                claim.owner, limit, lambda deadline: runtime.connections.ask(query, arguments, deadline)
            )
        except StoreError as error:
            error.name = claim.name
            if error.reason == "readonly":
                runtime.connections.drop_idle()
            raise


def _milliseconds(limit: float) -> int:
    return max(1, int(limit * 1000))
