"""What it costs the server when a leader dies before a thousand candidates."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

from bench import stats
from bench.cases.idle import candidates
from bench.child import Side, play
from bench.results import US, Outcome, Row, Verdict
from bench.rivals import RIVALS, Rival
from bench.stage import Bench, case, commands, label
from support.processes import Child
from support.servers import Server
from support.wait import until

WHAT = "commands until the next leads"
PROCESSES = 10


@case("herd", "1,000 electors for one name in 10 processes; the leader dies")
async def herd(bench: Bench) -> Outcome:
    """Ten processes with 100 electors each stand for one name (ttl 3 s); the process that leads is killed.

    Counted are the commands that the ten processes sent from the kill to the first report of a new leader, by CLIENT
    LIST on a server of the case's own. Repeated with the new leader's process, which is replaced by a fresh one. Of a
    rival 1,000 waiters in ten processes want one lock whose holder dies with 2 s of ttl left; once.
    """
    crowd, processes, kills = bench.pick(100, 20), bench.pick(PROCESSES, 2), bench.pick(3, 1)
    ttl = bench.pick(3.0, 1.0)
    present, absent = bench.present("herd")
    with bench.own_server() as server:
        ours = await _elections(bench, server, ttl, processes, crowd, kills)
        rows = [Row(US, WHAT, "", stats.median(ours), max(ours), len(ours), note=f"each time: {ours}")]
        for number, rival in enumerate(rival for rival in present if rival.name != US):
            bench.tell(number, len(present) - 1, rival.name)
            try:
                seen, took = await _locks(server, rival, 2 / 3 * ttl, processes, crowd)
            except AssertionError as error:
                rows.append(Row(rival.name, WHAT, note=str(error).splitlines()[0][:100]))
            else:
                rows.append(Row(rival.name, WHAT, "", seen, count=1, note=f"in {took:.1f} s"))
    rows += [Row(name, WHAT, note=why) for name, why in absent.items()]
    return Outcome(
        rows,
        [Verdict("at most 30 commands", max(ours), 30)],
        settings={"electors in a process": crowd, "kills": kills, "ttl s": ttl},
    )


async def _elections(bench: Bench, server: Server, ttl: float, number_of: int, crowd: int, kills: int) -> list[int]:
    found = []
    with ExitStack() as stack:
        processes: dict[str, Child] = {}

        def start(number: int) -> None:
            called = f"herd-{number}"
            child = play(candidates, port=server.port, ttl=ttl, electors=crowd, called=called, name="herd")
            processes[called] = stack.enter_context(child)

        start(0)
        await processes["herd-0"].expect(event="leads")
        leading = "herd-0"
        for number in range(1, number_of):
            start(number)
        for kill in range(kills):
            bench.tell(kill, kills, US)
            start(number_of + kill)
            for child in processes.values():
                await child.expect(event="stands", limit=60)
            await asyncio.sleep(ttl / 2)
            dead = processes.pop(leading)
            before = _sent(server, *processes)
            dead.kill()
            leading = await until(lambda: _leader(processes), limit=ttl * 3 + 10)
            found.append(_sent(server, *processes) - before)
    return found


def _sent(server: Server, *labels: str) -> int:
    return sum(count for called in labels for count in commands(server, called).values())


def _leader(processes: dict[str, Child]) -> str | None:
    return next((called for called, child in processes.items() if child.find(event="leads")), None)


async def _locks(server: Server, rival: Rival, left: float, number_of: int, crowd: int) -> tuple[int, float]:
    name = f"herd-{label(rival.name)}"
    with ExitStack() as stack:
        holder = stack.enter_context(play(waiters, port=server.port, rival=rival.name, name=name, crowd=1, called="h"))
        await holder.expect(event="has")
        processes = [
            stack.enter_context(
                play(waiters, port=server.port, rival=rival.name, name=name, crowd=crowd, called=rival.name)
            )
            for _ in range(number_of)
        ]
        for child in processes:
            await child.expect(event="waits", limit=60)
        await asyncio.sleep(0.5)
        before = _sent(server, rival.name)
        holder.kill()
        for key in server.call("KEYS", f"*{name}*"):
            server.call("PEXPIRE", key, round(1000 * left))
        died = time.monotonic()
        await until(lambda: any(child.find(event="has") for child in processes), limit=30)
        return _sent(server, rival.name) - before, time.monotonic() - died


async def waiters(side: Side, port: int, rival: str, name: str, crowd: int, called: str) -> None:
    """A process with so many waiters for a rival's lock; whoever gets it keeps it."""
    async with RIVALS[rival].connect(port, crowd, label(called)) as section, asyncio.TaskGroup() as group:

        async def wait() -> None:
            async with section(name, 60.0):
                side.emit(event="has")
                await asyncio.sleep(3600)

        for _ in range(crowd):
            group.create_task(wait())
        await asyncio.sleep(0.2)
        side.emit(event="waits")
