"""The store on advisory locks of PostgreSQL: a claim is a session, and ends with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Hashable
from typing import TypeVar

from aioelect._errors import ConfigurationError, StoreError
from aioelect._store import Capabilities, Claim, Contended, Granted, Holder, Refused, Released, Renewed, Watch

from . import wire
from .connections import statement
from .runtime import Runtime, close_runtime, runtime_of
from .source import Pool, source_of

__all__ = ["AdvisoryStore"]

T = TypeVar("T")

_SEQUENCE = re.compile(r"[^\W\d][\w$.]{0,127}")

# Who has a lock is told by the name of its session, as far as our user may see that.
_HOLDER = """
    SELECT (
        SELECT coalesce(a.application_name, '') FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid)
        WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted AND l.objsubid = 1
          AND (l.classid::bigint << 32) | l.objid::bigint = $1 LIMIT 1
    ) AS identity
"""

# The number is drawn once the lock is ours. Listeners are told as in schema.sql: while we have their lock alone, there
# are none. A session whose machine has vanished is ended by the server after 1.5 ttl, when its work has stopped.
_ACQUIRE = """
    WITH tried AS MATERIALIZED (SELECT pg_try_advisory_lock($1) AS won),
    minted AS MATERIALIZED (
        SELECT won, CASE WHEN won THEN coalesce(nextval($2::text::regclass), 0) END AS token FROM tried
    )
    SELECT token,
        CASE WHEN won THEN set_config('application_name', $3, false) END AS named,
        CASE WHEN won THEN set_config('tcp_keepalives_idle', ceil($4::float8)::text, false) END AS idle,
        CASE WHEN won THEN set_config('tcp_keepalives_interval', ceil($4::float8 / 4)::text, false) END AS often,
        CASE WHEN won THEN set_config('tcp_user_timeout', ceil($4::float8 * 1500)::text, false) END AS given_up,
        CASE WHEN won THEN CASE WHEN NOT pg_try_advisory_xact_lock($5) THEN pg_notify($6, json_build_object(
            'kind', 'acquired', 'token', token, 'id', $7::text, 'identity', $3, 'ttl', $4::float8
        )::text) END END AS told
    FROM minted
"""
_RELEASE = """
    SELECT pg_advisory_unlock($1) AS ours, CASE WHEN pg_try_advisory_xact_lock($2) THEN 0 ELSE (
        SELECT count(l.pid) FROM pg_notify($3, $4) LEFT JOIN pg_locks AS l
        ON l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.granted AND l.pid <> $5 AND l.objsubid = 1
        AND (l.classid::bigint << 32) | l.objid::bigint = $2) END AS told
