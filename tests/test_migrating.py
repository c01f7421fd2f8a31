"""The page on migrating says what is so: names of the other libraries, and what their locks do and ours doesn't."""

import asyncio
import contextlib
import importlib
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as blocking
from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from redis.exceptions import LockError, LockNotOwnedError

from aioelect import Elector, FencedLock, NotAcquired, aclose, info
from support.proxy import Proxy
from support.servers import Server
from support.wait import until

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "migrating.md").read_text()
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
AIORedlock: Any = importlib.import_module("pottery").AIORedlock
pottery: Any = importlib.import_module("pottery")
redis_lock: Any = importlib.import_module("redis_lock")  # none of the two has types

Old = Callable[[Redis, Server], AbstractAsyncContextManager[object]]


def _theirs(heading: str) -> set[str]:
    """What a table of the page has on the side of the other library."""
    (section,) = re.findall(rf"^## {re.escape(heading)}.*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    left = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", " ".join(left)))))


def _arguments(of: Callable[..., object]) -> set[str]:
    return set(inspect.signature(of).parameters) - {"self"}


def _methods(of: type) -> set[str]:
    """Those that are called by name."""
    return {name for name in vars(of) if not name.startswith(("_", "do_", "register_", "lua_", "LUA_"))}


def test_the_table_for_redis_py_has_every_argument_and_method_of_its_lock() -> None:
    named = _theirs("redis-py")
    assert _arguments(Lock) - {"redis", "name"} <= named
    assert {name for name in _methods(Lock) if inspect.isfunction(getattr(Lock, name))} <= named
    assert _arguments(Lock.acquire) <= named


def test_the_table_for_python_redis_lock_has_every_argument_and_method_of_its_lock() -> None:
    named, lock = _theirs("python-redis-lock"), redis_lock.Lock
    assert _arguments(lock) - {"redis_client", "name"} <= named
    assert {name for name in _methods(lock) if inspect.isfunction(vars(lock)[name])} - {"acquire", "release"} <= named
    assert {"AlreadyAcquired", "NotAcquired"} <= named & set(vars(redis_lock))


def test_the_table_for_pottery_has_every_argument_and_method_of_its_lock() -> None:
    named = _theirs("pottery")
    assert _arguments(AIORedlock) <= named
    assert _arguments(pottery.Redlock) == _arguments(AIORedlock)
    assert {name for name in _methods(AIORedlock) if inspect.isfunction(getattr(AIORedlock, name))} - {
        "release"
    } <= named
    errors = {name for name in named if name in vars(importlib.import_module("pottery.exceptions"))}
    assert errors == {
        "ExtendUnlockedLock",
        "QuorumIsImpossible",
        "QuorumNotAchieved",
        "ReleaseUnlockedLock",
        "TooManyExtensions",
    }


def _redis_py(redis: Redis, server: Server) -> AbstractAsyncContextManager[object]:
    return redis.lock("inventory", timeout=30)


def _pottery(redis: Redis, server: Server) -> AbstractAsyncContextManager[object]:
    lock: AbstractAsyncContextManager[object] = AIORedlock(key="inventory", masters={redis}, auto_release_time=30)
    return lock


@asynccontextmanager
async def _python_redis_lock(redis: Redis, server: Server) -> AsyncIterator[object]:
    with blocking.Redis.from_url(server.url) as client:
        lock = redis_lock.Lock(client, "inventory", expire=30)
        assert await asyncio.to_thread(lock.acquire)
        try:
            yield lock
        finally:
            await asyncio.to_thread(lock.release)


OLD = {
    "inventory": _redis_py,
    "redlock:inventory": _pottery,
    "lock:inventory": _python_redis_lock,
}
"""Each library's key, and its lock."""


@pytest.mark.parametrize(("key", "old"), OLD.items())
async def test_the_old_lock_and_ours_of_one_name_do_not_exclude_each_other(
    key: str, old: Old, redis: Redis, server: Server
) -> None:
    async with old(redis, server), FencedLock(redis, "inventory", wait=0):
        assert server.call("EXISTS", key) == 1
        assert server.call("EXISTS", "aioelect:{inventory}") == 1


@pytest.mark.parametrize(("key", "old"), OLD.items())
async def test_where_the_claim_is_gone_the_old_locks_hide_what_the_body_raised_and_ours_does_not(
    key: str, old: Old, redis: Redis, server: Server
) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        async with old(redis, server):
            server.call("DEL", key)
            raise ZeroDivisionError
    assert type(caught.value).__name__ in {"LockNotOwnedError", "ReleaseUnlockedLock", "NotAcquired"}
    with pytest.raises(ZeroDivisionError):
        async with FencedLock(redis, "inventory", wait=0):
            server.call("DEL", "aioelect:{inventory}")
            raise ZeroDivisionError


