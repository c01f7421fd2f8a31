"""64 partitions, three to eight processes, and no peace: members join, leave, are killed and stopped for two ttls.

At no instant do two lead one partition; what a stopped holder writes late is refused where it is written; the order of
each partition is kept; and after each deed the shares are fair again soon. `make soak` runs this for a minute, and
shows the figures.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from conftest import MakeServer
from support.candidate import now
from support.processes import Child
from support.servers import Server
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.soak]

SECONDS = float(os.environ.get("AIOELECT_SOAK") or 12)
COUNT = 64
TTL = 1.5
LEAST, MOST = 3, 8
PATIENCE = 2 * TTL + 10.0
"""Two ttls of calm are what it may take; a busy machine takes longer."""

_SCRIPT = """
import asyncio, os, random, signal, sys, time
from anyio import CancelScope
from redis.asyncio import Redis
from aioelect import Partitions, StaleToken, aclose
from aioelect.fencing import RedisGuard

port, who, count, ttl = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
APPEND = "return redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. redis.call('LLEN', KEYS[1]) .. ' ' .. ARGV[2])"

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

async def main():
    redis = Redis(host="127.0.0.1", port=port)
    guard = RedisGuard(redis)
    stop_before_a_write = asyncio.Event()

    async def consume(partition):
        token, term, number = partition.term.token, partition.term, partition.number
        said = 0.0
        while True:
            at = now()
            if term.is_leader and at - said >= 0.1:  # asked after the clock was read: true at that instant
                emit(event="works", number=number, token=token, at=at)
                said = at
            if stop_before_a_write.is_set() and term.is_leader:
                stop_before_a_write.clear()
                emit(event="stops", number=number, token=token, at=now())
                os.kill(os.getpid(), signal.SIGSTOP)  # what follows is written all the same, whoever leads by then
            try:
                with CancelScope(shield=True):  # so that the answer is heard, too
                    await guard.run(token, APPEND, [f"sink:{number}"], [token, who])
            except StaleToken:
                emit(event="refused", number=number, token=token, led=term.is_leader)
            await asyncio.sleep(random.uniform(0.1, 0.4))

    life = asyncio.ensure_future(
        Partitions(redis, "orders", count=count, ttl=ttl, identity=who, observers=[]).run(consume)
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, life.cancel)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop_before_a_write.set)
    emit(event="up")
    try:
        await life
    except asyncio.CancelledError:
        pass
    await aclose(redis)
    await redis.aclose()
    emit(event="over")

asyncio.run(main())
"""


@dataclass
class Group:
    """The processes that take part, and those that did."""

    server: Server
    stack: AsyncExitStack
    members: dict[str, Child] = field(default_factory=dict)
    ever: list[Child] = field(default_factory=list)
    deeds: Counter[str] = field(default_factory=Counter)
    waits: list[tuple[float, str]] = field(default_factory=list)

    async def join(self) -> None:
        """One more."""
        who = f"member-{len(self.ever)}"
        child = self.stack.enter_context(Child(_SCRIPT, [str(self.server.port), who, str(COUNT), str(TTL)]))
        self.members[who] = child
        self.ever.append(child)
        await child.expect(event="up", limit=30)

    async def leave(self, who: str) -> None:
        """One goes by itself; it hands over before it ends."""
        child = self.members.pop(who)
        child.terminate()
        assert await child.exited(limit=20) == 0, child.stderr
        assert "never" not in child.stderr, child.stderr

    async def disturb(self, chance: random.Random) -> str:
        """Do something to somebody; says what."""
        possible = ["stop", "stop before a write"]
        possible += ["join"] * 2 * (len(self.members) < MOST)
        possible += ["leave", "kill"] * (len(self.members) > LEAST)
        deed = chance.choice(possible)
        self.deeds[deed] += 1
        who = chance.choice(sorted(self.members))
        match deed:
            case "join":
                await self.join()
            case "leave":
                await self.leave(who)
            case "kill":
                self.members.pop(who).kill()
            case "stop":
                self.members[who].pause()
                await asyncio.sleep(2 * TTL)
                self.members[who].resume()
            case _:
                await self.stop_before_a_write(who)
        return deed

    async def stop_before_a_write(self, who: str) -> None:
        """Stop one between its look at the clock and its write, until another has written: the fence refuses it."""
        child, told = self.members[who], len(self.members[who].lines)
        child.signal(signal.SIGUSR1)
        stopped = await child.expect(event="stops", after=told)
        number, token = stopped["number"], stopped["token"]
        await asyncio.sleep(2 * TTL)
        await until(lambda: int(self.server.call("LINDEX", f"sink:{number}", -1).split()[0]) > token, PATIENCE)
        child.resume()
        await child.expect(event="refused", after=told, number=number, token=token)

    def shares(self) -> Counter[str]:
        """How many partitions each holds now, by the server's word."""
        held = "local r = {} for n = 0, ARGV[1] - 1 do local k = 'aioelect:{orders:' .. n .. '}' "
        held += "if redis.call('EXISTS', k) == 1 then r[#r+1] = redis.call('HGET', k .. ':fence', 'identity') end end "
        return Counter(who.decode() for who in self.server.call("EVAL", held + "return r", 0, COUNT))

    async def fair(self, after: str) -> None:
        """Wait until everything is held, and by nobody more than a fair share; note how long it took."""
        since, least = now(), COUNT // len(self.members)
        most = least + (COUNT % len(self.members) > 0)

        def is_fair() -> bool:
            shares = self.shares()
            return shares.total() == COUNT and all(least <= shares[who] <= most for who in self.members)

        try:
            await until(is_fair, PATIENCE)
        except AssertionError:
            said = {who: (child.returncode, child.stderr[-2000:]) for who, child in self.members.items()}
            raise AssertionError(f"not fair after {after}: {self.shares()}; {said}") from None
        self.waits.append((now() - since, after))


