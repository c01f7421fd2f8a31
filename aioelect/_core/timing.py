"""Durations: how long, in what relation to each other, and how delays are jittered.

The only place that does arithmetic on a ttl. Everything is float seconds in here; milliseconds exist only at the border
to the server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import timedelta

from aioelect._errors import ConfigurationError

__all__ = ["Duration", "Timing", "optional_seconds", "seconds"]

Duration = float | timedelta

MIN_TTL = 0.1
MAX_TTL = 24 * 3600.0
MAX_DURATION = 10 * 365 * 24 * 3600.0  # of anything: more is a mistake in the unit, and overflows in the store
MIN_INTERVAL = 0.01
MIN_RETENTION = 3600.0
MIN_TRY = 0.001
MAX_RESPONSE = 5.0
TRIES = 3  # so many failed renewals fit between the interval and the renew deadline
SLACK = 0.01  # at least so long before the deadline the work is told to stop
RELEASE_LIMIT = 2.0  # leaving takes at most this long, whatever the server does
EXPIRY_LAG = 0.001  # a server lets the next one in so long after the ttl (measured: 1.1 ms at most)
POLL_CAP = 60.0
COMPANY = 0.01  # of an interval: those who are due within so short a time of each other go together
_RESPONSE_SHARE = 0.75  # of a try's limit: the rest is the back-off before the next try


def seconds(field: str, value: object, *, least: float = 0.0, most: float = MAX_DURATION) -> float:
    """`value` as float seconds, or ConfigurationError that names field, value and limit."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(
            f"{field}={value!r} is a {type(value).__name__}; expected seconds as int or float, or a timedelta",
            reason=field,
        )
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise ConfigurationError(f"{field}={value!r} is not a finite number of seconds", reason=field)
    if result < least:
        raise ConfigurationError(f"{field}={value!r} is too short: at least {least:g} s", reason=field)
    if result > most:
        raise ConfigurationError(f"{field}={value!r} is too long: at most {most:g} s", reason=field)
    return result


def optional_seconds(field: str, value: object, *, least: float = 0.0, most: float = MAX_DURATION) -> float | None:
    """The same, where None means no limit."""
    return None if value is None else seconds(field, value, least=least, most=most)


