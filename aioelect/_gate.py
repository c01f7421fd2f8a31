"""The gate: of a crowd of tries in one event loop, few begin in one turn of the loop.

A try in flight is some fifty objects, and Python's garbage collector looks at all of them again and again while their
number grows; and the turns of a loop in which thousands begin at once are so long that renewals miss their limits. So
the others wait before anything is built for them, for turns of the loop only: not for an answer, which may never come.
"""

from __future__ import annotations

import asyncio
from collections import deque

from aioelect._per_loop import LoopLocal

__all__ = ["Gate", "gate"]

_ABREAST = 32  # tries under way without a thought
_LEAST = 8  # that begin in each turn, also if none of those before has ended: they may hang


class Gate:
    """First come, first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inside = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def enter(self) -> bool:
        """Begin a try, if few are under way; True obliges to call `leave` once."""
        free = self._inside < _ABREAST and not self._queue
        self._inside += free
        return free

    async def turn(self) -> None:
        """Wait for a turn of the loop that has room. Obliges to call `leave` once."""
        place: asyncio.Future[None] = self._loop.create_future()
        if not self._queue:
            self._loop.call_soon(self._call_up)
        self._queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """The try is over."""
        self._inside -= 1

    def _call_up(self) -> None:
        room = max(_ABREAST - self._inside, _LEAST)
        try:
            while self._queue and room:
                place = self._queue.popleft()
                if not place.done():
                    place.set_result(None)
                    self._inside += 1
                    room -= 1
        finally:  # also if Ctrl-C ends this turn: the loop may be run again
            if self._queue:
                self._loop.call_soon(self._call_up)


gate = LoopLocal(Gate)
"""The gate of the running event loop."""
