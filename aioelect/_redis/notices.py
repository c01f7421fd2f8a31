"""The one subscription per server and event loop: who watches a name hears of its changes here.

A notice is a hint. So trouble here is never an error of anybody's: a watcher that cannot be told is not `live`, and one
that may have missed something gets a RESYNC once the subscription is confirmed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from aioelect._errors import StoreError
from aioelect._store import Notice, NoticeKind

from .ending import silence
from .pipeline import Link, RawConnection, State
from .refusals import Fault
from .wire import parse_notice

__all__ = ["Notices", "Subscription"]

_log = logging.getLogger("aioelect")

_ANSWER = 5.0  # how long the server may take to confirm a subscription
_LINGER = 5.0  # a channel that nobody watches is kept for the next one who does
_IDLE = 25.0  # and then the connection
_PING = 120.0  # a silent connection may be a dead one; more often, and waiting would cost more than 1.25 commands a ttl
_DENIED = 60.0  # rights are rarely granted while one waits
_BACKOFF = (0.05, 5.0)  # first and longest pause between attempts to connect


class Subscription:
    """One listener to one channel."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._news: Notice | None = None
        self._gap = False  # something may have been missed: say so when it is over
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def live(self) -> bool:
        """True while the subscription is confirmed."""
        return self._channel.live and not self._detached

    async def ready(self, limit: float) -> bool:
        """Wait for the confirmation."""
        await self._until(lambda: self.live or self._channel.denied or self._detached, limit)
        self._gap = self._gap or not self.live
        return self.live

    async def next(self, limit: float | None) -> Notice | None:
        """Wait for the newest notice since the last call.

        Without a subscription there is nothing to hear, but time to pass: callers sleep in here.
        """
        self._gap = self._gap or not self.live
        await self._until(lambda: self._news is not None or self._closed or (limit is None and self._detached), limit)
        news, self._news = self._news, None
        return news

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._channel.leave(self)
        self.wake()

    @property
    def _detached(self) -> bool:
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

    async def _until(self, true: Callable[[], bool], limit: float | None) -> None:
        deadline = None if limit is None else self._loop.time() + limit
        while not true():
            left = None if deadline is None else deadline - self._loop.time()
            if left is not None and left <= 0:
                return
            if self._waiter is None or self._waiter.done():
                self._waiter = self._loop.create_future()
            await asyncio.wait([self._waiter], timeout=left)


class _Channel:
    """A channel, who watches it, and what the server has said of it."""

    def __init__(self, name: bytes, unwatched: Callable[[_Channel], None]) -> None:
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

    def answer(self, reply: object, now: float) -> None:
        """What the server said to our wish to listen."""
        self.denied = isinstance(reply, Fault)
        self.live = not self.denied
        self.due = now + _DENIED
        for watcher in tuple(self.watchers):
            watcher.confirmed() if self.live else watcher.wake()

    def lose(self) -> None:
        """Nothing is heard any more."""
        if self.live:  # who still waits for the first confirmation has missed nothing
            for watcher in tuple(self.watchers):
                watcher.lost()
        self.asked = self.live = False


