"""How rates and times grow with the number of names, and of those who wait."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

from bench import stats
from bench.child import Side, play
from bench.results import US, Curve, Outcome, Row, at_most_linear
from bench.rivals import RIVALS
from bench.stage import TTL, Bench, Player, case, label

COMPARED = (US, "redis-py Lock")
HOLD = (0.02, 0.12)  # drawn anew each time, so that no poll is in step


@case("growth-names", "acquire rate and p99 over 1 to 10,000 names")
async def growth_names(bench: Bench) -> Outcome:
    """So many coroutines, each with a name of its own, take and give back their lock; objects are made on the way.

    The rate is pairs per second from the start of the first to the end of the last; p99 is that of the single pairs,
    whose times contain all queueing. At least 2,000 pairs a slice, so small numbers repeat. Medians over rounds, each
    of which has all numbers.
    """
    sizes, pairs, rounds = bench.pick([1, 10, 100, 1000, 10_000], [1, 10, 100]), bench.pick(2000, 200), bench.pick(5, 1)
    async with bench.players("growth-names", max(sizes)) as (everybody, _):
        players = [player for player in everybody if player.name in COMPARED]

        async def one_slice(player: Player, _: int) -> dict[int, tuple[float, float]]:
            return {size: await _pairs(player, size, max(1, pairs // size)) for size in sizes}

        slices = (await bench.interleave(players, {}, rounds, one_slice)).of
    curves, rows = [], []
    for player in players:
        who = player.name
        rates = [stats.median([part[size][0] for part in slices[who]]) for size in sizes]
        worst = [stats.median([part[size][1] for part in slices[who]]) for size in sizes]
        rows += [
            Row(who, f"pairs, {size:,} names", "1/s", rate, count=rounds * size * max(1, pairs // size), note=_ms(late))
            for size, rate, late in zip(sizes, rates, worst, strict=True)
        ]
        named = list(map(float, sizes))
        once = [names / rate for names, rate in zip(sizes, rates, strict=True)]
        curves += [
            Curve("acquire rate", "names", "1/s", who, named, rates),
            Curve("time for all names once", "names", "s", who, named, once),
            Curve("p99 of a pair", "names", "s", who, named, worst),
        ]
    return Outcome(rows, at_most_linear(curves[1:3]), curves, {"rounds": rounds, "pairs": pairs})


def _ms(seconds: float) -> str:
    return f"p99 of a pair {1e3 * seconds:.3g} ms"


async def _pairs(player: Player, names: int, times: int) -> tuple[float, float]:
    clock = time.perf_counter
    took: list[float] = []

    async def one(number: int) -> None:
        section = player.section(f"growth-{number}", TTL)
        for _ in range(times):
            start = clock()
            async with section:
                pass
            took.append(clock() - start)

    start = clock()
    await asyncio.gather(*map(one, range(names)))
    return names * times / (clock() - start), stats.percentile(took, 0.99)


@case("growth-waiting", "hand-over over 1 to 200 waiting processes' worth of coroutines")
async def growth_waiting(bench: Bench) -> Outcome:
    """So many wait for one name that one more holds for 20 to 120 ms; whoever had it waits again once another has it.

    Each has a client with connections of its own, so that nothing is shared: as many processes would do the same work,
    but here one process does it all. Timed from the last instant inside the section of one to the first inside that of
    the next, by one clock. Three rounds of all numbers, ten hand-overs
    of each; the two before them are thrown away.
    """
    sizes, times, rounds = bench.pick([1, 3, 10, 30, 100, 200], [1, 5]), bench.pick(10, 5), bench.pick(3, 1)
    present, absent = bench.present("growth-waiting")
    compared = [rival.name for rival in present if rival.name in COMPARED]
    gaps: dict[str, dict[int, list[float]]] = {who: {size: [] for size in sizes} for who in compared}
    for number in range(rounds):
        for size, who in itertools.product(sizes, compared):
            bench.tell(number, rounds, f"{size} waiting, {who}")
            with play(line, port=bench.server.port, rival=who, waiting=size, times=times + 2) as child:
                gaps[who][size] += (await child.expect(event="gaps", limit=120))["gaps"][2:]
    curves = [_curve(who, of) for who, of in gaps.items()]
    rows = [
        Row(who, f"hand-over, {size} waiting", "s", stats.median(took), stats.percentile(took, 0.99), len(took))
        for who, of in gaps.items()
        for size, took in of.items()
    ]
    rows += [Row(name, "hand-over", note=why) for name, why in absent.items()]
    return Outcome(rows, at_most_linear(curves[:1]), curves, {"held s": HOLD, "hand-overs": times})


def _curve(who: str, gaps: Mapping[int, list[float]]) -> Curve:
    medians = [stats.median(took) for took in gaps.values()]
    return Curve("hand-over", "waiting", "s", who, list(map(float, gaps)), medians)


async def line(side: Side, port: int, rival: str, waiting: int, times: int) -> None:
    """The process in which all wait."""
    gaps: list[float] = []
    left = 0.0
    handed = asyncio.Event()  # the next one has begun
    over = asyncio.Event()
    async with AsyncExitStack() as stack:

        async def one(number: int) -> None:
            nonlocal left, handed
            section = await stack.enter_async_context(RIVALS[rival].connect(port, 1, f"{label(rival)}-{number}"))
            lock = section("growth-waiting", TTL)
            while not over.is_set():
                async with lock:
                    if left:
                        gaps.append(time.monotonic() - left)
                    handed.set()
                    mine = handed = asyncio.Event()
                    await asyncio.sleep(random.uniform(*HOLD))
                    left = time.monotonic()
                if len(gaps) >= times:
                    over.set()
                await mine.wait()

        tasks = [asyncio.create_task(one(number)) for number in range(waiting + 1)]
        await over.wait()
        side.emit(event="gaps", gaps=gaps[:times])
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
