"""The notices of three nodes, heard as those of one; without a server."""

from __future__ import annotations

import asyncio

import pytest

from aioelect._channel import Channel, Subscription
from aioelect._redis import hearing
from aioelect._redis.hearing import Hearing
from aioelect._store import Holder, Notice, NoticeKind


class Nodes:
    """Three channels, and what is listened to on them."""

    def __init__(self, *, live: int = 3) -> None:
        self.channels = [Channel(b"channel", lambda _: None) for _ in range(3)]
        self.parts = [Subscription(channel) for channel in self.channels]
        for channel, part in zip(self.channels, self.parts, strict=True):
            channel.watchers.add(part)
        self.hearing = Hearing(self.parts, 2)
        self.confirm(*range(live))

    def confirm(self, *which: int) -> None:
        for n in which:
            self.channels[n].answer(0.0, granted=True)

    def tell(self, kind: NoticeKind, term: str, *which: int) -> None:
        for n in which:
            self.parts[n].tell(Notice(kind, Holder("someone", 1, term, 9.0)))

    async def heard(self, limit: float = 0.0) -> tuple[NoticeKind, str | None] | None:
        notice = await self.hearing.next(limit)
        return None if notice is None else (notice.kind, None if notice.holder is None else notice.holder.id)


async def test_an_acquisition_is_passed_on_once_whoever_tells_of_it() -> None:
    nodes = Nodes()
    nodes.tell(NoticeKind.ACQUIRED, "a", 1)
    assert await nodes.heard() == (NoticeKind.ACQUIRED, "a")
    nodes.tell(NoticeKind.ACQUIRED, "a", 0, 2)
    assert await nodes.heard() is None


async def test_a_release_is_passed_on_when_a_majority_has_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "_PATIENCE", 60.0)
    nodes = Nodes()
    nodes.tell(NoticeKind.RELEASED, "a", 2)
    assert await nodes.heard() is None
    nodes.tell(NoticeKind.RELEASED, "a", 0)
    assert await nodes.heard() == (NoticeKind.RELEASED, "a")
    nodes.tell(NoticeKind.RELEASED, "a", 1)
    assert await nodes.heard() is None


async def test_a_release_that_only_one_node_tells_of_is_passed_on_a_little_later() -> None:
    nodes = Nodes(live=2)
    nodes.tell(NoticeKind.RELEASED, "a", 0)
    assert await nodes.heard(5.0) == (NoticeKind.RELEASED, "a")


async def test_the_begin_of_a_term_that_is_heard_after_its_end_is_no_news() -> None:
    nodes = Nodes()
    nodes.tell(NoticeKind.RELEASED, "a", 0, 1)
    assert await nodes.heard() == (NoticeKind.RELEASED, "a")
    nodes.tell(NoticeKind.ACQUIRED, "a", 2)
    assert await nodes.heard() is None


async def test_it_is_live_with_a_majority_and_says_when_something_may_have_been_missed() -> None:
    nodes = Nodes(live=1)
    assert not await nodes.hearing.ready(0.01)
    nodes.confirm(1)
    assert await nodes.hearing.ready(0.0)
    assert await nodes.heard() == (NoticeKind.RESYNC, None)
    nodes.channels[0].lose()
    assert not await nodes.hearing.ready(0.0)
    assert await nodes.heard() is None
    nodes.confirm(0)
    assert await nodes.heard() == (NoticeKind.RESYNC, None)


async def test_a_closed_one_lets_nobody_wait() -> None:
    nodes = Nodes()
    waiting = asyncio.ensure_future(nodes.hearing.next(None))
    await asyncio.sleep(0)
    nodes.hearing.close()
    assert await waiting is None
    assert not nodes.hearing.live