def drift(ttl: float) -> float:
    """How much of a ttl is not counted on: 1 % for clocks that run at different rates, 3 ms for rounding."""
    return ttl / 100 + 0.003


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations of one primitive, checked against each other once."""

    ttl: float
    interval: float  # from the send of a confirmed renewal to the next one
    renew_deadline: float  # from the send of a confirmed renewal to the stop of the work
    drain: float  # how long cancelled work may take before it counts as overrun
    retention: float  # how long the fence record outlives the last renewal
    min_hold: float = 0.0  # from the begin of a term: another gets the name no earlier

    # What follows from these. Asked for at every step, so it is computed once.
    try_limit: float = field(init=False)  # how long one try may take, back-off included, so that three fit
    response_limit: float = field(init=False)  # how long it waits for its answer: no longer than anybody would
    validity: float = field(init=False)  # from the send of a confirmed renewal to the deadline: provable up to then
    tick: float = field(init=False)  # the longest time without reading the clock
    grain: float = field(init=False)  # so much earlier a renewal may be sent, to go with others

    def __post_init__(self) -> None:
        try_limit = (self.renew_deadline - self.interval) / TRIES
        object.__setattr__(self, "try_limit", try_limit)
        object.__setattr__(self, "response_limit", min(MAX_RESPONSE, try_limit * _RESPONSE_SHARE))
        object.__setattr__(self, "validity", self.ttl - drift(self.ttl))
        object.__setattr__(self, "tick", min(1.0, self.interval))
        object.__setattr__(self, "grain", self.interval * COMPANY)

    @classmethod
    def of(
        cls,
        ttl: Duration,
        *,
        renew_interval: Duration | None = None,
        renew_deadline: Duration | None = None,
        drain_limit: Duration | None = None,
        retention: Duration | None = None,
        min_hold: Duration = 0.0,
    ) -> Timing:
        """Fill in what is unset (it scales with ttl) and refuse what can't work, with the numbers."""
        life = seconds("ttl", ttl, least=MIN_TTL, most=MAX_TTL)
        interval = life / 3 if renew_interval is None else seconds("renew_interval", renew_interval, least=MIN_INTERVAL)
        stop = 0.8 * life if renew_deadline is None else seconds("renew_deadline", renew_deadline)
        if interval >= life:
            raise ConfigurationError(
                f"renew_interval={interval:g} s is not below ttl={life:g} s: the claim would expire before it is "
                f"renewed; a third of the ttl ({life / 3:.3g} s) lets two renewals in a row fail",
                reason="renew_interval",
            )
        latest = life - drift(life) - SLACK
        if stop > latest:
            raise ConfigurationError(
                f"renew_deadline={stop:g} s is too late for ttl={life:g} s: "
                f"at most ttl - drift - 10 ms = {latest:.4g} s",
                reason="renew_deadline",
            )
        if interval > stop - TRIES * MIN_TRY:
            raise ConfigurationError(
                f"renew_interval={interval:g} s leaves no room for {TRIES} tries before renew_deadline={stop:g} s",
                reason="renew_interval",
            )
        return cls(
            ttl=life,
            interval=interval,
            renew_deadline=stop,
            drain=life if drain_limit is None else seconds("drain_limit", drain_limit, least=MIN_INTERVAL),
            retention=max(MIN_RETENTION, 2 * life)
            if retention is None
            else seconds("fence_retention", retention, least=life),
            min_hold=seconds("min_hold", min_hold, most=life),
        )

    def unattended(self) -> Timing:
        """For a term that nobody renews in the background: it may be used, and renewed by hand, as long as provable."""
        return replace(self, renew_deadline=self.ttl - drift(self.ttl) - SLACK)

    def renewal_due(self, sent_at: float) -> float:
        """When to renew after a request sent then: up to 1 % of the interval early, so that claims share instants."""
        due = sent_at + self.interval
        return min(due, due // self.grain * self.grain)

    def retry_delay(self, chance: float) -> float:
        """After a failed renewal: at most a fifth of a try, jittered by `chance` in [0, 1)."""
        return min(MAX_RESPONSE, self.try_limit * (1 - _RESPONSE_SHARE)) * (0.2 + 0.6 * chance)

    def outage_delay(self, failures: int, chance: float) -> float:
        """A candidate's back-off after so many failures in a row: doubling, capped at min(ttl, 5 s), jittered."""
        ceiling = min(self.ttl, 5.0)
        return float(min(ceiling, 0.05 * 2 ** min(failures, 16)) * (0.5 + 0.5 * chance))

    def poll_limit(self, notices: bool) -> float:
        """The longest sleep of a waiter.

        With notices a waiter sleeps as long as the holder's ttl lasts, so that waiting costs at most 1.25 commands a
        ttl; without them it polls, ten times a ttl.
        """
        return max(5.0, min(self.ttl, POLL_CAP)) if notices else max(0.25, self.ttl / 10)

    def waiting_delay(self, remaining: float | None, *, notices: bool, chance: float) -> float:
        """How long a waiter sleeps after the answer "held for `remaining` more seconds"."""
        poll = self.poll_limit(notices) * (1.0 if notices else 0.9 + 0.2 * chance)
        return poll if remaining is None else min(poll, max(0.0, remaining) + EXPIRY_LAG * (1 + chance))

    @property
    def listed(self) -> float:
        """How long a failed try lists a candidate: it tries again in half of that, or is gone."""
        return 2 * self.poll_limit(notices=True)

    @property
    def deference(self) -> float:
        """How long a candidate lets one of a higher weight go first: long enough for one that polls."""
        return 1.25 * self.poll_limit(notices=False)

    def wakeup_delay(self, chance: float) -> float:
        """After a notice of release: a small spread, so that the processes that wait don't ask in lockstep."""
        return 0.001 * chance

    def resign_pause(self) -> float:
        """How long a candidate that resigned lets the others stand before it does again."""
        return min(self.interval, 5.0)

    def stepping_back(self) -> float:
        """How long a process that has had several turns in a row lets the others go first."""
        return min(0.01, self.ttl / 20)
