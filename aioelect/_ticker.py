"""One timer per event loop for all claims: it re-reads the clock at least once a second, and wakes whoever is due.

Event-loop timers stand still while the machine is suspended; due times are instants of `_clock`, so the first tick
after a suspend finds everything that fell due meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Protocol

from aioelect import _clock

__all__ = ["Ticker", "ticker"]


class Due(Protocol):
    """Something that wants to be called at an instant."""

    wake_at: float  # by _clock; infinite: not at all

    def on_tick(self, now: float) -> None:
        """The instant has come (or an earlier wish for one has)."""


_FOREVER = float("inf")


class Ticker:
    """A heap of due times and one loop timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Due]] = []
        self._entered: dict[Due, float] = {}  # the earliest entry of each
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = _FOREVER
        self._longest = 1.0

    def schedule(self, due: Due, longest: float) -> None:
        """Call `due.on_tick` at `due.wake_at`, and read the clock at least every `longest` seconds until then."""
        if due.wake_at == _FOREVER:
            return
        self._longest = min(self._longest, longest)
        self._enter(due)
        if due.wake_at < self._armed_for:
            self._arm()

    def _enter(self, due: Due) -> None:
        if due.wake_at < self._entered.get(due, _FOREVER):  # else an earlier entry leads to it
            self._entered[due] = due.wake_at
            heapq.heappush(self._heap, (due.wake_at, next(self._order), due))

    def _take(self) -> Due:
        when, _, due = heapq.heappop(self._heap)
        if self._entered.get(due) == when:
            del self._entered[due]
        return due

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._heap and self._heap[0][0] < self._heap[0][2].wake_at:  # a wish that was put off since
            self._enter(self._take())
        if not self._heap:
            self._armed_for, self._longest = _FOREVER, 1.0
            return
        self._armed_for = self._heap[0][0]
        delay = min(self._longest, max(0.0, self._armed_for - _clock.now()))
        self._timer = self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        now = _clock.now()
        self._timer = None
        try:
            while self._heap and self._heap[0][0] <= now:
                due = self._take()
                if due.wake_at <= now:
                    due.wake_at = _FOREVER
                    due.on_tick(now)
                else:
                    self._enter(due)
        finally:
            self._armed_for = _FOREVER
            self._arm()


_tickers: dict[asyncio.AbstractEventLoop, Ticker] = {}


def ticker() -> Ticker:
    """The ticker of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _tickers.get(loop)
    if found is None:
        for other in tuple(_tickers):
            if other.is_closed():  # never by itself: a ticker's timer refers to its loop
                _tickers.pop(other, None)
        found = _tickers[loop] = Ticker(loop)
    return found
