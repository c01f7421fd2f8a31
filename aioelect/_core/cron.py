"""Cron expressions as a schedule. cronsim reads them; nothing here knows what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from aioelect._core.schedule import check_tz
from aioelect._errors import ConfigurationError

if TYPE_CHECKING:
    from cronsim import CronSim

__all__ = ["Cron"]

_LONGEST = 150  # characters: with the zone it is the name under which runs are noted
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31 (a day that a month of the expression has), L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 (0 and 7 are Sunday) or SUN to SAT, also like 5L or MON#2",
}
"""As cronsim names them in its errors, in the order of an expression with six fields."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone: needs `pip install "aioelect[cron]"`, which brings cronsim.

    As Debian's cron has it: minute, hour, day of month, month, day of week, with lists, ranges, steps and names. With
    six fields the first is the second.

    A time that the clocks skip comes at the first instant after the gap, and one that comes twice counts once, the
    first time: 02:30 is then 03:00. An expression whose minute or hour begins with `*`, and one with six fields,
    follows real time instead: what the clocks skip is left out, what they repeat is repeated.

    Args:
        expression: for example "0 3 * * *" or "30 8 * * MON-FRI".
        tz: a time zone, for example `zoneinfo.ZoneInfo("Europe/Berlin")`; default UTC.

    Raises:
        ConfigurationError: an argument is refused, the expression never comes true, or the extra is not installed.

    Examples:
        >>> from zoneinfo import ZoneInfo
        >>> str(Cron("0 3 * * *", tz=ZoneInfo("Europe/Berlin")))
        'cron 0 3 * * * Europe/Berlin'
    """

    expression: str
    tz: tzinfo = UTC

    def __post_init__(self) -> None:
        expression: object = self.expression
        if not isinstance(expression, str) or len(expression) > _LONGEST:
            raise ConfigurationError(
                f"expression={expression!r}; expected a cron expression of at most {_LONGEST} characters",
                reason="expression",
            )
        check_tz(self.tz)
        self.after(_EPOCH)

    def after(self, instant: datetime, /) -> datetime:
        """The first instant later than `instant`, in UTC."""
        for found in _instants(self.expression, instant.astimezone(self.tz)):
            # In a doubled hour the first of them is offered again to whoever asks during the second.
            if (later := found.astimezone(UTC)) > instant:
                return later
        raise ConfigurationError(
            f"expression={self.expression!r} does not come true within 50 years", reason="expression"
        )

    def __str__(self) -> str:
        return f"cron {' '.join(self.expression.split())} {self.tz}"


def _instants(expression: str, since: datetime) -> Iterator[datetime]:
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "Cron needs cronsim, which is not installed: pip install 'aioelect[cron]'", reason="missing extra"
        ) from error
    found: CronSim
    try:
        found = CronSim(expression, since)
    except (CronSimError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ConfigurationError(_refusal(expression, str(error)), reason="expression") from None
    return found


def _refusal(expression: str, why: str) -> str:
    values = expression.split()
    name = why.removeprefix("Bad ")
    if name not in _FIELDS or len(values) not in (5, 6):
        return (
            f"expression={expression!r} has {len(values)} fields; "
            "expected 5 (minute, hour, day of month, month, day of week), or 6 with the second first"
        )
    value = values[list(_FIELDS).index(name) - (6 - len(values))]
    return f"expression={expression!r}: {name} {value!r}; expected {_FIELDS[name]}, *, or lists, ranges and steps"
