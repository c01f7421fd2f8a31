"""When something is due: ticks of an interval, and the instants of a schedule by the wall clock.

Ticks follow the clock that terms are kept by, and belong to one term. A schedule's instants are the same for every
process, so that a run can be called done for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Literal, Protocol

from aioelect._core.timing import Duration, seconds
from aioelect._errors import ConfigurationError

__all__ = [
    "Beat",
    "Daily",
    "Interval",
    "Missed",
    "Schedule",
    "as_schedule",
    "check_begin",
    "check_missed",
    "check_tz",
    "due",
    "from_microseconds",
    "name_of",
    "to_microseconds",
]

Missed = Literal["skip", "catch_up"]
"""What becomes of ticks that were missed: only the latest counts, or each of them comes late."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)
_AT = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


def to_microseconds(instant: datetime) -> int:
    """An instant as the whole number that is exact everywhere."""
    return (instant - _EPOCH) // _MICROSECOND


def from_microseconds(number: int) -> datetime:
    """The same, read back; in UTC."""
    return _EPOCH + number * _MICROSECOND


def check_missed(value: object) -> Missed:
    """What to do with missed ticks, or ConfigurationError."""
    if value == "skip":
        return "skip"
    if value == "catch_up":
        return "catch_up"
    raise ConfigurationError(f"missed={value!r}; expected 'skip' or 'catch_up'", reason="missed")


def check_tz(value: object) -> None:
    """Refuse what is no time zone."""
    if not isinstance(value, tzinfo):
        raise ConfigurationError(f"tz={value!r}; expected a tzinfo, like zoneinfo.ZoneInfo(...)", reason="tz")
    # pytz's zones give a datetime that they are put into the offset of the year 1900.
    noon = datetime(2001, 1, 15, 12, tzinfo=value)
    if noon.astimezone(UTC).astimezone(value).replace(tzinfo=value) != noon:
        raise ConfigurationError(
            f"tz={value!r} gives the same time two offsets; expected zoneinfo.ZoneInfo({str(value)!r})", reason="tz"
        )


def check_begin(value: object) -> datetime | None:
    """Where a schedule begins, or ConfigurationError; None: now."""
    if value is None:
        return None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    raise ConfigurationError(f"begin={value!r}; expected a datetime with a time zone", reason="begin")


