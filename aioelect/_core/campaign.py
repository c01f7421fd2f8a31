"""What a candidate does next: sleep and try again, or give up.

One value describes the whole acquisition: how long it may go on, how it has fared. `after_*` takes what happened and
says what follows. The three primitives differ only in what they put in: one try (`until` is the start), a limited wait,
or a candidate for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from aioelect._core.timing import Timing

__all__ = ["Campaign", "GiveUp", "Next", "Sleep"]


class Sleep(NamedTuple):
    """Try again after so many seconds, or earlier if a notice comes."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further try: the last answer is the result."""


Next = Sleep | GiveUp


class Campaign(NamedTuple):
    """One acquisition from its first try to its end."""

    timing: Timing
    started: float
    until: float | None  # None: no limit
    candidate: bool = False  # stands for a role: once the store has served it, no refusal to serve ends it
    served: bool = False  # the store has given a clear answer before
    failures: int = 0  # tries without a clear answer in a row

    def time_for_try(self, now: float) -> float:
        """How long a try that starts now may take; 0.0 when there is no time for one."""
        limit = self.timing.response_limit
        if self.until is None:
            return limit
        if self.until <= self.started:  # it doesn't wait, but gets its answer (and one repetition, see below)
            first = not (self.failures or self.served)  # asked whenever it begins: the loop may have been busy
            return limit if first else max(0.0, self.started + limit - now)
        return max(0.0, min(limit, self.until - now))

    def put_off(self, seconds: float) -> Campaign:
        """Its first try was put off so long, in favour of others: its time counts from then."""
        until = None if self.until is None else self.until + seconds
        return self._replace(started=self.started + seconds, until=until)

    def answered(self) -> Campaign:
        """A clear answer came: whatever was out of order is over."""
        return self._replace(served=True, failures=0)

    def after_contended(
        self, now: float, remaining: float | None, *, notices: bool, chance: float
    ) -> tuple[Campaign, Next]:
        """The name is another's for `remaining` more seconds."""
        delay = self.timing.waiting_delay(remaining, notices=notices, chance=chance)
        return self.answered(), self._in_time(now, delay)

    def after_unavailable(self, now: float, chance: float) -> tuple[Campaign, Next]:
        """The store gave no usable answer."""
        failed = self._replace(failures=self.failures + 1)
        if failed.failures == 1 and failed.time_for_try(now) > 0:
            return failed, Sleep(0.0)  # most often a connection that had gone stale
        return failed, self._in_time(now, self.timing.outage_delay(failed.failures, chance))

    def after_rejected(self, now: float, chance: float, *, passing: bool) -> tuple[Campaign, Next]:
        """The store refused to serve; `passing` if that may end by itself."""
        failed = self._replace(failures=self.failures + 1)
        if not (passing or (self.candidate and self.served)):
            return failed, GiveUp()
        return failed, self._in_time(now, self.timing.outage_delay(failed.failures + 2, chance))

    def _in_time(self, now: float, delay: float) -> Next:
        if self.until is None:
            return Sleep(delay)
        if now >= self.until:
            return GiveUp()
        return Sleep(min(delay, self.until - now))
