"""The one subscription per server and event loop: who watches a name hears of its changes from here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from aioelect._channel import Channel, Subscription
from aioelect._errors import StoreError

from .ending import silence
from .pipeline import Link, RawConnection, State
from .refusals import Fault
from .wire import parse_notice

__all__ = ["Notices"]

_log = logging.getLogger("aioelect")

_ANSWER = 5.0  # how long the server may take to confirm a subscription
_LINGER = 5.0  # a channel that nobody watches is kept for the next one who does
_IDLE = 25.0  # and then the connection
_PING = 120.0  # a silent connection may be a dead one; more often, and waiting would cost more than 1.25 commands a ttl
_BACKOFF = (0.05, 5.0)  # first and longest pause between attempts to connect


class Notices:
    """The subscription connection of one server, in one event loop; open while a channel is watched."""

    def __init__(self, make: Callable[[], RawConnection]) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._channels: dict[bytes, Channel] = {}
        self._wake = asyncio.Event()
        self._link: Link | None = None
        self._runner: asyncio.Task[None] | None = None
        self._failures = 0  # attempts in a row that confirmed nothing
        self._warned = False  # of missing rights
        self._closed = False

    def watch(self, channel: bytes) -> Subscription:
        """Listen to a channel; the subscription is asked for in the background."""
        if (known := self._channels.get(channel)) is None:
            known = self._channels[channel] = Channel(channel, self._on_unwatched)
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

    def _on_unwatched(self, channel: Channel) -> None:
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
                await link.call([(b"PING",)], now + _ANSWER)
                silent_until = now + _PING
            elif not self._channels and now >= idle_until:
                return
            else:
                due = [c.due for c in self._channels.values() if c.denied or not c.watchers]
                await self._pause(min([silent_until, *due, *([] if self._channels else [idle_until])]) - now)

    async def _ask(self, link: Link, joining: list[Channel], leaving: list[Channel]) -> None:
        commands = [(b"SUBSCRIBE", c.name) for c in joining] + [(b"UNSUBSCRIBE", c.name) for c in leaving]
        for channel in joining:
            channel.asked = True
        for channel in leaving:
            channel.asked = channel.live = False
        replies = await link.call(commands, self._loop.time() + _ANSWER)
        now = self._loop.time()
        for channel, reply in zip(joining, replies, strict=False):
            channel.answer(now, granted=not isinstance(reply, Fault))
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

    def _left(self, now: float) -> list[Channel]:
        return [c for c in self._channels.values() if not c.watchers and now >= c.due]

    async def _pause(self, limit: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, limit)):
                await self._wake.wait()
        self._wake.clear()
