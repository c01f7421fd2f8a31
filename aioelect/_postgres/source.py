"""Where a store's server is, and how a connection to it is made: own ones, with the settings of the user's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

from aioelect._errors import ConfigurationError

from .ending import silence
from .refusals import refusal_of, timed_out

__all__ = ["Connection", "Pool", "Row", "Source", "source_of"]

_SCHEMES = ("postgresql", "postgres")

_HANDSHAKE = 5.0  # it may be slower than one call's limit; past this, it is given up
_PATIENCE = 0.5  # for one that nobody wants any more

# Statement timeout: what one call may take at most, with room; a call's own limit comes from its timer and, where it
# waits for a lock, from lock_timeout. Keepalives: a machine that vanished is noticed in 15 s, and its locks are freed.
_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "statement_timeout": "8s",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "8s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "15s",
}
_PREPARE = """
    SELECT count(set_config(name, value, false)) FROM (
        SELECT * FROM json_each_text($1::json) AS given(name, value) WHERE name IN (SELECT name FROM pg_settings)
        UNION ALL
        SELECT 'synchronous_commit', 'on' WHERE current_setting('synchronous_commit') = 'off'
    ) AS wanted(name, value)
"""  # a server that forgets what it has answered would let two hold one claim

Row = Mapping[str, object]


class Connection(Protocol):
    """What is used of the driver's connection."""

    async def fetchrow(self, query: str, *args: object) -> Row | None: ...

    async def execute(self, query: str, *args: object) -> str: ...

    async def add_listener(self, channel: str, callback: Callable[[object, int, str, str], None]) -> None: ...

    async def remove_listener(self, channel: str, callback: Callable[[object, int, str, str], None]) -> None: ...

    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...

    def remove_termination_listener(self, callback: Callable[[object], None]) -> None: ...

    def get_server_pid(self) -> int: ...

    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...

    async def close(self, *, timeout: float | None = None) -> None: ...


class Pool(Protocol):
    """An `asyncpg.Pool`, of which nothing but the settings of its connections is used."""

    def get_max_size(self) -> int:
        """How many connections it may have; told here to know a pool by."""


class Source:
    """A server, a database, and the settings to reach it with."""

    def __init__(self, place: Hashable, key: Hashable, connect: Callable[[], Coroutine[object, object, Connection]]):
        self.place = place  # equal for sources that reach the same database; safe to show
        self.key = key  # equal for sources that may share connections
        self._connect = connect

    async def dial(self, greeting: str | None = None) -> Connection:
        """Open a connection, bounded by the handshake's limit; the `greeting` is a statement that it begins with.

        Raises:
            StoreError: there is no connection, and why.
        """
        opening = asyncio.get_running_loop().create_task(self._open(greeting), name="aioelect-handshake")
        try:
            await asyncio.wait({opening}, timeout=_HANDSHAKE)
        except asyncio.CancelledError:
            # Cancelled just after its socket was connected, asyncpg leaves an error behind that nobody retrieves.
            await asyncio.wait({opening}, timeout=_PATIENCE)
            opening.add_done_callback(_discard)
            opening.cancel()
            raise
        except GeneratorExit:
            silence(opening)
            raise
        if not opening.done():
            opening.add_done_callback(_discard)
            opening.cancel()
            raise timed_out(_HANDSHAKE, "no connection")
        return opening.result()

    async def _open(self, greeting: str | None) -> Connection:
        connection: Connection | None = None
        try:
            connection = await self._connect()
            await connection.fetchrow(_PREPARE, _as_json(_SETTINGS))
            if greeting is not None:
                await connection.execute(greeting)
        except BaseException as error:
            if connection is not None:
                connection.terminate()
            if isinstance(error, Exception):
                raise refusal_of(error) from None
            raise
        return connection


def _discard(opening: asyncio.Task[Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().terminate()


def source_of(dsn_or_pool: str | Pool) -> Source:
    """The source behind a DSN or a pool; touches no event loop and no network.

    Raises:
        ConfigurationError: it is neither, or the driver is not installed.
    """
    try:
        import asyncpg  # noqa: PLC0415 - optional, and slow to load
    except ImportError as error:
        raise ConfigurationError(
            "PostgreSQL is reached with asyncpg, which is not installed: pip install 'aioelect[postgres]'",
            reason="driver",
        ) from error

    if isinstance(dsn_or_pool, asyncpg.Pool):
        arguments, options = _settings_of(dsn_or_pool)
        place: Hashable = ("pool", id(dsn_or_pool))
        key: Hashable = dsn_or_pool  # holds it, so that the id stays its own
    elif isinstance(dsn_or_pool, str):
        dsn = _checked(dsn_or_pool)
        arguments, options = (dsn,), {}
        at = urlsplit(dsn)
        place, key = f"{at.netloc.rpartition('@')[2]}{at.path}", dsn
    else:
        raise ConfigurationError(
            f"dsn_or_pool: {type(dsn_or_pool).__module__}.{type(dsn_or_pool).__qualname__}; wanted: "
            "'postgresql://user@host/database' or an asyncpg.Pool",
            reason="dsn_or_pool",
        )

    async def connect() -> Connection:
        # On a standby nobody can hold anything: of several hosts, the one that takes writes.
        made: Connection = await asyncpg.connect(*arguments, **{"target_session_attrs": "read-write", **options})
        return made

    return Source(place, key, connect)


def _checked(dsn: str) -> str:
    scheme, colon, rest = dsn.partition("://")
    if not colon or scheme.split("+")[0] not in _SCHEMES:
        # The text may hold a password: it is not shown.
        raise ConfigurationError(
            "dsn_or_pool: a text that is no URL of a database; wanted: 'postgresql://user@host/database'",
            reason="dsn_or_pool",
        )
    return f"postgresql://{rest}"  # SQLAlchemy's URLs name the driver, too


def _settings_of(pool: object) -> tuple[tuple[object, ...], dict[str, object]]:
    arguments, options = getattr(pool, "_connect_args", None), getattr(pool, "_connect_kwargs", None)
    if not isinstance(arguments, list | tuple) or not isinstance(options, dict):
        raise ConfigurationError(
            "dsn_or_pool: the settings of this version's asyncpg.Pool can't be read; give the DSN instead",
            reason="dsn_or_pool",
        )
    return tuple(arguments), dict(options)


def _as_json(settings: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": "{value}"' for name, value in settings.items()) + "}"
