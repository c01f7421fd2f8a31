"""How long one uncontended acquire + release takes."""

from __future__ import annotations

import time

from bench import stats
from bench.results import US, Outcome, Verdict, timing_row
from bench.stage import TTL, Bench, Player, case

WHAT = "acquire + release"


@case("pair", "acquire + release, one coroutine")
async def pair(bench: Bench) -> Outcome:
    """One coroutine takes a free lock and gives it back, again and again.

    Timed is each `async with section: pass`, token included, by perf_counter. The lock object is made once, before.
    Slices of 200 pairs, the rivals in turn, on warm connections (one slice of each is thrown away); the ratio is that
    of the slices' medians, round by round.
    """
    rounds, length = bench.pick(40, 4), bench.pick(200, 50)
    async with bench.players("pair") as (players, absent):
        sections = {player.name: player.section("pair", TTL) for player in players}

        async def one_slice(player: Player, _: int) -> list[float]:
            section, clock = sections[player.name], time.perf_counter
            took = []
            for _ in range(length):
                start = clock()
                async with section:
                    pass
                took.append(clock() - start)
            return took

        slices = await bench.interleave(players, absent, rounds + 1, one_slice)
    medians = {who: [stats.median(took) for took in of[1:]] for who, of in slices.of.items()}
    against = {who: stats.ratios(medians[US], theirs) for who, theirs in medians.items()}
    rows = [
        timing_row(who, WHAT, [second for took in of[1:] for second in took], ratio=against[who])
        for who, of in slices.of.items()
    ]
    verdicts = [
        Verdict(f"at most {limit}x {who}", against[who].median, limit, stretch=stretch)
        for who, limit, stretch in (
            ("redis-py Lock", 0.9, False),
            ("bare pair", 1.05, False),
            ("redis-py Lock", 0.75, True),
        )
        if who in against
    ]
    return Outcome(rows + slices.rows(WHAT), verdicts, settings={"rounds": rounds, "pairs in a slice": length})
