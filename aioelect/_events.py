"""What happened, as frozen facts; who wants to know; and a fan-out that no listener can hurt.

The core emits facts and goes on. Logs, metrics and traces listen (`Observer`). One that raises is reported and never
asked again; it can't delay or fail a renewal.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from aioelect._core.hold import EndReason
from aioelect._errors import ConfigurationError

__all__ = [
    "CandidacyFailed",
    "Declared",
    "DrainOverrun",
    "Fact",
    "FitnessChanged",
    "Observer",
    "Observers",
    "ReleaseOutcome",
    "RenewalFailed",
    "RenewalRecovered",
    "StepDownAsked",
    "StepDownHookFailed",
    "StoreFailing",
    "StoreRecovered",
    "TermBegan",
    "TermInfo",
    "TermOver",
    "TermStopped",
]

_logger = logging.getLogger("aioelect")
_REST = {True: "", False: " and is not asked any more"}


class ReleaseOutcome(enum.Enum):
    """What became of a claim that was given up."""

    RELEASED = "released"  # the store confirmed it
    UNCONFIRMED = "unconfirmed"  # answered "gone" after a try without an answer: most likely that try did it
    ALREADY_LOST = "already lost"  # the claim had run out, or been taken, while its work went on
    UNKNOWN = "unknown"  # no answer in time: the claim ends with its ttl


@dataclass(frozen=True, slots=True)
class TermInfo:
    """Which term a fact is about; all of it safe to show."""

    name: str
    identity: str
    token: int
    id: str
    ttl: float


@dataclass(frozen=True, slots=True)
class Declared:
    """An object for this name was made: it may be contended for from here on."""

    name: str


@dataclass(frozen=True, slots=True)
class TermBegan:
    """A claim was won and its work may start."""

    term: TermInfo
    waited: float
    is_leader: Callable[[], bool] = field(repr=False, compare=False)  # reads the clock, any thread may call


@dataclass(frozen=True, slots=True)
class RenewalFailed:
    """A renewal brought no clear answer; the work goes on."""

    term: TermInfo
    failures: int  # in a row: 1 is the start of an outage
    life_left: float  # seconds until the work is stopped
    cause: str


@dataclass(frozen=True, slots=True)
class RenewalRecovered:
    """A renewal was confirmed after failed ones."""

    term: TermInfo
    failures: int
    lasted: float


@dataclass(frozen=True, slots=True)
class TermStopped:
    """The work was told to stop, or ended by itself: `is_leader` is false from here on."""

    term: TermInfo
    reason: EndReason
    held: float
    cause: str | None


@dataclass(frozen=True, slots=True)
class DrainOverrun:
    """Cancelled work takes longer than the drain limit; nothing is released, and this process stands back."""

    term: TermInfo
    limit: float


@dataclass(frozen=True, slots=True)
class TermOver:
    """The work has ended, and so has the claim as far as this process is concerned."""

    term: TermInfo
    reason: EndReason
    outcome: ReleaseOutcome | None  # None: nothing was released
    cause: str | None  # what was in the way of the release


@dataclass(frozen=True, slots=True)
class StepDownAsked:
    """Somebody has asked the leader to step down; it will, after its hook."""

    term: TermInfo
    to: str | None  # for whom the next term will be reserved


@dataclass(frozen=True, slots=True)
class StepDownHookFailed:
    """The hook before a step-down raised, or took longer than the drain limit; the leader steps down all the same."""

    term: TermInfo
    cause: str


@dataclass(frozen=True, slots=True)
class FitnessChanged:
    """A candidate is not fit to lead, or fit again, as its `ready` says."""

    name: str
    identity: str
    fit: bool
    cause: str


@dataclass(frozen=True, slots=True)
class StoreFailing:
    """Somebody who waits gets no usable answer, and goes on trying."""

    name: str
    identity: str
    candidate: bool  # stands for a role, and so goes on for ever
    cause: str


@dataclass(frozen=True, slots=True)
class StoreRecovered:
    """Somebody who waits gets answers again."""

    name: str
    identity: str
    candidate: bool
    lasted: float


@dataclass(frozen=True, slots=True)
class CandidacyFailed:
    """A candidacy in the background has ended for good; the error comes out where it is left or followed."""

    name: str
    identity: str
    error: Exception


Fact = (
    Declared
    | TermBegan
    | RenewalFailed
    | RenewalRecovered
    | TermStopped
    | DrainOverrun
    | TermOver
    | StepDownAsked
    | StepDownHookFailed
    | FitnessChanged
    | StoreFailing
    | StoreRecovered
    | CandidacyFailed
)


class Observer(Protocol):
    """Whoever wants to hear facts. Called in the event loop, in order; it must not block."""

    def __call__(self, fact: Fact, /) -> None:
        """Take note of one fact."""


class Observers:
    """A fan-out: every observer hears every fact; one that raises is dropped with one log line."""

    def __init__(self, extra: Iterable[Observer] | None) -> None:
        listeners: list[Observer] = [log]
        if extra is None:
            listeners.append(_default_metrics())
        else:
            listeners.extend(_checked(extra))
        self._listeners = listeners

    def __call__(self, fact: Fact) -> None:
        """Tell everybody."""
        for listener in tuple(self._listeners):
            try:
                listener(fact)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                if listener is not log:
                    self._listeners = [other for other in self._listeners if other is not listener]
                with contextlib.suppress(Exception):  # a log handler may be what raises
                    _logger.exception("observer %r raised%s", listener, _REST[listener is log])


def _checked(observers: object) -> list[Observer]:
    if not isinstance(observers, Iterable) or not all(map(callable, found := list(observers))):
        raise ConfigurationError("observers: expected a list of callables that take one fact each", reason="observers")
    return found


def _default_metrics() -> Observer:
    # By name and not before it is needed: prometheus_client takes time to import, and metrics stands above this layer.
    observer: Observer = importlib.import_module("aioelect.metrics").default()
    return observer


def log(fact: Fact) -> None:  # noqa: C901 - one case for each kind of fact
    """Facts as log lines: INFO for state changes, one WARNING at each end of an outage, ERROR for what needs people."""
    match fact:
        case Declared():
            pass
        case TermBegan(term=term):
            _say(logging.INFO, "%s: %s has it, token %d (term %s)", term)
        case RenewalFailed(term=term, failures=1):
            _say(
                logging.WARNING,
                "%s: a renewal failed; %s goes on, token %d (term %s), %.3f s left before the work is stopped: %s",
                term,
                fact.life_left,
                fact.cause,
            )
        case RenewalFailed(term=term):
            _say(logging.DEBUG, "%s: a renewal failed again; %s, token %d (term %s): %s", term, fact.cause)
        case RenewalRecovered(term=term):
            _say(
                logging.WARNING,
                "%s: renewed again; %s, token %d (term %s), after %d failures in %.3f s",
                term,
                fact.failures,
                fact.lasted,
            )
        case TermStopped(term=term, reason=EndReason.EXPIRED | EndReason.TAKEN):
            _say(
                logging.WARNING,
                "%s: lost; %s, token %d (term %s), held for %.3f s: %s",
                term,
                fact.held,
                fact.cause or "no renewal was confirmed in time",
                reason=fact.reason.value,
            )
        case TermStopped(term=term):
            _say(logging.DEBUG, "%s: %s stops, token %d (term %s)", term)
        case DrainOverrun(term=term):
            _say(
                logging.ERROR,
                "%s: the cancelled work of %s, token %d (term %s), still runs after the drain limit of %.3f s; the "
                "claim is left to its ttl and this process does not stand again before that work has ended",
                term,
                fact.limit,
            )
        case TermOver(term=term, outcome=ReleaseOutcome.ALREADY_LOST):
            _say(
                logging.WARNING,
                "%s: the claim of %s, token %d (term %s), had run out while its work went on; another may have worked "
                "at the same time",
                term,
            )
        case TermOver(term=term, outcome=ReleaseOutcome.UNKNOWN):
            _say(
                logging.WARNING,
                "%s: the release by %s, token %d (term %s), was not confirmed; the claim ends with its ttl: %s",
                term,
                fact.cause,
            )
        case TermOver(term=term):
            _say(logging.INFO, "%s: %s has let it go, token %d (term %s)", term)
        case StepDownAsked(term=term):
            _say(logging.INFO, "%s: %s, token %d (term %s), is asked to step down for %s", term, fact.to or "anybody")
        case StepDownHookFailed(term=term):
            _say(logging.ERROR, "%s: the hook before %s steps down, token %d (term %s), failed: %s", term, fact.cause)
        case FitnessChanged(fit=fit):
            message = "%s: %s is fit to lead again%s" if fit else "%s: %s is not fit to lead: %s"
            _say_of(logging.WARNING, message, fact, fact.cause)
        case StoreFailing(candidate=candidate):
            message = "%s: the store does not serve %s, who goes on trying: %s"
            _say_of(logging.ERROR if candidate else logging.WARNING, message, fact, fact.cause)
        case StoreRecovered():
            _say_of(logging.WARNING, "%s: the store serves %s again, after %.3f s", fact, fact.lasted)
        case CandidacyFailed(error=error):
            message = "%s: %s stands no more, until it is entered anew: %s: %s"
            _say_of(logging.ERROR, message, fact, type(error).__name__, error, exc_info=error)


def _say_of(
    level: int,
    message: str,
    who: FitnessChanged | StoreFailing | StoreRecovered | CandidacyFailed,
    *more: object,
    exc_info: Exception | None = None,
) -> None:
    extra = {"lease_name": who.name, "identity": who.identity}
    _logger.log(level, message, who.name, who.identity, *more, extra=extra, exc_info=exc_info)


def _say(level: int, message: str, term: TermInfo, *more: object, reason: str | None = None) -> None:
    extra = {  # "name" is taken in a LogRecord
        "lease_name": term.name,
        "identity": term.identity,
        "token": term.token,
        "term_id": term.id,
        "reason": reason,
    }
    _logger.log(level, message, term.name, term.identity, term.token, term.id, *more, extra=extra)