async def test_what_is_held_by_another_is_false_or_a_lock_error_there_and_names_the_holder_here(redis: Redis) -> None:
    async with redis.lock("inventory", timeout=30):
        assert await redis.lock("inventory", timeout=30, blocking=False).acquire() is False
        with pytest.raises(LockError):
            async with redis.lock("inventory", timeout=30, blocking_timeout=0.01):
                pass
    async with FencedLock(redis, "inventory", identity="pod-a"):
        with pytest.raises(NotAcquired) as caught:
            async with FencedLock(redis, "inventory", wait=0):
                pass
        assert caught.value.holder == "pod-a"
        leader = (await info(redis, "inventory")).leader
        assert leader is not None and leader.identity == "pod-a"


async def test_work_goes_on_under_a_lock_of_redis_py_that_is_over_and_is_stopped_under_ours(
    redis: Redis, server: Server
) -> None:
    over = False
    with contextlib.suppress(LockNotOwnedError):
        async with redis.lock("inventory", timeout=0.05):
            await until(lambda: server.call("EXISTS", "inventory") == 0)
            await asyncio.sleep(0.01)
            over = True
    assert over
    with pytest.raises(Exception, match="inventory") as caught:
        async with FencedLock(redis, "inventory", ttl=0.5):
            server.call("DEL", "aioelect:{inventory}")
            await asyncio.sleep(30)
    assert type(caught.value).__name__ == "LeaseTaken"


async def test_an_acquisition_that_is_cancelled_leaves_the_lock_of_redis_py_taken_and_undoes_ours(
    redis: Redis, server: Server, proxy: Proxy
) -> None:
    client = proxy.client()
    async with FencedLock(client, "inventory"):
        pass  # the server knows the script from here on
    locks: list[tuple[AbstractAsyncContextManager[object], str]] = [
        (client.lock("inventory", timeout=30), "SET"),
        (FencedLock(client, "inventory"), "EVALSHA"),
    ]
    for lock, command in locks:
        answer = proxy.reply(command).hold()
        entering = asyncio.create_task(lock.__aenter__())
        await answer.reached()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        answer.release()
        if command == "SET":
            assert server.call("PTTL", "inventory") > 1000
        else:
            await until(lambda: server.call("EXISTS", "aioelect:{inventory}") == 0)
    await aclose(client)
    await client.aclose()


class Sections:
    """Counts who is inside at the same time."""

    def __init__(self) -> None:
        self.inside = self.most = self.done = 0

    async def __call__(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.002)
        self.inside -= 1
        self.done += 1


async def _side_by_side(server: Server, *releases: str) -> Sections:
    """Three copies of each of these releases, each with a client of its own, as the page has them."""
    sections = Sections()
    code, _, _ = BLOCKS[0].replace("Redis()", f"Redis.from_url({server.url!r})").rpartition("asyncio.run(")

    async def copy(release: str) -> None:
        space: dict[str, Any] = {"__name__": "page"}
        exec(compile(code, "migrating.md", "exec"), space)
        space["change_stock"] = sections
        run: Callable[[], Awaitable[None]] = space[release]
        for _ in range(5):
            await run()
        await aclose(space["redis"])
        await space["redis"].aclose()

    await asyncio.gather(*(copy(release) for release in releases * 3))
    assert sections.done == 15 * len(releases)
    return sections


@pytest.mark.parametrize("releases", [("today", "first"), ("first", "second"), ("first",)])
async def test_copies_of_neighbouring_releases_never_change_the_stock_at_the_same_time(
    releases: tuple[str, ...], server: Server
) -> None:
    assert (await _side_by_side(server, *releases)).most == 1


async def test_who_skips_the_first_release_has_two_inside(server: Server) -> None:
    assert (await _side_by_side(server, "today", "second")).most == 2


def _elector_page(server: Server) -> dict[str, Any]:
    code, _, _ = BLOCKS[1].replace("Redis()", f"Redis.from_url({server.url!r})").rpartition("asyncio.run(")
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "migrating.md", "exec"), space)
    return space


async def test_a_leader_of_the_first_release_works_when_a_copy_of_todays_has_let_go(
    redis: Redis, server: Server
) -> None:
    space, said = _elector_page(server), list[str]()
    space["print"] = said.append
    async with redis.lock("scheduler", timeout=30):
        leading = asyncio.create_task(Elector(redis, "scheduler").run(space["work"]))
        await until(lambda: server.call("EXISTS", "aioelect:{scheduler}") == 1)
        await asyncio.sleep(0.3)  # three times as long as it sleeps between two tries
        assert not said
    await leading
    assert said == ["looking for due jobs"]
    assert server.call("EXISTS", "scheduler") == 0
    await space["redis"].aclose()


async def test_a_leader_of_the_first_release_resigns_when_it_has_lost_the_old_lock(
    redis: Redis, server: Server
) -> None:
    space = _elector_page(server)
    old = redis.lock("scheduler", timeout=30)
    await old.acquire()
    server.call("DEL", "scheduler")
    async with Elector(redis, "scheduler").lead() as term:
        await asyncio.wait_for(space["prolong"](term, old), 5)  # its ticks end with the term
    assert not term.is_leader
    await space["redis"].aclose()
