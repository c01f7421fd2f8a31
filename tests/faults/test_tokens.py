"""P9: tokens rise, whatever becomes of the clients and of the counter in the server."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack

import pytest
from redis.asyncio import Redis

from aioelect import FencedLock, Lease, LeaseLost, aclose
from conftest import Connect
from support.processes import Child
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

CLIENTS = 8
ACQUISITIONS = 200
BEYOND_A_DOUBLE = 2**53 - 5

CLIENT = """
import asyncio
from redis.asyncio import Redis
from aioelect import FencedLock, Lease, LeaseLost, aclose

async def main():
    redis = Redis(port=int(sys.argv[1]))
    lock = FencedLock(redis, "name", ttl=1.0)
    emit(event="up")
    renewals, turn = 0, 0
    while True:
        turn += 1
        if turn % 6 == 0:
            # Dropped without a word: it ends with its ttl.
            term = await Lease(redis, "name", ttl=0.1).try_acquire()
            if term is not None:
                emit(token=term.token)
            continue
        try:
            async with lock as term:
                emit(token=term.token)
                for _ in range(3):
                    await term.renew()
                    renewals += 1
                emit(renewals=renewals)
                if turn % 4 == 0:
                    await asyncio.sleep(0.02)  # so that a kill finds somebody at work
        except LeaseLost:
            emit(event="lost")

asyncio.run(main())
"""


class Terms:
    """All terms of the name in the server's own order, from the notices that the server passed on."""

    def __init__(self, redis: Redis):
        self.tokens: list[int] = []
        self._pubsub = redis.pubsub()  # type: ignore[no-untyped-call,unused-ignore]

    async def listen(self) -> None:
        """Collect until cancelled; returns from the first wait once the subscription stands."""
        await self._pubsub.subscribe("aioelect:{name}:events")
        self._task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        async for message in self._pubsub.listen():
            if message["type"] == "message" and message["data"].startswith(b"1 acquired "):
                self.tokens.append(int(message["data"].split()[2]))

    async def aclose(self) -> None:
        """Stop."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._pubsub.aclose()  # type: ignore[no-untyped-call,unused-ignore]

    def check(self) -> None:
        """Every token is higher than the one before."""
        assert self.tokens == sorted(set(self.tokens)), "tokens did not rise"


@pytest.fixture
def name() -> str:
    """A name of the test's own: a process remembers how far the tokens of a name have come."""
    return secrets.token_hex(4)


@pytest.fixture
async def terms(redis: Redis) -> AsyncIterator[Terms]:
    """Who listens."""
    async with AsyncExitStack() as stack:
        listener = Terms(redis)
        await listener.listen()
        stack.push_async_callback(listener.aclose)
        yield listener


async def test_p9_tokens_rise_over_200_terms_of_8_processes_through_kills_expiries_and_lost_counters(
    server: Server, terms: Terms
) -> None:
    with ExitStack() as stack:

        def start() -> Child:
            return stack.enter_context(Child(CLIENT, [str(server.port)]))

        async def terms_more(count: int) -> None:
            goal = len(terms.tokens) + count
            await until(lambda: len(terms.tokens) >= goal, limit=30)

        children = [start() for _ in range(CLIENTS)]
        await asyncio.gather(*(child.expect(event="up", limit=30) for child in children))
        await terms_more(30)
        for turn in range(3):
            # Whoever has spoken last is most likely at work.
            children[turn].kill()
            await terms_more(20)
        server.call("DEL", "aioelect:{name}:fence")
        await terms_more(20)
        server.call("FLUSHALL")
        await terms_more(20)
        server.call("DEL", "aioelect:{name}", "aioelect:{name}:fence")
        await terms_more(20)
        # The counter moves to where a double can't tell two numbers apart any more. It is not lost from here on.
        server.call("HSET", "aioelect:{name}:fence", "token", BEYOND_A_DOUBLE)
        await until(lambda: len(terms.tokens) >= ACQUISITIONS and terms.tokens[-1] > 2**53 + 20, limit=30)
        survivors = children[3:]
        await until(
            lambda: all(any(line.fields.get("renewals", 0) >= 50 for line in child.lines) for child in survivors),
            limit=30,
        )
    heard = {line["token"] for child in children for line in child.lines if "token" in line.fields}
    await until(lambda: heard <= set(terms.tokens))  # the last notice may be on its way yet
    assert len(heard) >= ACQUISITIONS / 2
    terms.check()
    far = [token for token in terms.tokens if token > BEYOND_A_DOUBLE]
    assert far == list(range(far[0], far[0] + len(far))), "a number was skipped or rounded beyond 2^53"


@pytest.mark.parametrize("loss", ["counter deleted", "FLUSHALL", "stale record"])
async def test_p9_a_process_never_sees_a_token_fall_even_if_the_counter_was_ahead_of_the_clock(
    any_server: Server, redis: Redis, name: str, loss: str
) -> None:
    """A counter beyond the server's clock is lost: what this process has seen is the floor."""
    lock = FencedLock(redis, name)
    async with lock as term:
        first = term.token
    any_server.call("HSET", f"aioelect:{{{name}}}:fence", "token", BEYOND_A_DOUBLE)
    tokens = []
    for turn in range(12):
        async with lock as term:
            tokens.append(term.token)
        if turn % 3 == 1:
            match loss:
                case "counter deleted":
                    any_server.call("DEL", f"aioelect:{{{name}}}:fence")
                case "FLUSHALL":
                    any_server.call("FLUSHALL")
                case "stale record":
                    any_server.call("HSET", f"aioelect:{{{name}}}:fence", "token", first)
    assert tokens == list(range(BEYOND_A_DOUBLE + 1, BEYOND_A_DOUBLE + 13))
    await aclose(redis)


async def test_p9_a_token_seen_of_another_holder_is_a_floor_too(
    server: Server, redis: Redis, name: str, connect: Connect
) -> None:
    other = connect(server, unix=True)
    term = await Lease(other, name, ttl=30).try_acquire()
    assert term is not None
    server.call("HSET", f"aioelect:{{{name}}}:fence", "token", BEYOND_A_DOUBLE)
    assert await Lease(redis, name).try_acquire() is None  # heard of it
    server.call("FLUSHALL")
    mine = await Lease(redis, name).try_acquire()
    assert mine is not None and mine.token == BEYOND_A_DOUBLE + 1
    await mine.release()
    await aclose(redis)
    await aclose(other)


async def test_p9_renewals_and_failed_tries_do_not_move_the_counter(
    any_server: Server, redis: Redis, name: str, connect: Connect
) -> None:
    other = connect(any_server, unix=True)
    async with FencedLock(redis, name, ttl=5) as term:
        for _ in range(50):
            await term.renew()
            assert await Lease(other, name).try_acquire() is None
        assert int(any_server.call("HGET", f"aioelect:{{{name}}}:fence", "token")) == term.token
    await aclose(redis)
    await aclose(other)


async def test_p9_a_term_keeps_its_token_whatever_the_counter_says(server: Server, redis: Redis, name: str) -> None:
    async with FencedLock(redis, name, ttl=5) as term:
        token = term.token
        server.call("HSET", f"aioelect:{{{name}}}:fence", "token", 7)
        await term.renew()
        assert term.token == token
        server.call("DEL", f"aioelect:{{{name}}}:fence")
        await term.renew()
        assert term.token == token
    with pytest.raises(LeaseLost) as caught:
        async with FencedLock(redis, name, ttl=5) as later:
            server.call("DEL", f"aioelect:{{{name}}}")
            await later.renew()
    assert caught.value.token == later.token > token
    await aclose(redis)
