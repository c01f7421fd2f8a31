"""The notices of several nodes, heard as those of one.

An acquisition is told by every node that takes part, and passed on once. A release is worth a try when a majority has
told of it: then a majority is free. Some of them may not be heard, so one that was heard of at all is passed on a
little later in any case.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from aioelect._channel import Subscription
from aioelect._store import Notice, NoticeKind

__all__ = ["Hearing"]

_PATIENCE = 0.02  # seconds from the first word of a release to its being passed on
_MEMORY = 32  # terms


class Hearing:
    """One listener to one name on all nodes; see `aioelect._store.Watch`."""

    def __init__(self, parts: Sequence[Subscription], need: int) -> None:
        self._parts = parts
        self._need = need
        self._loop = asyncio.get_running_loop()
        self._news: Notice | None = None
        self._gap = False  # something may have been missed: say so when it is over
        self._closed = False
        self._acquired = _Count()
        self._released = _Count()
        self._waiter: asyncio.Future[None] | None = None
        for part in parts:
            part.listener = self._listen

    @property
    def live(self) -> bool:
        """True while a majority of the subscriptions is confirmed: each release is told to one of them at least."""
        return sum(part.live for part in self._parts) >= self._need

    async def ready(self, limit: float) -> bool:
        """Wait for the confirmation of a majority."""
        deadline = self._loop.time() + limit
        while not (self.live or all(part.settled for part in self._parts)):
            if (left := deadline - self._loop.time()) <= 0:
                break
            await self._change(left)
        self._gap = self._gap or not self.live
        return self.live

    async def next(self, limit: float | None) -> Notice | None:
        """Wait for the newest notice since the last call."""
        deadline = None if limit is None else self._loop.time() + limit
        self._gap = self._gap or not self.live
        while self._news is None and not self._closed:
            left = None if deadline is None else deadline - self._loop.time()
            if (left is not None and left <= 0) or (left is None and all(part.detached for part in self._parts)):
                break
            await self._change(left)
        news, self._news = self._news, None
        return news

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        for part in self._parts:
            part.close()
        self._wake()

    async def _change(self, limit: float | None) -> None:
        if self._waiter is None or self._waiter.done():
            self._waiter = self._loop.create_future()
        await asyncio.wait([self._waiter], timeout=limit)

    def _listen(self) -> None:
        for part in self._parts:
            if (notice := part.take()) is not None:
                self._hear(notice)
        if self._gap and self.live:
            self._gap = False
            self._news = Notice(NoticeKind.RESYNC)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and not self._loop.is_closed():
            self._waiter.set_result(None)

    def _hear(self, notice: Notice) -> None:
        term = None if notice.holder is None else notice.holder.id
        match notice.kind:
            case NoticeKind.RESYNC:
                self._news = notice
            case NoticeKind.ACQUIRED:
                if self._acquired.told(term) == 1 and not self._released[term]:
                    self._news = notice
            case NoticeKind.RELEASED:
                told = self._released.told(term)
                if told == self._need:
                    self._news = notice
                elif told < self._need:
                    self._loop.call_later(_PATIENCE, self._overdue, notice, term)

    def _overdue(self, notice: Notice, term: str | None) -> None:
        if self._released[term] < self._need:
            self._news = notice
            self._wake()


class _Count(OrderedDict[str | None, int]):
    """How many nodes have told of a term."""

    def __missing__(self, term: str | None) -> int:
        return 0

    def told(self, term: str | None) -> int:
        """One more."""
        self[term] += 1
        if len(self) > _MEMORY:
            self.popitem(last=False)
        return self[term]
