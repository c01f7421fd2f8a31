"""Claims that live by a connection: each has one of its own, and ends with it.

The server ends such a claim only with its session. So this side does what a ttl does elsewhere: a claim that was not
confirmed for so long is let go of, by closing its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aioelect._background import spawn

from .ending import sever
from .refusals import refusal_of, timed_out
from .source import Connection, Row

__all__ = ["Grip", "Grips"]


class Grip:
    """One claim and the connection it lives by."""

    def __init__(self, connection: Connection, token: int, ttl: float, over: Callable[[Grip], None]) -> None:
        self.connection = connection
        self.token = token
        self._loop = asyncio.get_running_loop()
        self._over = over
        self._tell: Callable[[], None] | None = None
        self._ping: asyncio.Task[Row | None] | None = None
        self._timer = self._loop.call_later(ttl, self.let_go)
        connection.add_termination_listener(self._on_termination)

    async def confirm(self, ttl: float, deadline: float) -> None:
        """Prove that the connection lives, and count its ttl anew.

        One that is slow is not closed for that: what was asked is waited for by the next one who asks.

        Raises:
            StoreUnavailable: no answer until `deadline`, or the connection was lost.
        """
        if self._ping is not None:  # an earlier one, which proves less
            await self._answer(self._ping, deadline)
        sent_at = self._loop.time()
        self._ping = spawn(self.connection.fetchrow("SELECT 1"), "ping")
        self._ping.add_done_callback(lambda over: over.cancelled() or over.exception())
        await self._answer(self._ping, deadline)
        self._timer.cancel()
        self._timer = self._loop.call_at(sent_at + ttl, self.let_go)

    async def _answer(self, ping: asyncio.Task[Row | None], deadline: float) -> None:
        limit = max(0.0, deadline - self._loop.time())
        await asyncio.wait({ping}, timeout=limit)
        if not ping.done():
            raise timed_out(limit)
        self._ping = None
        if (error := ping.exception()) is not None:
            self.let_go()
            raise refusal_of(error)

    def on_loss(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the connection is lost."""
        self._tell = tell

    def let_go(self) -> None:
        """End the claim by closing the connection."""
        self._timer.cancel()
        self.connection.terminate()

    def retire(self) -> None:
        """The claim has ended; its connection may be another's from now on."""
        self._timer.cancel()
        self._tell = None
        self.connection.remove_termination_listener(self._on_termination)
        self._over(self)

    def _on_termination(self, _: object) -> None:
        tell = self._tell
        self.retire()
        if tell is not None:
            tell()


class Grips:
    """The claims of one event loop, by owner value."""

    def __init__(self) -> None:
        self._grips: dict[str, Grip] = {}

    def get(self, owner: str) -> Grip | None:
        """The claim of an owner, while its connection lives."""
        grip = self._grips.get(owner)
        return None if grip is None or grip.connection.is_closed() else grip

    def add(self, owner: str, connection: Connection, token: int, ttl: float) -> None:
        """A claim was won."""

        def over(grip: Grip) -> None:
            if self._grips.get(owner) is grip:
                del self._grips[owner]

        self._grips[owner] = Grip(connection, token, ttl, over)

    def drop_all(self) -> None:
        """End all claims."""
        for grip in tuple(self._grips.values()):
            grip.let_go()

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        for grip in self._grips.values():
            sever(grip.connection)
