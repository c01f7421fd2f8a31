"""Candidates, heirs and requests on real servers: what lies there, what it costs, what may be denied or broken."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aioelect import Elector, aclose, info, observe
from aioelect._redis.store import open_store
from aioelect._store import Candidate, Contended, Granted, Heir, Released, Renewed, RoleStore, Stand, StepDown
from conftest import Connect, MakeServer
from store.conftest import a_claim, again, granted
from support.proxy import Proxy
from support.servers import Server
from support.wait import until

LIMIT = 5.0
KEY = "aioelect:{name}"
DOCUMENTED = Path(__file__).parents[2] / "docs" / "acl.txt"
STAND = Stand(0, "", 10.0, 0.3)


@pytest.fixture
def store(redis: Redis) -> RoleStore:
    """A store on the test's server; the client's fixture closes what it opens."""
    store = open_store(redis, "aioelect")
    assert isinstance(store, RoleStore)
    return store


@pytest.fixture
async def peer(proxy: Proxy, connect: Connect) -> AsyncIterator[Redis]:
    """A client through the proxy, with nothing left open."""
    redis = connect(proxy)
    yield redis
    await aclose(redis)


async def test_candidates_lie_in_one_bounded_key_that_expires(any_server: Server, store: RoleStore) -> None:
    await granted(store, a_claim())
    for number in range(300):
        claim = again(a_claim(identity=f"c{number}"), stand=STAND)
        assert isinstance(await store.acquire(claim, limit=LIMIT), Contended)
    assert any_server.call("TYPE", f"{KEY}:candidates") == b"zset"
    assert any_server.call("ZCARD", f"{KEY}:candidates") == 256
    assert 9000 < any_server.call("PTTL", f"{KEY}:candidates") <= 10000
    found = (await store.describe("name", limit=LIMIT)).candidates
    # Who came in the same millisecond as the oldest one left is kept or not by the order of ids.
    assert len(found) == 256 and {f"c{number}" for number in range(150, 300)} < {c.identity for c in found}
    short = again(a_claim(identity="short"), stand=Stand(0, "", 0.1, 0.1))
    await store.acquire(short, limit=LIMIT)
    assert any_server.call("PTTL", f"{KEY}:candidates") > 9000  # who is listed longer stays as long


@pytest.mark.parametrize("broken", ["candidates", "fence", "members"])
async def test_what_others_wrote_there_is_left_out(any_server: Server, store: RoleStore, broken: str) -> None:
    claim = again(a_claim(), stand=STAND)
    await granted(store, claim)
    if broken == "members":
        any_server.call("ZADD", f"{KEY}:candidates", "9e15", "junk", "9e15", "a b c", "9e15", b"\xff 0 \xff")
        any_server.call("PEXPIRE", f"{KEY}:candidates", 10000)
        for field in ("next", "asked", "info"):
            any_server.call("HSET", f"{KEY}:fence", field, f"{claim.id}")
    else:
        any_server.call("SET", f"{KEY}:{broken}", "junk", "PX", 10000)
    candidate = again(a_claim(identity="late"), stand=STAND)
    assert isinstance(await store.acquire(candidate, limit=LIMIT), Contended)
    if broken != "fence":
        assert await store.renew(claim, limit=LIMIT) == Renewed()
    record = await store.describe("name", limit=LIMIT)
    assert record.holder is not None and not record.asked_to_step_down
    late = (Candidate("late", candidate.id, 0),) if broken != "candidates" else ()
    assert [c for c in record.candidates if c.identity == "late"] == list(late)
    if broken != "fence":
        assert isinstance(await store.release(claim, limit=LIMIT), Released)
        await granted(store, candidate)


async def test_a_full_server_serves_candidates_heirs_and_holders_all_the_same(
    make_server: MakeServer, connect: Connect
) -> None:
    server = make_server()
    store = open_store(connect(server), "aioelect")
    assert isinstance(store, RoleStore)
    claim = again(a_claim(), stand=STAND)
    await granted(store, claim)
    server.call("CONFIG", "SET", "maxmemory", "1")
    assert isinstance(await store.acquire(again(a_claim(), stand=STAND), limit=LIMIT), Contended)
    assert (await store.describe("name", limit=LIMIT)).holder is not None
    assert await store.renew(claim, limit=LIMIT) == Renewed()
    assert isinstance(await store.release(claim, heir=Heir("b", 1.0), limit=LIMIT), Released)


@pytest.mark.leaves_keys("an ACL user is no key, and the claim is released")
async def test_without_the_rights_for_it_nobody_is_listed_and_claims_work(any_server: Server, connect: Connect) -> None:
    line = next(text for text in DOCUMENTED.read_text().splitlines() if text.startswith("ACL SETUSER")).split()
    any_server.call(*[word for word in line if not word.startswith("+z")])
    try:
        redis = connect(any_server, username="aioelect", password="PASSWORD")
        store = open_store(redis, "aioelect")
        assert isinstance(store, RoleStore)
        claim = again(a_claim(), stand=STAND)
        await granted(store, claim)
        assert isinstance(await store.acquire(again(a_claim(), stand=STAND), limit=LIMIT), Contended)
        assert (await store.describe("name", limit=LIMIT)).candidates == ()
        await store.ask_to_step_down("name", StepDown(None), limit=LIMIT)
        assert await store.renew(claim, limit=LIMIT) == Renewed(StepDown(None))
        assert isinstance(await store.release(claim, limit=LIMIT), Released)
        await aclose(redis)
    finally:
        any_server.call("ACL", "DELUSER", "aioelect")


async def test_being_listed_costs_no_command_more(server: Server, peer: Redis, proxy: Proxy, redis: Redis) -> None:
    leader = a_claim()
    store = open_store(redis, "aioelect")
    await granted(store, leader)
    async with Elector(peer, "name", ttl=2.0, identity="candidate", observers=()):
        await until(lambda: proxy.names("SUBSCRIBE") and proxy.names("EVALSHA", "EVAL")[1:])
        proxy.commands.clear()
        for _ in range(20):
            await asyncio.sleep(0.1)
            await store.renew(leader, limit=LIMIT)
            assert [c.identity for c in (await info(redis, "name")).candidates] == ["candidate"]
        assert len([c for c in proxy.commands if c.name != "PING"]) <= 1
        await store.release(leader, limit=LIMIT)
        await until(lambda: server.call("HGET", f"{KEY}:fence", "identity") == b"candidate")


async def test_no_answer_of_a_role_holds_the_owner_value(server: Server, proxy: Proxy, connect: Connect) -> None:
    said: list[bytes] = []

    def note(command: object) -> bool:
        said.append(repr(command).encode())
        return False

    proxy.reply(note, times=None)
    store = open_store(connect(proxy), "aioelect")
    assert isinstance(store, RoleStore)
    claim = again(a_claim(), stand=STAND)
    await granted(store, claim)
    text = repr(await store.describe("name", limit=LIMIT)) + repr(
        await store.ask_to_step_down("name", StepDown(None), limit=LIMIT)
    )
    assert claim.owner not in text
    for key in ("fence", "candidates"):
        content = server.call("DUMP", f"{KEY}:{key}") or b""
        assert claim.owner.encode() not in content


async def test_a_version_that_knows_no_reservations_takes_the_name_and_ends_them(
    any_server: Server, store: RoleStore, redis: Redis
) -> None:
    """What an older acquire.lua does: it sets its own fields, and ignores the rest."""
    leader = again(a_claim(), stand=STAND)
    token = await granted(store, leader)
    await store.release(leader, heir=Heir("heir", 60.0), limit=LIMIT)
    old = ["token", token + 1, "id", "feedfeedfeedfeed", "identity", "old", "ttl", 10000, "since", 1]
    any_server.call("HSET", f"{KEY}:fence", *map(str, old))
    any_server.call("SET", KEY, secrets.token_hex(16), "PX", 10000)
    answer = await store.acquire(again(a_claim(), stand=STAND), limit=LIMIT)
    assert isinstance(answer, Contended) and not answer.reserved and answer.holder.identity == "old"
    any_server.call("DEL", KEY)
    assert isinstance(await store.acquire(again(a_claim(), stand=STAND), limit=LIMIT), Granted)


async def test_an_observer_sees_a_leader_come_and_go_within_a_moment(
    any_server: Server, redis: Redis, make_client: Callable[[], Redis]
) -> None:
    leaders = observe(redis, "name")
    assert await anext(leaders) is None
    async with Elector(make_client(), "name", ttl=10.0, identity="leader", info={"url": "http://a"}, observers=()):
        async with asyncio.timeout(5):
            leader = await anext(leaders)
        assert leader is not None and (leader.identity, leader.info) == ("leader", {"url": "http://a"})
    async with asyncio.timeout(5):  # by a notice, long before the ttl
        assert await anext(leaders) is None


@pytest.fixture
def make_client(the_server: Server, connect: Connect) -> Callable[[], Redis]:
    """Make clients with connections of their own."""
    return lambda: connect(the_server, client_name="another")
