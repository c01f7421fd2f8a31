"""TELL: OpenTelemetry. A span for every term and every acquisition, and the same metrics as for Prometheus.

Needs the extra `otel`; nothing of OpenTelemetry is imported before this module is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from aioelect import _measures
from aioelect._core.hold import EndReason
from aioelect._errors import ConfigurationError
from aioelect._measures import INSTRUMENTS, Bounded, Leading, measures, name_of
from aioelect.facts import (
    AcquisitionFailed,
    DrainOverrun,
    Fact,
    ReleaseOutcome,
    RenewalFailed,
    RenewalRecovered,
    StepDownAsked,
    TermBegan,
    TermInfo,
    TermOver,
    TermStopped,
)

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace import INVALID_SPAN, Span, Status, StatusCode
except ImportError as missing:
    raise ConfigurationError(
        "aioelect.tracing needs OpenTelemetry: pip install 'aioelect[otel]'", reason="missing extra"
    ) from missing

if TYPE_CHECKING:
    from aioelect._term import Term

__all__ = ["Tracing"]

_UNITS = {"seconds": "s", "ratio": "1", "": "1"}
_BAD = {EndReason.EXPIRED, EndReason.TAKEN, EndReason.OVERRUN}
_ERRORS = 40


class Tracing:
    """An observer that makes spans and counts, through OpenTelemetry.

    A span `aioelect.acquire` from the first try of an acquisition to its win or failure, and a span `aioelect.term`
    from the win to the end of the work and the release, with events for renewals that failed. Both are children of
    whatever span is current where the claim is asked for. The metrics are those of `aioelect.metrics`, with dots for
    the first underscore (`leader_election.acquired`), so that one dashboard fits both.

    Args:
        tracer_provider: default: OpenTelemetry's global one.
        meter_provider: the same.
        label: from a contended name to its value in metrics; default the name itself.
        limit: so many such values at most; names beyond share the value "_other". Spans always have the name itself.

    Examples:
        >>> from aioelect.metrics import Metrics
        >>> from aioelect.tracing import Tracing
        >>> elector = Elector(redis, "scheduler", observers=[Metrics(), Tracing()])  # doctest: +SKIP
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        label: Callable[[str], str] = str,
        *,
        limit: int = 100,
    ) -> None:
        self._tracer = trace.get_tracer("aioelect", tracer_provider=tracer_provider)
        self._meter = metrics.get_meter("aioelect", meter_provider=meter_provider)
        self._spans: dict[str, tuple[Span, TermBegan]] = {}
        self._leading: dict[str, Leading] = {}
        self._label = label
        self._limit = limit
        self._names = Bounded("names")
        self._errors = Bounded("classes of errors")
        self._adds = {key: self._instrument(key) for key in INSTRUMENTS}
        for name, text, of in (
            ("is_leader", _measures.IS_LEADER, lambda leading: leading.read()[0]),
            ("leads_until_timestamp", _measures.LEADS_UNTIL, lambda leading: leading.read()[1]),
        ):
            unit = "s" if name.endswith("timestamp") else "1"
            self._meter.create_observable_gauge(f"leader_election.{name}", [self._observed(of)], unit, text)

    def span_of(self, term: Term) -> Span:
        """The span of a term that has not ended, to work under: `with trace.use_span(tracing.span_of(term)): ...`."""
        found = self._spans.get(term.id)
        return INVALID_SPAN if found is None else found[0]

    def __call__(self, fact: Fact, /) -> None:
        """Trace and count one fact."""
        self._count(fact)
        match fact:
            case TermBegan():
                self._began(fact)
            case AcquisitionFailed():
                span = self._acquisition(fact.name, fact.identity, fact.waited)
                span.set_status(Status(StatusCode.ERROR, fact.reason))
                span.end()
            case RenewalFailed(term=term, failures=failures, life_left=left):
                self._event(term, "renewal failed", failures=failures, life_left=left, reason=fact.reason)
            case RenewalRecovered(term=term):
                self._event(term, "renewed again", failures=fact.failures, lasted=fact.lasted)
            case StepDownAsked(term=term):
                self._event(term, "asked to step down", to=fact.to or "")
            case TermStopped(term=term):
                self._event(term, "stopped", reason=fact.reason.value, cause=fact.cause or "")
            case DrainOverrun(term=term):
                self._event(term, "drain overrun", limit=fact.limit)
            case TermOver(term=term):
                self._over(fact)
            case _:
                pass

    # -- spans

    def _began(self, fact: TermBegan) -> None:
        term = fact.term
        acquisition = self._acquisition(term.name, term.identity, fact.waited)
        acquisition.set_attributes({"aioelect.token": term.token, "aioelect.term_id": term.id})
        if fact.failover is not None:
            acquisition.set_attribute("aioelect.failover", fact.failover)
        acquisition.end()
        span = self._tracer.start_span("aioelect.term", attributes={**_who(term.name, term.identity)})
        span.set_attributes({"aioelect.token": term.token, "aioelect.term_id": term.id, "aioelect.ttl": term.ttl})
        self._forget_lapsed()
        self._spans[term.id] = span, fact

    def _acquisition(self, name: str, identity: str, waited: float) -> Span:
        began = time.time_ns() - int(waited * 1e9)
        return self._tracer.start_span("aioelect.acquire", attributes=_who(name, identity), start_time=began)

    def _event(self, term: TermInfo, what: str, **attributes: str | float) -> None:
        found = self._spans.get(term.id)
        if found is not None:
            found[0].add_event(what, {f"aioelect.{key}": value for key, value in attributes.items()})

    def _over(self, fact: TermOver) -> None:
        found = self._spans.pop(fact.term.id, None)
        if found is None:
            return
        span, _ = found
        span.set_attribute("aioelect.reason", fact.reason.value)
        if fact.outcome is not None:
            span.set_attribute("aioelect.release", fact.outcome.value)
        if fact.reason in _BAD or fact.outcome is ReleaseOutcome.ALREADY_LOST:
            span.set_status(Status(StatusCode.ERROR, fact.reason.value))
        span.end()

    def _forget_lapsed(self) -> None:
        # Terms of try_acquire() may never be released: they end for us when there are many, and they have run out.
        if len(self._spans) >= 100:
            for id_, (span, began) in tuple(self._spans.items()):
                if began.leads_for() <= 0.0:
                    span.end()
                    del self._spans[id_]

    # -- metrics

    def _count(self, fact: Fact) -> None:
        name, attributes = name_of(fact), {}
        if name is not None:
            label = self._label(name)
            if label not in self._leading:
                label = self._names(label, self._limit)
                self._leading.setdefault(label, Leading())
            self._leading[label].hear(fact)
            attributes = {"name": label}
        for key, amount, value in measures(fact):
            extra = INSTRUMENTS[key].label
            more = {} if value is None or extra is None else {extra: self._errors(value, _ERRORS)}
            self._adds[key](amount, {**attributes, **more})

    def _instrument(self, key: str) -> Callable[[float, dict[str, str]], None]:
        instrument = INSTRUMENTS[key]
        name, unit, text = f"leader_election.{key}", _UNITS[instrument.unit], instrument.text
        match instrument.kind:
            case "counter":
                return self._meter.create_counter(name, unit, text).add
            case "sum":
                return self._meter.create_up_down_counter(name, unit, text).add
            case "gauge":
                return self._meter.create_gauge(name, unit, text).set
            case "histogram":
                advised = instrument.buckets
                return self._meter.create_histogram(
                    name, unit, text, explicit_bucket_boundaries_advisory=advised
                ).record

    def _observed(
        self, of: Callable[[Leading], float]
    ) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        def read(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            return [
                metrics.Observation(of(leading), {"name": label}) for label, leading in tuple(self._leading.items())
            ]

        return read


def _who(name: str, identity: str) -> dict[str, str]:
    return {"aioelect.name": name, "aioelect.identity": identity}
