"""The local line: who in this process and event loop wants one name, first come first served.

The herd at the server is one per process and name. Whoever is at the head contends there; nobody does while a term of
this process is held, or its cancelled work is not over. A try that doesn't wait stands in no line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from aioelect._core.timing import Timing
from aioelect._per_loop import LoopLocal
from aioelect._store import Holder
from aioelect.facts import TermInfo

__all__ = ["Line", "line_for", "lines"]

_TURNS = 4  # in a row, while other processes wait too
_MEMORY = 0.1  # seconds


class Line:
    """One name's line. Nothing in here talks to a store."""

    # One per name that is held: no deque, which is ten times as large as an empty list.
    # fmt: off
    __slots__ = (
        "__weakref__", "_contending", "_holders", "_listeners", "_others_wait", "_queue", "_turns", "crowded", "seen",
    )
    # fmt: on

    def __init__(self) -> None:
        self._queue: list[asyncio.Future[bool]] = []
        self._contending = False
        self._holders: dict[object, TermInfo] = {}  # terms of this process whose work is not over
        self._turns = 0
        self._others_wait = False
        self.seen: Holder | None = None  # who holds the name in another process, as the head has learned
        self.crowded = False  # several processes wait, as far as is known here: not all at once, then
        self._listeners: list[Callable[[Holder | None], None]] = []

    @contextmanager
    def listening(self, listener: Callable[[Holder | None], None]) -> Iterator[None]:
        """Hear who holds the name while standing here: only the head asks the server, and all want to know."""
        if self.holder is not None:
            listener(self.holder)
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def saw(self, holder: Holder | None) -> None:
        """The head has learned who holds the name; None: nobody."""
        self.seen = holder
        for listener in tuple(self._listeners):
            listener(holder)

    @property
    def holder(self) -> Holder | None:
        """A holder in this process, if there is one."""
        term = next(iter(self._holders.values()), None)
        return None if term is None else Holder(term.identity, term.token, term.id, None)

    async def turn(self, limit: float | None) -> bool:
        """Wait for the head of the line, at most `limit` seconds; True obliges to call `done` once."""
        if not (self._holders or self._contending or self._queue):
            self._contending = True
            return True
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        self._queue.append(place)
        timer = None if limit is None else loop.call_later(limit, _time_is_up, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self.done()  # called up and cancelled at once: the next one's turn
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if place in self._queue:
                self._queue.remove(place)

    def done(self) -> None:
        """The head has won or given up."""
        self._contending = False
        self._call_up()

    def hold(self, who: object, term: TermInfo) -> None:
        """A term of this process begins: the line stands still."""
        self._holders[who], self.seen = term, None
        if self._listeners:
            self.saw(self.holder)

    def let_go(self, who: object, told: int, successor: Holder | None = None) -> None:
        """A term's work is over; `told` others heard of the release, or somebody else has taken it."""
        self._holders.pop(who, None)
        self.saw(successor)
        self._others_wait = told > 0
        self.crowded = told > 1
        self._turns = self._turns + 1 if told > 0 else 0
        if self._others_wait:  # remembered for a while: whoever comes straight back is not served before them
            asyncio.get_running_loop().call_later(_MEMORY, self._forget_others)
        self._call_up()

    def _forget_others(self) -> None:
        self._others_wait = False

    def head_start(self, timing: Timing, chance: float) -> float:
        """How long the head lets the other processes go first: like them at times, and longer after several turns."""
        if not self._others_wait:
            return 0.0
        self._others_wait = False
        delay = timing.wakeup_delay(chance)
        if self._turns >= _TURNS:
            self._turns = 0
            delay += timing.stepping_back()
        return delay

    def _call_up(self) -> None:
        while self._queue and not (self._contending or self._holders):
            place = self._queue.pop(0)
            if not place.done():
                self._contending = True
                place.set_result(True)


def _time_is_up(place: asyncio.Future[bool]) -> None:
    if not place.done():
        place.set_result(False)


# A line lives as long as somebody stands in it, a term of this process is held, or an object has last stood in it.
lines: LoopLocal[WeakValueDictionary[Hashable, Line]] = LoopLocal(lambda _: WeakValueDictionary())


def line_for(server: Hashable, name: str) -> Line:
    """The line for a name in the running event loop."""
    registry = lines()
    if (line := registry.get((server, name))) is None:
        line = registry[server, name] = Line()
    return line