@dataclass(frozen=True, slots=True)
class Beat:
    """Ticks of an interval on one grid: late ticks and jitter don't move those after them."""

    interval: float
    jitter: float
    missed: Missed

    @classmethod
    def of(cls, interval: Duration, jitter: Duration, missed: object) -> Beat:
        """Check the durations."""
        step = seconds("interval", interval, least=0.001)
        return cls(step, seconds("jitter", jitter, most=step), check_missed(missed))

    def fires_at(self, due: float, chance: float) -> float:
        """When the tick that is due comes."""
        return due + self.jitter * chance

    def following(self, due: float, now: float) -> float:
        """When the tick after one that comes now is due."""
        if self.missed == "catch_up":
            return due + self.interval
        return due + ((now - due) // self.interval + 1) * self.interval


class Schedule(Protocol):
    """The instants at which something is due, by the wall clock; equal for every process that has an equal one.

    `str()` of it is the name under which finished runs are remembered. Anything with these two methods will do.
    """

    def after(self, instant: datetime, /) -> datetime:
        """The first instant later than `instant`; both with a time zone."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Every `interval` seconds, counted from 1970 plus `offset`: the same grid everywhere.

    Args:
        interval: seconds or timedelta, at least 1 ms.
        offset: seconds or timedelta.

    Examples:
        >>> str(Interval(300))
        'every 300 s'
    """

    interval: Duration
    offset: Duration = 0.0

    def __post_init__(self) -> None:
        seconds("interval", self.interval, least=0.001)
        seconds("offset", self.offset)

    def after(self, instant: datetime, /) -> datetime:
        """The first instant of the grid later than `instant`."""
        step = round(seconds("interval", self.interval) * 1e6)
        offset = round(seconds("offset", self.offset) * 1e6)
        return from_microseconds(((to_microseconds(instant) - offset) // step + 1) * step + offset)

    def __str__(self) -> str:
        offset = seconds("offset", self.offset)
        return f"every {seconds('interval', self.interval):.15g} s" + (f" + {offset:.15g} s" if offset else "")


@dataclass(frozen=True, slots=True)
class Daily:
    """Once a day, at a time of day in a time zone.

    A time that the clocks skip comes as late as they were put forward: 02:30 is then 03:30 by the new time, a day's
    hours after the last one. A time that comes twice counts once, the first time.

    Args:
        at: "HH:MM", "HH:MM:SS" or a `datetime.time` without a time zone.
        tz: a time zone, for example `zoneinfo.ZoneInfo("Europe/Berlin")`; default UTC.

    Raises:
        ConfigurationError: an argument is refused.

    Examples:
        >>> from zoneinfo import ZoneInfo
        >>> str(Daily("03:00", ZoneInfo("Europe/Berlin")))
        'daily at 03:00:00 Europe/Berlin'
    """

    at: str | time
    tz: tzinfo = UTC

    def __post_init__(self) -> None:
        self._time()
        check_tz(self.tz)

    def _time(self) -> time:
        at = self.at
        if isinstance(at, time) and at.tzinfo is None:
            return at.replace(fold=0)
        if isinstance(at, str) and (found := _AT.fullmatch(at)):
            hour, minute, second = found.groups()
            return time(int(hour), int(minute), int(second or 0))
        raise ConfigurationError(f"at={at!r}; expected 'HH:MM', 'HH:MM:SS' or a time without a zone", reason="at")

    def after(self, instant: datetime, /) -> datetime:
        """The first instant later than `instant`, in UTC."""
        day = instant.astimezone(self.tz).date() - _DAY
        # fold=0: of the two offsets around a change of the clocks, the one before it.
        while (found := datetime.combine(day, self._time(), self.tz).astimezone(UTC)) <= instant:
            day += _DAY
        return found

    def __str__(self) -> str:
        return f"daily at {self._time().isoformat()} {self.tz}"


def as_schedule(value: object) -> Schedule:
    """A schedule as it is, or an interval in seconds."""
    if isinstance(value, (int, float, timedelta)):
        return Interval(value)
    if callable(getattr(value, "after", None)):
        return value  # type: ignore[return-value]  # by its shape
    raise ConfigurationError(
        f"schedule={value!r}; expected seconds, a timedelta, or a schedule like Daily(...) or Cron(...)",
        reason="schedule",
    )


def name_of(schedule: Schedule) -> str:
    """The name under which its finished runs are noted, unless it was given another."""
    kind = type(schedule)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise ConfigurationError(
            f"schedule={schedule!r} has a name of its own in every process: give {kind.__name__} a __str__, or key=...",
            reason="schedule",
        )
    return str(schedule)


def due(schedule: Schedule, done: datetime, now: datetime, missed: Missed) -> datetime | None:
    """The run that is due now: the first one after `done`, or the latest one; None: not yet.

    The latest one is looked for backwards from now in growing steps, since there may be very many since `done`.
    """
    first = following(schedule, done)
    if first > now:
        return None
    if missed == "catch_up":
        return first
    back = timedelta(seconds=1)
    latest = first
    while now - back > done:
        if (found := following(schedule, now - back)) <= now:
            latest = found
            break
        back *= 2
    while (later := following(schedule, latest)) <= now:
        latest = later
    return latest


def following(schedule: Schedule, instant: datetime) -> datetime:
    """What the schedule says comes next; it is not ours, so it is checked."""
    found: object = schedule.after(instant)
    if not isinstance(found, datetime) or found.tzinfo is None or found <= instant:
        raise ConfigurationError(
            f"schedule {schedule}: after({instant.isoformat()}) gave {found!r}; expected a later instant with a zone",
            reason="schedule",
        )
    return found.astimezone(UTC)
