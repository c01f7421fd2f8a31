"""Four processes, five masters, and no peace: nodes are killed, hung, emptied; processes are stopped.

Whenever a majority of the nodes votes, somebody gets on; at no instant do two; tokens rise over all acquisitions.
`make soak` runs this for a minute, and shows the figures.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from conftest import MakeServer
from support.candidate import assert_one_at_a_time, now
from support.processes import Child
from support.quorums import commissioned
from support.servers import Server
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.soak]

SECONDS = float(os.environ.get("AIOELECT_SOAK") or 12)
TTL = 1.0
LONGEST = 1.5
PATIENCE = 20.0
"""A majority that votes gets somebody on within a ttl or two; a busy machine may take longer."""

_SCRIPT = """
import asyncio, random, sys, time
from redis.asyncio import Redis
from aioelect import AioelectError, FencedLock, QuorumStore

ttl, longest, ports = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

async def main():
    store = QuorumStore([Redis(host="127.0.0.1", port=int(port)) for port in ports], longest_ttl=longest)
    while True:
        try:
            async with FencedLock(store, "name", ttl=ttl) as term:
                emit(event="leads", token=term.token, at=now())
                until = now() + random.uniform(0.02, 0.6)
                while (at := now()) < until:
                    if term.is_valid:
                        emit(event="works", token=term.token, at=at)
                    await asyncio.sleep(0.01)
        except AioelectError as error:
            emit(event="failed", error=type(error).__name__, at=now())

asyncio.run(main())
"""


@pytest.fixture
def nodes(make_server: MakeServer) -> list[Server]:
    """Five masters that vote."""
    servers = [make_server() for _ in range(5)]
    commissioned(servers, LONGEST)
    return servers


@pytest.fixture
def processes(nodes: list[Server]) -> Iterator[list[Child]]:
    """Four processes that want one name, again and again."""
    with ExitStack() as stack:
        ports = [str(node.port) for node in nodes]
        yield [stack.enter_context(Child(_SCRIPT, [str(TTL), str(LONGEST), *ports])) for _ in range(4)]


def begun(processes: list[Child], since: float, until_: float = float("inf")) -> int:
    """How many terms began in a time."""
    lines = [line for child in processes for line in list(child.lines)]
    return sum(line.fields.get("event") == "leads" and since < line["at"] < until_ for line in lines)


async def progress(processes: list[Child]) -> float:
    """Wait until two more terms have begun; how long it took."""
    since = now()
    await until(lambda: begun(processes, since) >= 2, limit=PATIENCE)
    return now() - since


@pytest.mark.timeout(SECONDS + 120)
async def test_p1_p9_a_quorum_of_five_gets_on_with_three_and_no_two_ever_hold_it(
    nodes: list[Server], processes: list[Child]
) -> None:
    chance = random.Random()
    deeds: Counter[str] = Counter()
    waits = [await progress(processes)]
    give_up = now() + SECONDS
    while now() < give_up:
        first, second, third, *_ = chance.sample(nodes, 5)
        # A minority is killed: the others get on.
        first.kill()
        second.kill()
        deeds["killed"] += 2
        waits.append(await progress(processes))
        # One more hangs: nobody gets on, and who holds it has to stop.
        third.pause()
        deeds["hung"] += 1
        await asyncio.sleep(TTL)
        still = now()
        await asyncio.sleep(chance.uniform(0.2, TTL))
        assert begun(processes, still, now()) == 0, "somebody won without a majority"
        # The two come back empty, and abstain; the one that hung is a majority with the two that never failed.
        await asyncio.gather(first.arestart(keep_data=False), second.arestart(keep_data=False))
        deeds["emptied"] += 2
        third.resume()
        waits.append(await progress(processes))
        # While they abstain, processes are stopped at any point of what they do.
        stopped = chance.choice(processes)
        stopped.pause()
        deeds["processes stopped"] += 1
        await asyncio.sleep(chance.uniform(0.1, 2 * TTL))
        stopped.resume()
        if chance.random() < 0.3:
            for node in nodes:
                node.call("FLUSHALL")
            deeds["all emptied at once"] += 1
        await asyncio.sleep(LONGEST)
        waits.append(await progress(processes))
    for child in processes:
        child.kill()
    terms = assert_one_at_a_time(processes)
    failures = Counter(line["error"] for child in processes for line in child.lines if line.fields.get("error"))
    print(
        f"\n{len(terms)} terms by {len(processes)} processes on {len(nodes)} nodes in {SECONDS:g} s; {dict(deeds)}; "
        f"errors: {dict(failures)}; two more terms within {max(waits):.2f} s at most, "
        f"{sorted(waits)[len(waits) // 2]:.2f} s in the middle"
    )
    assert len(terms) >= 2 * len(waits)
