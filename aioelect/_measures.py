"""TELL: what can be measured, and what each fact adds to it; whoever exports numbers binds this to a library.

No library is imported here, so that Prometheus and OpenTelemetry count the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from aioelect._core.hold import EndReason
from aioelect.facts import (
    CandidacyBegan,
    CandidacyOver,
    Declared,
    DrainOverrun,
    Fact,
    LoopLag,
    LoopStalled,
    ReleaseOutcome,
    RenewalConfirmed,
    RenewalFailed,
    StoreFailed,
    TermBegan,
    TermOver,
    TermStopped,
    WriteRefused,
)

__all__ = [
    "INSTRUMENTS",
    "IS_LEADER",
    "LEADS_UNTIL",
    "OTHER",
    "Bounded",
    "Instrument",
    "Leading",
    "measures",
    "name_of",
]

OTHER = "_other"

_logger = logging.getLogger("aioelect")
_WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_TRIPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_HOLDS = (0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8)
_ENDS = tuple(reason.value for reason in EndReason if reason is not EndReason.LATE)  # that one never begins


@dataclass(frozen=True, slots=True)
class Instrument:
    """One thing that is measured."""

    kind: Literal["counter", "sum", "gauge", "histogram"]
    text: str
    unit: Literal["", "seconds", "ratio"] = ""
    buckets: tuple[float, ...] = ()
    label: str | None = None  # beside the name
    first: tuple[str, ...] = ()  # values of that label that are there from the start
    named: bool = True  # has the contended name as a label


INSTRUMENTS = {
    "candidates": Instrument("sum", "Electors of this process that stand or lead."),
    "ttl": Instrument("gauge", "The ttl as configured.", "seconds"),
    "acquired": Instrument("counter", "Terms that began in this process."),
    "terms_ended": Instrument("counter", "Terms that are over, by reason.", label="reason", first=_ENDS),
    "release_already_lost": Instrument("counter", "Releases answered 0: the claim had run out while its work went on."),
    "renewal_failure": Instrument("counter", "Renewals without a clear answer."),
    "doubtful_terms": Instrument("counter", "Times that a term became doubtful: a renewal failed, the work goes on."),
    "drain_overrun": Instrument("counter", "Cancelled work that took longer than the drain limit."),
    "fence_refusal": Instrument("counter", "Writes that a target refused because it had seen a newer token."),
    "store_error": Instrument(
        "counter", "Requests without a usable answer, by class.", label="error", first=("timeout", "connection")
    ),
    "acquisition_wait": Instrument("histogram", "From the first try of an acquisition to the win.", "seconds", _WAITS),
    "hold": Instrument("histogram", "From the win to the stop of the work.", "seconds", _HOLDS),
    "failover": Instrument(
        "histogram",
        "From the last sign of life of another holder to our win, where one was seen.",
        "seconds",
        _WAITS,
    ),
    "renewal_round_trip": Instrument("histogram", "From the send of a renewal to its confirmation.", "seconds", _TRIPS),
    "renewal_life_left": Instrument(
        "histogram",
        "Share of the ttl that was left before the work would be stopped, when a renewal was confirmed or failed.",
        "ratio",
        _SHARES,
    ),
    "loop_stalls": Instrument("counter", "Times that a watched event loop was blocked for a third of the ttl."),
    "loop_lag": Instrument(
        "histogram",
        "How late the event loop served a timer, looked at once a second at most while a term is held.",
        "seconds",
        _WAITS[:14],
        named=False,
    ),
}

IS_LEADER = "1 while this process leads, by its clock; else 0."
LEADS_UNTIL = "Unix time until which this process leads unless it renews, or has led; 0: never did."

Measure = tuple[str, float, str | None]  # which instrument, how much, the value of its own label


def name_of(fact: Fact) -> str | None:
    """The contended name that a fact is about; None: of none."""
    term = getattr(fact, "term", fact)
    name: str | None = getattr(term, "name", None)
    return name


def measures(fact: Fact) -> tuple[Measure, ...]:  # noqa: C901 - one case for each kind of fact
    """What a fact adds to which instruments."""
    match fact:
        case TermBegan(waited=waited, failover=None):
            return ("acquired", 1, None), ("acquisition_wait", waited, None)
        case TermBegan(waited=waited, failover=float(failover)):
            return ("acquired", 1, None), ("acquisition_wait", waited, None), ("failover", failover, None)
        case TermStopped(held=held):
            return (("hold", held, None),)
        case TermOver(outcome=ReleaseOutcome.ALREADY_LOST):
            return ("terms_ended", 1, fact.reason.value), ("release_already_lost", 1, None)
        case TermOver():
            return (("terms_ended", 1, fact.reason.value),)
        case RenewalConfirmed(term=term):
            left = fact.life_left / term.ttl
            return ("renewal_round_trip", fact.round_trip, None), ("renewal_life_left", left, None)
        case RenewalFailed(term=term, failures=failures):
            failed = ("renewal_failure", 1, None), ("renewal_life_left", fact.life_left / term.ttl, None)
            return failed if failures > 1 else (*failed, ("doubtful_terms", 1, None))
        case LoopLag(seconds=seconds):
            return (("loop_lag", seconds, None),)
        case LoopStalled():
            return (("loop_stalls", 1, None),)
        case DrainOverrun():
            return (("drain_overrun", 1, None),)
        case StoreFailed(reason=reason):
            return (("store_error", 1, reason),)
        case WriteRefused():
            return (("fence_refusal", 1, None),)
        case Declared(ttl=ttl):
            return (("ttl", ttl, None),)
        case CandidacyBegan():
            return (("candidates", 1, None),)
        case CandidacyOver():
            return (("candidates", -1, None),)
        case _:
            return ()


class Leading:
    """Which terms of one label lead, by their own clocks, and until when."""

    def __init__(self) -> None:
        self._terms: dict[str, Callable[[], float]] = {}
        self._until = 0.0  # unix time up to which one of them leads, or has led
        self._prune_at = 32

    def hear(self, fact: Fact) -> bool:
        """Take note; True: something has changed."""
        match fact:
            case TermBegan(term=term):
                self._terms[term.id] = fact.leads_for
                if len(self._terms) > self._prune_at:  # terms of try_acquire() may never be released
                    self.read()
                    self._prune_at = 2 * len(self._terms) + 32
                self._prolong(fact.leads_for)
            case RenewalConfirmed(term=term):
                self._prolong(self._terms.get(term.id))
            case TermStopped(term=term) | TermOver(term=term):
                if self._terms.pop(term.id, None) is not None and not self._terms:
                    self._until = min(self._until, time.time())
            case _:
                return False
        return True

    def read(self) -> tuple[int, float]:
        """How many terms lead now, and the unix time until which one of them does, or has done; from any thread."""
        longest, now = 0.0, time.time()
        for id_, leads_for in tuple(self._terms.items()):
            left = leads_for()
            if left <= 0.0:  # and never will again
                self._terms.pop(id_, None)
            longest = max(longest, left)
        self._until = now + longest if longest else min(self._until, now)
        return len(self._terms), self._until

    def _prolong(self, leads_for: Callable[[], float] | None) -> None:
        if leads_for is not None:
            self._until = max(self._until, time.time() + leads_for())


class Bounded:
    """Label values, so many at most; further ones become one."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._known: set[str] = set()
        self._warned = False

    def __call__(self, value: str, limit: int) -> str:
        """`value`, or what stands for all further ones."""
        if value in self._known:
            return value
        if len(self._known) < limit:
            self._known.add(value)
            return value
        if not self._warned:
            self._warned = True
            message = "metrics: more than %d %s; %r and all further ones count as %r (see docs/metrics.md)"
            _logger.warning(message, limit, self._what, value, OTHER)
        return OTHER
