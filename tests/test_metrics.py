"""The numbers a user scrapes: there from the start, true at any moment, right on every way out, bounded, no clash."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import re
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.samples import Sample
from redis.asyncio import Redis

from aioelect import Elector, FencedLock, Lease, LeaseLost, StaleToken, Term, aclose, metrics
from aioelect.facts import Declared, Fact, RenewalConfirmed, StoreFailed, TermBegan, TermInfo, WriteRefused
from aioelect.fencing.sqlite import SqliteGuard
from aioelect.metrics import Metrics, default
from conftest import Connect
from support.proxy import Proxy, ThreadedProxy
from support.servers import Server
from support.wait import until

PAGE = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def _value(registry: CollectorRegistry, metric: str, name: str | None = "m", **labels: str) -> float:
    if name is not None:
        labels["name"] = name
    value = registry.get_sample_value(f"leader_election_{metric}", labels)
    assert value is not None, f"{metric} {labels} is not there"
    return value


def _leads(registry: CollectorRegistry, name: str = "m") -> float:
    return _value(registry, "is_leader", name)


def _left(registry: CollectorRegistry) -> float:
    return _value(registry, "leads_until_timestamp_seconds") - time.time()


# -- what there is -----------------------------------------------------------------------------------------------------


async def test_the_page_lists_exactly_the_metrics_that_there_are_and_each_is_0_from_construction_on(
    redis: Redis, registry: CollectorRegistry
) -> None:
    Elector(redis, "m", ttl=7, observers=[Metrics(registry)])
    found: dict[str, list[float]] = {}
    for family in registry.collect():
        series = [sample for sample in family.samples if not sample.name.endswith("_created")]
        assert series, f"{family.name} is not there from the start"
        suffix = "_total" if family.type == "counter" else ""
        found[family.name + suffix] = [sample.value for sample in series]
    assert found.pop("leader_election_ttl_seconds") == [7.0]
    assert {value for values in found.values() for value in values} == {0.0}
    listed = re.findall(r"^\| `(leader_election_\w+)", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted([*found, "leader_election_ttl_seconds"])


async def test_labels_are_bounded_no_identity_token_or_term_id_is_one(
    redis: Redis, registry: CollectorRegistry
) -> None:
    async with FencedLock(redis, "m", observers=[Metrics(registry)]):
        labels = {key for family in registry.collect() for sample in family.samples for key in sample.labels}
    assert labels == {"name", "reason", "error", "le"}


# -- who leads ---------------------------------------------------------------------------------------------------------


async def test_is_leader_is_1_while_a_term_is_held_and_0_after_it(redis: Redis, registry: CollectorRegistry) -> None:
    async with Elector(redis, "m", observers=[Metrics(registry)]) as elector:
        await elector.wait_elected()
        assert _leads(registry) == 1.0
        assert _value(registry, "acquired_total") == 1.0
        assert _value(registry, "candidates") == 1.0
        assert 10 < _left(registry) <= 12
    assert _leads(registry) == 0.0
    assert _value(registry, "candidates") == 0.0
    assert -5 < _left(registry) <= 0, "it led until now and not longer"


async def test_a_term_between_two_scrapes_leaves_the_instant_up_to_which_it_led(
    redis: Redis, registry: CollectorRegistry
) -> None:
    renewed: list[RenewalConfirmed] = []

    def note(fact: Fact) -> None:
        if isinstance(fact, RenewalConfirmed):
            renewed.append(fact)

    async with FencedLock(redis, "m", ttl=0.6, observers=[Metrics(registry), note]):
        await until(lambda: len(renewed) >= 4)
        leaving = time.time()
    left = time.time()
    await asyncio.sleep(0.2)
    assert leaving <= _value(registry, "leads_until_timestamp_seconds") <= left


async def test_every_way_out_of_a_term_sets_is_leader_to_0_and_counts_the_reason(
    redis: Redis, registry: CollectorRegistry
) -> None:
    observers = [Metrics(registry)]
    lock = FencedLock(redis, "m", ttl=0.6, observers=observers)

    async def body(how: str) -> None:
        async with lock as term:
            assert _leads(registry) == 1.0
            match how:
                case "raises":
                    raise KeyError(how)
                case "taken":
                    await redis.set("aioelect:{m}", "another's", px=200)
                    await asyncio.sleep(3)
                case "expired":
                    await asyncio.sleep(0.1)
                    time.sleep(0.7)
                    await asyncio.sleep(3)
                case "resigned":
                    term.resign()
                    assert _leads(registry) == 0.0, "while the work drains"
                    await asyncio.sleep(3)
                case "cancelled":
                    await asyncio.sleep(3)
                case _:
                    pass

    reasons = {"returns": "released", "raises": "released", "cancelled": "released", "resigned": "released"}
    for how in ("returns", "raises", "taken", "expired", "resigned", "cancelled"):
        reason = reasons.get(how, how)
        before = _value(registry, "terms_ended_total", reason=reason)
        task = asyncio.create_task(body(how))
        if how == "cancelled":
            await until(lambda: _leads(registry) == 1.0)
            task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or isinstance(task.exception(), KeyError | LeaseLost | None)
        assert _leads(registry) == 0.0, how
        assert _value(registry, "terms_ended_total", reason=reason) == before + 1, how
    assert _value(registry, "hold_seconds_count") == 6


async def test_a_drain_overrun_is_counted_and_leads_no_more(redis: Redis, registry: CollectorRegistry) -> None:
    async def deaf(term: Term) -> None:
        while _value(registry, "drain_overrun_total") == 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    elector = Elector(redis, "m", ttl=1, drain_limit=0.1, observers=[Metrics(registry)])
    async with elector.running(deaf):
        await until(lambda: _leads(registry) == 1.0)
    assert _value(registry, "drain_overrun_total") == 1.0
    assert _value(registry, "terms_ended_total", reason="overrun") == 1.0
    assert _leads(registry) == 0.0


def test_is_leader_is_0_after_the_loop_has_ended_without_leaving(server: Server, registry: CollectorRegistry) -> None:
    async def main() -> None:
        client = Redis(port=server.port)
        elector = Elector(client, "m", ttl=0.3, observers=[Metrics(registry)])
        await elector.__aenter__()
        await elector.wait_elected()
        assert _leads(registry) == 1.0
        await client.aclose()

    asyncio.run(main())
    assert _leads(registry) == 0.0
    assert _value(registry, "candidates") == 0.0


async def test_p15_a_forked_child_leads_nothing(redis: Redis, registry: CollectorRegistry) -> None:
    async with FencedLock(redis, "m", observers=[Metrics(registry)]):
        assert _leads(registry) == 1.0
        child = os.fork()
        if child == 0:
            os._exit(0 if _leads(registry) == 0.0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_p2_a_scrape_from_another_thread_while_the_loop_is_blocked_does_not_lie(
    redis: Redis, registry: CollectorRegistry
) -> None:
    seen: list[tuple[float, float, float]] = []

    def scrape() -> None:
        started = time.monotonic()
        while (age := time.monotonic() - started) < 0.7:
            seen.append((age, _leads(registry), _left(registry)))
            time.sleep(0.02)

    with pytest.raises(LeaseLost):
        async with FencedLock(redis, "m", ttl=0.5, observers=[Metrics(registry)]):
            thread = threading.Thread(target=scrape)
            thread.start()
            time.sleep(0.8)
            thread.join()
            await asyncio.sleep(1)
    assert seen[0][1] == 1.0
    assert {leads for age, leads, _ in seen if age > 0.42} == {0.0}, "past the renew deadline of 0.4 s"
    assert all(left < 0 for age, _, left in seen if age > 0.42)


async def test_p2_a_scrape_after_a_black_hole_does_not_lie(server: Server, registry: CollectorRegistry) -> None:
    with ThreadedProxy(server) as proxy:
        client = proxy.client()
        with pytest.raises(LeaseLost):
            async with FencedLock(client, "m", ttl=2, observers=[Metrics(registry)]):
                proxy.black_hole()
                await asyncio.sleep(5)
        assert _leads(registry) == 0.0
        assert _value(registry, "terms_ended_total", reason="expired") == 1.0
        assert _value(registry, "renewal_failure_total") >= 1
        assert _value(registry, "doubtful_terms_total") == 1.0
        assert _value(registry, "store_error_total", error="timeout") >= 1
        assert _value(registry, "renewal_life_left_ratio_bucket", le="0.2") >= 1, "what the alert is built on"
        proxy.heal()
        await aclose(client)
        await client.aclose()


# -- what is counted ---------------------------------------------------------------------------------------------------


async def test_a_release_of_what_was_lost_already_is_counted(redis: Redis, registry: CollectorRegistry) -> None:
    with pytest.raises(LeaseLost):
        async with FencedLock(redis, "m", observers=[Metrics(registry)]):
            await redis.delete("aioelect:{m}")
    assert _value(registry, "release_already_lost_total") == 1.0


async def test_renewals_are_measured_and_those_without_an_answer_are_counted(
    proxy: Proxy, connect: Connect, registry: CollectorRegistry
) -> None:
    async with FencedLock(connect(proxy), "m", ttl=1, observers=[Metrics(registry)]):
        await until(lambda: _value(registry, "renewal_round_trip_seconds_count") >= 1)
        proxy.reply("EVALSHA").drop()
        await until(lambda: _value(registry, "renewal_failure_total") >= 1)
    assert _value(registry, "renewal_life_left_ratio_count") >= 2


async def test_a_blocked_loop_shows_as_lag(redis: Redis, registry: CollectorRegistry) -> None:
    async with FencedLock(redis, "m", ttl=3, observers=[Metrics(registry)]):
        await asyncio.sleep(0)
        time.sleep(1.5)  # a tick was due after 1 s
        await until(lambda: _value(registry, "loop_lag_seconds_count", None) >= 1)
    late = _value(registry, "loop_lag_seconds_count", None) - _value(
        registry, "loop_lag_seconds_bucket", None, le="0.25"
    )
    assert late >= 1


async def test_a_write_that_a_guard_refuses_counts_for_the_term_whose_token_it_is(
    redis: Redis, registry: CollectorRegistry
) -> None:
    database = sqlite3.connect(":memory:")
    guard = SqliteGuard(database)
    async with FencedLock(redis, "m", observers=[Metrics(registry)]) as old:
        pass
    async with FencedLock(redis, "m", observers=[]) as new:
        await guard.admit("stock", new.token)
    for _ in range(2):  # its term has ended long since: that is when refusing matters
        with pytest.raises(StaleToken):
            await guard.admit("stock", old.token)
    with pytest.raises(StaleToken):
        await guard.admit("stock", 1)  # of another process
    assert _value(registry, "fence_refusal_total") == 2.0
    database.close()


async def test_a_wait_and_a_take_over_are_measured(
    redis: Redis, proxy: Proxy, connect: Connect, registry: CollectorRegistry
) -> None:
    term = await Lease(redis, "m", ttl=0.5, observers=[]).try_acquire()
    assert term is not None
    async with FencedLock(connect(proxy), "m", ttl=0.5, observers=[Metrics(registry)]):
        pass
    for histogram in ("acquisition_wait_seconds", "failover_seconds"):
        assert _value(registry, f"{histogram}_count") == 1.0
        assert _value(registry, f"{histogram}_sum") == pytest.approx(0.5, abs=0.4)


def test_refused_writes_and_errors_of_the_store_are_counted_and_their_classes_are_bounded(
    registry: CollectorRegistry,
) -> None:
    observer = Metrics(registry)
    observer(Declared("m", 15.0))
    observer(WriteRefused("m", "stock", 33, 34))
    for number in range(200):
        observer(StoreFailed("m", "acquire", f"says {number}"))
    assert _value(registry, "fence_refusal_total") == 1.0
    classes = [s for s in _samples(registry, "leader_election_store_error") if s.name.endswith("_total")]
    assert len(classes) <= 43
    assert sum(s.value for s in classes) == 200


def _samples(registry: CollectorRegistry, name: str) -> list[Sample]:
    return [sample for family in registry.collect() if family.name == name for sample in family.samples]


# -- labels and registries ---------------------------------------------------------------------------------------------


async def test_names_can_be_mapped_to_fewer_labels_or_dropped(redis: Redis, registry: CollectorRegistry) -> None:
    by_kind = Metrics(registry, label=lambda name: name.partition(":")[0])
    other = CollectorRegistry()
    nameless = Metrics(other, label=lambda name: "")
    for sku in range(3):
        async with FencedLock(redis, f"stock:{sku}", observers=[by_kind, nameless]):
            assert _leads(registry, "stock") == 1.0
    assert _value(registry, "acquired_total", "stock") == 3.0
    assert _value(other, "acquired_total", "") == 3.0


def test_names_beyond_the_limit_share_a_label_with_one_warning(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Metrics(registry, limit=3)
    with caplog.at_level(logging.WARNING):
        for number in range(50):
            observer(Declared(f"n{number}", 15.0))
            observer(TermBegan(TermInfo(f"n{number}", "me", number, str(number), 15.0), 0.0, None, lambda: 1.0))
    names = {sample.labels["name"] for sample in _samples(registry, "leader_election_is_leader")}
    assert names == {"n0", "n1", "n2", "_other"}
    assert _value(registry, "acquired_total", "_other") == 47.0
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_many_observers_on_one_registry_share_its_metrics(registry: CollectorRegistry) -> None:
    for observer in (Metrics(registry), Metrics(registry, label=str.upper), default(registry), default(registry)):
        observer(Declared("m", 15.0))
        observer(TermBegan(TermInfo("m", "me", 1, "id", 15.0), 0.0, None, lambda: 0.0))
    assert _value(registry, "acquired_total") == 3.0
    assert _value(registry, "acquired_total", "M") == 1.0


def test_a_reload_of_the_module_or_of_the_package_clashes_with_nothing(registry: CollectorRegistry) -> None:
    Metrics(registry)(Declared("m", 15.0))
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "aioelect"}
    try:
        for name in before:
            del sys.modules[name]
        importlib.import_module("aioelect.metrics").Metrics(registry)(Declared("m", 15.0))
    finally:
        sys.modules.update(before)
    again = importlib.reload(metrics)
    again.Metrics(registry)
    again.Metrics(registry)


async def test_terms_that_are_never_released_are_forgotten_once_they_lead_no_more(registry: CollectorRegistry) -> None:
    observer = Metrics(registry)
    for number in range(1000):
        observer(TermBegan(TermInfo("m", "me", number, str(number), 15.0), 0.0, None, lambda: 0.0))
    assert len(observer._instruments.series["m"].leading._terms) <= 33


def test_threads_that_build_and_scrape_at_once_get_one_set_of_metrics(registry: CollectorRegistry) -> None:
    errors: list[BaseException] = []

    def build(number: int) -> None:
        try:
            for turn in range(20):
                Metrics(registry)(Declared(f"n{(number + turn) % 7}", 15.0))
                generate_latest(registry)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=build, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(_samples(registry, "leader_election_is_leader")) == 7
