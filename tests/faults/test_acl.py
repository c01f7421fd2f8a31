"""P10, P11: server users with few rights. The documented line is enough; what is missing is told at acquire."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aioelect import AcquireTimeout, Elector, FencedLock, Lease, ReleaseOutcome, StoreRejected, Term, aclose
from aioelect._redis import notices
from conftest import Connect
from support.servers import Binary, Server
from support.wait import until

pytestmark = pytest.mark.faults

DOCUMENTED = Path(__file__).parents[2] / "docs" / "acl.txt"
USER, PASSWORD = "aioelect", "PASSWORD"


def documented_line() -> list[str]:
    """The words of the documented ACL SETUSER line."""
    return next(line for line in DOCUMENTED.read_text().splitlines() if line.startswith("ACL SETUSER ")).split()


def native(binary: Binary) -> list[str]:
    """What the documentation adds for the native release."""
    if binary.is_valkey:
        return ["+delifeq"] if binary.version >= (9, 0, 0) else []
    return ["+delex"] if binary.version >= (8, 4, 0) else []


def set_user(server: Server, *changes: str, without: str = "") -> None:
    """Make the documented user anew, with some words more or one less."""
    words = [word for word in documented_line() if word != without]
    server.call("ACL", "DELUSER", USER)
    server.call(*words, *changes)


@pytest.fixture
async def guarded(any_server: Server) -> AsyncIterator[Server]:
    """Each server, without users of ours afterwards."""
    any_server.call("ACL", "LOG", "RESET")
    yield any_server
    any_server.call("ACL", "DELUSER", USER)
    any_server.call("SCRIPT", "FLUSH")


@pytest.fixture
async def login(connect: Connect) -> AsyncIterator[Callable[..., Redis]]:
    """Make clients of the documented user; nothing of theirs is left open."""
    clients: list[Redis] = []

    def make(server: Server, **options: object) -> Redis:
        clients.append(connect(server, username=USER, password=PASSWORD, **options))
        return clients[-1]

    yield make
    for client in clients:
        await aclose(client)


async def use_everything(here: Redis, there: Redis) -> None:
    """Acquire, be refused, renew, wait and be told, release, lead, follow; `there` is on another machine."""
    async with FencedLock(here, "name", ttl=20, wait=5) as term:
        await term.renew()
        with pytest.raises(AcquireTimeout):
            async with FencedLock(there, "name", wait=0.1):
                pytest.fail("it is held")
        waiting = asyncio.create_task(acquire_and_release(there))
        await asyncio.sleep(0.1)
    await asyncio.wait_for(waiting, 4)  # long before the ttl: told
    unrenewed = await Lease(here, "name").try_acquire()
    assert unrenewed is not None
    assert await Lease(there, "name").try_acquire() is None
    assert await unrenewed.release() is ReleaseOutcome.RELEASED
    assert await Elector(here, "election").run(token_of) > 0


async def acquire_and_release(redis: Redis) -> None:
    async with FencedLock(redis, "name", ttl=20, wait=30):
        pass


async def token_of(term: Term) -> int:
    await term.renew()
    return term.token


async def test_p11_the_documented_line_is_enough_and_nothing_that_is_sent_is_denied(
    guarded: Server,
    login: Callable[..., Redis],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # So that a subscription's whole life is seen.
    monkeypatch.setattr(notices, "_LINGER", 0.05)
    monkeypatch.setattr(notices, "_PING", 0.05)
    guarded.call("SCRIPT", "FLUSH")  # a cold server
    set_user(guarded, *native(guarded.binary))
    await use_everything(login(guarded), login(guarded, unix=True))
    channel = "aioelect:{name}:events"
    await until(lambda: guarded.call("PUBSUB", "NUMSUB", channel) == [channel.encode(), 0])
    await asyncio.sleep(0.1)
    assert guarded.call("ACL", "LOG") == []
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_p12_without_the_native_command_the_release_is_done_by_the_script(
    guarded: Server, login: Callable[..., Redis], caplog: pytest.LogCaptureFixture
) -> None:
    set_user(guarded)
    await use_everything(login(guarded), login(guarded, unix=True))
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_p12_a_native_command_that_is_withdrawn_later_is_replaced_by_the_script(
    guarded: Server, login: Callable[..., Redis]
) -> None:
    set_user(guarded, *native(guarded.binary))
    redis = login(guarded)
    for _ in range(3):
        async with FencedLock(redis, "name"):
            guarded.call("ACL", "SETUSER", USER, *(word.replace("+", "-") for word in native(guarded.binary)))
        assert guarded.call("EXISTS", "aioelect:{name}") == 0


NEEDED_TO_ACQUIRE = [
    "+evalsha",
    "+eval",
    "+get",
    "+set",
    "+pttl",
    "+pexpire",
    "+hmget",
    "+hset",
    "+time",
]
NEEDED_LATER = ["+del", "+publish", "+subscribe", "+unsubscribe", "+ping"]
NEEDED_TO_LIST_CANDIDATES = ["+zadd", "+zrem", "+zrangebyscore", "+zremrangebyscore", "+zremrangebyrank"]


def test_p11_the_documented_line_holds_no_word_that_is_not_accounted_for() -> None:
    words = [word for word in documented_line() if word.startswith("+")]
    assert sorted(words) == sorted(NEEDED_TO_ACQUIRE + NEEDED_LATER + NEEDED_TO_LIST_CANDIDATES)


async def test_p11_any_missing_command_is_told_at_acquire_and_leaves_no_claim(
    guarded: Server, login: Callable[..., Redis]
) -> None:
    guarded.call("SET", "aioelect:{held}", "another's", "PX", 60_000)
    for word in NEEDED_TO_ACQUIRE:
        guarded.call("SCRIPT", "FLUSH")
        set_user(guarded, without=word)
        redis = login(guarded)
        attempts: list[Callable[[], Awaitable[object]]] = [
            Lease(redis, "name").try_acquire,
            lambda redis=redis: acquire_and_release(redis),  # type: ignore[misc]
            lambda redis=redis: Elector(redis, "name").run(token_of),  # type: ignore[misc]
        ]
        if word == "+pttl":  # asked only of a key that is held
            attempts = [Lease(redis, "held").try_acquire]
        for attempt in attempts:
            with pytest.raises(StoreRejected, match="grant what the documented ACL line lists") as caught:
                await asyncio.wait_for(attempt(), 5)
            assert (caught.value.reason, caught.value.passing) == ("noperm", False)
            assert caught.value.name in ("name", "held")
            assert word[1:] in str(caught.value) or guarded.binary.version < (7, 0, 0)
            assert guarded.call("EXISTS", "aioelect:{name}") == 0
        await aclose(redis)


async def test_p6_without_the_right_to_delete_the_claim_is_left_to_its_ttl_and_that_is_said(
    guarded: Server, login: Callable[..., Redis], caplog: pytest.LogCaptureFixture
) -> None:
    set_user(guarded, without="+del")
    term = await Lease(login(guarded), "name", ttl=0.5).try_acquire()
    assert term is not None
    assert await term.release() is ReleaseOutcome.UNKNOWN
    assert [record.levelname for record in caplog.records if "ends with its ttl" in record.message] == ["WARNING"]
    assert "grant what the documented ACL line lists" in caplog.text
    await until(lambda: guarded.call("EXISTS", "aioelect:{name}") == 0)


async def test_p11_a_wrong_prefix_is_told_at_acquire(guarded: Server, login: Callable[..., Redis]) -> None:
    set_user(guarded)
    redis = login(guarded)
    for attempt in (
        Lease(redis, "name", prefix="other").try_acquire(),
        Elector(redis, "name", prefix="other").run(token_of),
    ):
        with pytest.raises(StoreRejected, match="grant what the documented ACL line lists") as caught:
            await asyncio.wait_for(attempt, 5)
        assert caught.value.reason == "noperm"
    assert guarded.call("KEYS", "other*") == []
    # The line for another prefix is the same with other patterns.
    set_user(guarded, "resetkeys", "~other:*", "resetchannels", "&other:*")
    assert await Elector(login(guarded, unix=True), "name", prefix="other").run(token_of) > 0


async def test_p10_without_channel_rights_waiting_is_polling_with_one_warning(
    guarded: Server, login: Callable[..., Redis], caplog: pytest.LogCaptureFixture
) -> None:
    set_user(guarded, "resetchannels")
    here, there = login(guarded), login(guarded, unix=True)
    for turn in range(2):
        term = await Lease(here, f"name-{turn}", ttl=20).try_acquire()
        assert term is not None
        waiting = asyncio.create_task(wait_for(there, f"name-{turn}"))
        await asyncio.sleep(0.3)
        await term.release()
        # The poll limit is ttl/10 where notices are not to be had.
        await asyncio.wait_for(waiting, 3)
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "may not subscribe" in warnings[0]


async def wait_for(redis: Redis, name: str) -> None:
    async with FencedLock(redis, name, ttl=5, wait=30):
        pass
