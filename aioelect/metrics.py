"""TELL: Prometheus metrics. The only place that imports prometheus_client, and not imported before something is built.

Who leads is computed when it is scraped, from the same clock as `is_leader`: it says 0 also after the loop was blocked
past the renew deadline. Where several workers write into files (PROMETHEUS_MULTIPROC_DIR) nothing can be computed by a
worker that is scraped through another one's answer, so there it is written on every change, and
`leader_election_leads_until_timestamp_seconds` tells the truth also of a worker that is dead.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, multiprocess
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aioelect._core.hold import EndReason
from aioelect.facts import (
    CandidacyBegan,
    CandidacyOver,
    Declared,
    DrainOverrun,
    Fact,
    LoopLag,
    Observer,
    ReleaseOutcome,
    RenewalConfirmed,
    RenewalFailed,
    StoreFailed,
    TermBegan,
    TermInfo,
    TermOver,
    TermStopped,
    WriteRefused,
)

__all__ = ["Metrics", "MultiProcessCollector", "default"]

IS_LEADER = "leader_election_is_leader"
LEADS_UNTIL = "leader_election_leads_until_timestamp_seconds"
_HELP = {
    IS_LEADER: "1 while this process leads, by its clock; else 0.",
    LEADS_UNTIL: "Unix time until which this process leads unless it renews, or has led; 0: never did.",
}
OTHER = "_other"

_logger = logging.getLogger("aioelect")
_ENDS = (EndReason.RELEASED, EndReason.EXPIRED, EndReason.TAKEN, EndReason.OVERRUN)
_ERRORS = ("timeout", "connection")  # others show up with their first occurrence
_MOST_ERRORS = 40
_WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_TRIPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_HOLDS = (0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8)


class Metrics:
    """An observer that counts, on a registry of your choice. Several on one registry share its metrics.

    Names are label values: map or drop them where they are many.

    Args:
        registry: where the metrics are registered, with the first `Metrics` for it.
        label: from a contended name to its label value; default the name itself, `lambda name: ""` drops it.
        limit: so many label values at most; names beyond share the label value "_other", with one WARNING.

    Example:
        >>> from prometheus_client import CollectorRegistry
        >>> by_kind = Metrics(CollectorRegistry(), label=lambda name: name.partition(":")[0])
        >>> lock = FencedLock(redis, "inventory:SKU-001", observers=[by_kind])  # doctest: +SKIP
    """

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, label: Callable[[str], str] = str, *, limit: int = 100
    ) -> None:
        self._label = label
        self._limit = limit
        self._instruments = _instruments(registry)

    def __call__(self, fact: Fact, /) -> None:  # noqa: C901 - one case for each kind of fact
        """Count one fact."""
        match fact:
            case TermBegan(term=term):
                self._of(term.name).began(fact)
            case TermStopped(term=term):
                self._of(term.name).stopped(fact)
            case TermOver(term=term):
                self._of(term.name).over(fact)
            case RenewalConfirmed(term=term):
                self._of(term.name).renewed(fact)
            case RenewalFailed(term=term):
                self._of(term.name).failed(fact)
            case LoopLag(seconds=seconds):
                self._instruments.loop_lag.observe(seconds)
            case DrainOverrun(term=term):
                self._of(term.name).overruns.inc()
            case StoreFailed(name=name, reason=reason):
                self._of(name).store_failed(reason)
            case WriteRefused(name=name):
                self._of(name).refusals.inc()
            case Declared(name=name, ttl=ttl):
                self._of(name).ttl.set(ttl)
            case CandidacyBegan(name=name):
                self._of(name).candidates.inc()
            case CandidacyOver(name=name):
                self._of(name).candidates.dec()
            case _:
                pass

    def _of(self, name: str) -> _Series:
        label = self._label(name)
        found = self._instruments.series.get(label)
        return self._instruments.open(label, self._limit) if found is None else found


class MultiProcessCollector(multiprocess.MultiProcessCollector):
    """prometheus_client's collector of all workers' files, with `leader_election_is_leader` computed when scraped.

    So a worker that was killed, or whose loop is blocked, counts as 1 no longer than until the instant up to which it
    had proved that it leads. Use it in place of the original wherever that is used.

    Example:
        >>> registry = CollectorRegistry()  # doctest: +SKIP
        >>> MultiProcessCollector(registry)  # doctest: +SKIP
        >>> text = generate_latest(registry)  # doctest: +SKIP
    """

    def collect(self) -> Iterable[Metric]:
        """All metrics of all workers."""
        now = time.time()
        for metric in super().collect():  # type: ignore[no-untyped-call]
            if metric.name != IS_LEADER:
                yield metric
            if metric.name == LEADS_UNTIL:
                leading: dict[str, float] = defaultdict(float)
                for sample in metric.samples:
                    leading[sample.labels["name"]] += sample.value > now
                gauge = GaugeMetricFamily(IS_LEADER, _HELP[IS_LEADER], labels=["name"])
                for label, count in leading.items():
                    gauge.add_metric([label], count)
                yield gauge


class _Instruments:
    """What one registry has of ours."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"leader_election_{name}", text, ["name", *more], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"leader_election_{name}", text, ["name"], buckets=buckets, registry=registry)

        def gauge(name: str, text: str, mode: Literal["liveall", "livesum", "livemax"]) -> Gauge:
            return Gauge(name, text, ["name"], registry=registry, multiprocess_mode=mode)

        self.acquired = counter("acquired", "Terms that began in this process.")
        self.ended = counter("terms_ended", "Terms that are over, by reason.", "reason")
        self.renewal_failures = counter("renewal_failure", "Renewals without a clear answer.")
        self.doubtful = counter("doubtful_terms", "Times that a term became doubtful: a renewal failed, work goes on.")
        self.already_lost = counter(
            "release_already_lost", "Releases answered 0: the claim had run out while its work went on."
        )
        self.overruns = counter("drain_overrun", "Cancelled work that took longer than the drain limit.")
        self.refusals = counter("fence_refusal", "Writes that a target refused because it had seen a newer token.")
        self.store_errors = counter("store_error", "Requests without a usable answer, by class.", "error")
        self.waits = histogram("acquisition_wait_seconds", "From the first try of an acquisition to the win.", _WAITS)
        self.holds = histogram("hold_seconds", "From the win to the stop of the work.", _HOLDS)
        self.failovers = histogram(
            "failover_seconds", "From the last sign of life of another holder to our win, where one was seen.", _WAITS
        )
        self.round_trips = histogram("renewal_round_trip_seconds", "From the send of a renewal to its answer.", _TRIPS)
        self.life_left = histogram(
            "renewal_life_left_ratio",
            "Share of the ttl that was left before the work would be stopped, when a renewal was confirmed or failed.",
            _SHARES,
        )
        self.candidates = gauge("leader_election_candidates", "Electors of this process that stand or lead.", "livesum")
        self.ttl = gauge("leader_election_ttl_seconds", "The ttl as configured.", "livemax")
        self.loop_lag = Histogram(
            "leader_election_loop_lag_seconds",
            "How late the event loop served a timer, looked at once a second at most while a term is held.",
            buckets=_WAITS[:14],
            registry=registry,
        )
        self.is_leader = self.leads_until = None
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ:
            self.is_leader = gauge(IS_LEADER, _HELP[IS_LEADER], "livesum")
            self.leads_until = gauge(LEADS_UNTIL, _HELP[LEADS_UNTIL], "liveall")
        else:
            registry.register(_Leading(self))
        self.series: dict[str, _Series] = {}
        self._opening = threading.Lock()

    def open(self, label: str, limit: int) -> _Series:
        """The series of a label value, all 0 at first."""
        with self._opening:  # threads may build their objects at once
            if label not in self.series and len(self.series) >= limit and label != OTHER:
                if OTHER not in self.series:
                    _logger.warning(
                        "metrics: more than %d names; %r and all further ones share the label value %r: map names to "
                        "fewer labels, see aioelect.metrics.Metrics",
                        limit,
                        label,
                        OTHER,
                    )
                label = OTHER
            if label not in self.series:
                self.series[label] = _Series(self, label)
            return self.series[label]


