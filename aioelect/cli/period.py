"""`--once-per`: a command that is to succeed once in a period, wherever and however often it is started."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import click

from aioelect import Interval, Term, _clock
from aioelect._core.timing import MAX_DURATION

__all__ = ["once_per", "period_of"]

_FORM = re.compile(r"(\d+)([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def period_of(text: str) -> timedelta:
    """90, 90s, 15m, 1h or 1d."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no period; expected seconds, or a number with s, m, h or d: 90, 15m, 1d")
    number = int(found[1]) * _UNITS[found[2]]
    if not 1 <= number <= MAX_DURATION:
        raise click.BadParameter(f"{text!r} is out of range; expected 1 s to ten years")
    return timedelta(seconds=number)


async def once_per(period: timedelta, term: Term, job: Callable[[Term], Awaitable[int]]) -> int | None:
    """Do the job unless it has succeeded in the present period, and note it if it succeeds; None: nothing was to do."""
    code: int | None = None
    begin = datetime.fromtimestamp(_clock.wall(), UTC) - period
    async for _ in term.once(Interval(period), begin=begin, wait=False):
        if code is not None:  # it took so long that the next period has begun: that is for the next start
            break
        code = await job(term)
        if code != 0:
            break
    return code
