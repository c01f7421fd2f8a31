"""P2: one timer for all due times; a clock that jumps is noticed within a tick; nothing is lost or called twice."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from functools import partial

import pytest
import uvloop

from aioelect import _clock
from aioelect._ticker import Ticker, ticker
from support.wait import until

FOREVER = math.inf


class Clock:
    """The real clock, and what the machine was suspended for."""

    def __init__(self) -> None:
        self.suspended = 0.0
        self._now = _clock.now

    def now(self) -> float:
        return self._now() + self.suspended


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_clock, "now", clock.now)
    return clock


class Due:
    """Notes when it was called, and may wish for another time then."""

    def __init__(self, log: list[str] | None = None, name: str = "", again: Iterator[float] | None = None) -> None:
        self.calls: list[float] = []
        self.late: list[float] = []
        self._log = log
        self._name = name
        self._again = again

    def wish(self, at: float, longest: float = 1.0) -> None:
        """As the keeper does."""
        ticker().schedule(self, at, longest)

    def on_late(self, late: float) -> None:
        self.late.append(late)

    def on_tick(self, now: float) -> None:
        self.calls.append(now)
        if self._log is not None:
            self._log.append(self._name)
        if self._again is not None and (after := next(self._again, None)) is not None:
            self.wish(now + after)


def timers(loop: asyncio.AbstractEventLoop) -> int:
    """How many timers of the ticker wait in the loop."""
    scheduled: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]
    return sum(
        isinstance(getattr(handle._callback, "__self__", None), Ticker)  # type: ignore[attr-defined]
        for handle in scheduled
        if not handle.cancelled()
    )


async def test_p2_each_is_called_once_when_its_time_has_come_and_in_order(clock: Clock) -> None:
    log: list[str] = []
    start = clock.now()
    dues = {name: Due(log, name) for name in "cab"}
    for name, due in dues.items():
        due.wish(start + {"a": 0.02, "b": 0.04, "c": 0.06}[name])
    await until(lambda: len(log) == 3)
    await asyncio.sleep(0.05)
    assert log == ["a", "b", "c"]
    assert dues["a"].calls[0] >= start + 0.02
    assert dues["c"].calls[0] >= start + 0.06


async def test_p2_who_is_due_in_a_moment_is_asked_to_go_along_and_stays_due(clock: Clock) -> None:
    now = clock.now()
    first, busy, willing, later = Due(), Due(), Due(again=iter([50.0])), Due()
    for due, delay in ((first, 0.05), (busy, 0.056), (willing, 0.058), (later, 0.5)):
        due.wish(now + delay)
    await until(lambda: len(busy.calls) == 2)
    assert busy.calls[0] == willing.calls[0] == first.calls[0]
    assert busy.calls[1] >= now + 0.056
    assert (len(willing.calls), later.calls) == (1, [])
    for due in (willing, later):
        due.wish(float("inf"))


async def test_p2_there_is_one_timer_whatever_is_due(clock: Clock) -> None:
    loop, now = asyncio.get_running_loop(), clock.now()
    dues = [Due() for _ in range(50)]
    for number, due in enumerate(dues):
        due.wish(now + 50.0 - number)
    assert timers(loop) == 1
    for due in dues:
        due.wish(now + 0.001)
    assert timers(loop) == 1
    await until(lambda: all(due.calls for due in dues))
    await until(lambda: timers(loop) == 0)


async def test_p2_a_jump_of_the_clock_is_noticed_within_a_tick(clock: Clock) -> None:
    """A suspended machine: the clock moves by a minute, the loop's time by hardly anything."""
    due = Due()
    due.wish(clock.now() + 30.0, longest=0.1)
    await asyncio.sleep(0.15)
    assert due.calls == []
    clock.suspended = 60.0
    started = time.monotonic()
    await until(lambda: due.calls)
    assert time.monotonic() - started < 1.0  # a tick is 0.1 s, and the machine may be slow; 30 s would be a failure


