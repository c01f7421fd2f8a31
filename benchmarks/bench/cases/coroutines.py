"""How many uncontended pairs a second a thousand coroutines get."""

from __future__ import annotations

import asyncio
import time

from bench import stats
from bench.results import US, Outcome, Row, Verdict
from bench.stage import TTL, Bench, Player, case, connections

WHAT = "acquire + release"


@case("coroutines", "1,000 coroutines, distinct names")
async def coroutines(bench: Bench) -> Outcome:
    """1,000 coroutines, each with a name of its own, take and give back their lock three times each.

    The rate is pairs per second from the start of the first coroutine to the end of the last; p99 is that of the single
    pairs, whose times contain all queueing. The objects are made before. Rivals in turn; the first round is thrown
    away. Connections are counted by CLIENT LIST during an additional slice that is not timed.
    """
    crowd, times, rounds = bench.pick(1000, 100), 3, bench.pick(6, 1)
    async with bench.players("coroutines", crowd) as (players, absent):
        sections = {
            player.name: [player.section(f"coroutine-{number}", TTL) for number in range(crowd)] for player in players
        }

        async def one_slice(player: Player, _: int) -> tuple[float, list[float]]:
            clock = time.perf_counter
            took: list[float] = []

            async def one(number: int) -> None:
                section = sections[player.name][number]
                for _ in range(times):
                    start = clock()
                    async with section:
                        pass
                    took.append(clock() - start)

            start = clock()
            await asyncio.gather(*map(one, range(crowd)))
            return crowd * times / (clock() - start), took

        slices = await bench.interleave(players, absent, rounds + 1, one_slice)
        most: dict[str, int] = {}
        for player in players:
            if player.name in slices.of:
                slice_ = asyncio.create_task(one_slice(player, 0))
                while not slice_.done():
                    await asyncio.sleep(0.02)
                    seen = len(connections(bench.server, player.name))
                    most[player.name] = max(most.get(player.name, 0), seen)
    rates = {who: [rate for rate, _ in of[1:]] for who, of in slices.of.items()}
    against = {who: stats.ratios(rates[US], theirs) for who, theirs in rates.items()}
    rows = [
        Row(
            who,
            WHAT,
            "1/s",
            stats.median(rates[who]),
            count=crowd * times * rounds,
            ratio=against[who],
            note=f"connections: {most[who]}; p99 of a pair {1e3 * _p99(of):.0f} ms",
        )
        for who, of in slices.of.items()
    ]
    verdicts = [
        Verdict(f"at least {limit}x redis-py Lock's rate", against[who].median, limit, at_least=True, stretch=stretch)
        for who in ("redis-py Lock",)
        for limit, stretch in ((4.0, False), (6.0, True))
        if who in against
    ]
    verdicts.append(Verdict("at most 4 connections", most[US], 4))
    return Outcome(rows + slices.rows(WHAT), verdicts, settings={"coroutines": crowd, "rounds": rounds})


def _p99(slices: list[tuple[float, list[float]]]) -> float:
    return stats.percentile([second for _, took in slices[1:] for second in took], 0.99)
