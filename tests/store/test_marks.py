"""What every store that remembers finished runs promises: in the holder's name only, never back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aioelect._core.schedule import to_microseconds
from aioelect._redis.store import open_store
from aioelect._store import Mark, Marked, MarkStore, Refused
from conftest import Connect
from store.conftest import MakeStore, a_claim, granted
from support.servers import Server

LIMIT = 5.0
DOCUMENTED = Path(__file__).parents[2] / "docs" / "acl.txt"
LACKING = ("postgres", "advisory", "tokenless", "quorum")
NOW = to_microseconds(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))


def a_mark(at: int, *, schedule: str = "daily – ünïcode", first: bool = False, keep: float = 60.0) -> Mark:
    """Make a mark."""
    return Mark(schedule, at, first, keep)


@pytest.fixture
def store(make_store: MakeStore) -> MarkStore:
    """Make a store."""
    made = make_store()
    assert isinstance(made, MarkStore) and made.capabilities.marks
    return made


@pytest.fixture
def other(store: MarkStore, make_store: MakeStore) -> MarkStore:
    """Make another participant's store."""
    made = make_store()
    assert isinstance(made, MarkStore)
    return made


async def test_a_mark_outlives_the_term_and_never_goes_back(store: MarkStore, other: MarkStore) -> None:
    claim = a_claim()
    await granted(store, claim)
    assert await store.mark(claim, a_mark(NOW), limit=LIMIT) == Marked(NOW)
    assert await store.mark(claim, a_mark(NOW - 1), limit=LIMIT) == Marked(NOW)
    assert await store.mark(claim, a_mark(NOW + 1), limit=LIMIT) == Marked(NOW + 1)
    await store.release(claim, limit=LIMIT)
    following = a_claim()
    await granted(other, following)
    assert await other.mark(following, a_mark(NOW - 5, first=True), limit=LIMIT) == Marked(NOW + 1)


async def test_the_first_mark_is_noted_if_there_is_none_and_schedules_are_kept_apart(store: MarkStore) -> None:
    claim = a_claim()
    await granted(store, claim)
    assert await store.mark(claim, a_mark(NOW, first=True), limit=LIMIT) == Marked(NOW)
    assert await store.mark(claim, a_mark(NOW + 7, first=True), limit=LIMIT) == Marked(NOW)
    assert await store.mark(claim, a_mark(NOW + 9, first=True, schedule="other"), limit=LIMIT) == Marked(NOW + 9)


async def test_only_the_holder_may_mark(store: MarkStore, other: MarkStore) -> None:
    late, holder = a_claim(ttl=0.1), a_claim(identity="holder")
    assert await store.mark(late, a_mark(NOW), limit=LIMIT) == Refused(None)
    await granted(store, late)
    await asyncio.sleep(0.12)
    assert await store.mark(late, a_mark(NOW), limit=LIMIT) == Refused(None)
    await granted(other, holder)
    answer = await store.mark(late, a_mark(NOW + 9), limit=LIMIT)
    assert isinstance(answer, Refused) and answer.holder is not None and answer.holder.identity == "holder"
    assert await other.mark(holder, a_mark(NOW, first=True), limit=LIMIT) == Marked(NOW)


async def test_on_redis_marks_lie_in_one_key_that_lives_as_long_as_the_longest_wish(
    any_server: Server, redis: Redis
) -> None:
    store = open_store(redis, "aioelect")
    assert isinstance(store, MarkStore)
    claim = a_claim()
    await granted(store, claim)
    await store.mark(claim, a_mark(NOW, keep=60.0), limit=LIMIT)
    await store.mark(claim, a_mark(NOW, schedule="often", keep=2.0), limit=LIMIT)
    assert 50_000 < any_server.call("PTTL", "aioelect:{name}:periods") <= 60_000
    any_server.call("HSET", "aioelect:{name}:periods", "broken", "junk")
    assert await store.mark(claim, a_mark(NOW, schedule="broken", first=True), limit=LIMIT) == Marked(NOW)


async def test_on_redis_the_documented_rights_are_enough(any_server: Server, connect: Connect) -> None:
    line = next(text for text in DOCUMENTED.read_text().splitlines() if text.startswith("ACL SETUSER"))
    any_server.call(*line.split())
    try:
        store = open_store(connect(any_server, username="aioelect", password="PASSWORD"), "aioelect")
        assert isinstance(store, MarkStore)
        claim = a_claim()
        await granted(store, claim)
        assert await store.mark(claim, a_mark(NOW), limit=LIMIT) == Marked(NOW)
    finally:
        any_server.call("ACL", "DELUSER", "aioelect")
