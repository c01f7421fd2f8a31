"""What four processes get of one name."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

from bench import stats
from bench.child import Side, play
from bench.results import US, Outcome, Row, Verdict
from bench.rivals import RIVALS, Section
from bench.stage import TTL, Bench, Player, case, label
from support.processes import Child

WHAT = "sections served"
CROWD, WORK = 5, 0.001


@case("processes", "4 processes x 5 coroutines, one name, 1 ms of work")
async def processes(bench: Bench) -> Outcome:
    """Four processes with five coroutines each want one name, work for 1 ms under it, and come straight back.

    Jain's index is over the sections that each process got, all rounds together. A wait goes from asking to being
    inside, also if it outlasts the slice; the worst one of all is compared with the mean of all. The rivals in turn,
    each with processes of its own that idle while others run.
    """
    number_of, rounds, length = bench.pick(4, 2), bench.pick(3, 1), bench.pick(4.0, 0.5)
    present, absent = bench.present("processes")
    with ExitStack() as stack:
        crowds = {
            rival.name: [
                stack.enter_context(play(contender, port=bench.server.port, rival=rival.name)) for _ in range(number_of)
            ]
            for rival in present
        }
        for child in [child for crowd in crowds.values() for child in crowd]:
            await child.expect(event="ready", limit=60)

        async def one_slice(player: Player, number: int) -> list[tuple[int, list[float]]]:
            return await _slice(crowds[player.name], f"processes-{number}", length)

        players = [Player(rival, _no_section) for rival in present]
        slices = await bench.interleave(players, absent, rounds, one_slice)
    rates = {who: [sum(served for served, _ in part) / length for part in of] for who, of in slices.of.items()}
    shares = {
        who: [sum(part[process][0] for part in of) for process in range(number_of)] for who, of in slices.of.items()
    }
    waits = {who: [wait for part in of for _, waited in part for wait in waited] for who, of in slices.of.items()}
    against = {who: stats.ratios(rates[US], theirs) for who, theirs in rates.items()}
    rows = [
        Row(
            who,
            WHAT,
            "1/s",
            stats.median(rates[who]),
            count=sum(shares[who]),
            ratio=against[who],
            note=f"Jain {stats.jain(shares[who]):.3f}; waits: mean {_mean(waits[who]):.3f} s, "
            f"worst {max(waits[who]):.2f} s",
        )
        for who in slices.of
    ]
    verdicts = [
        Verdict("Jain's index over processes at least 0.9", stats.jain(shares[US]), 0.9, at_least=True),
        Verdict("no wait more than 1 s above the mean", max(waits[US]) - _mean(waits[US]), 1.0),
    ]
    return Outcome(rows + slices.rows(WHAT), verdicts, settings={"rounds": rounds, "slice s": length, "ttl s": TTL})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _no_section(_: str, __: float) -> Section:
    raise AssertionError("only the processes hold this lock")


async def _slice(crowd: list[Child], name: str, length: float) -> list[tuple[int, list[float]]]:
    seen = [len(child.lines) for child in crowd]
    start = time.monotonic() + 0.05
    for child in crowd:
        child.send(name=name, start=start, end=start + length)
    lines = [
        await child.expect(limit=length + 40, after=after, event="done")
        for child, after in zip(crowd, seen, strict=True)
    ]
    return [(line["served"], line["waits"]) for line in lines]


async def contender(side: Side, port: int, rival: str) -> None:
    """One of the four processes."""
    async with RIVALS[rival].connect(port, CROWD, label(rival)) as section:
        side.emit(event="ready")
        async for order in side.commands():
            await asyncio.sleep(max(0.0, order["start"] - time.monotonic()))
            each = [_contend(section(order["name"], TTL), order["end"]) for _ in range(CROWD)]
            done = await asyncio.gather(*each)
            waits = [wait for _, waits in done for wait in waits]
            side.emit(event="done", served=sum(served for served, _ in done), waits=waits)


async def _contend(lock: Section, end: float) -> tuple[int, list[float]]:
    served = 0
    waits: list[float] = []
    while (asked := time.monotonic()) < end:
        async with lock:
            waits.append(time.monotonic() - asked)
            if time.monotonic() < end:
                await asyncio.sleep(WORK)
            if time.monotonic() < end:
                served += 1
    return served, waits