class Notices:
    """The subscription connection of one server, in one event loop; open while a channel is watched."""

    def __init__(self, make: Callable[[], RawConnection]) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._channels: dict[bytes, _Channel] = {}
        self._wake = asyncio.Event()
        self._link: Link | None = None
        self._runner: asyncio.Task[None] | None = None
        self._failures = 0  # attempts in a row that confirmed nothing
        self._warned = False  # of missing rights
        self._closed = False

    def watch(self, channel: bytes) -> Subscription:
        """Listen to a channel; the subscription is asked for in the background."""
        if (known := self._channels.get(channel)) is None:
            known = self._channels[channel] = _Channel(channel, self._on_unwatched)
        watcher = Subscription(known)
        if not self._closed:
            known.watchers.add(watcher)
            self._wake.set()
            if self._runner is None or self._runner.done():
                self._runner = self._loop.create_task(self._run(), name="aioelect-notices")
        return watcher

    def listening(self, channel: bytes) -> bool:
        """True if a message to the channel reaches us, so that the server counts us among its receivers."""
        known = self._channels.get(channel)
        return known is not None and known.live

    async def aclose(self) -> None:
        """Close the subscription; watchers hear nothing any more."""
        self._closed = True
        for channel in tuple(self._channels.values()):
            for watcher in tuple(channel.watchers):
                channel.leave(watcher)
                watcher.wake()
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])
        if self._link is not None:
            await self._link.wait_closed()

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        if self._link is not None:
            self._link.abandon()
        if self._runner is not None:
            silence(self._runner)

    def _on_unwatched(self, channel: _Channel) -> None:
        if not self._loop.is_closed():
            channel.due = self._loop.time() + _LINGER
            self._wake.set()

    def _on_message(self, channel: bytes, payload: object) -> None:
        if known := self._channels.get(channel):
            notice = parse_notice(payload)
            for watcher in tuple(known.watchers):
                watcher.tell(notice)

    async def _run(self) -> None:
        while self._channels:
            link = self._link = Link(self._make(), lambda _: self._wake.set(), self._on_message)
            try:
                await self._serve(link)
                if not self._channels:
                    return
            except StoreError:
                pass  # the link is closed, and knows why
            finally:
                link.close()
                self._lose_all()
            self._failures += 1
            if self._failures == 2:  # a single drop that mends at once is no outage
                why = link.trouble.message if link.trouble else "no answer"
                _log.warning("notices do not arrive, names are polled meanwhile: %s", why)
            first, longest = _BACKOFF
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(longest, first * 2.0**self._failures))
            for channel in self._left(self._loop.time()):
                del self._channels[channel.name]

    def _lose_all(self) -> None:
        for channel in self._channels.values():
            channel.lose()

    async def _serve(self, link: Link) -> None:
        while link.state is State.CONNECTING:
            await self._pause(_ANSWER)
        silent_until = self._loop.time()
        idle_until = silent_until + _IDLE
        while link.state is State.OPEN:
            now = self._loop.time()
            joining = [
                c for c in self._channels.values() if c.watchers and (not c.asked or (c.denied and now >= c.due))
            ]
            leaving = self._left(now)
            if joining or leaving:
                await self._ask(link, joining, leaving)
                silent_until = now + _PING
                idle_until = now + _IDLE
            elif now >= silent_until:
                await link.call([[b"PING"]], _ANSWER)
                silent_until = now + _PING
            elif not self._channels and now >= idle_until:
                return
            else:
                due = [c.due for c in self._channels.values() if c.denied or not c.watchers]
                await self._pause(min([silent_until, *due, *([] if self._channels else [idle_until])]) - now)

    async def _ask(self, link: Link, joining: list[_Channel], leaving: list[_Channel]) -> None:
        commands = [[b"SUBSCRIBE", c.name] for c in joining] + [[b"UNSUBSCRIBE", c.name] for c in leaving]
        for channel in joining:
            channel.asked = True
        for channel in leaving:
            channel.asked = channel.live = False
        replies = await link.call(commands, _ANSWER)
        now = self._loop.time()
        for channel, reply in zip(joining, replies, strict=False):
            channel.answer(reply, now)
            if channel.denied and not self._warned:
                self._warned = True
                _log.warning(
                    "the server user may not subscribe to %s, names are polled instead: grant the channel pattern",
                    channel.name.decode(errors="replace"),
                )
        for channel in leaving:
            if not channel.watchers:
                del self._channels[channel.name]
        if self._failures >= 2:
            _log.warning("notices arrive again")
        self._failures = 0

    def _left(self, now: float) -> list[_Channel]:
        return [c for c in self._channels.values() if not c.watchers and now >= c.due]

    async def _pause(self, limit: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, limit)):
                await self._wake.wait()
        self._wake.clear()
