"""The one connection per server and event loop that listens; open while somebody watches a name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine

from aioelect._channel import Channel, Subscription
from aioelect._errors import StoreError

from .connections import bounded, say_goodbye, statement
from .ending import sever, silence
from .source import Connection
from .wire import ears_of, parse_notice

__all__ = ["Listener"]

_log = logging.getLogger("aioelect")

_ANSWER = 5.0  # how long the server may take to confirm
_LINGER = 5.0  # a channel that nobody watches is kept for the next one who does
_IDLE = 25.0  # and then the connection
_PING = 120.0  # a silent connection may be a dead one
_BACKOFF = (0.05, 5.0)  # first and longest pause between attempts to connect


class Listener:
    """Who listens to what, in one event loop."""

    def __init__(self, dial: Callable[[], Coroutine[object, object, Connection]]) -> None:
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self._channels: dict[bytes, Channel] = {}
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._runner: asyncio.Task[None] | None = None
        self._failures = 0  # attempts in a row that confirmed nothing
        self._closed = False

    @property
    def pid(self) -> int:
        """The server's number for our session, so that it isn't counted among those who wait; 0: there is none."""
        connection = self._connection
        return 0 if connection is None or connection.is_closed() else connection.get_server_pid()

    def watch(self, channel: bytes) -> Subscription:
        """Listen to a channel; that is asked for in the background."""
        if (known := self._channels.get(channel)) is None:
            known = self._channels[channel] = Channel(channel, self._on_unwatched)
        watcher = Subscription(known)
        if not self._closed:
            known.watchers.add(watcher)
            self._wake.set()
            if self._runner is None or self._runner.done():
                self._runner = self._loop.create_task(self._run(), name="aioelect-listener")
        return watcher

    async def aclose(self) -> None:
        """Close the connection; watchers hear nothing any more."""
        self._closed = True
        for channel in tuple(self._channels.values()):
            for watcher in tuple(channel.watchers):
                channel.leave(watcher)
                watcher.wake()
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        if self._connection is not None:
            sever(self._connection)
        if self._runner is not None:
            silence(self._runner)

    def _on_unwatched(self, channel: Channel) -> None:
        if not self._loop.is_closed():
            channel.due = self._loop.time() + _LINGER
            self._wake.set()

    def _on_notice(self, _connection: object, _pid: int, channel: str, payload: str) -> None:
        if known := self._channels.get(channel.encode()):
            notice = parse_notice(payload)
            for watcher in tuple(known.watchers):
                watcher.tell(notice)

    async def _run(self) -> None:
        while self._channels:
            why = "the connection was lost"
            connection = None
            try:
                connection = self._connection = await self._dial()
                connection.add_termination_listener(lambda _: self._wake.set())
                await self._serve(connection)
                if not self._channels:
                    return
            except StoreError as error:
                why = str(error)
            finally:
                self._connection = None
                if connection is not None:
                    await say_goodbye(connection)
                for channel in self._channels.values():
                    channel.lose()
            self._failures += 1
            if self._failures == 2:  # a single drop that mends at once is no outage
                _log.warning("notices do not arrive, names are polled meanwhile: %s", why)
            first, longest = _BACKOFF
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(longest, first * 2.0**self._failures))
            for channel in self._left(self._loop.time()):
                del self._channels[channel.name]

    async def _serve(self, connection: Connection) -> None:
        silent_until = self._loop.time() + _PING
        idle_until = self._loop.time() + _IDLE
        while not connection.is_closed():
            now = self._loop.time()
            joining = [channel for channel in self._channels.values() if channel.watchers and not channel.asked]
            leaving = self._left(now)
            if joining or leaving:
                for channel in joining:
                    await self._join(connection, channel)
                for channel in leaving:
                    await self._leave(connection, channel)
                silent_until, idle_until = now + _PING, now + _IDLE
            elif now >= silent_until:
                await statement(connection, "SELECT 1", (), now + _ANSWER)
                silent_until = now + _PING
            elif not self._channels and now >= idle_until:
                return
            else:
                due = [channel.due for channel in self._channels.values() if not channel.watchers]
                await self._pause(min([silent_until, *due, *([] if self._channels else [idle_until])]) - now)

    async def _join(self, connection: Connection, channel: Channel) -> None:
        channel.asked = True
        deadline = self._loop.time() + _ANSWER
        # The lock comes last: whoever finds it free may keep silent, and we have not asked the store again yet.
        await bounded(connection, connection.add_listener(channel.name.decode(), self._on_notice), deadline)
        await statement(connection, "SELECT pg_advisory_lock_shared($1)", (ears_of(channel.name),), deadline)
        channel.answer(self._loop.time(), granted=True)
        if self._failures >= 2:
            _log.warning("notices arrive again")
        self._failures = 0

    async def _leave(self, connection: Connection, channel: Channel) -> None:
        channel.asked = channel.live = False
        deadline = self._loop.time() + _ANSWER
        await statement(connection, "SELECT pg_advisory_unlock_shared($1)", (ears_of(channel.name),), deadline)
        await bounded(connection, connection.remove_listener(channel.name.decode(), self._on_notice), deadline)
        if not channel.watchers:
            del self._channels[channel.name]

    def _left(self, now: float) -> list[Channel]:
        return [channel for channel in self._channels.values() if not channel.watchers and now >= channel.due]

    async def _pause(self, limit: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, limit)):
                await self._wake.wait()
        self._wake.clear()
