"""Runs that count once for the whole cluster: four processes whose clocks disagree, and a leader that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest

from support.processes import Child
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

_SCRIPT = """
import asyncio, time
from redis.asyncio import Redis
from zoneinfo import ZoneInfo
from aioelect import Cron, Elector, FencedLock, Interval, NotAcquired, _clock

port, form, interval, skew, takes = int(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:6])
schedule = Cron("* * * * * *", tz=ZoneInfo("Europe/Berlin")) if form.startswith("cron") else Interval(interval)
_clock.wall = lambda: time.time() + skew

async def run(at, token):
    emit(event="begins", run=at.timestamp(), token=token)
    await asyncio.sleep(takes)
    emit(event="ends", run=at.timestamp(), token=token)

async def lead(term):
    async for at in term.once(schedule, missed="catch_up"):
        await run(at, term.token)
        if form.endswith("rotating"):
            term.resign()  # each run has another leader, with another clock

async def strike(redis):
    while True:
        now = _clock.wall()
        await asyncio.sleep(interval - now % interval)
        try:  # nobody leads: whose clock strikes tries, and whose strikes later finds the run finished
            async with FencedLock(redis, "job", ttl=1.5, wait=0.3, observers=()) as term:
                async with asyncio.timeout(0.1):
                    async for at in term.once(schedule, missed="catch_up"):
                        await run(at, term.token)
        except (NotAcquired, TimeoutError):
            pass

async def main():
    redis = Redis(host="127.0.0.1", port=port)
    emit(event="stands")
    await (strike(redis) if form.endswith("striking") else Elector(redis, "job", ttl=1.5, observers=()).run(lead))

asyncio.run(main())
"""


@dataclass
class Cluster:
    """Some processes, and what they ran."""

    children: list[Child]

    def runs(self, event: str) -> list[float]:
        """The instants of all runs, in their order."""
        return sorted(
            line["run"] for child in self.children for line in list(child.lines) if line.fields.get("event") == event
        )

    def processes(self) -> int:
        """How many processes have run something."""
        return sum(child.find(event="ends") is not None for child in self.children)


Start = Callable[[str, float, float], Cluster]


@pytest.fixture
def start(server: Server) -> Iterator[Start]:
    """Start four processes: form, interval, and how long a run takes; their clocks are 0 to 30 ms ahead."""
    with ExitStack() as stack:

        def make(form: str, interval: float, takes: float) -> Cluster:
            return Cluster(
                [
                    stack.enter_context(
                        Child(_SCRIPT, [str(server.port), form, str(interval), str(0.01 * number), str(takes)])
                    )
                    for number in range(4)
                ]
            )

        yield make


@pytest.mark.parametrize(
    ("form", "interval", "count"),
    [("rotating", 0.2, 20), ("striking", 0.2, 20), ("cron, rotating", 1.0, 8)],
)
async def test_a_job_of_a_millisecond_in_four_processes_with_skewed_clocks_runs_once_a_tick(
    start: Start, form: str, interval: float, count: int
) -> None:
    cluster = start(form, interval, 0.001)
    await until(lambda: len(cluster.runs("ends")) >= count, limit=40)
    await asyncio.sleep(2 * interval)
    found = cluster.runs("ends")
    begun = [run for run in cluster.runs("begins") if run <= found[-1]]
    assert form.endswith("striking") or begun == found
    ticks = [round(run / interval) for run in found]
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks))), "a tick was run twice, or not at all"
    assert cluster.processes() >= 2
    print(f"{form}: {len(found)} runs of {len(set(ticks))} ticks by {cluster.processes()} processes")  # noqa: T201


@pytest.mark.parametrize("form", ["leading", "cron"])
async def test_a_run_whose_leader_is_killed_half_way_is_taken_over_and_the_others_are_not_repeated(
    start: Start, form: str
) -> None:
    cluster = start(form, 1.0, 0.6)
    killed: list[float] = []

    def another_begins(seen: int) -> bool:
        return len(cluster.runs("begins")) > seen

    def is_taken_over(run: float) -> bool:
        return run in cluster.runs("ends")

    for _ in range(3):
        await until(partial(another_begins, len(cluster.runs("begins"))), limit=20)
        run = cluster.runs("begins")[-1]
        (leader,) = [child for child in cluster.children if child.find(event="begins", run=run)]
        leader.kill()
        await leader.exited()
        assert leader.find(event="ends", run=run) is None
        killed.append(run)
        await until(partial(is_taken_over, run), limit=20)
    await until(lambda: len(cluster.runs("ends")) >= 6, limit=20)
    begun, ended = cluster.runs("begins"), cluster.runs("ends")
    assert ended == sorted(set(ended)), "a run was finished twice"
    assert ended == [ended[0] + number for number in range(len(ended))], "a run was left out"
    assert {run for run in begun if begun.count(run) > 1} == set(killed)
