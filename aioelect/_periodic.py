"""Work that repeats under a claim: ticks, and runs that count once for the whole cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Protocol

from aioelect import _clock
from aioelect._background import outlast, spawn
from aioelect._core import hold
from aioelect._core.schedule import Beat, Missed, Schedule, due, following, from_microseconds, to_microseconds
from aioelect._core.timing import Timing
from aioelect._errors import StoreRejected, StoreUnavailable
from aioelect._store import Mark, Marked
from aioelect._supervisor import Marker

__all__ = ["Runs", "Ticks"]

_LOOK = 1.0  # the wall clock may be set, and the machine suspended: look at it so often


class Kept(Protocol):
    """What repeating work asks of the claim that it runs under."""

    timing: Timing

    @property
    def state(self) -> hold.State:
        """Of the claim."""


class Ticks(AsyncIterator[None]):
    """See `Term.every`."""

    def __init__(self, kept: Kept, beat: Beat, *, immediately: bool) -> None:
        self._kept = kept
        self._beat = beat
        self._immediately = immediately
        self._due: float | None = None
        self._fires_at = 0.0

    async def __anext__(self) -> None:
        now = _clock.now()
        if self._due is None:
            self._expect(now if self._immediately else now + self._beat.interval)
        await asyncio.sleep(0)  # a step always lets a cancellation in
        while hold.is_leader(self._kept.state, now):
            if now >= self._fires_at:
                assert self._due is not None
                self._expect(self._beat.following(self._due, now))
                return
            await asyncio.sleep(min(self._fires_at - now, hold.life_left(self._kept.state, now)))
            now = _clock.now()
        raise StopAsyncIteration

    def _expect(self, due: float) -> None:
        self._due, self._fires_at = due, self._beat.fires_at(due, random.random())


class Runs(AsyncIterator[datetime]):
    """See `Term.once`."""

    def __init__(
        self,
        kept: Kept,
        marker: Marker,
        schedule: Schedule,
        name: str,
        missed: Missed,
        begin: datetime | None,
        *,
        wait: bool,
    ) -> None:
        self._kept = kept
        self._marker = marker
        self._schedule = schedule
        self._name = name
        self._missed: Missed = missed
        self._begin = begin
        self._wait = wait
        self._done: datetime | None = None  # what the cluster has finished, as far as we know
        self._running: datetime | None = None  # handed out

    async def __anext__(self) -> datetime:
        if self._running is not None:
            # The run is over, whatever is cancelled now: that has to be noted first.
            running, self._running = self._running, None
            noting = spawn(self._noted(running, first=False), f"mark of {self._name}")
            noting.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # nobody may wait for it any more
            await outlast(noting)
            self._done = noting.result()
        await asyncio.sleep(0)  # a step always lets a cancellation in
        if self._done is None:
            self._done = await self._noted(self._begin or _wall(), first=True)
        while self._done is not None and hold.is_leader(self._kept.state, now := _clock.now()):
            wall = _wall()
            self._running = due(self._schedule, self._done, wall, self._missed)
            if self._running is not None:
                return self._running
            if not self._wait:
                break
            left = (following(self._schedule, self._done) - wall).total_seconds()
            await asyncio.sleep(min(left, _LOOK, hold.life_left(self._kept.state, now)))
        raise StopAsyncIteration

    async def _noted(self, instant: datetime, *, first: bool) -> datetime | None:
        """Tell the store as long as the claim lasts; None: it is not ours any more."""
        gap = following(self._schedule, instant) - instant
        keep = 2 * gap.total_seconds() + self._kept.timing.retention
        mark = Mark(self._name, to_microseconds(instant), first, keep)
        while (left := hold.life_left(self._kept.state, _clock.now())) > 0:
            try:
                answer = await self._marker(mark, limit=min(left, self._kept.timing.response_limit))
            except StoreUnavailable:
                pass
            except StoreRejected as exc:
                if not exc.passing:
                    raise
            else:
                return from_microseconds(answer.at) if isinstance(answer, Marked) else None
            await asyncio.sleep(self._kept.timing.retry_delay(random.random()))
        return None


def _wall() -> datetime:
    return datetime.fromtimestamp(_clock.wall(), UTC)
