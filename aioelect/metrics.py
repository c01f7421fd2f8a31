"""TELL: Prometheus metrics. The only place that imports prometheus_client, and not imported before something is built.

Who leads is computed when it is scraped, from the same clock as `is_leader`: it says 0 also after the loop was blocked
past the renew deadline. Where several workers write into files (PROMETHEUS_MULTIPROC_DIR) nothing can be computed by a
worker that is scraped through another one's answer, so there it is written on every change, and
`leader_election_leads_until_timestamp_seconds` tells the truth also of a worker that is dead.
"""

from __future__ import annotations

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

from aioelect import _measures
from aioelect._measures import INSTRUMENTS, OTHER, Bounded, Instrument, Leading, measures, name_of
from aioelect.facts import Fact, Observer

__all__ = ["Metrics", "MultiProcessCollector", "default"]

IS_LEADER = "leader_election_is_leader"
LEADS_UNTIL = "leader_election_leads_until_timestamp_seconds"
_HELP = {IS_LEADER: _measures.IS_LEADER, LEADS_UNTIL: _measures.LEADS_UNTIL}
_ERRORS = 40  # classes of errors at most: a store of the user's own may say anything


class Metrics:
    """An observer that counts, on a registry of your choice. Several on one registry share its metrics.

    Names are label values: map or drop them where they are many.

    Args:
        registry: where the metrics are registered, with the first `Metrics` for it.
        label: from a contended name to its label value; default the name itself, `lambda name: ""` drops it.
        limit: so many label values at most; names beyond share the label value "_other", with one WARNING.

    Examples:
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

    def __call__(self, fact: Fact, /) -> None:
        """Count one fact."""
        name = name_of(fact)
        if name is None:
            self._instruments.nameless(fact)
            return
        label = self._label(name)
        series = self._instruments.series.get(label)
        if series is None:
            series = self._instruments.open(label, self._limit)
        series.hear(fact)


class MultiProcessCollector(multiprocess.MultiProcessCollector):
    """prometheus_client's collector of all workers' files, with `leader_election_is_leader` computed when scraped.

    So a worker that was killed, or whose loop is blocked, counts as 1 no longer than until the instant up to which it
    had proved that it leads. Use it in place of the original wherever that is used.

    Examples:
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


_Add = Callable[[float], None]


def _adds(instrument: Instrument, metric: Counter | Gauge | Histogram) -> _Add:
    if isinstance(metric, Histogram):
        return metric.observe
    return metric.set if isinstance(metric, Gauge) and instrument.kind == "gauge" else metric.inc


class _Instruments:
    """What one registry has of ours."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.metrics = {key: self._make(key, instrument) for key, instrument in INSTRUMENTS.items()}
        self._nameless = {
            key: _adds(instrument, self.metrics[key]) for key, instrument in INSTRUMENTS.items() if not instrument.named
        }
        self.is_leader = self.leads_until = None
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ:
            self.is_leader = self._gauge(IS_LEADER, _HELP[IS_LEADER], "livesum")
            self.leads_until = self._gauge(LEADS_UNTIL, _HELP[LEADS_UNTIL], "liveall")
        else:
            registry.register(_Leaders(self))
        self.series: dict[str, _Series] = {}
        self._names = Bounded("names")
        self.errors = Bounded("classes of errors")
        self._opening = threading.Lock()

    def open(self, label: str, limit: int) -> _Series:
        """The series of a label value, all 0 at first."""
        with self._opening:  # threads may build their objects at once
            if label != OTHER:
                label = self._names(label, limit)
            if label not in self.series:
                self.series[label] = _Series(self, label)
            return self.series[label]

    def nameless(self, fact: Fact) -> None:
        """Count what is of no name."""
        for key, value, _ in measures(fact):
            self._nameless[key](value)

    def _make(self, key: str, instrument: Instrument) -> Counter | Gauge | Histogram:
        name = f"leader_election_{key}" + (f"_{instrument.unit}" if instrument.unit else "")
        labels = [label for label in ("name" if instrument.named else None, instrument.label) if label]
        match instrument.kind:
            case "counter":
                return Counter(name, instrument.text, labels, registry=self._registry)
            case "histogram":
                return Histogram(name, instrument.text, labels, registry=self._registry, buckets=instrument.buckets)
            case "sum":
                return self._gauge(name, instrument.text, "livesum")
            case "gauge":
                return self._gauge(name, instrument.text, "livemax")

    def _gauge(self, name: str, text: str, mode: Literal["liveall", "livesum", "livemax"]) -> Gauge:
        return Gauge(name, text, ["name"], registry=self._registry, multiprocess_mode=mode)


class _Series:
    """The metrics of one label value, and which terms lead under it."""

    def __init__(self, of: _Instruments, label: str) -> None:
        self.leading = Leading()
        self._of = of
        self._label = label
        self._add: dict[tuple[str, str | None], _Add] = {}
        for key, instrument in INSTRUMENTS.items():
            if instrument.named:
                for value in instrument.first or (None,):
                    self._open(key, value)
        self._is_leader = of.is_leader and of.is_leader.labels(label)
        self._leads_until = of.leads_until and of.leads_until.labels(label)

    def hear(self, fact: Fact) -> None:
        """Count one fact."""
        for key, amount, value in measures(fact):
            add = self._add.get((key, value))
            if add is None:
                add = self._open(key, value and self._of.errors(value, _ERRORS))
            add(amount)
        if self.leading.hear(fact) and self._is_leader is not None and self._leads_until is not None:
            leading, until = self.leading.read()
            self._is_leader.set(leading)
            self._leads_until.set(until)

    def _open(self, key: str, value: str | None) -> _Add:
        child = partial(self._of.metrics[key].labels, self._label)
        add = _adds(INSTRUMENTS[key], child() if value is None else child(value))
        self._add[key, value] = add
        return add


class _Leaders(Collector):
    """Who leads, computed when it is asked for."""

    def __init__(self, instruments: _Instruments) -> None:
        self._instruments = instruments

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(name, text, labels=["name"]) for name, text in _HELP.items()]

    def collect(self) -> Iterable[Metric]:
        is_leader, leads_until = (GaugeMetricFamily(name, text, labels=["name"]) for name, text in _HELP.items())
        for label, series in tuple(self._instruments.series.items()):
            leading, until = series.leading.read()
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
