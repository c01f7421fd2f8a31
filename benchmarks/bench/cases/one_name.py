"""What twenty coroutines of one process get of one name."""

from __future__ import annotations

import asyncio
import time

from bench import stats
from bench.results import US, Outcome, Row, Verdict
from bench.stage import TTL, Bench, Player, case

WHAT = "sections served"
CROWD = 20
WORK = 0.001


@case("one-name", "20 coroutines, one name, 1 ms of work")
async def one_name(bench: Bench) -> Outcome:
    """20 coroutines of one process want one name, work for 1 ms (asyncio.sleep) under it, and come straight back.

    The rate is sections that ended within the slice per second; the slices of all rounds together tell how often each
    coroutine was served. Each coroutine has an object of its own. Rivals in turn; what is still waited for at the end
    of a slice is served outside of it.
    """
    rounds, length = bench.pick(6, 1), bench.pick(2.0, 0.3)
    async with bench.players("one-name", CROWD) as (players, absent):

        async def one_slice(player: Player, number: int) -> tuple[float, list[int]]:
            served = [0] * CROWD
            end = time.monotonic() + length

            async def one(me: int) -> None:
                section = player.section(f"one-name-{number}", TTL)
                while time.monotonic() < end:
                    async with section:
                        if time.monotonic() < end:
                            await asyncio.sleep(WORK)
                        if time.monotonic() < end:
                            served[me] += 1

            await asyncio.gather(*map(one, range(CROWD)))
            return sum(served) / length, served

        slices = await bench.interleave(players, absent, rounds, one_slice)
    rates = {who: [rate for rate, _ in of] for who, of in slices.of.items()}
    against = {who: stats.ratios(rates[US], theirs) for who, theirs in rates.items()}
    totals = {
        who: [sum(each) for each in zip(*(served for _, served in of), strict=True)] for who, of in slices.of.items()
    }
    rows = [
        Row(
            who,
            WHAT,
            "1/s",
            stats.median(rates[who]),
            count=sum(totals[who]),
            ratio=against[who],
            note=f"each served {min(totals[who])} to {max(totals[who])} times",
        )
        for who in slices.of
    ]
    verdicts = [Verdict("served max/min at most 1.1", stats.max_over_min(totals[US]), 1.1)]
    if "redis-py Lock" in against:
        seen = against["redis-py Lock"].median
        verdicts.insert(0, Verdict("at least 1.15x redis-py Lock's rate", seen, 1.15, at_least=True))
    return Outcome(rows + slices.rows(WHAT), verdicts, settings={"rounds": rounds, "slice s": length, "ttl s": TTL})
