"""What every store that knows the members of a group promises; and that all others refuse."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aioelect import ConfigurationError, Partitions, StoreRejected, aclose
from aioelect._core.shares import Member
from aioelect._redis.store import open_store
from aioelect._store import Capabilities, MemberStore, NoticeKind, Store
from aioelect.testing import MemoryStore
from conftest import Connect
from store.conftest import MakeStore
from support.servers import Server

LIMIT = 5.0
DOCUMENTED = Path(__file__).parents[2] / "docs" / "acl.txt"
LACKING = ("postgres", "advisory", "tokenless", "quorum")


def a_member(who: str, *holds: int, stays: bool = True, listed: float = 5.0) -> Member:
    """Make a member."""
    return Member(who, f"{who} – ünïcode", frozenset(holds), stays, listed)


def said(members: tuple[Member, ...]) -> dict[str, tuple[str, set[int], bool]]:
    """What each says, without the time it has left."""
    return {member.id: (member.identity, set(member.holds), member.stays) for member in members}


def as_members(store: Store) -> MemberStore:
    """The store as one of groups."""
    assert isinstance(store, MemberStore) and store.capabilities.members
    return store


async def test_members_learn_what_all_hold_and_a_word_replaces_the_one_before(make_store: MakeStore) -> None:
    store, other = as_members(make_store()), as_members(make_store())
    await store.attend("group", a_member("a", 0, 63, 1023), tell=False, limit=LIMIT)
    heard = await other.attend("group", a_member("b", stays=False), tell=False, limit=LIMIT)
    assert said(heard) == {"a": ("a – ünïcode", {0, 63, 1023}, True), "b": ("b – ünïcode", set(), False)}
    assert all(4.0 < member.remaining <= 5.0 for member in heard)
    heard = await store.attend("group", a_member("a", 1), tell=False, limit=LIMIT)
    assert said(heard)["a"] == ("a – ünïcode", {1}, True) and len(heard) == 2
    assert await other.attend("another", a_member("b", listed=0.0), tell=False, limit=LIMIT) == ()


async def test_a_member_falls_out_by_itself_or_by_leaving(make_store: MakeStore) -> None:
    store = as_members(make_store())
    await store.attend("group", a_member("a", listed=0.1), tell=False, limit=LIMIT)
    await store.attend("group", a_member("b"), tell=False, limit=LIMIT)
    await asyncio.sleep(0.12)
    assert set(said(await store.attend("group", a_member("c"), tell=False, limit=LIMIT))) == {"b", "c"}
    assert set(said(await store.attend("group", a_member("b", listed=0.0), tell=False, limit=LIMIT))) == {"c"}


async def test_who_listens_hears_of_a_coming_a_going_and_what_has_become_free(make_store: MakeStore) -> None:
    store, other = as_members(make_store()), make_store()
    watch = other.watch("group")
    try:
        assert await watch.ready(5)
        for member, tell, hears in (
            (a_member("a", 1, 2), False, True),
            (a_member("a", 1, 2), False, False),
            (a_member("a", 1), True, True),
            (a_member("a", listed=0.0), False, True),
        ):
            await store.attend("group", member, tell=tell, limit=LIMIT)
            notice = await watch.next(2.0 if hears else 0.1)
            if not hears:
                assert notice is None
                continue
            assert notice is not None and notice.kind is NoticeKind.MEMBERS
            assert notice.holder is not None and notice.holder.id == "a"
    finally:
        watch.close()


async def test_on_redis_the_list_is_one_key_that_lives_as_long_as_its_last_member(
    any_server: Server, redis: Redis
) -> None:
    store = as_members(open_store(redis, "aioelect"))
    await store.attend("group", a_member("a", listed=60.0), tell=False, limit=LIMIT)
    await store.attend("group", a_member("b", listed=2.0), tell=False, limit=LIMIT)
    assert any_server.call("KEYS", "*") == [b"aioelect:{group}:members"]
    assert 50_000 < any_server.call("PTTL", "aioelect:{group}:members") <= 60_000
    for junk in ("junk", "a b c", "x 1 zz who", "y 1 -ff who"):
        any_server.call("ZADD", "aioelect:{group}:members", "99999999999999", junk)
    heard = await store.attend("group", a_member("a"), tell=False, limit=LIMIT)
    assert {"a", "b"} <= set(said(heard))
    any_server.call("DEL", "aioelect:{group}:members")
    any_server.call("SET", "aioelect:{group}:members", "another's", "PX", "5000")
    with pytest.raises(StoreRejected):
        await store.attend("group", a_member("a"), tell=False, limit=LIMIT)


async def test_on_redis_the_documented_rights_are_enough_and_partitions_are_refused_without_them(
    any_server: Server, connect: Connect
) -> None:
    words = next(text for text in DOCUMENTED.read_text().splitlines() if text.startswith("ACL SETUSER")).split()
    any_server.call(*words)
    try:
        store = as_members(open_store(connect(any_server, username="aioelect", password="PASSWORD"), "aioelect"))
        heard = await store.attend("group", a_member("a", 1), tell=True, limit=LIMIT)
        assert set(said(heard)) == {"a"}
        assert await store.attend("group", a_member("a", listed=0.0), tell=False, limit=LIMIT) == ()
        any_server.call("ACL", "DELUSER", "aioelect")
        any_server.call(*(word for word in words if not word.startswith("+z")))
        few_rights = connect(any_server, username="aioelect", password="PASSWORD")
        with pytest.raises(StoreRejected, match="grant what the documented ACL line lists"):
            await asyncio.wait_for(Partitions(few_rights, "orders", count=4).run(asyncio.sleep), 5)  # type: ignore[arg-type]
        await aclose(few_rights)
    finally:
        any_server.call("ACL", "DELUSER", "aioelect")


def test_a_store_that_knows_no_members_is_refused_at_construction() -> None:
    class Memberless(MemoryStore):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities()

    with pytest.raises(ConfigurationError, match="Partitions: Memberless does not know who takes part"):
        Partitions(Memberless(), "orders", count=4)
