"""What one renewal costs."""

from __future__ import annotations

import asyncio

import aioelect
from bench.child import Side, play
from bench.results import US, Outcome, Row, Verdict
from bench.rivals import client
from bench.stage import Bench, case, settle

TTL = 3.0


@case("renewal", "what a renewal costs the server")
async def renewal(bench: Bench) -> Outcome:
    """A process holds claims (ttl 3 s: each is renewed once a second): 50 taken at once, then 1,000 spread over time.

    Over six renew intervals, on a server of the case's own, are counted: renewals (EVALSHA in INFO commandstats), and
    how often the server read from a socket (total_reads_processed, our own questions taken off). What came in one write
    is one read, as long as it is below 16 KiB, which 50 renewals are: so reads per interval are round trips.
    """
    intervals = bench.pick(6, 2)
    together = await _count(bench, 50, 0.0, intervals)
    spread = await _count(bench, bench.pick(1000, 200), TTL / 3, intervals)
    rows = [
        Row(
            US,
            f"reads per renewal, {claims:,} claims {how}",
            "",
            reads / renewals,
            count=renewals,
            note=f"an interval: {renewals / claims / intervals:.2f} renewals a claim, {reads / intervals:.1f} reads",
        )
        for how, (claims, renewals, reads) in (("taken at once", together), ("taken over one interval", spread))
    ]
    most = max(renewals / claims for claims, renewals, _ in (together, spread)) / intervals
    dearest = max(reads / renewals for _, renewals, reads in (together, spread))
    verdicts = [
        Verdict("50 claims due together: at most 1 round trip", together[2] / intervals, 1.0),
        Verdict("at most 1 round trip per renewal at any time", dearest, 1.0),
        Verdict("at most 1.1 commands per claim and interval", most, 1.1),
    ]
    return Outcome(rows, verdicts, settings={"ttl s": TTL, "intervals": intervals})


async def _count(bench: Bench, claims: int, over: float, intervals: int) -> tuple[int, int, int]:
    with bench.own_server() as server, play(holder, port=server.port, claims=claims, over=over) as child:
        await child.expect(event="holds", limit=60)
        await asyncio.sleep(TTL / 2)  # half-way between two renewals
        bench.tell(0, 1, f"{claims} claims")
        before = _counters(server.info("all"))
        await asyncio.sleep(intervals * TTL / 3)
        after = _counters(server.info("all"))
    # A question of ours is two reads: its connection's end is one, too.
    return claims, after[0] - before[0], after[1] - before[1] - 2


def _counters(info: dict[str, str]) -> tuple[int, int]:
    renewals = dict(part.split("=") for part in info["cmdstat_evalsha"].split(","))["calls"]
    return int(renewals), int(info["total_reads_processed"])


async def holder(side: Side, port: int, claims: int, over: float) -> None:
    """The process that holds the claims."""
    redis = client(port, 1, US)
    held = 0
    all_held = asyncio.Event()

    async def hold(number: int) -> None:
        nonlocal held
        await asyncio.sleep(over * number / claims)
        async with aioelect.Lease(redis, f"renewal-{number}", ttl=TTL, observers=[]):
            held += 1
            if held == claims:
                all_held.set()
            await asyncio.sleep(3600)

    async with aioelect.Lease(redis, "first", ttl=TTL, observers=[]):
        pass
    settle()
    async with asyncio.TaskGroup() as group:
        for number in range(claims):
            group.create_task(hold(number))
        await all_held.wait()
        side.emit(event="holds")
