"""When something is due: the grid of ticks, instants by the wall clock, time zones and the two bad nights a year."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioelect._core.schedule import (
    Beat,
    Daily,
    Interval,
    Missed,
    Schedule,
    as_schedule,
    due,
    from_microseconds,
    to_microseconds,
)
from aioelect._errors import ConfigurationError

BERLIN = ZoneInfo("Europe/Berlin")
instants = st.datetimes(datetime(1975, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
zones = st.sampled_from(
    [UTC, BERLIN, ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("Asia/Kathmandu")]
)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


def runs(schedule: Schedule, since: datetime, until: datetime) -> list[datetime]:
    """All instants in (since, until]."""
    found = []
    while (since := schedule.after(since)) <= until:
        found.append(since)
    return found


# -- ticks ------------------------------------------------------------------------------------------------------------


@given(
    st.floats(0.001, 1e4),
    st.lists(st.floats(0, 50.0), min_size=1, max_size=50),
    st.sampled_from(["skip", "catch_up"]),
)
def test_ticks_stay_on_their_grid_however_late_they_come(interval: float, lates: list[float], missed: Missed) -> None:
    beat = Beat.of(interval, 0.0, missed)
    due = now = 1000.0
    for late in lates:
        now = max(now, due) + late
        due, before = beat.following(due, now), due
        steps = (due - before) / interval
        assert math.isclose(steps, round(steps), abs_tol=1e-6) and round(steps) >= 1
        if missed == "catch_up":
            assert round(steps) == 1
        else:
            assert now - 1e-6 * interval <= due <= now + interval * (1 + 1e-6)


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 5.0))
def test_jitter_delays_a_tick_and_moves_no_other(chance: float, jitter: float) -> None:
    beat = Beat.of(5.0, jitter, "skip")
    fires_at = beat.fires_at(100.0, chance)
    assert 100.0 <= fires_at <= 100.0 + jitter
    assert math.isclose(beat.following(100.0, min(fires_at, 104.999)), 105.0)


@pytest.mark.parametrize(
    ("interval", "jitter", "missed", "named"),
    [
        (0, 0, "skip", "interval"),
        (-1, 0, "skip", "interval"),
        (1, 1.1, "skip", "jitter"),
        (1, -0.1, "skip", "jitter"),
        (1, 0, "later", "missed"),
        (True, 0, "skip", "interval"),
    ],
)
def test_p14_bad_ticks_are_refused(interval: float, jitter: float, missed: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Beat.of(interval, jitter, missed)


# -- intervals --------------------------------------------------------------------------------------------------------


@given(instants, st.integers(1, 10**9), st.integers(0, 10**9))
def test_every_process_has_the_same_grid(instant: datetime, step_ms: int, offset_ms: int) -> None:
    schedule = Interval(step_ms / 1000, offset_ms / 1000)
    found = schedule.after(instant)
    assert instant < found <= instant + timedelta(milliseconds=step_ms)
    assert (to_microseconds(found) - offset_ms * 1000) % (step_ms * 1000) == 0
    assert schedule.after(found) - found == timedelta(milliseconds=step_ms)


@given(instants)
def test_an_instant_survives_the_way_to_the_store_and_back(instant: datetime) -> None:
    assert from_microseconds(to_microseconds(instant)) == instant


# -- days, and the nights on which the clocks are changed ------------------------------------------------------------


@given(instants, st.times(), zones)
def test_a_day_has_one_run_and_runs_never_stand_still(instant: datetime, at: time, zone: ZoneInfo) -> None:
    schedule = Daily(at.replace(microsecond=0), zone)
    first = schedule.after(instant)
    second = schedule.after(first)
    assert instant < first < second
    assert first - instant <= timedelta(hours=26) and timedelta(hours=22) <= second - first <= timedelta(hours=26)
    assert (second.astimezone(zone).date() - first.astimezone(zone).date()).days == 1


def test_a_time_that_the_clocks_skip_comes_as_late_as_they_were_put_forward() -> None:
    # 29 March 2026 in Berlin: 02:00 is 03:00, and there is no 02:30.
    found = runs(Daily("02:30", BERLIN), utc(2026, 3, 27, 12), utc(2026, 3, 30, 12))
    assert found == [utc(2026, 3, 28, 1, 30), utc(2026, 3, 29, 1, 30), utc(2026, 3, 30, 0, 30)]
    assert [f"{run.astimezone(BERLIN):%H:%M}" for run in found] == ["02:30", "03:30", "02:30"]


def test_a_time_that_comes_twice_counts_once_the_first_time() -> None:
    # 25 October 2026 in Berlin: 03:00 is 02:00 again, and 02:30 comes twice.
    found = runs(Daily("02:30", BERLIN), utc(2026, 10, 23, 12), utc(2026, 10, 26, 12))
    assert found == [utc(2026, 10, 24, 0, 30), utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)]
    assert [f"{run.astimezone(BERLIN):%H:%M}" for run in found] == ["02:30"] * 3


@pytest.mark.parametrize("at", ["01:59:59", "03:00", "23:59:59", "00:00"])
def test_other_times_keep_their_time_of_day_through_the_year(at: str) -> None:
    found = runs(Daily(at, BERLIN), utc(2026, 1, 1), utc(2026, 12, 31))
    assert {f"{run.astimezone(BERLIN):%H:%M:%S}" for run in found} == {at if at.count(":") == 2 else f"{at}:00"}
    assert len(found) in (364, 365)


def test_the_name_of_a_schedule_tells_it_from_others() -> None:
    names = {
        str(schedule)
        for schedule in (
            Daily("03:00"),
            Daily("03:00", BERLIN),
            Daily("03:00:01", BERLIN),
            Daily("03:00", timezone(timedelta(hours=2))),
            Interval(60),
            Interval(60, 30),
            Interval(0.1),
        )
    }
    assert len(names) == 7
    assert str(Daily(time(3), BERLIN)) == str(Daily("03:00:00", BERLIN)) and str(Interval(60)) == str(
        Interval(timedelta(minutes=1))
    )


class LikePytz(tzinfo):
    """One offset for a datetime that it is put into, another for one that is brought to it."""

    def utcoffset(self, dt: datetime | None, /) -> timedelta:
        return timedelta(minutes=53)

    def dst(self, dt: datetime | None, /) -> None:
        return None

    def tzname(self, dt: datetime | None, /) -> str:
        return "LMT"

    def fromutc(self, dt: datetime, /) -> datetime:
        return (dt + timedelta(hours=1)).replace(tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Daily("3:00"), "at"),
        (lambda: Daily("24:00"), "at"),
        (lambda: Daily("03:60"), "at"),
        (lambda: Daily(3), "at"),  # type: ignore[arg-type]
        (lambda: Daily(time(3, tzinfo=UTC)), "at"),
        (lambda: Daily("03:00", "Europe/Berlin"), "tz"),  # type: ignore[arg-type]
        (lambda: Daily("03:00", LikePytz()), "tz"),
        (lambda: Interval(0), "interval"),
        (lambda: Interval(math.nan), "interval"),
        (lambda: Interval(1, -1), "offset"),
        (lambda: as_schedule("0 3 * * *"), "schedule"),
        (lambda: as_schedule(True), "interval"),
    ],
)
def test_p14_bad_schedules_are_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make()


# -- what is due ------------------------------------------------------------------------------------------------------


@dataclass
class Listed:
    """A schedule of given instants, which counts how often it was asked."""

    instants: list[datetime]
    asked: int = 0

    def after(self, instant: datetime, /) -> datetime:
        self.asked += 1
        return next((found for found in self.instants if found > instant), utc(9999, 1, 1))

    def __str__(self) -> str:
        return "listed"


@given(st.lists(st.integers(1, 10**6), unique=True, max_size=40), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_latest_run_is_found_or_the_first_one_that_was_missed(offsets: list[int], done: int, late: int) -> None:
    start = utc(2026, 1, 1)
    listed = Listed(sorted(start + timedelta(seconds=offset) for offset in offsets))
    since, now = start + timedelta(seconds=done), start + timedelta(seconds=done + late)
    missed = [instant for instant in listed.instants if since < instant <= now]
    assert due(listed, since, now, "skip") == (missed[-1] if missed else None)
    assert due(listed, since, now, "catch_up") == (missed[0] if missed else None)


def test_a_long_absence_is_no_long_search() -> None:
    counted = Listed([])
    minutely = Interval(60)

    class Counting:
        def after(self, instant: datetime, /) -> datetime:
            counted.asked += 1
            return minutely.after(instant)

    assert due(Counting(), utc(2020, 1, 1), utc(2026, 1, 1, 0, 0, 30), "skip") == utc(2026, 1, 1)
    assert counted.asked < 20


def test_one_after_the_other_is_caught_up_in_order() -> None:
    done, now = utc(2026, 1, 1), utc(2026, 1, 1, 0, 5, 30)
    found = []
    while (run := due(Interval(60), done, now, "catch_up")) is not None:
        found.append(run)
        done = run
    assert found == [utc(2026, 1, 1, 0, minute) for minute in range(1, 6)]
    assert all(later - earlier == timedelta(minutes=1) for earlier, later in itertools.pairwise(found))


@pytest.mark.parametrize("answer", [None, "soon", utc(2025, 1, 1), datetime(2030, 1, 1)])  # noqa: DTZ001
def test_p14_a_schedule_that_is_not_one_is_told_apart_from_one_that_waits(answer: object) -> None:
    class Broken:
        def after(self, instant: datetime, /) -> object:
            return answer

    with pytest.raises(ConfigurationError, match="later instant"):
        due(Broken(), utc(2026, 1, 1), utc(2026, 1, 2), "skip")  # type: ignore[arg-type]
