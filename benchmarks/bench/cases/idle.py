"""What waiting costs the server while nothing happens."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack

import aioelect
from bench.child import Side, play
from bench.results import US, Outcome, Row, Verdict
from bench.rivals import RIVALS, client
from bench.stage import Bench, case, commands, label

WHAT = "commands per ttl and process"
MANY = 100
LONG = 600.0  # a rival's holder doesn't renew


@case("idle", "idle candidates, ttl 15 s, the leader alive")
async def idle(bench: Bench) -> Outcome:
    """A leader lives and renews; processes with 1 and with 100 electors for its name stand by, two of each kind.

    Counted are the commands that the candidates' connections sent in four ttl (CLIENT LIST on a server of the case's
    own), per ttl and process. Of each rival one process waits for a lock that is held all the time. All at once.
    """
    ttl, lengths = bench.pick(15.0, 1.0), bench.pick(4, 2)
    present, absent = bench.present("idle")
    rivals = [rival for rival in present if rival.name != US]
    groups = {f"{US}-{electors}": (electors, bench.pick(2, 1)) for electors in (1, MANY)}
    with bench.own_server() as server, ExitStack() as stack:
        async with AsyncExitStack() as held:
            leader = stack.enter_context(play(candidates, port=server.port, ttl=ttl, electors=1, called="leader"))
            await leader.expect(event="leads")
            for called, (electors, processes) in groups.items():
                for _ in range(processes):
                    child = play(candidates, port=server.port, ttl=ttl, electors=electors, called=called)
                    await stack.enter_context(child).expect(event="stands")
            for rival in rivals:
                section = await held.enter_async_context(rival.connect(server.port, 1, "holder"))
                await held.enter_async_context(section("idle", LONG))
                child = stack.enter_context(play(waiter, port=server.port, rival=rival.name, ttl=ttl))
                await child.expect(event="waits")
            await asyncio.sleep(1.0)
            names = [*groups, *(rival.name for rival in rivals)]
            before = {name: sum(commands(server, name).values()) for name in names}
            seen: dict[str, dict[str, int]] = {name: {} for name in names}  # some reconnect every few seconds
            for second in range(round(ttl * lengths)):
                bench.tell(second, round(ttl * lengths), "standing by")
                await asyncio.sleep(1.0)
                for name in names:
                    seen[name] |= commands(server, name)
            sent = {name: sum(seen[name].values()) - before[name] for name in names}
    costs = {name: sent[name] / lengths / (groups[name][1] if name in groups else 1) for name in names}
    rows = [
        Row(US, WHAT, "", costs[name], count=sent[name], note=f"{electors} electors for the name in each process")
        for name, (electors, _) in groups.items()
    ]
    rows += [Row(rival.name, WHAT, "", costs[rival.name], count=sent[rival.name], note="1 waiter") for rival in rivals]
    rows += [Row(name, WHAT, note=why) for name, why in absent.items()]
    verdicts = [
        Verdict(f"{electors} electors a process: at most 1.25 a ttl", costs[name], 1.25)
        for name, (electors, _) in groups.items()
    ]
    return Outcome(rows, verdicts, settings={"ttl s": ttl, "ttls": lengths})


async def candidates(side: Side, port: int, ttl: float, electors: int, called: str, name: str = "idle") -> None:
    """A process with so many electors for one name; it says when one of them leads."""
    redis = client(port, 1, label(called))

    async def work(term: aioelect.Term) -> None:
        side.emit(event="leads", token=term.token)
        await asyncio.sleep(3600)

    async with asyncio.TaskGroup() as group:
        for _ in range(electors):
            group.create_task(aioelect.Elector(redis, name, ttl=ttl).run(work))
        await asyncio.sleep(0.2)
        side.emit(event="stands")


async def waiter(side: Side, port: int, rival: str, ttl: float) -> None:
    """A process that waits for a rival's lock."""
    async with RIVALS[rival].connect(port, 1, label(rival)) as section:
        side.emit(event="waits")
        async with section("idle", ttl):
            raise AssertionError("the lock was to be held all the time")
