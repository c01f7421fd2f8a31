"""TELL: Prometheus metrics. The only place that imports prometheus_client, and not imported before something is built.

`leader_election_is_leader` is computed when it is scraped, from the same clock as `is_leader`: it says 0 also after the
loop was blocked past the renew deadline. Sum it over the instances: 1 is well, more is split brain, less is nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aioelect._events import Declared, Fact, Observer, ReleaseOutcome, RenewalFailed, TermBegan, TermOver

__all__ = ["Metrics", "default"]


class Metrics:
    """An observer that counts, on a registry of your choice.

    Names are label values: map or drop them where they are many.

    Args:
        registry: where the metrics are registered; one `Metrics` per registry.
        label: from a contended name to its label value; default the name itself.

    Example:
        >>> from prometheus_client import CollectorRegistry
        >>> by_kind = Metrics(CollectorRegistry(), label=lambda name: name.partition(":")[0])
        >>> lock = FencedLock(redis, "inventory:SKU-001", observers=[by_kind])  # doctest: +SKIP
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, label: Callable[[str], str] = str) -> None:
        self._label = label
        self._leading: dict[str, dict[str, Callable[[], bool]]] = {}
        self._acquired = Counter(
            "leader_election_acquired", "Terms that began in this process.", ["name"], registry=registry
        )
        self._renewal_failures = Counter(
            "leader_election_renewal_failure", "Renewals without a clear answer.", ["name"], registry=registry
        )
        self._already_lost = Counter(
            "leader_election_release_already_lost",
            "Releases answered 0: the claim had run out while its work went on.",
            ["name"],
            registry=registry,
        )
        registry.register(_IsLeader(self._leading))

    def __call__(self, fact: Fact, /) -> None:
        """Count one fact."""
        match fact:
            case Declared(name=name):
                label = self._label(name)
                self._leading.setdefault(label, {})
                for counter in (self._acquired, self._renewal_failures, self._already_lost):
                    counter.labels(label)  # 0 from construction on
            case TermBegan(term=term):
                label = self._label(term.name)
                self._acquired.labels(label).inc()
                # A term that leads no more never does again, and one of try_acquire() may never be released.
                leading = {id_: probe for id_, probe in self._leading.get(label, {}).items() if probe()}
                self._leading[label] = {**leading, term.id: fact.is_leader}
            case RenewalFailed(term=term):
                self._renewal_failures.labels(self._label(term.name)).inc()
            case TermOver(term=term, outcome=outcome):
                label = self._label(term.name)
                self._leading.setdefault(label, {}).pop(term.id, None)
                if outcome is ReleaseOutcome.ALREADY_LOST:
                    self._already_lost.labels(label).inc()
            case _:
                pass


class _IsLeader(Collector):
    def __init__(self, leading: dict[str, dict[str, Callable[[], bool]]]) -> None:
        self._leading = leading

    def collect(self) -> Iterable[Metric]:
        gauge = GaugeMetricFamily(
            "leader_election_is_leader", "1 while this process leads, by its clock; else 0.", labels=["name"]
        )
        for label, probes in tuple(self._leading.items()):
            gauge.add_metric([label], float(sum(probe() for probe in tuple(probes.values()))))
        yield gauge


_making = threading.Lock()
_defaults: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()


def default(registry: CollectorRegistry = REGISTRY) -> Observer:
    """The metrics of a registry, made once."""
    with _making:  # threads may build their objects at once
        if registry not in _defaults:
            _defaults[registry] = Metrics(registry)
        return _defaults[registry]
