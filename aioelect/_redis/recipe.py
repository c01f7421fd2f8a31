"""How to open connections of our own that reach the same server as the user's client.

The user's connection class and settings are kept; what decides over retries, limits and the protocol is ours: one
layer retries, and it is not the client's. RESP2 needs no HELLO and has no push messages, whatever the user speaks.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Hashable, Mapping
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

from aioelect._background import outlast, spawn
from aioelect._errors import ConfigurationError

from .links import Links
from .pipeline import RawConnection

__all__ = ["Recipe", "recipe_of"]

# A sentinel that does not answer must not eat the time in which another one would.
_SENTINEL_LIMIT = 0.5

# What a pool puts into its connections for its own purposes: no business of ours.
_FOREIGN = frozenset(
    {
        "connection_pool",
        "driver_info",
        "event_dispatcher",
        "himport_registry",
        "lib_name",
        "lib_version",
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "maintenance_notification_hash",
        "maintenance_state",
        "max_connections",
        "orig_host_address",
        "orig_socket_connect_timeout",
        "orig_socket_timeout",
        "oss_cluster_maint_notifications_handler",
        "response_callbacks",
    }
)


class Recipe:
    """One server's address and the settings to reach it; equal recipes share their connections."""

    def __init__(
        self,
        connection_class: type[AbstractConnection],
        settings: Mapping[str, Any],
        *,
        sentinel: SentinelConnectionPool | None = None,
    ) -> None:
        self._class = connection_class
        self._settings = {k: v for k, v in settings.items() if k not in _FOREIGN}
        if moved_from := settings.get("orig_host_address"):
            # During a maintenance the pool points at a stand-in for a while.
            self._settings["host"] = moved_from
        self._sentinel = sentinel
        self.place = self._place()
        self.db = int(self._settings.get("db") or 0)
        ours = _ours()
        theirs = {k: v for k, v in self._settings.items() if k not in ours}
        self.key: Hashable = (self.place, connection_class, _frozen(theirs))

    def __repr__(self) -> str:
        return f"<Recipe {self.place} db={self.db}>"

    def at(self, host: str, port: int) -> Recipe:
        """The same settings for another node."""
        return Recipe(self._class, {**self._settings, "host": host, "port": port})

    def maker(self) -> Callable[[], RawConnection]:
        """What makes new connections, not connected yet. One per event loop: clients to sentinels belong to a loop."""
        pool = _resolving(self._sentinel) if self._sentinel is not None else None

        def make() -> RawConnection:
            settings = {**self._settings, **_ours()}
            if pool is not None:
                settings["connection_pool"] = pool
            connection = self._class(**settings)
            for introduction in ("driver_info", "lib_name", "lib_version"):
                # No CLIENT SETINFO: a handshake has to fit into a retry. Its arguments changed with the versions.
                setattr(connection, introduction, None)
            return cast(RawConnection, connection)

        return make

    def open(self) -> tuple[Links, Callable[[], RawConnection]]:
        """The connections to the server, and what makes one for the subscription, for the running event loop."""
        make = self.maker()
        return Links(make), make

    def _place(self) -> Hashable:
        if self._sentinel is not None:
            known = (client.connection_pool.connection_kwargs for client in self._sentinel.sentinel_manager.sentinels)
            sentinels = frozenset((str(s.get("host")), int(s.get("port", 26379))) for s in known)
            return ("sentinel", str(self._sentinel.service_name), sentinels)
        if path := self._settings.get("path"):
            return ("unix", str(path))
        return ("tcp", str(self._settings.get("host", "localhost")), int(self._settings.get("port", 6379)))


class _ResolvingPool(SentinelConnectionPool):
    """Resolves the master for connections that are not the pool's, and keeps nothing open in between."""

    asking = 0

    async def get_master_address(self) -> Any:
        self.asking += 1
        try:
            return await self.sentinel_manager.discover_master(self.service_name)
        finally:
            self.asking -= 1
            if not self.asking:
                # In a task of its own: who asked may be cancelled once more, and a connection would be left open.
                await outlast(spawn(self._hang_up(), "goodbye to the sentinels"))

    async def _hang_up(self) -> None:
        for client in self.sentinel_manager.sentinels:
            with contextlib.suppress(Exception):  # one that hangs does not keep the others open
                await client.connection_pool.disconnect()


def _resolving(theirs: SentinelConnectionPool) -> _ResolvingPool:
    sentinel = copy.copy(theirs.sentinel_manager)
    sentinel.sentinels = []
    for client in theirs.sentinel_manager.sentinels:
        pool = client.connection_pool
        settings = {k: v for k, v in pool.connection_kwargs.items() if k not in _FOREIGN}
        limit = min(settings.get("socket_timeout") or _SENTINEL_LIMIT, _SENTINEL_LIMIT)
        settings |= {**_ours(), "socket_timeout": limit, "socket_connect_timeout": limit, "decode_responses": True}
        sentinel.sentinels.append(Redis(connection_pool=ConnectionPool(pool.connection_class, **settings)))
    return _ResolvingPool(theirs.service_name, sentinel, is_master=True, protocol=2)  # type: ignore[no-untyped-call]


def recipe_of(redis: Redis) -> Recipe:
    """The recipe behind a client: plain, TLS, unix socket, or a master behind sentinels."""
    pool = redis.connection_pool
    connection_class = getattr(pool, "connection_class", None)
    settings = getattr(pool, "connection_kwargs", None)
    if not (isinstance(connection_class, type) and issubclass(connection_class, AbstractConnection)):
        raise ConfigurationError(
            f"redis: the client's connection pool ({type(pool).__name__}) has no connection class of redis.asyncio, so"
            " that no connections of our own can be opened like its; use a client with a standard pool"
        )
    if not isinstance(settings, Mapping):
        raise ConfigurationError(
            f"redis: the client's connection pool ({type(pool).__name__}) has no connection_kwargs"
        )
    if isinstance(pool, SentinelConnectionPool):
        if not pool.is_master:
            raise ConfigurationError("redis: a client for replicas cannot hold a lock; use Sentinel.master_for()")
        return Recipe(connection_class, settings, sentinel=pool)
    return Recipe(connection_class, settings)


def _ours() -> dict[str, Any]:
    """The settings that are never the user's. Fresh each time: the client library writes into some of them."""
    return {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "retry_on_error": [],
        "socket_timeout": None,  # limits are ours; on 3.11 the client's can swallow a cancellation
        "decode_responses": False,
        "health_check_interval": 0,
    }


def _frozen(value: object) -> Hashable:
    if value is None or isinstance(value, (str, bytes, int, float, type)):  # nearly always
        return value
    if isinstance(value, Mapping):
        return tuple(sorted((str(k), _frozen(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return id(value)
