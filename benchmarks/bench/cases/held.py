"""What holding many claims costs one process."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Any

import aioelect
from bench.child import Side, play
from bench.results import US, Curve, Outcome, Row, Verdict, at_most_linear
from bench.rivals import client
from bench.stage import Bench, case, connections

WHAT = "claims held"
AT_ONCE = 200


@case("held", "10,000 claims held for three ttl in one process, ttl 15 s")
async def held(bench: Bench) -> Outcome:
    """One process takes 10,000 locks, each in a task of its own, 200 at a time, and holds them for three ttl.

    CPU is process_time over the wall time while they are held. Memory is the growth of the resident set from just
    before the first lock is taken to just after the last one (gc.collect() before both), divided by their number: the
    lock object, its term, and the task that holds it. Lost is what ended otherwise than by being told to. Once with
    the default metrics, which keep a series for every name, and once without.
    """
    claims, ttl, lengths = bench.pick(10_000, 300), bench.pick(15.0, 1.5), bench.pick(3.0, 2.0)
    seen = {}
    for number, metrics in enumerate((True, False)):
        bench.tell(number, 2, f"{claims} claims, {'default' if metrics else 'no'} metrics")
        seen[metrics] = await _hold(bench, claims, ttl, lengths * ttl if metrics else ttl, metrics=metrics)
    rows = [
        Row(
            US,
            WHAT,
            "",
            claims,
            count=claims,
            note=f"{'default' if metrics else 'no'} metrics: {it['memory'] / claims / 1024:.1f} KiB each, "
            f"{100 * it['cpu']:.0f} % of a core, {it['connections']} connections, {it['lost']} lost; "
            f"all taken in {it['took']:.1f} s",
        )
        for metrics, it in seen.items()
    ]
    _, absent = bench.present("held")
    rows += [Row(name, WHAT, note=why) for name, why in absent.items()]
    ours = seen[True]
    verdicts = [
        Verdict("none lost", ours["lost"], 0),
        Verdict("at most 25 % of a core", 100 * ours["cpu"], 25),
        Verdict("at most 6 connections", ours["connections"], 6),
        Verdict("at most 8 KiB each, default metrics", ours["memory"] / claims / 1024, 8),
        Verdict("at most 8 KiB each, no metrics", seen[False]["memory"] / claims / 1024, 8),
    ]
    return Outcome(rows, verdicts, settings={"claims": claims, "ttl s": ttl, "held s": lengths * ttl})


@case("growth-held", "memory and CPU over 100 to 10,000 held claims")
async def growth_held(bench: Bench) -> Outcome:
    """As `held`, with the default metrics, for a growing number of claims, each number in a fresh process.

    Held for two renew intervals; ttl 15 s.
    """
    sizes, ttl = bench.pick([100, 300, 1000, 3000, 10_000], [100, 300]), bench.pick(15.0, 1.5)
    memory: list[float] = []
    cpu: list[float] = []
    rows = []
    for number, size in enumerate(sizes):
        bench.tell(number, len(sizes), f"{size} claims")
        it = await _hold(bench, size, ttl, ttl * 2 / 3, metrics=True)
        memory.append(it["memory"])
        cpu.append(100 * it["cpu"])
        note = f"{it['memory'] / size / 1024:.1f} KiB each, {100 * it['cpu']:.1f} % of a core, {it['lost']} lost"
        rows.append(Row(US, f"{size:,} {WHAT}", "", size, count=size, note=note))
    curves = [
        Curve("memory", "claims", "B", US, list(map(float, sizes)), memory),
        Curve("CPU", "claims", "%", US, list(map(float, sizes)), cpu),
    ]
    return Outcome(rows, at_most_linear(curves), curves, {"ttl s": ttl})


async def _hold(bench: Bench, claims: int, ttl: float, seconds: float, *, metrics: bool) -> dict[str, Any]:
    arguments = {"port": bench.server.port, "claims": claims, "ttl": ttl, "seconds": seconds, "metrics": metrics}
    with play(holder, **arguments) as child:
        await child.expect(event="holds", limit=180)
        await asyncio.sleep(seconds / 2)
        connected = len(connections(bench.server, "held"))
        line = await child.expect(event="held", limit=seconds + 60)
        await child.expect(event="over", limit=120)
    return {**line.fields, "connections": connected}


async def holder(side: Side, port: int, claims: int, ttl: float, seconds: float, *, metrics: bool) -> None:
    """The process that holds."""
    redis = client(port, 1, "held")
    more: dict[str, Any] = {} if metrics else {"observers": []}
    async with aioelect.FencedLock(redis, "first", ttl=ttl, **more):
        pass  # connections, scripts and metrics are there
    before, start = resident(), time.monotonic()
    holding = _Holding()
    async with asyncio.TaskGroup() as group:
        for number in range(claims):
            group.create_task(holding.hold(aioelect.FencedLock(redis, f"held-{number}", ttl=ttl, **more)))
        await holding.all_of(claims)
        took = time.monotonic() - start
        memory = resident() - before
        side.emit(event="holds")
        cpu, start = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (time.process_time() - cpu) / (time.monotonic() - start)
        side.emit(event="held", memory=memory, cpu=share, lost=holding.lost, took=took)
        holding.ending.set()
    side.emit(event="over")
    await aioelect.aclose(redis)
    await redis.aclose()


class _Holding:
    """Many tasks that hold a lock each until they are told to let go."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.lost = 0
        self._held = 0
        self._more = asyncio.Event()
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def hold(self, lock: aioelect.FencedLock) -> None:
        try:
            await self._gate.acquire()
            async with lock:
                self._gate.release()
                self._held += 1
                self._more.set()
                await self.ending.wait()
        except aioelect.LeaseLost:
            self.lost += 1

    async def all_of(self, claims: int) -> None:
        while self._held < claims:
            self._more.clear()
            await self._more.wait()


def resident() -> int:
    """Bytes of this process in memory, after a collection."""
    gc.collect()
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource  # noqa: PLC0415 - where there is no /proc: the peak, which here is the present

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
