"""The one subscription: shared, confirmed, lost and found again, and never anybody's error."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from redis.asyncio import Redis

from aioelect._redis import notices, wire
from aioelect._redis.runtime import runtime_of
from aioelect._redis.store import RedisStore, open_store
from aioelect._store import Holder, Notice, NoticeKind, Released, Store
from conftest import Connect, MakeServer
from store.conftest import a_claim, granted
from support.proxy import Proxy
from support.servers import Server
from support.wait import until

LIMIT = 5.0


@pytest.fixture
def store(proxy: Proxy, connect: Connect) -> RedisStore:
    """Make a store behind the proxy."""
    store = open_store(connect(proxy), "aioelect")
    assert isinstance(store, RedisStore)
    return store


@pytest.fixture
def other(redis: Redis) -> Store:
    """Make another participant's store, past the proxy."""
    return open_store(redis, "aioelect")


async def test_p10_there_is_one_subscription_for_all_names(store: RedisStore, proxy: Proxy) -> None:
    watches = [store.watch(f"name-{n % 10}") for n in range(50)]
    assert all([await watch.ready(LIMIT) for watch in watches])
    assert proxy.accepted == 1
    assert proxy.names() == ["SUBSCRIBE"] * 10
    for watch in watches:
        watch.close()


async def test_a_second_watch_of_a_name_is_live_at_once(store: RedisStore) -> None:
    first = store.watch("name")
    assert await first.ready(LIMIT)
    second = store.watch("name")
    assert second.live
    first.close()
    assert second.live
    second.close()


async def test_a_watch_that_follows_soon_finds_the_channel_still_open(store: RedisStore, proxy: Proxy) -> None:
    first = store.watch("name")
    assert await first.ready(LIMIT)
    first.close()
    second = store.watch("name")
    assert second.live
    assert proxy.names() == ["SUBSCRIBE"]
    second.close()


