"""Metrics: under the field's names, 0 from construction on, told by the same clock as `is_leader`, on any registry."""

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from aioelect import Elector, FencedLock, Lease, LeaseLost
from aioelect.metrics import Metrics, default
from conftest import Connect
from support.proxy import Proxy
from support.wait import until


def _value(registry: CollectorRegistry, metric: str, name: str = "m") -> float | None:
    return registry.get_sample_value(metric, {"name": name})


async def test_everything_is_0_from_construction_on(redis: Redis) -> None:
    registry = CollectorRegistry()
    Elector(redis, "m", observers=[Metrics(registry)])
    for metric in ("is_leader", "acquired_total", "renewal_failure_total", "release_already_lost_total"):
        assert _value(registry, f"leader_election_{metric}") == 0.0


async def test_is_leader_is_1_while_a_term_is_held_and_0_after_it(redis: Redis) -> None:
    registry = CollectorRegistry()
    async with Elector(redis, "m", observers=[Metrics(registry)]) as elector:
        await elector.wait_elected()
        assert _value(registry, "leader_election_is_leader") == 1.0
        assert _value(registry, "leader_election_acquired_total") == 1.0
    assert _value(registry, "leader_election_is_leader") == 0.0


async def test_p2_a_scrape_after_a_blocked_loop_does_not_lie(redis: Redis) -> None:
    registry = CollectorRegistry()
    with pytest.raises(LeaseLost):
        async with FencedLock(redis, "m", ttl=0.3, observers=[Metrics(registry)]):
            time.sleep(0.35)
            assert _value(registry, "leader_election_is_leader") == 0.0
            await asyncio.sleep(1)


async def test_a_release_of_what_was_lost_already_is_counted(redis: Redis) -> None:
    registry = CollectorRegistry()
    with pytest.raises(LeaseLost):
        async with FencedLock(redis, "m", observers=[Metrics(registry)]):
            await redis.delete("aioelect:{m}")
    assert _value(registry, "leader_election_release_already_lost_total") == 1.0


async def test_renewals_without_an_answer_are_counted(proxy: Proxy, connect: Connect) -> None:
    registry = CollectorRegistry()
    async with FencedLock(connect(proxy), "m", ttl=1, observers=[Metrics(registry)]):
        proxy.reply("EVALSHA").drop()
        await until(lambda: (_value(registry, "leader_election_renewal_failure_total") or 0) >= 1)


async def test_names_can_be_mapped_to_fewer_labels(redis: Redis) -> None:
    registry = CollectorRegistry()
    by_kind = Metrics(registry, label=lambda name: name.partition(":")[0])
    for sku in range(3):
        async with FencedLock(redis, f"stock:{sku}", observers=[by_kind]):
            pass
    assert _value(registry, "leader_election_acquired_total", "stock") == 3.0


async def test_terms_that_are_never_released_are_forgotten_once_they_lead_no_more(redis: Redis) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for _ in range(3):
        assert await Lease(redis, "m", ttl=0.1, observers=[metrics]).try_acquire()
        await until(lambda: _value(registry, "leader_election_is_leader") == 0.0)
        await until(lambda: _gone(redis))
    assert len(metrics._leading["m"]) == 1


async def _gone(redis: Redis) -> bool:
    return not await redis.exists("aioelect:{m}")


def test_the_default_metrics_of_a_registry_are_made_once() -> None:
    registry = CollectorRegistry()
    assert default(registry) is default(registry)
    assert default(registry) is not default(CollectorRegistry())
