"""OpenTelemetry: a span per acquisition and term, events for what goes wrong, and the same numbers as Prometheus."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from aioelect import AcquireTimeout, Elector, FencedLock, Lease, LeaseLost, NotAcquired, StoreUnavailable, Term
from aioelect._measures import INSTRUMENTS
from aioelect.testing._memory import MemoryServer
from aioelect.tracing import Tracing
from runtime.world import NAME
from support.process import Process, fail_nth

TTL = 15.0


class Traced:
    """Providers that keep everything in memory, and the observer that feeds them."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.observer = Tracing(self.provider, MeterProvider([self._reader]))

    def spans(self, name: str) -> list[ReadableSpan]:
        """The finished spans of a name."""
        return [span for span in self._spans.get_finished_spans() if span.name == f"aioelect.{name}"]

    def numbers(self) -> dict[tuple[str, ...], float]:
        """Every value: by name of the metric and values of its labels; of a histogram the count."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            (metric.name.removeprefix("leader_election."), *map(str, (point.attributes or {}).values())): float(
                point.value if isinstance(point, NumberDataPoint) else point.count
            )
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


@pytest.fixture
def traced() -> Traced:
    return Traced()


def _events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def _attributes(span: ReadableSpan) -> dict[str, object]:
    return {key.removeprefix("aioelect."): value for key, value in (span.attributes or {}).items()}


async def test_a_term_and_its_acquisition_are_a_span_each_under_the_span_that_was_current(
    ours: Process, traced: Traced
) -> None:
    tracer = traced.provider.get_tracer("app")
    with tracer.start_as_current_span("request") as request:
        async with FencedLock(ours, NAME, ttl=TTL, identity="me", observers=[traced.observer]) as term:
            await asyncio.sleep(20)
            with trace.use_span(traced.observer.span_of(term)), tracer.start_as_current_span("step"):
                pass
    (acquired,), (held,) = traced.spans("acquire"), traced.spans("term")
    known = {"name": NAME, "identity": "me", "token": term.token, "term_id": term.id}
    assert _attributes(acquired) == known
    assert _attributes(held) == {**known, "ttl": TTL, "reason": "released", "release": "released"}
    for span in (acquired, held):
        assert span.parent is not None and span.parent.span_id == request.get_span_context().span_id
        assert span.status.status_code is StatusCode.UNSET
    assert _events(held) == ["stopped"]
    assert not traced.observer.span_of(term).get_span_context().is_valid


async def test_failed_renewals_are_events_of_the_terms_span(ours: Process, traced: Traced) -> None:
    ours.before = fail_nth(1, StoreUnavailable("silence", reason="timeout"), verb="renew", times=2)
    async with FencedLock(ours, NAME, ttl=TTL, observers=[traced.observer]):
        await asyncio.sleep(12)
    (held,) = traced.spans("term")
    assert _events(held) == ["renewal failed", "renewal failed", "renewed again", "stopped"]
    failed = dict(held.events[0].attributes or {})
    assert (failed["aioelect.failures"], failed["aioelect.reason"]) == (1, "timeout")


async def test_a_lost_term_is_an_error_with_its_reason(server: MemoryServer, ours: Process, traced: Traced) -> None:
    with pytest.raises(LeaseLost):
        async with FencedLock(ours, NAME, ttl=TTL, observers=[traced.observer]):
            server.seize(NAME)
            await asyncio.sleep(20)
    (held,) = traced.spans("term")
    assert held.status.status_code is StatusCode.ERROR
    assert _attributes(held)["reason"] == "taken"


async def test_an_acquisition_that_fails_is_a_span_with_the_reason(
    server: MemoryServer, ours: Process, traced: Traced
) -> None:
    server.seize(NAME, ttl=600)
    observers = [traced.observer]
    with pytest.raises(AcquireTimeout):
        async with FencedLock(ours, NAME, ttl=TTL, wait=3, observers=observers):
            pass
    with pytest.raises(NotAcquired):
        async with Lease(ours, NAME, ttl=TTL, observers=observers):
            pass
    waiting = asyncio.create_task(FencedLock(ours, NAME, ttl=TTL, observers=observers).__aenter__())
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait({waiting})
    failed = traced.spans("acquire")
    assert [span.status.description for span in failed] == ["held", "held", "cancelled"]
    assert failed[0].end_time is not None and failed[0].start_time is not None
    assert failed[0].end_time - failed[0].start_time >= 3e9
    assert not traced.spans("term")


async def test_terms_that_are_never_released_do_not_pile_up(ours: Process, traced: Traced) -> None:
    for number in range(250):
        assert await Lease(ours, f"job-{number}", ttl=0.1, observers=[traced.observer]).try_acquire()
        await asyncio.sleep(0.2)
    assert len(traced.spans("term")) >= 100
    assert len(traced.observer._spans) <= 101


async def test_the_numbers_are_those_of_prometheus(server: MemoryServer, ours: Process, traced: Traced) -> None:
    async def work(term: Term) -> None:
        await asyncio.sleep(8)
        assert traced.numbers()[("is_leader", NAME)] == 1
        assert traced.numbers()[("candidates", NAME)] == 1
        ours.before = fail_nth(1, StoreUnavailable("silence", reason="timeout"), verb="renew")
        await asyncio.sleep(8)

    server.seize(NAME, ttl=TTL)
    await Elector(ours, NAME, ttl=TTL, observers=[traced.observer]).run(work)
    numbers = traced.numbers()
    assert numbers[("is_leader", NAME)] == numbers[("candidates", NAME)] == 0
    assert numbers[("ttl", NAME)] == TTL
    once = ("acquired", "acquisition_wait", "failover", "hold", "renewal_failure", "doubtful_terms")
    assert {numbers[key, NAME] for key in once} == {1}
    assert numbers[("terms_ended", NAME, "released")] == numbers[("store_error", NAME, "timeout")] == 1
    assert {name for name, *_ in numbers} <= {*INSTRUMENTS, "is_leader", "leads_until_timestamp"}


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)


def test_p15_nothing_of_opentelemetry_is_imported_unless_asked_for() -> None:
    done = _run(
        "import sys\nfrom redis.asyncio import Redis\nbefore = set(sys.modules)  # redis-py has its own use for it\n"
        "from aioelect import Elector\nElector(Redis(), 'role')\n"
        "assert not [name for name in set(sys.modules) - before if name.startswith('opentelemetry')]"
    )
    assert done.returncode == 0, done.stderr


def test_without_opentelemetry_the_error_names_the_extra() -> None:
    done = _run("import sys\nsys.modules['opentelemetry'] = None\nimport aioelect.tracing")
    assert "pip install 'aioelect[otel]'" in done.stderr
