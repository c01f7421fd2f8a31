"""How long after a release another process, which waits, begins."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack

from bench import stats
from bench.child import Side, play
from bench.results import US, Outcome, Verdict, timing_row
from bench.rivals import RIVALS
from bench.stage import TTL, Bench, Player, case, label
from support.processes import Child

WHAT = "release to start"
NAME = "hand-over"


@case("hand-over", "hand-over after release, another process waiting")
async def hand_over(bench: Bench) -> Outcome:
    """This process holds the lock; another one has asked for it and waits; this one leaves its section.

    Timed from the last instant inside the section here to the first instant inside it there (CLOCK_MONOTONIC, which
    both share), so it contains the release, the notice or poll, and the acquisition. The other one has waited for 60 to
    160 ms, drawn anew each time so that no poll is in step. Ten in a row, the rivals in turn.
    """
    rounds, length = bench.pick(12, 1), bench.pick(10, 3)
    async with bench.players("hand-over") as (players, absent):
        with ExitStack() as stack:
            waiters = {
                player.name: stack.enter_context(play(waiter, port=bench.server.port, rival=player.name))
                for player in players
            }

            async def one_slice(player: Player, _: int) -> list[float]:
                return [await _once(player, waiters[player.name]) for _ in range(length)]

            slices = await bench.interleave(players, absent, rounds, one_slice)
    medians = {who: [stats.median(took) for took in of] for who, of in slices.of.items()}
    against = {who: stats.ratios(medians[US], theirs) for who, theirs in medians.items()}
    took = {who: [second for part in of for second in part] for who, of in slices.of.items()}
    rows = [timing_row(who, WHAT, seconds, ratio=against[who]) for who, seconds in took.items()]
    verdicts = []
    if (who := "redis-py Lock") in took:
        worst = {name: stats.percentile(took[name], 0.99) for name in (US, who)}
        verdicts = [
            Verdict(f"median at most 1/25 of {who}'s", stats.median(took[US]) / stats.median(took[who]), 1 / 25),
            Verdict(f"p99 at most 1/10 of {who}'s", worst[US] / worst[who], 1 / 10),
        ]
    return Outcome(rows + slices.rows(WHAT), verdicts, settings={"rounds": rounds, "in a row": length})


async def _once(player: Player, waiter: Child) -> float:
    seen = len(waiter.lines)
    async with player.section(NAME, TTL):
        waiter.send(do="wait")
        await waiter.expect(after=seen, event="waits")
        await asyncio.sleep(0.06 + 0.1 * random.random())
        released = time.monotonic()
    line = await waiter.expect(after=seen, event="began")
    await waiter.expect(after=seen, event="left")
    return float(line["at"]) - released


async def waiter(side: Side, port: int, rival: str) -> None:
    """The other process."""
    async with RIVALS[rival].connect(port, 1, label(rival)) as section:
        async for _ in side.commands():
            side.emit(event="waits")
            async with section(NAME, TTL):
                began = time.monotonic()
                side.emit(event="began", at=began)
            side.emit(event="left")
