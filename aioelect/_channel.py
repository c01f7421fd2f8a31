"""Who watches a name, and what they have heard: one channel of notices, and its listeners.

A notice is a hint. So trouble here is never an error of anybody's: a watcher that cannot be told is not `live`, and one
that may have missed something gets a RESYNC once the subscription is confirmed again. How notices get here is the
stores' business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aioelect._store import Notice, NoticeKind

__all__ = ["Channel", "Subscription"]

_DENIED = 60.0  # rights are rarely granted while one waits


class Subscription:
    """One listener to one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._news: Notice | None = None
        self._gap = False  # something may have been missed: say so when it is over
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self.listener: Callable[[], None] | None = None  # called whenever something may have changed

    @property
    def live(self) -> bool:
        """True while the subscription is confirmed."""
        return self._channel.live and not self.detached

    async def ready(self, limit: float) -> bool:
        """Wait for the confirmation."""
        await self._until(lambda: self.settled, limit)
        self._gap = self._gap or not self.live
        return self.live

    async def next(self, limit: float | None) -> Notice | None:
        """Wait for the newest notice since the last call.

        Without a subscription there is nothing to hear, but time to pass: callers sleep in here.
        """
        self._gap = self._gap or not self.live
        await self._until(lambda: self._news is not None or self._closed or (limit is None and self.detached), limit)
        return self.take()

    def take(self) -> Notice | None:
        """The newest notice since the last call, if there is one."""
        news, self._news = self._news, None
        return news

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._channel.leave(self)
        self.wake()

    @property
    def settled(self) -> bool:
        """There is nothing to wait for: live, or not to be had."""
        return self.live or self._channel.denied or self.detached

    @property
    def detached(self) -> bool:
        """Nothing will be heard any more."""
        return self not in self._channel.watchers

    def tell(self, notice: Notice) -> None:
        """A notice for this listener; replaces one that was not fetched."""
        self._news = notice
        self.wake()

    def confirmed(self) -> None:
        """The subscription is live from now on."""
        if self._gap:
            self._gap = False
            self._news = Notice(NoticeKind.RESYNC)
        self.wake()

    def lost(self) -> None:
        """The subscription is not live any more."""
        self._gap = True

    def wake(self) -> None:
        """Look again."""
        if self._waiter is not None and not self._waiter.done() and not self._loop.is_closed():
            self._waiter.set_result(None)
        if self.listener is not None:
            self.listener()

    async def _until(self, true: Callable[[], bool], limit: float | None) -> None:
        deadline = None if limit is None else self._loop.time() + limit
        while not true():
            left = None if deadline is None else deadline - self._loop.time()
            if left is not None and left <= 0:
                return
            if self._waiter is None or self._waiter.done():
                self._waiter = self._loop.create_future()
            await asyncio.wait([self._waiter], timeout=left)


class Channel:
    """A channel, who watches it, and what the server has said of it."""

    def __init__(self, name: bytes, unwatched: Callable[[Channel], None]) -> None:
        self.name = name
        self.watchers: set[Subscription] = set()
        self.asked = False
        self.live = False
        self.denied = False
        self.due = 0.0  # denied: when to ask again; not watched: when to leave
        self._unwatched = unwatched

    def leave(self, watcher: Subscription) -> None:
        """One watcher less."""
        if watcher in self.watchers:
            self.watchers.remove(watcher)
            if not self.watchers:
                self._unwatched(self)

    def answer(self, now: float, *, granted: bool) -> None:
        """What the server said to our wish to listen."""
        self.live, self.denied = granted, not granted
        self.due = now + _DENIED
        for watcher in tuple(self.watchers):
            watcher.confirmed() if self.live else watcher.wake()

    def lose(self) -> None:
        """Nothing is heard any more."""
        if self.live:  # who still waits for the first confirmation has missed nothing
            for watcher in tuple(self.watchers):
                watcher.lost()
        self.asked = self.live = False
