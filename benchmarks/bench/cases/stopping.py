"""How soon the work is cancelled when the claim is lost, or can't be proved any more."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

import aioelect
from bench.results import US, Outcome, Row, Verdict, timing_row
from bench.rivals import client
from bench.stage import Bench, case, settle

LOSS_TTL = 0.9
HOLE_TTL = 1.5


@case("loss", "the key is replaced; until the body is cancelled")
async def loss(bench: Bench) -> Outcome:
    """Ten claims (ttl 0.9 s, so a renew interval of 300 ms) are held; each key is overwritten at a random instant.

    Timed from just before the SET is sent to the instant at which the body catches its cancellation. Five times ten.
    """
    what = "overwritten to cancelled"
    rounds, claims, interval = bench.pick(5, 1), 10, LOSS_TTL / 3
    took: list[float] = []
    async with _connected(bench.server.port) as redis:
        settle()

        async def one(name: str) -> None:
            replaced = 0.0

            async def replace() -> None:
                nonlocal replaced
                await asyncio.sleep(LOSS_TTL * (0.3 + random.random()))
                replaced = time.monotonic()
                await redis.set(f"aioelect:{{{name}}}", "somebody else", px=5000)

            other = None
            try:
                async with aioelect.Lease(redis, name, ttl=LOSS_TTL):
                    other = asyncio.create_task(replace())
                    try:
                        await asyncio.sleep(10)
                    except asyncio.CancelledError:
                        took.append(time.monotonic() - replaced)
                        raise
            except aioelect.LeaseLost:
                assert other is not None
                await other

        for number in range(rounds):
            bench.tell(number, rounds, "losing")
            await asyncio.gather(*(one(f"loss-{number}-{claim}") for claim in range(claims)))
    note = f"worst {1e3 * max(took):.1f} ms; renew interval {1e3 * interval:.0f} ms"
    verdicts = [Verdict("at most one renew interval + 5 ms", 1e3 * max(took), 1e3 * interval + 5)]
    rows = [timing_row(US, what, took, note=note), *_absent(bench, "loss", what)]
    return Outcome(rows, verdicts, settings={"ttl s": LOSS_TTL, "claims": rounds * claims})


@case("black-hole", "nothing answers any more; until the body is cancelled")
async def black_hole(bench: Bench) -> Outcome:
    """Twenty claims (ttl 1.5 s) are held; the server is stopped (SIGSTOP): connections stay, and nothing answers.

    Timed is the instant at which the body catches its cancellation, after the renew deadline, which is 0.8 ttl after
    the last confirmed renewal was sent (from `term.remaining()` at that instant). How long the server would have kept
    the claim beyond it comes from PEXPIRETIME, read just before the stop. Five times twenty.
    """
    what = "renew deadline to cancelled"
    rounds, claims = bench.pick(5, 1), 20
    spare = HOLE_TTL * 0.99 - 0.003 - HOLE_TTL * 0.8  # from the renew deadline to the deadline
    late: list[float] = []
    left: list[float] = []  # until the server lets others in
    with bench.own_server() as server:
        async with _connected(server.port) as redis:
            ends: dict[str, float] = {}

            async def one(name: str, held: asyncio.Event) -> None:
                try:
                    async with aioelect.Lease(redis, name, ttl=HOLE_TTL) as term:
                        held.set()
                        try:
                            await asyncio.sleep(10)
                        except asyncio.CancelledError:
                            late.append(spare - term.remaining())
                            left.append(ends[name] - time.time())
                            raise
                except aioelect.LeaseLost:
                    pass

            settle()
            for number in range(rounds):
                bench.tell(number, rounds, "into the black hole")
                names = [f"hole-{number}-{claim}" for claim in range(claims)]
                events = [asyncio.Event() for _ in names]
                tasks = []
                for name, event in zip(names, events, strict=True):
                    tasks.append(asyncio.create_task(one(name, event)))
                    await asyncio.sleep(HOLE_TTL / 3 / claims)
                for event in events:
                    await event.wait()
                await asyncio.sleep(HOLE_TTL / 3 * random.random())
                for name in names:
                    ends[name] = server.call("PEXPIRETIME", f"aioelect:{{{name}}}") / 1000
                server.pause()
                await asyncio.gather(*tasks)
                server.resume()
    note = (
        f"earliest {1e3 * min(late):+.1f} ms, worst {1e3 * max(late):.1f} ms; "
        f"at least {1e3 * min(left):.0f} ms of ttl left"
    )
    verdicts = [
        Verdict("not before the renew deadline (ms after it)", 1e3 * min(late), 0.0, at_least=True),
        Verdict("at most 5 ms after the renew deadline", 1e3 * max(late), 5.0),
        Verdict("never past the ttl (ms left)", 1e3 * min(left), 0.0, at_least=True),
    ]
    rows = [timing_row(US, what, late, note=note), *_absent(bench, "black-hole", what)]
    return Outcome(rows, verdicts, settings={"ttl s": HOLE_TTL, "claims": rounds * claims})


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[Redis]:
    redis = client(port, 1, US)
    yield redis
    await aioelect.aclose(redis)
    await redis.aclose()


def _absent(bench: Bench, case: str, what: str) -> list[Row]:
    return [Row(name, what, note=why) for name, why in bench.present(case)[1].items()]
