"""Who hears of facts: the log first, and whoever else wants to; a fan-out that no listener can hurt.

One that raises is reported and never asked again; it can't delay or fail a renewal.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import logging
import threading
import weakref
from collections.abc import Iterable

from aioelect._core.hold import EndReason
from aioelect._errors import ConfigurationError, reason_of
from aioelect.facts import (
    CandidacyFailed,
    ConsumerFailed,
    DrainOverrun,
    Fact,
    FitnessChanged,
    Observer,
    ReleaseOutcome,
    RenewalFailed,
    RenewalRecovered,
    StepDownAsked,
    StepDownHookFailed,
    StoreFailed,
    StoreFailing,
    StoreRecovered,
    TermBegan,
    TermInfo,
    TermOver,
    TermStopped,
    WriteRefused,
)

__all__ = ["Observers", "log", "refused", "remember"]

_logger = logging.getLogger("aioelect")
_REST = {True: "", False: " and is not asked any more"}


class Observers:
    """A fan-out: every observer hears every fact; one that raises is dropped with one log line."""

    def __init__(self, extra: Iterable[Observer] | None) -> None:
        listeners: list[Observer] = [log]
        if extra is None:
            listeners.append(_default_metrics())
        else:
            listeners.extend(_checked(extra))
        self._listeners = tuple(listeners)

    def also(self, listener: Observer) -> None:
        """Tell this one, too: one of ours, beside what the user wants."""
        self._listeners = (*self._listeners, listener)

    def __call__(self, fact: Fact) -> None:
        """Tell everybody."""
        for listener in self._listeners:
            try:
                listener(fact)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                if listener is not log:
                    self._listeners = tuple(other for other in self._listeners if other is not listener)
                with contextlib.suppress(Exception):  # a log handler may be what raises
                    _logger.exception("observer %r raised%s", listener, _REST[listener is log])


_recent: dict[int, tuple[str, weakref.ref[Observers]]] = {}
_RECENT = 1024  # terms
_remembering = threading.Lock()  # loops in several threads


def remember(token: int, name: str, observers: Observers) -> None:
    """Whose term a token is of: a target that refuses it knows nothing but the token."""
    with _remembering:
        _recent[token] = name, weakref.ref(observers)
        if len(_recent) > _RECENT:
            del _recent[next(iter(_recent))]


def refused(resource: str, token: int, newest: int) -> None:
    """A target refuses a token: tell whoever follows the term it is of, if that was in this process."""
    name, observers = _recent.get(token, ("", lambda: None))
    if (tell := observers()) is not None:
        tell(WriteRefused(name, resource, token, newest))


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
    match fact:  # what every term has comes first: each case before it costs time
        case TermBegan(term=term):
            _say(logging.INFO, "%s: %s has it, token %d (term %s)", term)
        case TermStopped(term=term, reason=EndReason.EXPIRED | EndReason.TAKEN):
            _say(
                logging.WARNING,
                "%s: lost; %s, token %d (term %s), held for %.3f s: %s",
                term,
                fact.held,
                fact.cause or "no renewal was confirmed in time",
                reason=fact.reason,
            )
        case TermStopped(term=term):
            message = "%s: %s stops, token %d (term %s)"
            _say(logging.DEBUG, message, term, reason=fact.reason)
        case TermOver(term=term, outcome=ReleaseOutcome.ALREADY_LOST as outcome):
            _say(
                logging.WARNING,
                "%s: the claim of %s, token %d (term %s), had run out or was taken while its work went on; another may "
                "have worked at the same time",
                term,
                reason=outcome,
            )
        case TermOver(term=term, outcome=ReleaseOutcome.UNKNOWN as outcome):
            _say(
                logging.WARNING,
                "%s: the release by %s, token %d (term %s), was not confirmed; the claim ends with its ttl: %s",
                term,
                fact.cause,
                reason=outcome,
            )
        case TermOver(term=term, outcome=None):
            message = "%s: the work of %s has ended, token %d (term %s); nothing was released"
            _say(logging.INFO, message, term, reason=fact.reason)
        case TermOver(term=term):
            _say(logging.INFO, "%s: %s has let it go, token %d (term %s)", term, reason=fact.reason)
        case RenewalFailed(term=term, failures=1):
            _say(
                logging.WARNING,
                "%s: a renewal failed; %s goes on, token %d (term %s), %.3f s left before the work is stopped: %s",
                term,
                fact.life_left,
                fact.cause,
                reason=fact.reason,
            )
        case RenewalFailed(term=term):
            message = "%s: a renewal failed again; %s, token %d (term %s): %s"
            _say(logging.DEBUG, message, term, fact.cause, reason=fact.reason)
        case RenewalRecovered(term=term):
            message = "%s: renewed again; %s, token %d (term %s), after %d failures in %.3f s"
            _say(logging.WARNING, message, term, fact.failures, fact.lasted)
        case DrainOverrun(term=term):
            _say(
                logging.ERROR,
                "%s: the cancelled work of %s, token %d (term %s), still runs after the drain limit of %.3f s; the "
                "claim is left to its ttl and this process does not stand again before that work has ended",
                term,
                fact.limit,
                reason=EndReason.OVERRUN,
            )
        case WriteRefused():
            message = "%s: a write with token %d to %s was refused, which has seen %d: a newer holder has written"
            fields = _fields(fact.name, token=fact.token, reason="stale")
            _logger.warning(message, fact.name, fact.token, fact.resource, fact.newest, extra=fields)
        case StepDownAsked(term=term):
            _say(logging.INFO, "%s: %s, token %d (term %s), is asked to step down for %s", term, fact.to or "anybody")
        case StepDownHookFailed(term=term):
            _say(logging.ERROR, "%s: the hook before %s steps down, token %d (term %s), failed: %s", term, fact.cause)
        case FitnessChanged(fit=fit):
            message = "%s: %s is fit to lead again%s" if fit else "%s: %s is not fit to lead: %s"
            _logger.warning(message, fact.name, fact.identity, fact.cause, extra=_of(fact))
        case StoreFailed():
            message = "%s: a request to %s brought no usable answer: %s"
            fields = _fields(fact.name, reason=fact.reason)
            _logger.debug(message, fact.name, fact.request, fact.reason, extra=fields)
        case StoreFailing(candidate=candidate):
            message = "%s: the store does not serve %s, who goes on trying: %s"
            level = logging.ERROR if candidate else logging.WARNING
            _logger.log(level, message, fact.name, fact.identity, fact.cause, extra=_of(fact, fact.reason))
        case StoreRecovered():
            message = "%s: the store serves %s again, after %.3f s"
            _logger.warning(message, fact.name, fact.identity, fact.lasted, extra=_of(fact))
        case CandidacyFailed(error=error):
            message = "%s: %s stands no more, until it is entered anew: %s: %s"
            kind = type(error).__name__
            extra = _of(fact, reason_of(error))
            _logger.error(message, fact.name, fact.identity, kind, error, extra=extra, exc_info=error)
        case ConsumerFailed(error=error):
            message = "%s: the consumer of %s failed, and is started again in %.3f s: %s: %s"
            kind = type(error).__name__
            extra = _of(fact, reason_of(error))
            _logger.error(message, fact.name, fact.identity, fact.again_in, kind, error, extra=extra, exc_info=error)
        case _:
            pass


def _say(
    level: int, message: str, term: TermInfo, *more: object, reason: EndReason | ReleaseOutcome | str | None = None
) -> None:
    if not _logger.isEnabledFor(level):
        return
    why = reason.value if isinstance(reason, enum.Enum) else reason
    fields = _fields(term.name, term.identity, term.token, term.id, why)
    _logger.log(level, message, term.name, term.identity, term.token, term.id, *more, extra=fields)


def _of(
    who: FitnessChanged | StoreFailing | StoreRecovered | CandidacyFailed | ConsumerFailed, reason: str | None = None
) -> dict[str, object]:
    return _fields(who.name, who.identity, reason=reason)


def _fields(
    name: str,
    identity: str | None = None,
    token: int | None = None,
    term_id: str | None = None,
    reason: str | None = None,
) -> dict[str, object]:
    """What every record carries; None for what is not known. In a LogRecord "name" is taken."""
    return {"lease_name": name, "identity": identity, "token": token, "term_id": term_id, "reason": reason}
