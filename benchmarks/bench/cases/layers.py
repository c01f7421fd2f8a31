"""Where the time of an uncontended pair goes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import aioelect
from aioelect._redis.store import open_store
from aioelect._store import Claim
from bench import stats
from bench.results import US, Outcome, timing_row
from bench.rivals import client
from bench.stage import TTL, Bench, case, settle


class _Raw(asyncio.Protocol):
    """Commands and answers without any library."""

    answer: asyncio.Future[bytes]

    def data_received(self, data: bytes) -> None:
        self.answer.set_result(data)


@case("layers", "where the time of an uncontended pair goes")
async def layers(bench: Bench) -> Outcome:
    """The pair of case `pair`, and how much of it is left when layers are taken off.

    From the bottom: two PINGs by a bare asyncio protocol, which is what two round trips cost; acquire and release of
    the store, which adds the script, the request, the reply and the token; the section without metrics; the section as
    it comes. Slices of 200 in turn; the ratio is the section's time to the layer's.
    """
    rounds, length = bench.pick(40, 4), bench.pick(200, 50)
    redis = client(bench.server.port, 1, US)
    store = open_store(redis, "aioelect")
    plain = aioelect.FencedLock(redis, "layers-plain", ttl=TTL, observers=[])
    whole = aioelect.FencedLock(redis, "layers", ttl=TTL)
    loop = asyncio.get_running_loop()
    transport, raw = await loop.create_connection(_Raw, "127.0.0.1", bench.server.port)

    async def two_round_trips() -> None:
        for _ in range(2):
            raw.answer = loop.create_future()
            transport.write(b"*1\r\n$4\r\nPING\r\n")
            await raw.answer

    async def claim() -> None:
        claim = Claim("layers-store", secrets.token_hex(16), "bench", TTL, 3600.0)
        await store.acquire(claim, limit=5.0)
        await store.release(claim, limit=5.0)

    async def section(lock: aioelect.FencedLock) -> None:
        async with lock:
            pass

    forms: dict[str, Callable[[], Awaitable[None]]] = {
        "two round trips, no library": two_round_trips,
        "store: acquire + release": claim,
        "section without metrics": lambda: section(plain),
        "section": lambda: section(whole),
    }
    took: dict[str, list[list[float]]] = {what: [] for what in forms}
    settle()
    for number in range(rounds + 1):
        for what, form in forms.items():
            bench.tell(number, rounds + 1, what)
            one_slice = []
            for _ in range(length):
                start = time.perf_counter()
                await form()
                one_slice.append(time.perf_counter() - start)
            took[what].append(one_slice)
    transport.close()
    await aioelect.aclose(redis)
    await redis.aclose()
    medians = {what: [stats.median(one) for one in slices[1:]] for what, slices in took.items()}
    rows = [
        timing_row(
            US,
            what,
            [second for one in slices[1:] for second in one],
            ratio=stats.ratios(medians["section"], medians[what]),
        )
        for what, slices in took.items()
    ]
    return Outcome(rows, [], settings={"rounds": rounds, "pairs in a slice": length})