"""


class AdvisoryStore:
    """Claims as session-level advisory locks of PostgreSQL: nothing to create, and nothing left behind.

    Weaker than `PostgresStore`, by nature: the server knows no ttl. A claim ends with its connection, at once; but a
    process that is paused keeps it for as long as the pause, and one whose machine vanished for about 1.5 ttl. Each
    claim takes a connection of its own.

    `Lease`, `FencedLock` and `Elector` need fencing tokens, so they need the store to have a `sequence`. For a lock
    without any, there is `AdvisoryLock`.

    Args:
        dsn_or_pool: `postgresql://user@host/database`, or an `asyncpg.Pool`, of which the settings are taken and no
            connection. Not by way of a pooler that shares sessions (pgbouncer's transaction mode).
        sequence: name of a sequence that fencing tokens are drawn from; None: there are no tokens.
        prefix: keeps the names of one application apart from those of another in the same database.

    Raises:
        ConfigurationError: an argument is refused, or asyncpg is not installed.

    Examples:
        >>> store = AdvisoryStore("postgresql://app@db/app", sequence="fence")  # doctest: +SKIP
        >>> await Elector(store, "scheduler").run(work)
    """

    def __init__(self, dsn_or_pool: str | Pool, *, sequence: str | None = None, prefix: str = "aioelect") -> None:
        if sequence is not None and not _SEQUENCE.fullmatch(str(sequence)):
            raise ConfigurationError(
                f"sequence={sequence!r}; wanted: the name of a sequence, like 'fence' or 'app.fence'",
                reason="sequence",
            )
        self._source = source_of(dsn_or_pool)
        self._sequence = sequence
        self._space = f"advisory:{prefix}"
        self._key = ("postgres", self._source.place, self._space)

    def __repr__(self) -> str:
        return f"<AdvisoryStore {self._source.place}>"

    @property
    def key(self) -> Hashable:
        """Server, database and prefix."""
        return self._key

    @property
    def capabilities(self) -> Capabilities:
        """No ttl at the server, no minimum hold, tokens only from a sequence, and not all about a holder."""
        return Capabilities(expires=False, keeps=False, mints=self._sequence is not None, describes=False, tells=True)

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Lock the name if it is free; the connection that did it is the claim's from then on."""
        return await self._ask(claim, limit, lambda deadline: self._lock(claim, deadline))

    async def renew(self, claim: Claim, *, limit: float) -> Renewed | Refused:
        """Prove that the claim's connection lives."""
        return await self._ask(claim, limit, lambda deadline: self._confirm(claim, deadline))

    async def release(self, claim: Claim, *, keep: float = 0.0, limit: float) -> Released | Refused:
        """Unlock the name if it is ours, and tell who waits."""
        if keep > 0:
            raise ConfigurationError("an advisory lock can't be kept for a while after its release", reason="keep")
        return await self._ask(claim, limit, lambda deadline: self._unlock(claim, deadline))

    def on_loss(self, claim: Claim, tell: Callable[[], None]) -> None:
        """Call `tell` when the claim's connection is lost; at once, if it has been."""
        grip = self._runtime.grips.get(claim.owner)
        tell() if grip is None else grip.on_loss(tell)

    def watch(self, name: str) -> Watch:
        """Listen to the notices of a name."""
        return self._runtime.listener.watch(wire.channel_of(self._space, name))

    async def aclose(self) -> None:
        """Close what is open in the running loop, for all stores with the same settings; that ends their claims."""
        await close_runtime(self._source, None)

    @property
    def _runtime(self) -> Runtime:
        return runtime_of(self._source, None)

    async def _ask(self, claim: Claim, limit: float, ask: Callable[[float], Coroutine[object, object, T]]) -> T:
        try:
            return await self._runtime.in_turn(claim.owner, limit, ask)
        except StoreError as error:
            error.name = claim.name
            raise

    async def _lock(self, claim: Claim, deadline: float) -> Granted | Contended:
        runtime = self._runtime
        if (grip := runtime.grips.get(claim.owner)) is not None:
            await grip.confirm(claim.ttl, deadline)
            return Granted(grip.token)
        channel = wire.channel_of(self._space, claim.name)
        arguments = (
            wire.lock_key(self._space, claim.name),
            self._sequence,
            claim.identity,
            claim.ttl,
            wire.ears_of(channel),
            channel.decode(),
            claim.id,
        )
        connection = await runtime.connections.take(deadline)
        try:
            row = await statement(connection, _ACQUIRE, arguments, deadline)
        except BaseException:
            runtime.connections.drop(connection)  # it may have the lock: a transaction that fails does not undo that
            raise
        token = row["token"]
        if not isinstance(token, int):
            runtime.connections.give(connection)
            refused = await self._refused(claim, deadline)
            return Contended(refused.holder or Holder(None, None, None, None))
        runtime.connections.keep(connection)
        runtime.grips.add(claim.owner, connection, token, claim.ttl)
        return Granted(token)

    async def _confirm(self, claim: Claim, deadline: float) -> Renewed | Refused:
        grip = self._runtime.grips.get(claim.owner)
        if grip is None:
            return await self._refused(claim, deadline)
        await grip.confirm(claim.ttl, deadline)
        return Renewed()

    async def _unlock(self, claim: Claim, deadline: float) -> Released | Refused:
        runtime = self._runtime
        grip = runtime.grips.get(claim.owner)
        if grip is None:
            return await self._refused(claim, deadline)
        channel = wire.channel_of(self._space, claim.name)
        arguments = (
            wire.lock_key(self._space, claim.name),
            wire.ears_of(channel),
            channel.decode(),
            wire.released_notice(claim),
            runtime.listener.pid,
        )
        try:
            row = await statement(grip.connection, _RELEASE, arguments, deadline)
        except BaseException:
            grip.let_go()  # that gives the lock back, too
            raise
        grip.retire()
        runtime.connections.give(grip.connection)
        told = row["told"]
        assert isinstance(told, int)
        return Released(told)

    async def _refused(self, claim: Claim, deadline: float) -> Refused:
        row = await self._runtime.connections.ask(_HOLDER, (wire.lock_key(self._space, claim.name),), deadline)
        who = row["identity"]
        return Refused(None if who is None else Holder(_text(who), None, None, None))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