@pytest.fixture
async def group(make_server: MakeServer) -> AsyncIterator[Group]:
    """Three members, to begin with."""
    async with AsyncExitStack() as stack:
        group = Group(make_server(), stack)
        for _ in range(LEAST):
            await group.join()
        await group.fair("start")
        yield group


def assert_one_at_a_time(children: list[Child]) -> int:
    """No two terms of a partition overlap; returns how many terms there were."""
    spans: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for child in children:
        for line in list(child.lines):
            if line.fields.get("event") == "works":
                spans[line["number"]][line["token"]].append(line["at"])
    for number, terms in spans.items():
        last = 0.0
        for token in sorted(terms):
            assert last < min(terms[token]), f"two led partition {number}, one of them with token {token}"
            last = max(terms[token])
    return sum(map(len, spans.values()))


def assert_in_order(server: Server) -> int:
    """What was written to each partition is in one order, by rising tokens; returns how much it was."""
    written = 0
    for number in range(COUNT):
        entries = [entry.decode().split() for entry in server.call("LRANGE", f"sink:{number}", 0, -1)]
        assert [int(position) for _, position, _ in entries] == list(range(len(entries)))
        tokens = [int(token) for token, _, _ in entries]
        assert tokens and tokens == sorted(tokens), f"a late holder wrote to partition {number}"
        written += len(entries)
    return written


def requests(server: Server) -> int:
    """What aioelect has asked the server, all processes together: scripts and native releases."""
    stats = server.info("commandstats")
    calls = [stats.get(f"cmdstat_{name}", "calls=0,") for name in ("evalsha", "delex", "delifeq")]
    return sum(int(figures.partition("=")[2].partition(",")[0]) for figures in calls)


@pytest.mark.timeout(SECONDS + 180)
async def test_p1_p7_each_partition_has_one_consumer_and_shares_are_fair_again_soon_whatever_happens(
    group: Group,
) -> None:
    chance = random.Random()
    give_up = now() + SECONDS
    while now() < give_up:
        await group.fair(await group.disturb(chance))
    await group.stop_before_a_write(chance.choice(sorted(group.members)))
    await group.fair("stop before a write")
    # In calm a member renews what it holds, and tells of itself, once in an interval; at most 1 % early.
    before, began = requests(group.server), now()
    await asyncio.sleep(TTL)
    intervals = (now() - began) / (TTL / 3)
    asked, share = (requests(group.server) - before) / intervals / len(group.members), COUNT / len(group.members)
    for who in sorted(group.members):
        await group.leave(who)
    terms, written = assert_one_at_a_time(group.ever), assert_in_order(group.server)
    lines = [line for child in group.ever for line in list(child.lines)]
    refused = [line for line in lines if line.fields.get("event") == "refused"]
    waits = {
        deed: sorted(round(wait, 2) for wait, after in group.waits if after == deed)
        for deed in dict.fromkeys(after for _, after in group.waits)
    }
    slowest = {deed: f"{found[len(found) // 2]} (at most {found[-1]})" for deed, found in waits.items()}
    print(
        f"\n{terms} terms of {COUNT} partitions by {len(group.ever)} processes, ttl {TTL:g} s; {dict(group.deeds)}; "
        f"{written} writes in order, {len(refused)} late ones refused; seconds until fair again: {slowest}; in calm "
        f"{asked:.1f} requests a member and renew interval ({asked / (TTL / 3):.1f} a second)"
    )
    assert refused
    assert asked <= 1.5 * (share + 1)
    assert group.server.call("EXISTS", "aioelect:{orders}:members") == 0, "who has left is listed"
