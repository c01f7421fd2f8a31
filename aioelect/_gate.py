"""The gate: how many tries of one event loop are under way at a time.

A try in flight is some fifty objects, and Python's garbage collector looks at all of them again and again while their
number grows: thousands at once spend more time in it than on the lock. So few go at a time, and the others wait before
anything is built for them; but only while answers come. If none does, all go ahead: whoever is hung holds up nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from aioelect._line import called_up
from aioelect._per_loop import LoopLocal

__all__ = ["Gate", "gate"]

_ABREAST = 32
_LOOK = 0.003  # seconds
_LOOKS = 3  # so many in a row without an answer, each in another turn of the loop: it may have been busy


class Gate:
    """First come, first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inside = 0
        self._queue: deque[asyncio.Future[bool]] = deque()
        self._quiet = 0  # looks since somebody left
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> bool:
        """Take a place, if there is one; True obliges to call `leave` once."""
        free = self._inside < _ABREAST
        self._inside += free
        return free

    async def turn(self, patience: float | None) -> None:
        """Wait for a place, at most `patience` seconds: then go ahead without one. Obliges to call `leave` once."""
        place: asyncio.Future[bool] = self._loop.create_future()
        self._queue.append(place)
        if self._timer is None:
            self._quiet = 0
            self._timer = self._loop.call_later(_LOOK, self._look)
        if not await called_up(place, patience, self.leave):
            self._inside += 1

    def leave(self) -> None:
        """The try is over."""
        self._inside -= 1
        self._quiet = 0
        self._call_up(_ABREAST)

    def _call_up(self, abreast: float) -> None:
        while self._queue and self._inside < abreast:
            place = self._queue.popleft()
            if not place.done():
                self._inside += 1
                place.set_result(True)

    def _look(self) -> None:
        self._quiet += 1
        if self._quiet >= _LOOKS:
            self._call_up(math.inf)
        self._timer = self._loop.call_later(_LOOK, self._look) if self._queue else None


gate = LoopLocal(Gate)
"""The gate of the running event loop."""
