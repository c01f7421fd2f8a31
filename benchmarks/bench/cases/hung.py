"""What one hung connection does to the claims of a process."""

from __future__ import annotations

import asyncio

import aioelect
from bench.child import Side, play
from bench.results import US, Outcome, Row, Verdict
from bench.rivals import client
from bench.stage import Bench, case
from support.proxy import Proxy

WHAT = "how much later the slowest renewal is"


@case("hung", "one connection hangs under 1,000 claims")
async def hung(bench: Bench) -> Outcome:
    """A process holds 1,000 claims (ttl 9 s), taken over one renew interval; its working connection hangs.

    It is behind a proxy that passes nothing on any more for that connection; new ones are served.

    Compared is the least that any claim had left, by `term.remaining()` every 5 ms, in two renew intervals without
    trouble, and in two from just before the connection hangs. The difference is by how much the hung connection delayed
    a renewal; the promise is one try limit, 1.4 s here.
    """
    claims, ttl = bench.pick(1000, 50), bench.pick(9.0, 3.0)
    try_limit = (0.8 - 1 / 3) * ttl / 3
    async with Proxy(bench.server) as proxy:
        with play(holder, port=proxy.port, claims=claims, ttl=ttl) as child:
            await child.expect(event="holds", limit=60)
            least, lost = {}, 0
            for number, trouble in enumerate((False, True)):
                bench.tell(number, 2, "one connection hangs" if trouble else "all is well")
                if trouble:
                    proxy.black_hole(proxy.commands[-1].connection)
                child.send(do="watch")
                line = await child.expect(event="watched", after=len(child.lines), limit=30)
                least[trouble], lost = line["least"], line["lost"]
    delay = least[False] - least[True]
    note = f"least life left: {least[False]:.2f} s, then {least[True]:.2f} s; {lost} of {claims:,} lost"
    verdicts = [
        Verdict("none lost", lost, 0),
        Verdict(f"delayed by at most one try limit, {try_limit:.2f} s", delay, try_limit),
    ]
    return Outcome([Row(US, WHAT, "s", delay, count=claims, note=note)], verdicts, settings={"ttl s": ttl})


async def holder(side: Side, port: int, claims: int, ttl: float) -> None:
    """The process that holds the claims."""
    redis = client(port, 1, US)
    terms: list[aioelect.Term] = []
    lost = 0
    all_held = asyncio.Event()

    async def hold(number: int) -> None:
        nonlocal lost
        await asyncio.sleep(ttl / 3 * number / claims)
        try:
            async with aioelect.Lease(redis, f"hung-{number}", ttl=ttl, observers=[]) as term:
                terms.append(term)
                if len(terms) == claims:
                    all_held.set()
                await asyncio.sleep(3600)
        except aioelect.LeaseLost:
            lost += 1

    async with asyncio.TaskGroup() as group:
        for number in range(claims):
            group.create_task(hold(number))
        await all_held.wait()
        side.emit(event="holds")
        async for _ in side.commands():
            least = ttl
            for _ in range(round(2 * ttl / 3 / 0.005)):
                least = min(least, *(term.remaining() for term in terms))
                await asyncio.sleep(0.005)
            side.emit(event="watched", least=least, lost=lost)
