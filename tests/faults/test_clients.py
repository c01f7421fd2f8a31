"""P4: whatever the user's client is set to, an idle wait is no error and nothing hangs past its limit.

The run on the lowest redis-py uses this same file; here the settings are what differs.
"""

import asyncio
import contextlib
import time
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from aioelect import Elector, FencedLock, Lease, StoreUnavailable, Term, aclose
from conftest import Connect
from support.proxy import Proxy
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

SETTINGS = [{"protocol": protocol, "socket_timeout": timeout} for protocol in (2, 3) for timeout in (None, 0.5, 5)]
IDLE = 12.5


def listeners(server: Server) -> list[int]:
    """How many listen to each name's notices."""
    channels = [f"aioelect:{{name-{n}}}:events" for n in range(len(SETTINGS))]
    counts: list[int] = server.call("PUBSUB", "NUMSUB", *channels)[1::2]
    return counts


def traffic(server: Server) -> tuple[int, int]:
    """Connections and commands that the server has seen so far."""
    stats = server.info("stats")
    return int(stats["total_connections_received"]), int(stats["total_commands_processed"])


@pytest.mark.slow
async def test_p4_a_wait_without_a_word_for_twelve_seconds_is_no_error(
    server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Holders and waiters are silent: the ttl is so long that nothing is due. All settings wait at once."""
    entered: dict[str, float] = {}
    release = asyncio.Event()
    held: list[Term] = []

    async def holder(redis: Redis, name: str) -> None:
        async with FencedLock(redis, name, ttl=60) as term:
            held.append(term)
            await release.wait()
            term.check()
            await term.renew()

    async def waiter(redis: Redis, name: str, number: int) -> None:
        # Locks and elections by turns.
        section = FencedLock(redis, name, ttl=60) if number % 2 else Elector(redis, name, ttl=60).lead()
        async with section as term:
            await term.renew()
            entered[name] = time.monotonic()

    # By the other address of the server, holders and waiters share no line: to each other they are on two machines.
    theirs = [connect(server, unix=True, **settings) for settings in SETTINGS]
    holders = [asyncio.create_task(holder(redis, f"name-{n}")) for n, redis in enumerate(theirs)]
    await until(lambda: len(held) == len(SETTINGS))
    clients = [connect(server, **settings) for settings in SETTINGS]
    waiters = [asyncio.create_task(waiter(redis, f"name-{n}", n)) for n, redis in enumerate(clients)]
    await until(lambda: all(count > 0 for count in listeners(server)))
    await asyncio.sleep(0.5)  # the spare connections are made in the background
    before = traffic(server)
    await asyncio.sleep(IDLE)
    # Our own looking is all there was: nobody gave up a connection, nobody asked again.
    assert [late - early for early, late in zip(before, traffic(server), strict=True)] == [1, 1]
    assert [task for task in holders + waiters if task.done()] == []
    assert entered == {}
    started = time.monotonic()
    release.set()
    await asyncio.gather(*holders, *waiters)
    assert len(entered) == len(SETTINGS)
    assert max(entered.values()) - started < 10, "a waiter came in by its ttl, not by the release"
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    # The user's own clients are untouched by all this.
    for redis in theirs + clients:
        assert await redis.ping()
        await aclose(redis)


async def test_p4_no_call_hangs_past_its_limit_whatever_the_clients_own_timeout(
    server: Server, connect: Connect
) -> None:
    """Connections that are open fall silent: renewal, acquisition and release of every client end in bounded time."""
    async with Proxy(server) as proxy:
        clients = [connect(proxy, **settings) for settings in SETTINGS]
        terms = [await Lease(redis, f"name-{n}", ttl=2.0).try_acquire() for n, redis in enumerate(clients)]
        proxy.black_hole()
        started = time.monotonic()

        async def use(redis: Redis, term: Term | None, name: str) -> None:
            assert term is not None
            with pytest.raises(StoreUnavailable):
                await term.renew()
            with pytest.raises(StoreUnavailable):
                await Lease(redis, f"{name}-new", ttl=2.0).try_acquire()
            with pytest.raises(StoreUnavailable):
                async with FencedLock(redis, f"{name}-new", ttl=2.0, wait=0.5):
                    pass
            await term.release()

        await asyncio.gather(*(use(*pair, f"name-{n}") for n, pair in enumerate(zip(clients, terms, strict=True))))
        assert time.monotonic() - started < 10
        proxy.heal()
        for redis in clients:
            await aclose(redis)


@pytest.mark.parametrize(
    "ttl",
    [0.1, 0.25, 1, 1.0005, 15.0, 3600, 24 * 3600, timedelta(milliseconds=750), timedelta(hours=2)],
    ids=str,
)
async def test_p14_a_ttl_lands_in_the_server_as_it_was_asked(
    server: Server, redis: Redis, ttl: float | timedelta
) -> None:
    asked = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    retention = 2 * asked + 100
    lease, term, before = Lease(redis, "name", ttl=ttl, fence_retention=retention), None, 0.0
    while term is None:  # a ttl of 0.1 s leaves a try 15 ms
        before = time.monotonic()
        with contextlib.suppress(StoreUnavailable):
            term = await lease.try_acquire()
    acquired = time.monotonic()
    claim, fence = (server.call("PTTL", key) / 1000 for key in ("aioelect:{name}", "aioelect:{name}:fence"))
    read = time.monotonic()
    for left, wanted in ((claim, asked), (fence, retention)):
        # The server set it somewhere between `before` and `acquired`, and looked somewhere between that and `read`.
        assert left < wanted + 0.05
        assert left + (read - before) > wanted - 0.05
    assert term.remaining() < asked
    assert acquired <= read
    await term.release()
    await aclose(redis)
