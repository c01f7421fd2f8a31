"""How long after a claim has run out somebody else has it."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack, ExitStack

from bench import stats
from bench.child import Side, play
from bench.results import US, Outcome, Verdict, timing_row
from bench.rivals import RIVALS
from bench.stage import Bench, Player, case, label
from support.processes import Child
from support.servers import Server

WHAT = "end of the ttl to start"
TTL, CLAIMS = 1.0, 5


@case("take-over", "take-over after kill -9, beyond the remaining ttl")
async def take_over(bench: Bench) -> Outcome:
    """A process that holds five claims (ttl 1 s) is killed; another process has waited for each of them.

    Timed from the instant at which the server lets the claim expire (PEXPIRETIME, read after the kill) to the first
    instant inside the section in the other process, both by this machine's wall clock; the server tells milliseconds.
    The kill falls at a random instant between two renewals. Every kill is of a fresh process; rivals have fewer of
    them, since their polling shows soon.
    """
    kills, theirs = bench.pick(10, 1), bench.pick(4, 1)
    present, absent = bench.present("take-over")
    with ExitStack() as stack:
        waiters = {
            rival.name: stack.enter_context(play(waiter, port=bench.server.port, rival=rival.name)) for rival in present
        }

        async def one_slice(player: Player, number: int) -> list[float]:
            if player.name != US and number >= theirs:
                return []
            return await _kill(bench.server, player.name, waiters[player.name], number)

        async with bench.players("take-over") as (players, _):
            slices = await bench.interleave(players, absent, kills, one_slice)
    late = {who: [second for part in of for second in part] for who, of in slices.of.items()}
    rows = [timing_row(who, WHAT, seconds, note=f"worst {1e3 * max(seconds):.1f} ms") for who, seconds in late.items()]
    verdicts = [
        Verdict("median at most 5 ms", 1e3 * stats.median(late[US]), 5.0),
        Verdict(f"worst of {len(late[US])} at most 50 ms", 1e3 * max(late[US]), 50.0),
    ]
    return Outcome(rows + slices.rows(WHAT), verdicts, settings={"kills": kills, "rivals' kills": theirs, "ttl s": TTL})


async def _kill(server: Server, who: str, waiter: Child, number: int) -> list[float]:
    names = [f"take-over-{number}-{claim}" for claim in range(CLAIMS)]
    seen = len(waiter.lines)
    with play(holder, port=server.port, rival=who, names=names) as victim:
        await victim.expect(event="holds")
        for name in names:
            waiter.send(name=name)
        await asyncio.sleep(0.15 + TTL / 3 * random.random())
        victim.kill()
        await victim.exited()
        # A claim that is not renewed may have run out already: that one says nothing.
        ends = {name: end for name in names if (end := _expires(server, name)) is not None}
        starts = {name: await waiter.expect(after=seen, event="began", name=name) for name in names}
    return [starts[name]["at"] - end for name, end in ends.items()]


def _expires(server: Server, name: str) -> float | None:
    """When the lock's key will be gone, by the wall clock; whatever the library calls it."""
    for key in server.call("KEYS", f"*{name}*"):
        if server.call("TYPE", key) == b"string" and (at := int(server.call("PEXPIRETIME", key))) > 0:
            return at / 1000
    return None


async def holder(side: Side, port: int, rival: str, names: list[str]) -> None:
    """The process that will be killed."""
    async with RIVALS[rival].connect(port, CLAIMS, label(rival)) as section:

        async def hold(name: str, held: asyncio.Event) -> None:
            async with section(name, TTL):
                held.set()
                await asyncio.sleep(3600)

        events = [asyncio.Event() for _ in names]
        async with asyncio.TaskGroup() as group:
            for name, event in zip(names, events, strict=True):
                group.create_task(hold(name, event))
            for event in events:
                await event.wait()
            side.emit(event="holds")


async def waiter(side: Side, port: int, rival: str) -> None:
    """The process that takes over."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        section = await stack.enter_async_context(RIVALS[rival].connect(port, CLAIMS, label(rival)))

        async def wait(name: str) -> None:
            async with section(name, TTL):
                side.emit(event="began", name=name, at=time.time())

        async for order in side.commands():
            group.create_task(wait(order["name"]))
