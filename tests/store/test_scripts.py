"""The scripts and the native forms: tokens, refusals, rights, and how many round trips they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from aioelect._errors import StoreError, StoreRejected, StoreUnavailable
from aioelect._redis import scripts, wire
from aioelect._redis import store as store_module
from aioelect._redis.refusals import Fault
from aioelect._redis.store import open_store
from aioelect._store import Claim, Contended, Granted, Refused, Released, Renewed, Store
from conftest import Connect, MakeServer
from store.conftest import PASSWORD, a_claim, again, granted
from support.proxy import Proxy
from support.servers import Server, ServerFailed
from support.topologies import start_replica_of
from support.wait import until

LIMIT = 5.0
CLAIM, FENCE = "aioelect:{name}", "aioelect:{name}:fence"

NATIVE = {"redis-8.10": "DELEX", "valkey-9.1": "DELIFEQ"}

ACL = (
    "resetkeys ~aioelect:* resetchannels &aioelect:* -@all +evalsha +eval +get +set +del +pexpire +pttl"
    " +hmget +hset +hget +hincrby +time +publish +subscribe +unsubscribe +ping"
)


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
    proxy.reply(lambda _: True, times=None).delay(0.1)
    claim = a_claim()
    for question in (
        store.acquire(claim, limit=LIMIT),
        store.renew(claim, limit=LIMIT),
        store.release(claim, limit=LIMIT),
    ):
        start = time.monotonic()
        await question
        assert 0.1 <= time.monotonic() - start < 0.19


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


class FakeLink:
    """A link that knows a native form."""

    native: bytes | None = b"DELEX"
    probed = True


class FakeRoute:
    """A server that answers as told."""

    def __init__(self, *answers: list[object]) -> None:
        self.link, self.answers = FakeLink(), list(answers)
        self.asked: list[Sequence[Sequence[bytes]]] = []

    async def exchange(self, key: bytes, commands: Any, deadline: float, /) -> Any:
        """Take down what is asked, and answer."""
        self.asked.append(commands(self.link))
        return self.link, self.answers.pop(0)

    def drop(self, key: bytes, /) -> None:
        """Nothing to drop."""


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
    floors = store_module._Floors(3)
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
    assert record.pop(b"since").isdigit()
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


# -- refusals ---------------------------------------------------------------------------------------------------------


async def refusal(question: Any, kind: type[StoreError], reason: str) -> StoreError:
    """Ask and expect to be refused."""
    with pytest.raises(kind) as caught:
        await question
    error = caught.value
    assert (type(error), error.reason, error.name) == (kind, reason, "name"), str(error)
    assert error.__cause__ is None
    return error


@pytest.mark.leaves_keys("a key without ttl is what it is about")
async def test_p11_a_foreign_key_without_ttl_is_rejected(any_server: Server, store: Store) -> None:
    any_server.call("SET", CLAIM, "theirs")
    error = await refusal(store.acquire(a_claim(), limit=LIMIT), StoreRejected, "foreign key")
    assert "delete it, or choose another name or prefix" in str(error)
    assert any_server.call("GET", CLAIM) == b"theirs"


async def test_a_foreign_key_with_a_ttl_is_somebody_s_claim(any_server: Server, store: Store) -> None:
    any_server.call("SET", CLAIM, "theirs", "PX", 9000)
    answer = await store.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended)
    assert (answer.holder.identity, answer.holder.token) == (None, None)


async def test_our_own_old_record_is_not_told_as_the_holder(any_server: Server, store: Store) -> None:
    claim = a_claim()
    await granted(store, claim)
    any_server.call("SET", CLAIM, "theirs", "PX", 9000)
    answer = await store.renew(claim, limit=LIMIT)
    assert isinstance(answer, Refused)
    assert answer.holder is not None
    assert (answer.holder.identity, answer.holder.token) == (None, None)
    assert answer.holder.remaining == pytest.approx(9.0, abs=0.5)


@pytest.mark.leaves_keys("the wrong type has no ttl")
@pytest.mark.parametrize("key", [CLAIM, FENCE])
async def test_p11_a_key_of_the_wrong_type_is_rejected_before_anything_is_written(
    any_server: Server, store: Store, key: str
) -> None:
    any_server.call("LPUSH", key, "x")
    error = await refusal(store.acquire(a_claim(), limit=LIMIT), StoreRejected, "wrongtype")
    assert not error.passing  # type: ignore[attr-defined]
    assert any_server.call("DBSIZE") == 1


@pytest.mark.leaves_keys("the wrong type has no ttl")
async def test_a_record_of_the_wrong_type_does_not_hide_that_a_name_is_held(any_server: Server, store: Store) -> None:
    await granted(store, a_claim())
    any_server.call("DEL", FENCE)
    any_server.call("LPUSH", FENCE, "x")
    answer = await store.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended)
    assert answer.holder.token is None
    assert answer.holder.remaining is not None


async def test_p11_a_full_server_renews_and_releases_but_grants_nothing(
    any_server: Server, make_server: MakeServer, connect: Connect
) -> None:
    server = make_server(binary=any_server.binary)
    store = open_store(connect(server), "aioelect")
    held = a_claim("held")
    await granted(store, held)
    server.call("CONFIG", "SET", "maxmemory", "1")
    claim = a_claim()
    error = await refusal(store.acquire(claim, limit=LIMIT), StoreRejected, "oom")
    assert error.passing  # type: ignore[attr-defined]
    assert server.call("EXISTS", CLAIM, FENCE) == 0
    assert await store.renew(held, limit=LIMIT) == Renewed()
    assert await store.release(held, limit=LIMIT) == Released(0)
    server.call("CONFIG", "SET", "maxmemory", "0")
    await granted(store, claim)


async def test_p11_too_few_replicas_is_a_refusal_that_passes(
    any_server: Server, make_server: MakeServer, connect: Connect
) -> None:
    server = make_server(binary=any_server.binary, min_replicas_to_write=1)
    store = open_store(connect(server), "aioelect")
    error = await refusal(store.acquire(a_claim(), limit=LIMIT), StoreRejected, "noreplicas")
    assert error.passing  # type: ignore[attr-defined]
    server.call("CONFIG", "SET", "min-replicas-to-write", "0")
    await granted(store, a_claim())


async def test_p11_a_disk_that_fails_is_a_refusal_that_passes(
    any_server: Server, make_server: MakeServer, connect: Connect
) -> None:
    server = make_server(binary=any_server.binary, save="3600 1", dbfilename="taken")
    (server.folder / "taken").mkdir()
    server.call("BGSAVE")
    await until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
    store = open_store(connect(server), "aioelect")
    error = await refusal(store.acquire(a_claim(), limit=LIMIT), StoreRejected, "misconf")
    assert error.passing  # type: ignore[attr-defined]


async def test_p11_a_replica_is_unavailable_and_its_connections_are_dropped(
    any_server: Server, make_server: MakeServer, connect: Connect
) -> None:
    master = make_server(binary=any_server.binary)
    replica = start_replica_of(master)
    try:
        store = open_store(connect(replica), "aioelect")
        await refusal(store.acquire(a_claim(), limit=LIMIT), StoreUnavailable, "readonly")
        replica.call("REPLICAOF", "NO", "ONE")
        await granted(store, a_claim())
        master.kill()
        replica.call("REPLICAOF", "127.0.0.1", master.port)
        replica.call("CONFIG", "SET", "replica-serve-stale-data", "no")
        await refusal(store.acquire(a_claim(), limit=LIMIT), StoreUnavailable, "masterdown")
    finally:
        replica.close()


async def test_p11_a_server_that_is_loading_is_unavailable(
    any_server: Server, make_server: MakeServer, connect: Connect
) -> None:
    server = make_server(binary=any_server.binary, key_load_delay=400, rdbcompression="no")
    script = "for i = 1, 5000 do redis.call('SET', 'k' .. i, string.rep('x', 4000), 'PX', 600000) end"
    server.call("EVAL", script, 0)
    store = open_store(connect(server), "aioelect")
    await granted(store, a_claim())
    server.save()
    server.kill()
    server._spawn()  # `start` would wait until it has loaded
    for _ in range(1000):
        try:
            server.call("PING", limit=0.5)
        except ServerFailed:
            break
        except OSError:
            await asyncio.sleep(0.005)
    await refusal(store.acquire(a_claim(), limit=LIMIT), StoreUnavailable, "loading")


async def test_p11_a_server_busy_with_a_script_is_unavailable(
    any_server: Server, make_server: MakeServer, connect: Connect
) -> None:
    server = make_server(binary=any_server.binary, lua_time_limit=50)
    store = open_store(connect(server), "aioelect")
    await granted(store, a_claim("warm"))
    script = connect(server).eval("while true do end", 0)
    running = asyncio.ensure_future(script)
    await asyncio.sleep(0.1)
    await refusal(store.acquire(a_claim(), limit=LIMIT), StoreUnavailable, "busy")
    server.call("SCRIPT", "KILL")
    await asyncio.wait([running])
    running.exception()
    await granted(store, a_claim())


async def test_p11_a_refused_connection_is_unavailable_at_once(make_server: MakeServer, connect: Connect) -> None:
    server = make_server()
    store = open_store(connect(server), "aioelect")
    server.kill()
    start = time.monotonic()
    await refusal(store.acquire(a_claim(), limit=LIMIT), StoreUnavailable, "connection")
    assert time.monotonic() - start < 1.0


async def test_p11_a_server_with_too_many_clients_is_unavailable(make_server: MakeServer, connect: Connect) -> None:
    server = make_server(maxclients=2)
    first, second = connect(server), connect(server)
    await first.ping()
    await second.ping()
    store = open_store(connect(server, client_name="third"), "aioelect")
    await refusal(store.acquire(a_claim(), limit=LIMIT), StoreUnavailable, "connection")
    await first.aclose()
    await second.aclose()
    await until(lambda: server.info("clients")["connected_clients"] == "1")
    await granted(store, a_claim())


async def test_p11_a_server_without_scripts_is_rejected(
    any_server: Server, make_server: MakeServer, connect: Connect
) -> None:
    server = make_server('rename-command EVALSHA ""', binary=any_server.binary)
    store = open_store(connect(server), "aioelect")
    claim = a_claim()
    error = await refusal(store.acquire(claim, limit=LIMIT), StoreRejected, "unknown command")
    assert "EVALSHA" in str(error)
    assert claim.owner[:8] not in str(error)


# -- rights -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def restricted(any_server: Server, make_server: MakeServer, connect: Connect) -> Any:
    """Make a store whose server user has just these rights."""
    server = make_server(binary=any_server.binary)

    def make(rights: str) -> Store:
        server.call("ACL", "SETUSER", "app", "reset", "on", f">{PASSWORD}", *rights.split())
        return open_store(connect(server, username="app", password=PASSWORD), "aioelect")

    return make


async def full_round(store: Store) -> None:
    """Use all that there is."""
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    claim = a_claim()
    await granted(store, claim)
    assert await watch.next(1.0) is not None
    assert isinstance(await store.acquire(a_claim(), limit=LIMIT), Contended)
    await granted(store, claim)
    assert await store.renew(claim, limit=LIMIT) == Renewed()
    assert await store.release(claim, limit=LIMIT) == Released(0)
    await granted(store, claim)
    assert await store.release(claim, keep=1.0, limit=LIMIT) == Released(0)
    watch.close()


async def test_the_documented_rights_are_enough(restricted: Any) -> None:
    await full_round(restricted(ACL))


@pytest.mark.parametrize("word", [word for word in ACL.split() if word.startswith("+")][:-2])
async def test_none_of_the_documented_rights_is_idle(restricted: Any, word: str) -> None:
    # The last two, UNSUBSCRIBE and PING, are needed after a while only.
    store = restricted(f"{ACL} ".replace(f" {word} ", " "))
    with pytest.raises((StoreRejected, AssertionError)):
        await full_round(store)


async def test_p10_without_channel_rights_all_works_but_the_notices(
    restricted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = restricted(ACL.replace("&aioelect:*", "").replace("+publish", ""))
    claim = a_claim()
    watches = [store.watch(name) for name in ("name", "another")]
    assert [await watch.ready(LIMIT) for watch in watches] == [False, False]
    await granted(store, claim)
    assert await store.release(claim, limit=LIMIT) == Released(0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "may not subscribe" in caplog.text
    for watch in watches:
        watch.close()


@pytest.mark.parametrize("lacking", ["+evalsha", "+set", "+get", "+hset", "~aioelect:*"])
async def test_p11_a_missing_right_is_rejected_and_leaves_no_claim(restricted: Any, lacking: str) -> None:
    store = restricted(ACL.replace(lacking, ""))
    claim = a_claim()
    error = await refusal(store.acquire(claim, limit=LIMIT), StoreRejected, "noperm")
    assert "lacks a permission" in str(error)
    assert claim.owner not in str(error)
    assert await restricted(ACL).release(claim, limit=LIMIT) == Refused(None)


async def test_p11_a_wrong_password_is_rejected_at_once(
    any_server: Server, make_server: MakeServer, connect: Connect
) -> None:
    server = make_server(binary=any_server.binary, requirepass=PASSWORD)
    wrong = open_store(connect(server, password=PASSWORD[::-1]), "aioelect")
    error = await refusal(wrong.acquire(a_claim(), limit=LIMIT), StoreRejected, "wrongpass")
    assert PASSWORD[::-1] not in str(error)
    none = open_store(connect(server), "aioelect")
    await refusal(none.acquire(a_claim(), limit=LIMIT), StoreRejected, "noauth")
    await granted(open_store(connect(server, password=PASSWORD), "aioelect"), a_claim())


async def test_p12_an_owner_value_never_gets_into_an_error(restricted: Any) -> None:
    # Redis repeats the arguments of a command that it does not know.
    claim = a_claim()
    for text in (
        f"unknown command `X`, with args beginning with: `{claim.owner}`, ",
        f"some proxy's own words about '{claim.owner}'",
    ):
        with pytest.raises(StoreRejected) as caught, store_module._explained(claim, wire.keys_of("p", "name")):
            await scripts.renew(FakeRoute([Fault("ERR", text)]), wire.keys_of("p", "name"), claim, 1e9)  # type: ignore[arg-type]
        error: BaseException | None = caught.value
        while error is not None:
            assert claim.owner not in f"{error} {error!r} {error.args}"
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        1,
        b"OK",
        [],
        [1],
        [1, 5],
        [1, b"x"],
        [2, b"5"],
        [b"1", b"5"],
        [0],
        [0, b"5"],
        [0, 1],
        "1",
        [[1, b"5"]],
        True,
    ],
)
async def test_p11_only_a_clear_yes_is_a_win(reply: object) -> None:
    claim = a_claim()
    with pytest.raises(wire.Malformed):
        wire.acquire_reply(reply, claim)


def test_replies_of_a_newer_version_are_understood() -> None:
    claim = Claim("name", "owner", "me", 1.0, 1.0)
    assert wire.acquire_reply([1, b"5", b"more"], claim) == Granted(5)
    assert isinstance(wire.acquire_reply([0, 500, b"5", b"them", b"id", b"more"], claim), Contended)
    assert wire.renew_reply([1, b"more"], claim) == Renewed()
    assert wire.release_reply([1, 2, b"more"], claim, 0) == Released(2)