class _Series:
    """The metrics of one label value, and which terms lead under it."""

    def __init__(self, of: _Instruments, label: str) -> None:
        self.overruns = of.overruns.labels(label)
        self.refusals = of.refusals.labels(label)
        self.candidates = of.candidates.labels(label)
        self.ttl = of.ttl.labels(label)
        self._acquired = of.acquired.labels(label)
        self._ended = {reason: of.ended.labels(label, reason.value) for reason in _ENDS}
        self._renewal_failures = of.renewal_failures.labels(label)
        self._doubtful = of.doubtful.labels(label)
        self._already_lost = of.already_lost.labels(label)
        self._waits = of.waits.labels(label)
        self._holds = of.holds.labels(label)
        self._failovers = of.failovers.labels(label)
        self._round_trips = of.round_trips.labels(label)
        self._life_left = of.life_left.labels(label)
        self._store_errors = {error: of.store_errors.labels(label, error) for error in _ERRORS}
        self._new_store_error: Callable[[str], Counter] = partial(of.store_errors.labels, label)
        self._is_leader = of.is_leader and of.is_leader.labels(label)
        self._leads_until = of.leads_until and of.leads_until.labels(label)
        self._terms: dict[str, Callable[[], float]] = {}
        self._until = 0.0  # unix time up to which a term of ours leads, or has led
        self._prune_at = 32

    def began(self, fact: TermBegan) -> None:
        self._acquired.inc()
        self._waits.observe(fact.waited)
        if fact.failover is not None:
            self._failovers.observe(fact.failover)
        self._terms[fact.term.id] = fact.leads_for
        if len(self._terms) > self._prune_at:  # terms of try_acquire() may never be released
            self.read()
            self._prune_at = 2 * len(self._terms) + 32
        self._prolonged(fact.term)

    def renewed(self, fact: RenewalConfirmed) -> None:
        self._round_trips.observe(fact.round_trip)
        self._life_left.observe(fact.life_left / fact.term.ttl)
        self._prolonged(fact.term)

    def failed(self, fact: RenewalFailed) -> None:
        self._renewal_failures.inc()
        self._life_left.observe(fact.life_left / fact.term.ttl)
        if fact.failures == 1:
            self._doubtful.inc()

    def stopped(self, fact: TermStopped) -> None:
        self._holds.observe(fact.held)
        self._gone(fact.term)

    def over(self, fact: TermOver) -> None:
        self._ended[fact.reason].inc()
        if fact.outcome is ReleaseOutcome.ALREADY_LOST:
            self._already_lost.inc()
        self._gone(fact.term)

    def store_failed(self, reason: str) -> None:
        found = self._store_errors.get(reason)
        if found is None:
            if len(self._store_errors) >= _MOST_ERRORS:  # a store of the user's own may say anything
                reason = OTHER
            found = self._store_errors[reason] = self._new_store_error(reason)
        found.inc()

    def read(self) -> tuple[int, float]:
        """How many terms lead now, and the unix time until which one of them does, or has done."""
        longest, now = 0.0, time.time()
        for id_, leads_for in tuple(self._terms.items()):
            left = leads_for()
            if left <= 0.0:  # and never will again
                self._terms.pop(id_, None)
            longest = max(longest, left)
        self._until = now + longest if longest else min(self._until, now)
        return len(self._terms), self._until

    def _prolonged(self, term: TermInfo) -> None:
        if (leads_for := self._terms.get(term.id)) is not None:
            self._until = max(self._until, time.time() + leads_for())
        self._write()

    def _gone(self, term: TermInfo) -> None:
        if self._terms.pop(term.id, None) is not None and not self._terms:
            self._until = min(self._until, time.time())
        self._write()

    def _write(self) -> None:
        if self._is_leader is not None and self._leads_until is not None:
            leading, until = self.read()
            self._is_leader.set(leading)
            self._leads_until.set(until)


class _Leading(Collector):
    """Who leads, computed when it is asked for."""

    def __init__(self, instruments: _Instruments) -> None:
        self._instruments = instruments

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(name, text, labels=["name"]) for name, text in _HELP.items()]

    def collect(self) -> Iterable[Metric]:
        is_leader, leads_until = (GaugeMetricFamily(name, text, labels=["name"]) for name, text in _HELP.items())
        for label, series in tuple(self._instruments.series.items()):
            leading, until = series.read()
            is_leader.add_metric([label], leading)
            leads_until.add_metric([label], until)
        return [is_leader, leads_until]


_making = threading.Lock()
_MADE = "_aioelect"


def _instruments(registry: CollectorRegistry) -> _Instruments:
    """Those of a registry, made once. Kept by the registry itself: it outlives a reload of this module."""
    with _making:
        made: _Instruments | None = getattr(registry, _MADE, None)
        if made is None:
            made = _Instruments(registry)
            setattr(registry, _MADE, made)
        return made


def default(registry: CollectorRegistry = REGISTRY) -> Observer:
    """What counts where nothing else was said: every name on `registry`."""
    return Metrics(registry)
