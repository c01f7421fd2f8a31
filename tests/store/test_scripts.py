"""The scripts and the native forms: tokens, records, and how many round trips they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aioelect._errors import StoreRejected
from aioelect._floors import Floors
from aioelect._redis import scripts, wire
from aioelect._redis.refusals import Fault
from aioelect._redis.store import open_store
from aioelect._store import Contended, Refused, Released, Renewed, Store
from conftest import Connect
from store.conftest import FakeRoute, a_claim, again, granted
from support.proxy import Proxy
from support.servers import Server

LIMIT = 5.0
CLAIM, FENCE = "aioelect:{name}", "aioelect:{name}:fence"

NATIVE = {"redis-8.10": "DELEX", "valkey-9.1": "DELIFEQ"}


@pytest.fixture
def store(redis: Redis) -> Store:
    """A store on the test's server; the client's fixture closes what it opens."""
    return open_store(redis, "aioelect")


# -- round trips ------------------------------------------------------------------------------------------------------


async def test_each_question_takes_one_round_trip(any_server: Server, proxy: Proxy, connect: Connect) -> None:
    store = open_store(connect(proxy), "aioelect")
    warm = a_claim("warm")
    await granted(store, warm)
    await store.renew(warm, limit=LIMIT)
    await store.release(warm, limit=LIMIT)
    proxy.reply(lambda _: True, times=None).delay(0.4)
    claim = a_claim()
    for question in (
        store.acquire(claim, limit=LIMIT),
        store.renew(claim, limit=LIMIT),
        store.release(claim, limit=LIMIT),
    ):
        start = time.monotonic()
        await question
        assert 0.4 <= time.monotonic() - start < 0.8


async def test_what_is_asked_at_once_shares_a_round_trip(any_server: Server, proxy: Proxy, connect: Connect) -> None:
    store = open_store(connect(proxy), "aioelect")
    await granted(store, a_claim("warm"))
    accepted = proxy.accepted
    proxy.reply(lambda command: command.args[-1] != b"x", nth=1).delay(0.1)
    start = time.monotonic()
    await asyncio.gather(*(granted(store, a_claim(f"name-{n}")) for n in range(500)))
    assert time.monotonic() - start < 1.0
    assert proxy.accepted <= accepted + 1  # the spare


async def test_p11_a_script_that_is_not_known_goes_with_its_body_in_the_same_call(
    any_server: Server, proxy: Proxy, connect: Connect
) -> None:
    store = open_store(connect(proxy), "aioelect")
    any_server.call("SCRIPT", "FLUSH")
    claim = a_claim()
    await granted(store, claim)
    any_server.call("SCRIPT", "FLUSH")
    assert await store.renew(claim, limit=LIMIT) == Renewed()
    assert await store.renew(claim, limit=LIMIT) == Renewed()
    assert proxy.names("EVALSHA", "EVAL", "SCRIPT") == ["EVALSHA", "EVAL", "EVALSHA", "EVAL", "EVALSHA"]


async def test_p12_the_native_release_is_used_where_the_server_has_it(
    any_server: Server, proxy: Proxy, connect: Connect
) -> None:
    store = open_store(connect(proxy), "aioelect")
    await granted(store, a_claim("warm"))
    claim = a_claim()
    await granted(store, claim)
    before = len(proxy.commands)
    assert await store.release(claim, limit=LIMIT) == Released(0)
    native = NATIVE.get(any_server.binary.key)
    if native:
        assert proxy.names()[before:] == [native, "PUBLISH"]
    else:
        assert set(proxy.names()[before:]) <= {"EVALSHA", "EVAL"}


async def test_p12_what_was_tried_is_done_once_per_connection_and_changes_nothing(
    any_server: Server, proxy: Proxy, connect: Connect
) -> None:
    store = open_store(connect(proxy), "aioelect")
    claim = a_claim()
    token = await granted(store, claim)
    assert await granted(store, claim) == token
    await store.renew(claim, limit=LIMIT)
    tried = [command for command in proxy.commands if command.name in NATIVE.values()]
    assert [command.name for command in tried] == ["DELEX", "DELIFEQ"]
    assert claim.owner.encode() not in [word for command in tried for word in command.args]


async def test_p12_a_connection_made_anew_asks_anew(any_server: Server, proxy: Proxy, connect: Connect) -> None:
    store = open_store(connect(proxy), "aioelect")
    claim = a_claim()
    await granted(store, claim)
    proxy.cut()
    await asyncio.sleep(0.02)
    await store.renew(claim, limit=LIMIT)
    assert proxy.names("DELEX") == ["DELEX", "DELEX"]


async def test_p6_the_native_release_knows_gone_from_another_s(store: Store, other_client: Store) -> None:
    mine, theirs = a_claim(ttl=0.1), a_claim(identity="them")
    await granted(store, mine)
    await asyncio.sleep(0.12)
    assert await store.release(mine, limit=LIMIT) == Refused(None)
    await granted(other_client, theirs)
    answer = await store.release(mine, limit=LIMIT)
    assert isinstance(answer, Refused)
    assert answer.holder is not None and answer.holder.identity == "them"
    assert await other_client.renew(theirs, limit=LIMIT) == Renewed()


@pytest.fixture
def other_client(the_server: Server, connect: Connect) -> Store:
    """Another participant."""
    return open_store(connect(the_server, client_name="other"), "aioelect")


async def test_p12_a_native_form_that_has_gone_is_replaced_by_the_script_in_the_same_call() -> None:
    claim = a_claim()
    echo = Fault("ERR", f"unknown command 'DELEX', with args beginning with: 'k' 'IFEQ' '{claim.owner}'")
    route = FakeRoute([echo, 0], [[1, 3]])
    answer = await scripts.release(route, wire.keys_of("p", "name"), claim, 0.0, 1e9, 1)  # type: ignore[arg-type]
    assert answer == Released(2)
    assert [commands[0][0] for commands in route.asked] == [b"DELEX", b"EVALSHA"]
    assert route.link.native is None


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [2**53, 2**53 + 1, 2**60 + 1, 2**63 - 3])
async def test_p9_tokens_are_exact_beyond_2_to_the_53(any_server: Server, store: Store, last: int) -> None:
    any_server.call("HSET", FENCE, "token", last)
    assert await granted(store, a_claim()) == last + 1


@pytest.mark.parametrize("last", [2**63 - 1, 2**63 - 2 + 1, 10**19, 10**30])
async def test_p9_a_token_that_leaves_no_room_is_refused_before_anything_is_written(
    any_server: Server, store: Store, last: int
) -> None:
    any_server.call("HSET", FENCE, "token", last)
    any_server.call("PEXPIRE", FENCE, 60000)
    with pytest.raises(StoreRejected, match="no room for a higher one") as caught:
        await store.acquire(a_claim(), limit=LIMIT)
    assert (caught.value.name, caught.value.passing) == ("name", False)
    assert any_server.call("EXISTS", CLAIM) == 0
    assert any_server.call("HKEYS", FENCE) == [b"token"]


@pytest.mark.parametrize("garbage", ["", "abc", "-5", "1e3", "007", "1.5", " 7", "9" * 5 + "x"])
async def test_p9_a_token_that_is_no_number_counts_as_none(any_server: Server, store: Store, garbage: str) -> None:
    any_server.call("HSET", FENCE, "token", garbage, "id", "x")
    assert await granted(store, a_claim()) > 1_600_000_000_000_000


@pytest.mark.parametrize("garbage", ["", "abc", "9" * 19, "9" * 20, "9" * 5000])
async def test_p9_another_s_token_that_is_no_number_is_not_known(
    any_server: Server, store: Store, garbage: str
) -> None:
    await granted(store, a_claim())
    any_server.call("HSET", FENCE, "token", garbage)
    answer = await store.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended)
    assert (answer.holder.identity, answer.holder.token) == ("someone", None)


async def test_p9_tokens_follow_the_server_s_clock(any_server: Server, store: Store) -> None:
    seconds, micros = map(int, any_server.call("TIME"))
    assert 0 < await granted(store, a_claim()) - (seconds * 1_000_000 + micros) < 5_000_000


@pytest.mark.parametrize(
    "loss", [["FLUSHALL"], ["DEL", FENCE], ["HDEL", FENCE, "token"], ["HSET", FENCE, "token", "5"]]
)
async def test_p9_tokens_rise_after_the_counter_was_lost(any_server: Server, store: Store, loss: list[str]) -> None:
    ahead = 2 * 10**15  # the server's clock will be there in some years
    any_server.call("HSET", FENCE, "token", ahead)
    claim = a_claim()
    assert await granted(store, claim) == ahead + 1
    await store.release(claim, limit=LIMIT)
    any_server.call(*loss)
    assert await granted(store, a_claim()) == ahead + 2


async def test_p9_tokens_rise_after_flushall_also_above_another_s(
    any_server: Server, store: Store, other_client: Store, floors: Callable[[], None]
) -> None:
    ahead = 2 * 10**15
    any_server.call("HSET", FENCE, "token", ahead)
    await granted(other_client, a_claim())
    floors()
    assert isinstance(await store.acquire(a_claim(), limit=LIMIT), Contended)
    any_server.call("FLUSHALL")
    assert await granted(store, a_claim()) == ahead + 2


async def test_p9_without_memory_tokens_still_rise_by_the_clock(
    any_server: Server, store: Store, floors: Callable[[], None]
) -> None:
    first = await granted(store, a_claim())
    any_server.call("FLUSHALL")
    floors()
    assert await granted(store, a_claim()) > first


def test_p9_the_memory_of_tokens_is_bounded() -> None:
    floors = Floors(3)
    for name in "abcd":
        floors.saw(name, 7)
    floors.saw("b", 3)
    floors.saw("e", 1)
    assert [floors.get(name) for name in "abcde"] == [0, 7, 0, 7, 1]


async def test_p5_a_record_that_was_lost_meanwhile_is_minted_anew(any_server: Server, store: Store) -> None:
    claim = a_claim()
    first = await granted(store, claim)
    any_server.call("DEL", FENCE)
    second = await granted(store, claim)
    assert second > first
    assert await granted(store, claim) == second


async def test_the_record_describes_the_term_and_outlives_it(any_server: Server, store: Store) -> None:
    claim = a_claim(identity="me", ttl=0.25, retention=60.0)
    token = await granted(store, claim)
    words = any_server.call("HGETALL", FENCE)
    record = dict(zip(words[::2], words[1::2], strict=True))
    assert record.pop(b"since").isdigit() and record.pop(b"info") == b""
    assert record == {b"token": b"%d" % token, b"id": claim.id.encode(), b"identity": b"me", b"ttl": b"250"}
    assert 59_000 < any_server.call("PTTL", FENCE) <= 60_000
    await store.renew(again(claim, retention=90.0), limit=LIMIT)
    assert 89_000 < any_server.call("PTTL", FENCE) <= 90_000


async def test_unknown_fields_of_another_version_are_left_alone(any_server: Server, store: Store) -> None:
    any_server.call("HSET", FENCE, "marks", "theirs")
    claim = a_claim()
    await granted(store, claim)
    await store.release(claim, limit=LIMIT)
    assert any_server.call("HGET", FENCE, "marks") == b"theirs"