async def test_p2_a_tick_is_at_most_a_second_whatever_is_asked_for(clock: Clock) -> None:
    due = Due()
    due.wish(clock.now() + 3600.0, longest=100.0)
    clock.suspended = 7200.0
    await until(lambda: due.calls, limit=5.0)


async def test_p2_the_shortest_tick_that_somebody_needs_counts_for_all(clock: Clock) -> None:
    slow, quick = Due(), Due()
    slow.wish(clock.now() + 30.0, longest=1.0)
    quick.wish(clock.now() + 20.0, longest=0.05)
    clock.suspended = 60.0
    started = time.monotonic()
    await until(lambda: slow.calls and quick.calls)
    assert time.monotonic() - started < 0.9


async def test_p2_a_changed_wish_replaces_the_old_one(clock: Clock) -> None:
    earlier, later, never = Due(), Due(), Due()
    now = clock.now()
    earlier.wish(now + 30.0)
    later.wish(now + 0.02)
    never.wish(now + 0.02)
    earlier.wish(now + 0.01)
    later.wish(now + 0.1)
    never.wish(FOREVER)
    await until(lambda: later.calls)
    assert len(earlier.calls) == 1
    assert later.calls[0] >= now + 0.1
    assert never.calls == []


async def test_p2_who_is_called_may_wish_again(clock: Clock) -> None:
    due = Due(again=iter([0.0, 0.01, 0.01]))
    due.wish(clock.now())
    await until(lambda: len(due.calls) == 4)
    await asyncio.sleep(0.03)
    assert len(due.calls) == 4


async def test_p2_what_fell_due_while_the_loop_was_blocked_is_called_right_after(clock: Clock) -> None:
    dues = [Due(), Due()]
    for due in dues:
        due.wish(clock.now() + 0.01)
    time.sleep(0.05)
    await asyncio.sleep(0.001)
    await until(lambda: all(due.calls for due in dues))


async def test_p2_an_error_of_one_does_not_keep_the_others_from_being_called(
    clock: Clock, loop_errors: list[str]
) -> None:
    class Broken(Due):
        def on_tick(self, now: float) -> None:
            raise RuntimeError("broken")

    broken, sound, later = Broken(), Due(), Due()
    broken.wish(clock.now() + 0.001)
    sound.wish(clock.now() + 0.001)
    later.wish(clock.now() + 0.05)
    await until(lambda: sound.calls and later.calls)
    assert len(loop_errors) == 1
    assert "broken" in loop_errors.pop()


async def test_p15_an_idle_ticker_keeps_nothing_and_no_timer(clock: Clock) -> None:
    for _ in range(20):
        Due().wish(clock.now() + 0.001)
    await until(lambda: timers(asyncio.get_running_loop()) == 0)
    assert ticker()._instants == []


async def test_p2_a_term_that_is_renewed_often_does_not_fill_the_ticker(clock: Clock) -> None:
    """Beside a short term, a long one whose work proves itself all the time."""
    short, long = Due(again=iter([0.05] * 100)), Due()
    short.wish(clock.now() + 0.05)
    for number in range(2000):
        long.wish(clock.now() + 3600.0 + number)
    assert len(ticker()._instants) < 100
    long.wish(FOREVER)
    short.wish(FOREVER)


async def test_p15_each_event_loop_has_a_ticker_of_its_own() -> None:
    async def elsewhere() -> Ticker:
        return ticker()

    assert ticker() is ticker()
    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) is not ticker()


def test_p3_on_uvloop_whoever_is_due_within_the_same_millisecond_is_called_and_so_are_those_after() -> None:
    """For less than half a millisecond uvloop has no timer: it calls at once, and its handle knows no instant."""

    async def wait() -> None:
        for delay in (0.0, 0.0001, 0.0004, 0.001, 0.02):
            due, wanted = Due(), _clock.now() + delay
            due.wish(wanted)
            await until(partial(list, due.calls))
            assert due.calls[0] >= wanted

    uvloop.run(wait())
