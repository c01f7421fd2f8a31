"""One timer per event loop for all claims: it re-reads the clock at least once a second, and wakes whoever is due.

Event-loop timers stand still while the machine is suspended; due times are instants of `_clock`, so the first tick
after a suspend finds everything that fell due meanwhile. Who is due at one instant is woken in one turn of the loop, so
that their requests share a write; who is due in a moment is asked whether it wants to go along.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Protocol

from aioelect import _clock
from aioelect._core.timing import COMPANY
from aioelect._per_loop import LoopLocal

__all__ = ["Ticker", "ticker"]


class Due(Protocol):
    """Something that wants to be called at an instant."""

    def on_tick(self, now: float) -> None:
        """The instant has come; or will in a moment, and others are served: it stays due, unless it wishes anew."""

    def on_late(self, late: float) -> None:
        """The loop served the timer so many seconds late; told to whoever is due next, at every tick."""


_FOREVER = float("inf")


class Ticker:
    """Who is due when, and one loop timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._wishes: dict[Due, float] = {}
        self._crowds: dict[float, dict[Due, None]] = {}  # by instant; emptied ones stay until it has passed
        self._instants: list[float] = []  # a heap of the keys
        self._timer: asyncio.Handle | None = None
        self._fires_at = 0.0  # by the loop's clock; uvloop's handles don't always know
        self._armed_for = _FOREVER
        self._longest = 1.0

    def schedule(self, due: Due, when: float, longest: float) -> None:
        """Call `due.on_tick` at `when` and not at an earlier wish; read the clock at least every `longest` seconds.

        Infinite: not at all.
        """
        before = self._wishes.pop(due, None)
        if before is not None:
            del self._crowds[before][due]
        if when == _FOREVER:
            return
        self._wishes[due] = when
        crowd = self._crowds.get(when)
        if crowd is None:
            crowd = self._crowds[when] = {}
            heapq.heappush(self._instants, when)
            if len(self._instants) > 64 + 2 * len(self._wishes):
                self._forget_the_empty(when)
        crowd[due] = None
        self._longest = min(self._longest, longest)
        if when < self._armed_for:
            self._arm()

    def _offer_company(self, now: float) -> None:
        # Who is due in a moment may as well do it now, and share the write; who doesn't want to stays due.
        soon, looks, instants = now + self._longest * COMPANY, [0], []
        while looks:  # down the heap, where nothing is earlier than what is above it
            place = looks.pop()
            if place < len(self._instants) and self._instants[place] <= soon:
                instants.append(self._instants[place])
                looks += 2 * place + 2, 2 * place + 1
        for instant in sorted(instants):
            for due in tuple(self._crowds.get(instant, ())):
                due.on_tick(now)

    def _forget_the_empty(self, kept: float) -> None:
        self._crowds = {instant: crowd for instant, crowd in self._crowds.items() if crowd or instant == kept}
        self._instants = sorted(self._crowds)  # which is a heap, too

    def _next(self) -> float:
        """The earliest instant at which somebody is due."""
        while self._instants and not self._crowds[self._instants[0]]:
            del self._crowds[heapq.heappop(self._instants)]
        return self._instants[0] if self._instants else _FOREVER

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = self._next()
        if self._armed_for == _FOREVER:
            self._longest = 1.0
            return
        delay = min(self._longest, max(0.0, self._armed_for - _clock.now()))
        self._fires_at = self.loop.time() + delay
        self._timer = self.loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        now = _clock.now()
        if self._timer is not None and (first := self._next()) < _FOREVER:
            next(iter(self._crowds[first])).on_late(max(0.0, self.loop.time() - self._fires_at))
        self._timer = None
        try:
            served = False
            while (instant := self._next()) <= now:
                due = next(iter(self._crowds[instant]))
                del self._crowds[instant][due], self._wishes[due]
                due.on_tick(now)
                served = True
            if served:
                self._offer_company(now)
        finally:
            self._arm()


ticker = LoopLocal(Ticker)
"""The ticker of the running event loop."""
