"""Workers that share one port write metrics into files: one that is dead or stopped doesn't go on leading there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.processes import Child
from support.servers import Server

pytestmark = pytest.mark.faults

TTL = 1.5
WORKER = """
    import asyncio, sys, threading, time
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector as Original
    from redis.asyncio import Redis
    from aioelect import Elector
    from aioelect.metrics import MultiProcessCollector

    def scrape(collector):
        registry = CollectorRegistry()
        collector(registry)
        metrics = {metric.name: metric.samples for metric in registry.collect()}
        until = [sample.value for sample in metrics["leader_election_leads_until_timestamp_seconds"]]
        return {
            "is_leader": [[s.labels, s.value] for s in metrics["leader_election_is_leader"]],
            "leading": sum(s.value for s in metrics["leader_election_is_leader"]),
            "valid": sum(at > time.time() for at in until),
            "workers": len(until),
            "candidates": metrics["leader_election_candidates"][0].value,
            "acquired": sum(s.value for s in metrics["leader_election_acquired"] if s.name.endswith("_total")),
        }

    def answer():
        for command in commands():
            emit(event="scraped", number=command["number"], ours=scrape(MultiProcessCollector), theirs=scrape(Original))

    async def work(term):
        emit(event="leads")
        await asyncio.sleep(3600)

    async def main():
        redis = Redis(port=int(sys.argv[1]))
        threading.Thread(target=answer, daemon=True).start()
        elector = Elector(redis, "role", ttl=float(sys.argv[2]))
        emit(event="stands")  # its files are there: prometheus_client can't read one that was made just now
        await elector.run(work)

    asyncio.run(main())
"""


@pytest.fixture
def workers(server: Server, tmp_path: Path) -> Iterator[list[Child]]:
    """Four workers that stand for one role."""
    with ExitStack() as stack:
        environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        args = [str(server.port), str(TTL)]
        yield [stack.enter_context(Child(WORKER, args, environment)) for _ in range(4)]


_numbers = iter(range(1_000_000))


async def scrape(worker: Child) -> dict[str, Any]:
    """What one worker answers for all."""
    number = next(_numbers)
    worker.send(number=number)
    line = await worker.expect(event="scraped", number=number)
    return dict(line.fields)


async def until_scraped(worker: Child, **wanted: float) -> dict[str, Any]:
    """Scrape until our collector shows these numbers; at no moment does it show two leaders."""
    give_up = asyncio.get_running_loop().time() + 15
    while True:
        seen = await scrape(worker)
        assert seen["ours"]["leading"] <= 1
        if all(seen["ours"][key] == value for key, value in wanted.items()):
            return seen
        assert asyncio.get_running_loop().time() < give_up, f"never {wanted}; last {seen}"
        await asyncio.sleep(0.02)


async def test_of_four_workers_one_leads_and_one_that_is_killed_leads_no_more_when_its_time_is_up(
    workers: list[Child],
) -> None:
    for worker in workers:
        await worker.expect(event="stands")
    seen = await until_scraped(workers[0], workers=4, candidates=4, leading=1, acquired=1)
    assert seen["ours"]["is_leader"] == [[{"name": "role"}, 1.0]]
    assert seen["theirs"]["is_leader"] == [[{"name": "role"}, 1.0]]

    (leader,) = [worker for worker in workers if worker.find(event="leads")]
    others = [worker for worker in workers if worker is not leader]
    leader.kill()
    seen = await until_scraped(others[0], leading=1, valid=1, acquired=2)
    assert seen["ours"]["is_leader"] == [[{"name": "role"}, 1.0]]
    assert seen["theirs"]["is_leader"] == [[{"name": "role"}, 2.0]], "why the original collector won't do"


async def test_p2_a_worker_that_is_stopped_leads_no_more_when_its_time_is_up(workers: list[Child]) -> None:
    for worker in workers:
        await worker.expect(event="stands")
    await until_scraped(workers[0], candidates=4, leading=1)
    (leader,) = [worker for worker in workers if worker.find(event="leads")]
    others = [worker for worker in workers if worker is not leader]
    leader.pause()
    await until_scraped(others[0], leading=1, valid=1, acquired=2)
    leader.resume()
    seen = await scrape(others[0])
    assert seen["ours"]["is_leader"] == [[{"name": "role"}, 1.0]]
