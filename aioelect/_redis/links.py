"""The connections to one node: one that works, one warm spare, and those that are on their way out.

A retry after a call that hung must not wait for a new handshake: the spare has it behind it. A connection that is slow
to open is not thrown away with the call that waited for it, or a handshake longer than a call's limit could never
succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from .pipeline import Link, RawConnection, State
from .refusals import Trouble, timed_out
from .wire import Command

__all__ = ["Links"]

# After so long, a new attempt to connect has better prospects than one that was never answered.
_FRESH = 1.0

# A spare that keeps failing is not worth a handshake at every call.
_SPARE_PAUSE = 1.0


class Links:
    """Own connections to one node, in one event loop."""

    def __init__(self, make: Callable[[], RawConnection]) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._links: list[Link] = []  # oldest first; closed ones leave
        self._waiters: set[asyncio.Future[None]] = set()
        self._works = False  # once it has answered, a spare is worth while
        self._next_spare = 0.0
        self._closed = False

    def exchange(
        self, _key: bytes, commands: Callable[[Link], Sequence[Command]], deadline: float, /
    ) -> Awaitable[list[object]]:
        """Ask over a connection that works, until `deadline` of the loop's clock."""
        if (link := self._opened()) is not None:
            return link.call(commands(link), deadline)
        return self._exchange_once_open(commands, deadline)

    async def _exchange_once_open(self, commands: Callable[[Link], Sequence[Command]], deadline: float) -> list[object]:
        link = await self.link(deadline)
        return await link.call(commands(link), deadline)

    def _opened(self) -> Link | None:
        for link in self._links:
            if link.state is State.OPEN:
                if len(self._links) == 1:
                    self._keep_spare()
                return link
        return None

    async def link(self, deadline: float) -> Link:
        """A connection that is open, opening one if need be."""
        start = self._loop.time()
        while True:
            if self._closed:
                raise Trouble("closed", "the connections of this store were closed").error()
            if link := self._opened():
                return link
            if not any(link.state is State.CONNECTING and not link.slow for link in self._links):
                self._dial()
            await self._change(deadline, deadline - start)

    def drop(self, _key: bytes, /) -> None:
        """Resolve anew: the node is not what it was. Calls in flight keep their connection."""
        for link in tuple(self._links):
            link.retire()

    async def aclose(self) -> None:
        """Close all connections."""
        self._closed = True
        links = tuple(self._links)
        await asyncio.gather(*(link.wait_closed() for link in links))
        self._wake(None)

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        for link in self._links:
            link.abandon()

    def _dial(self) -> None:
        # Two at most: one that may take its time, and one that is renewed: a lost SYN is repeated ever more rarely.
        connecting = [link for link in self._links if link.state is State.CONNECTING]
        if len(connecting) == 2 and self._loop.time() - connecting[1].born >= _FRESH:
            connecting.pop().close()
        if len(connecting) < 2:
            self._links.append(Link(self._make(), self._on_change))

    def _keep_spare(self) -> None:
        good = [link for link in self._links if link.state in (State.OPEN, State.CONNECTING)]
        if len(good) == 1 and self._works and self._loop.time() >= self._next_spare:
            self._dial()

    def _on_change(self, link: Link) -> None:
        if link.state is State.CLOSED:
            self._on_closed(link, link.trouble)
            return
        self._works = self._works or link.answered
        if link.state is State.OPEN:
            self._wake(None)
            if not self._closed:
                self._keep_spare()

    def _on_closed(self, link: Link, trouble: Trouble | None) -> None:
        self._links.remove(link)
        if trouble is None:
            self._wake(None)  # retired: look for another
            return
        if trouble.reason == "readonly":
            self.drop(b"")
        if not link.answered:
            self._next_spare = self._loop.time() + _SPARE_PAUSE
        if trouble.rejected or not any(other.state is State.CONNECTING for other in self._links):
            self._wake(trouble)

    def _wake(self, trouble: Trouble | None) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None) if trouble is None else waiter.set_exception(trouble.error())

    async def _change(self, deadline: float, limit: float) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_at(deadline, self._give_up, waiter, limit)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def _give_up(self, waiter: asyncio.Future[None], limit: float) -> None:
        if waiter.done():
            return
        for link in self._links:
            link.slow = True
        waiter.set_exception(timed_out(limit, "no connection").error())
