"""Every way in which the server refuses, what becomes of it, and the rights that are needed."""

from __future__ import annotations

import asyncio
import contextlib
import time
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
from store.conftest import PASSWORD, FakeRoute, a_claim, granted
from support.servers import Server, ServerFailed
from support.topologies import start_replica_of
from support.wait import until

LIMIT = 5.0
CLAIM, FENCE = "aioelect:{name}", "aioelect:{name}:fence"

ACL = (
    "resetkeys ~aioelect:* resetchannels &aioelect:* -@all +evalsha +eval +get +set +del +pexpire +pttl"
    " +hmget +hset +time +publish +subscribe +unsubscribe +ping"
)


@pytest.fixture
def store(redis: Redis) -> Store:
    """A store on the test's server; the client's fixture closes what it opens."""
    return open_store(redis, "aioelect")


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

    async def served() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return bool(await granted(store, a_claim()))
        return False

    await until(served)


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
        with (
            pytest.raises(StoreRejected) as caught,
            store_module.explained(claim.name, wire.keys_of("p", "name"), claim.owner),
        ):
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
