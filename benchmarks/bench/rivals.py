"""Who is measured: aioelect and what a user would pick instead, each as a user would set it up.

A rival is connected once per process; `section(name, ttl)` then makes an `async with` block of it. Nothing is tuned
for a case but the number of connections, and that in the rival's favour.
"""

from __future__ import annotations

import asyncio
import importlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis as BlockingRedis
from redis.asyncio import BlockingConnectionPool, Redis

import aioelect

__all__ = ["RIVALS", "Rival", "Section", "SectionMaker", "client"]

Section = AbstractAsyncContextManager[object]
SectionMaker = Callable[[str, float], Section]
"""Name and ttl in seconds to an `async with` block, which may be entered again after it was left."""

MANY = 50
"""Up to so many coroutines use redis-py's default client; more share a blocking pool of so many connections, which is
faster than one of 10, 20 or 100, and than one without a limit (measured with 1,000 coroutines)."""

BLOCKING_THREADS = 64


@dataclass(frozen=True)
class Rival:
    """One library."""

    name: str
    package: str  # the distribution, for its version
    connect: Callable[[int, int, str], AbstractAsyncContextManager[SectionMaker]]  # port, coroutines, client name
    settings: str  # how it is set up, for the reader of the figures
    cannot: Mapping[str, str] = field(default_factory=dict)  # case -> why


def client(port: int, coroutines: int, label: str) -> Redis:
    """A redis-py client fit for so many coroutines; its connections carry the label."""
    place: dict[str, Any] = {"host": "127.0.0.1", "port": port, "client_name": label}
    if coroutines <= MANY:
        return Redis(**place)
    return Redis(connection_pool=BlockingConnectionPool(max_connections=MANY, timeout=None, **place))


@asynccontextmanager
async def _aioelect(port: int, _: int, label: str) -> AsyncIterator[SectionMaker]:
    redis = client(port, 1, label)
    yield lambda name, ttl: aioelect.FencedLock(redis, name, ttl=ttl)
    await aioelect.aclose(redis)
    await redis.aclose()


@asynccontextmanager
async def _redis_py(port: int, coroutines: int, label: str) -> AsyncIterator[SectionMaker]:
    redis = client(port, coroutines, label)
    yield lambda name, ttl: redis.lock(f"redis-py:{name}", timeout=ttl)
    await redis.aclose()


_COMPARE_DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


@asynccontextmanager
async def _bare_pair(port: int, coroutines: int, label: str) -> AsyncIterator[SectionMaker]:
    redis = client(port, coroutines, label)
    release = redis.register_script(_COMPARE_DELETE)
    yield lambda name, ttl: _BarePair(redis, release, f"bare:{name}", ttl)
    await redis.aclose()


class _BarePair:
    """The least that is a lock: SET NX PX, compare and delete."""

    def __init__(self, redis: Redis, release: Any, name: str, ttl: float) -> None:
        self._redis, self._release, self._name, self._ttl = redis, release, name, int(ttl * 1000)

    async def __aenter__(self) -> None:
        self._value = uuid.uuid4().hex
        if not await self._redis.set(self._name, self._value, nx=True, px=self._ttl):
            raise RuntimeError(f"{self._name} is taken")

    async def __aexit__(self, *_: object) -> None:
        await self._release(keys=[self._name], args=[self._value])


@asynccontextmanager
async def _pottery(port: int, coroutines: int, label: str) -> AsyncIterator[SectionMaker]:
    lock = importlib.import_module("pottery").AIORedlock
    redis = client(port, coroutines, label)
    yield lambda name, ttl: lock(key=name, masters={redis}, auto_release_time=ttl)
    await redis.aclose()


@asynccontextmanager
async def _coredis(port: int, _: int, label: str) -> AsyncIterator[SectionMaker]:
    coredis = importlib.import_module("coredis")
    lock = importlib.import_module("coredis.patterns.lock").Lock
    redis = coredis.Redis(host="127.0.0.1", port=port, max_connections=MANY, client_name=label)
    async with redis:
        yield lambda name, ttl: lock(redis, f"coredis:{name}", timeout=ttl)


@asynccontextmanager
async def _python_redis_lock(port: int, coroutines: int, label: str) -> AsyncIterator[SectionMaker]:
    lock = importlib.import_module("redis_lock").Lock
    redis = BlockingRedis(host="127.0.0.1", port=port, client_name=label, max_connections=2 * BLOCKING_THREADS)
    with ThreadPoolExecutor(min(max(2, coroutines), BLOCKING_THREADS)) as threads:
        yield lambda name, ttl: _InThreads(lock(redis, name, expire=max(1, round(ttl))), threads)
    redis.close()


class _InThreads:
    """A blocking lock as an `async with` block: each call goes through a thread, as it must in an asyncio service."""

    def __init__(self, lock: Any, threads: ThreadPoolExecutor) -> None:
        self._lock, self._threads = lock, threads

    async def __aenter__(self) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._lock.acquire)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._lock.release)


_POOL = f"Redis(); above {MANY} coroutines BlockingConnectionPool({MANY}, timeout=None)"
_NO_WAIT = "it doesn't wait for a lock that is taken"
_NOT_RENEWED = "nothing renews the lock in the background"
_NOT_STOPPED = "nothing stops the work when the lock is lost"

RIVALS = {
    rival.name: rival
    for rival in (
        Rival("aioelect", "aioelect", _aioelect, "FencedLock(redis, name, ttl=...), metrics on, client Redis()"),
        Rival(
            "redis-py Lock",
            "redis",
            _redis_py,
            f"redis.lock(name, timeout=ttl): sleep 0.1; client {_POOL}",
            {"held": _NOT_RENEWED, "loss": _NOT_STOPPED, "black-hole": _NOT_STOPPED},
        ),
        Rival(
            "bare pair",
            "redis",
            _bare_pair,
            f"SET NX PX + compare-and-delete script, no token, no renewal; client {_POOL}",
            dict.fromkeys(
                ("one-name", "processes", "hand-over", "take-over", "idle", "herd", "growth-waiting"), _NO_WAIT
            )
            | {"held": _NOT_RENEWED, "loss": _NOT_STOPPED, "black-hole": _NOT_STOPPED},
        ),
        Rival(
            "pottery AIORedlock",
            "pottery",
            _pottery,
            f"AIORedlock(key=name, masters={{redis}}, auto_release_time=ttl): retry up to 0.2 s; client {_POOL}",
            {"held": _NOT_RENEWED, "loss": _NOT_STOPPED, "black-hole": _NOT_STOPPED},
        ),
        Rival(
            "coredis Lock",
            "coredis",
            _coredis,
            f"Lock(client, name, timeout=ttl): sleep 0.1; client Redis(max_connections={MANY})",
            {"held": _NOT_RENEWED, "loss": _NOT_STOPPED, "black-hole": _NOT_STOPPED},
        ),
        Rival(
            "python-redis-lock",
            "python-redis-lock",
            _python_redis_lock,
            f"Lock(redis, name, expire=ttl in whole seconds), a blocking library: up to {BLOCKING_THREADS} threads",
            {
                "held": "each claim that is renewed has a thread of its own",
                "herd": "each waiter has a thread of its own",
                "growth-waiting": "each waiter has a thread of its own",
                "loss": _NOT_STOPPED,
                "black-hole": _NOT_STOPPED,
            },
        ),
    )
}