async def test_what_nobody_watches_is_left_after_a_while_and_the_connection_closed(
    store: RedisStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_LINGER", 0.05)
    monkeypatch.setattr(notices, "_IDLE", 0.1)
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    watch.close()
    await until(lambda: proxy.names() == ["SUBSCRIBE", "UNSUBSCRIBE"])
    await until(lambda: not proxy.connections)
    again = store.watch("name")
    assert await again.ready(LIMIT)
    again.close()


async def test_a_watch_that_comes_while_the_channel_is_left_joins_it_again(
    store: RedisStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_LINGER", 0.02)
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    rule = proxy.reply("UNSUBSCRIBE").hold()
    watch.close()
    await rule.reached()
    late = store.watch("name")
    assert not late.live
    rule.release()
    assert await late.ready(LIMIT)
    late.close()


async def test_p10_after_a_reconnect_each_watch_gets_a_resync(store: RedisStore, other: Store, proxy: Proxy) -> None:
    watches = [store.watch("name"), store.watch("name"), store.watch("another")]
    assert all([await watch.ready(LIMIT) for watch in watches])
    proxy.cut()
    await until(lambda: not watches[0].live)
    await granted(other, a_claim())  # nobody hears of it
    for watch in watches:
        assert await watch.next(LIMIT) == Notice(NoticeKind.RESYNC)
        assert watch.live
    assert await watches[0].next(0.02) is None
    for watch in watches:
        watch.close()


async def test_p10_who_was_ready_from_the_start_gets_no_resync(store: RedisStore) -> None:
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    assert await watch.next(0.05) is None
    watch.close()


async def test_p10_who_could_not_wait_for_the_confirmation_gets_a_resync_with_it(
    store: RedisStore, proxy: Proxy
) -> None:
    rule = proxy.reply("SUBSCRIBE").hold()
    watch = store.watch("name")
    assert not await watch.ready(0.05)
    rule.release()
    assert await watch.next(LIMIT) == Notice(NoticeKind.RESYNC)
    assert watch.live
    watch.close()


async def test_p10_a_server_that_is_away_is_one_warning_at_the_start_and_one_at_the_end(
    make_server: MakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    store = open_store(connect(server), "aioelect")
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    server.kill()
    await until(lambda: not watch.live)
    assert not await watch.ready(0.6)
    await server.astart()
    assert await watch.ready(LIMIT)
    watch.close()
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert warnings[0].startswith("notices do not arrive, names are polled meanwhile: no connection")
    assert warnings[1] == "notices arrive again"


async def test_a_single_drop_that_mends_is_no_warning(
    store: RedisStore, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    proxy.cut()
    assert await watch.next(LIMIT) == Notice(NoticeKind.RESYNC)
    watch.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_silent_connection_is_found_out(
    store: RedisStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_PING", 0.05)
    monkeypatch.setattr(notices, "_ANSWER", 0.1)
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    await until(lambda: proxy.names("PING"))
    proxy.black_hole(0)
    await until(lambda: not watch.live)
    assert await watch.next(LIMIT) == Notice(NoticeKind.RESYNC)
    watch.close()


async def test_nobody_watches_and_the_server_is_away_ends_the_attempts(
    make_server: MakeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_LINGER", 0.05)
    server = make_server()
    store = open_store(connect(server), "aioelect")
    assert isinstance(store, RedisStore)
    server.kill()
    watch = store.watch("name")
    assert not await watch.ready(0.1)
    watch.close()
    runner = runtime_of(store._origin).notices._runner
    assert runner is not None
    await until(runner.done)


async def test_subscription_trouble_does_not_touch_a_call(store: RedisStore, proxy: Proxy) -> None:
    proxy.request("SUBSCRIBE", times=None).cut()
    watch = store.watch("name")
    start = time.monotonic()
    assert not await watch.ready(0.1)
    assert time.monotonic() - start < 0.2
    await granted(store, a_claim())
    watch.close()


async def test_p10_our_own_subscription_is_not_counted_even_if_nobody_watches_any_more(store: RedisStore) -> None:
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    watch.close()
    claim = a_claim()
    await granted(store, claim)
    assert await store.release(claim, limit=LIMIT) == Released(0)


async def test_a_message_that_is_not_understood_says_to_look(any_server: Server, redis: Redis) -> None:
    store = open_store(redis, "aioelect")
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    any_server.call("PUBLISH", "aioelect:{name}:events", "2 something new")
    assert await watch.next(LIMIT) == Notice(NoticeKind.RESYNC)
    watch.close()


@pytest.mark.parametrize(
    ("payload", "notice"),
    [
        (b"1 acquired 7 ab 1500 some one", Notice(NoticeKind.ACQUIRED, Holder("some one", 7, "ab", 1.5))),
        (b"1 acquired 7 ab 1500 ", Notice(NoticeKind.ACQUIRED, Holder("", 7, "ab", 1.5))),
        (b"1 released - ab some  one", Notice(NoticeKind.RELEASED, Holder("some  one", None, "ab", None))),
        (b"1 released 7 ab", Notice(NoticeKind.RELEASED, Holder(None, 7, "ab", None))),
        (b"1 acquired 7 ab x who", Notice(NoticeKind.RESYNC)),
        (b"1 acquired 7 ab " + b"9" * 5000 + b" who", Notice(NoticeKind.RESYNC)),
        (b"1 acquired " + b"9" * 5000 + b" ab 5 me", Notice(NoticeKind.ACQUIRED, Holder("me", None, "ab", 0.005))),
        (b"1 acquired", Notice(NoticeKind.RESYNC)),
        (b"2 acquired 7 ab 1500 me", Notice(NoticeKind.RESYNC)),
        (b"", Notice(NoticeKind.RESYNC)),
        (None, Notice(NoticeKind.RESYNC)),
        (b"\xff\xfe", Notice(NoticeKind.RESYNC)),
    ],
)
def test_payloads(payload: bytes | None, notice: Notice) -> None:
    assert wire.parse_notice(payload) == notice


async def test_many_names_are_watched_over_a_slow_line(store: RedisStore, proxy: Proxy) -> None:
    proxy.reply("SUBSCRIBE", times=None).delay(0.05)
    start = time.monotonic()
    watches = [store.watch(f"name-{n}") for n in range(300)]
    assert all(await asyncio.gather(*(watch.ready(LIMIT) for watch in watches)))
    assert time.monotonic() - start < 2.0
    for watch in watches:
        watch.close()
