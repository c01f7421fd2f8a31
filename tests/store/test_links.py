"""Own connections: one that hangs, one in reserve, calls that are given up, and what an ended loop leaves behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

import aioelect
from aioelect._errors import StoreUnavailable
from aioelect._redis import links as links_module
from aioelect._redis.links import Links
from aioelect._redis.runtime import runtime_of
from aioelect._redis.store import RedisStore, open_store
from aioelect._store import Granted, Renewed
from conftest import Connect, MakeServer
from store.conftest import PASSWORD, a_claim, granted
from support.proxy import Proxy
from support.servers import Server
from support.wait import until

LIMIT = 5.0


def links(store: RedisStore) -> Links:
    """Look at the connections of a store on one server."""
    route = runtime_of(store._origin).route
    assert isinstance(route, Links)
    return route


def states(store: RedisStore) -> list[str]:
    """Tell the states of a store's connections, oldest first."""
    return [link.state.value for link in links(store)._links]


@pytest.fixture
def store(proxy: Proxy, connect: Connect) -> RedisStore:
    """Make a store behind the proxy."""
    store = open_store(connect(proxy), "aioelect")
    assert isinstance(store, RedisStore)
    return store


async def warm(store: RedisStore) -> None:
    """Have the connection and its spare open."""
    await granted(store, a_claim("warm"))
    await until(lambda: states(store) == ["open", "open"])


async def test_there_is_one_connection_and_one_warm_spare(store: RedisStore, proxy: Proxy) -> None:
    await warm(store)
    for n in range(20):
        await granted(store, a_claim(f"name-{n}"))
    assert states(store) == ["open", "open"]
    assert len(proxy.connections) == 2


async def test_the_handshake_is_short(store: RedisStore, proxy: Proxy) -> None:
    await warm(store)
    assert set(proxy.names()) <= {"EVALSHA", "EVAL", "DELEX", "DELIFEQ"}


async def test_p4_a_hung_connection_costs_another_claim_one_limit_at_most(store: RedisStore, proxy: Proxy) -> None:
    held = a_claim("held")
    await granted(store, held)
    await warm(store)
    proxy.black_hole(0)
    # A patient call is in flight on the connection that hangs.
    patient = asyncio.create_task(store.acquire(a_claim("patient"), limit=1.0))
    await asyncio.sleep(0.02)
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="within"):
        await store.renew(held, limit=0.1)
    assert time.monotonic() - start < 0.15
    assert not patient.done()
    start = time.monotonic()
    assert await store.renew(held, limit=0.1) == Renewed()
    assert time.monotonic() - start < 0.05  # on the spare: no handshake
    with pytest.raises(StoreUnavailable):
        await patient
    await until(lambda: states(store) == ["open", "open"])
    await until(lambda: len(proxy.connections) == 3)  # the proxy keeps the hung one, we do not


async def test_p4_when_the_spare_hangs_too_a_third_connection_is_made(store: RedisStore, proxy: Proxy) -> None:
    claim = a_claim()
    await granted(store, claim)
    await warm(store)
    for number in proxy.connections:
        proxy.black_hole(number)
    failures = 0
    for _ in range(3):
        try:
            assert await store.renew(claim, limit=0.1) == Renewed()
            break
        except StoreUnavailable:
            failures += 1
    assert failures == 2


async def test_p4_a_cancelled_call_leaves_the_connection_in_step(store: RedisStore, proxy: Proxy) -> None:
    await warm(store)
    rule = proxy.reply("EVALSHA").hold()
    lost = asyncio.create_task(store.acquire(a_claim("lost", identity="lost"), limit=LIMIT))
    await rule.reached()
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost
    others = [asyncio.create_task(store.acquire(a_claim(f"name-{n}"), limit=LIMIT)) for n in range(5)]
    await asyncio.sleep(0.02)
    rule.release()
    assert {type(answer) for answer in await asyncio.gather(*others)} == {Granted}
    assert len(proxy.connections) == 2


async def test_p4_an_answer_after_the_limit_goes_to_nobody(store: RedisStore, proxy: Proxy) -> None:
    claim = a_claim()
    await granted(store, claim)
    await warm(store)
    rule = proxy.reply("EVALSHA").delay(0.15)
    patient = asyncio.create_task(store.renew(claim, limit=LIMIT))
    await rule.reached()
    with pytest.raises(StoreUnavailable):
        await store.acquire(a_claim("other"), limit=0.05)
    assert await patient == Renewed()
    assert isinstance(await store.acquire(a_claim("third"), limit=LIMIT), Granted)


async def test_p4_a_connection_that_missed_a_limit_is_not_used_again_though_it_answers_after_all(
    store: RedisStore, proxy: Proxy
) -> None:
    """It may lead to a master that hung and was replaced meanwhile."""
    await warm(store)
    late = links(store)._links[0]
    rule = proxy.reply("EVALSHA").hold()
    patient = asyncio.create_task(store.acquire(a_claim("patient"), limit=LIMIT))
    await rule.reached()
    with pytest.raises(StoreUnavailable):
        await store.acquire(a_claim("hasty"), limit=0.05)
    rule.release()
    assert isinstance(await patient, Granted)
    await granted(store, a_claim("next"))
    assert late not in links(store)._links
    await until(lambda: states(store) == ["open", "open"])


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_connection_that_is_given_up_closes_with_its_last_caller(
    store: RedisStore, proxy: Proxy, cancelled: bool
) -> None:
    held = proxy.reply("ECHO").hold()
    by = asyncio.get_running_loop().time() + 60.0
    asking = asyncio.ensure_future(links(store).exchange(b"", lambda _: [(b"ECHO", b"hello")], by))
    await held.reached()
    links(store).drop(b"")
    if cancelled:
        asking.cancel()
    else:
        held.remove()
        assert await asking == [b"hello"]
    await until(lambda: "suspect" not in states(store))


async def test_random_cancellations_never_mix_up_answers(redis: Redis) -> None:
    store = open_store(redis, "aioelect")
    claims = [a_claim(f"name-{n}", identity=f"holder-{n}") for n in range(50)]
    tokens = [await granted(store, claim) for claim in claims]

    async def ask(n: int) -> None:
        answer = await store.acquire(claims[n], limit=LIMIT)
        assert isinstance(answer, Granted)
        assert answer.token == tokens[n]

    for turn in range(40):
        tasks = [asyncio.create_task(ask(n)) for n in range(50)]
        for _ in range(turn % 8):
            await asyncio.sleep(0)
        for task in tasks[turn % 3 :: 3]:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError)


async def test_p4_a_handshake_slower_than_the_limit_succeeds_in_the_background(
    make_server: MakeServer, connect: Connect
) -> None:
    server = make_server(requirepass=PASSWORD)
    async with Proxy(server) as proxy:
        proxy.reply("AUTH", times=None).delay(0.2)
        store = open_store(connect(proxy, password=PASSWORD), "aioelect")
        start = time.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                await store.acquire(a_claim(), limit=0.05)
                break
            except StoreUnavailable:
                assert time.monotonic() - start < 2.0
        assert time.monotonic() - start < 0.4
        assert tries > 3
        assert proxy.accepted <= 3
        await aioelect.aclose(store)


class Deaf:
    """A connection that is never established."""

    made = 0
    open = 0
    is_connected = False

    async def connect(self) -> None:
        """Hang."""
        type(self).made += 1
        type(self).open += 1
        try:
            await asyncio.Event().wait()
        finally:
            type(self).open -= 1

    async def disconnect(self, nowait: bool = False) -> None:
        """Have nothing to do."""


async def test_p4_attempts_to_connect_are_few_and_one_of_them_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "_FRESH", 0.1)
    route = Links(cast(Any, Deaf))
    loop = asyncio.get_running_loop()
    for _ in range(20):
        with pytest.raises(StoreUnavailable, match="no connection"):
            await route.link(loop.time() + 0.02)
        assert Deaf.open <= 2
    assert 3 <= Deaf.made <= 6
    await route.aclose()
    assert Deaf.open == 0


async def test_p4_a_call_with_hardly_any_time_says_nothing_about_the_connection(
    store: RedisStore, proxy: Proxy
) -> None:
    await warm(store)
    proxy.reply("EVALSHA").delay(0.05)
    with pytest.raises(StoreUnavailable):
        await store.acquire(a_claim(), limit=0.001)
    await granted(store, a_claim("other"))
    assert len(proxy.connections) == proxy.accepted == 2


async def test_p4_a_server_that_does_not_accept_costs_each_call_its_own_limit(make_server: MakeServer) -> None:
    server = make_server()
    server.pause()
    async with server.client() as client:
        store = open_store(client, "aioelect")
        for _ in range(3):
            start = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.acquire(a_claim(), limit=0.1)
            assert time.monotonic() - start < 0.2
        server.resume()
        await granted(store, a_claim())
        await store.aclose()


async def test_a_connection_that_was_closed_is_replaced(store: RedisStore, proxy: Proxy) -> None:
    claim = a_claim()
    await granted(store, claim)
    await warm(store)
    for reset in (False, True):
        proxy.cut(reset=reset)
        await until(lambda: states(store) == [])
        assert await store.renew(claim, limit=LIMIT) == Renewed()


async def test_calls_in_flight_fail_at_once_when_the_connection_breaks(store: RedisStore, proxy: Proxy) -> None:
    await warm(store)
    rule = proxy.request("EVALSHA").hold()
    calls = [asyncio.create_task(store.acquire(a_claim(f"name-{n}"), limit=LIMIT)) for n in range(3)]
    await rule.reached()
    start = time.monotonic()
    proxy.cut()
    for call in calls:
        with pytest.raises(StoreUnavailable) as caught:
            await call
        assert caught.value.name is not None
    assert time.monotonic() - start < 1.0
    rule.release()


async def test_a_killed_server_that_comes_back_is_found_again(make_server: MakeServer, connect: Connect) -> None:
    server = make_server()
    store = open_store(connect(server), "aioelect")
    await granted(store, a_claim())
    server.kill()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.acquire(a_claim(), limit=0.2)
    await server.astart()
    await granted(store, a_claim())


async def test_a_loop_that_was_blocked_does_not_turn_an_answer_into_a_timeout(store: RedisStore) -> None:
    claim = a_claim()
    await granted(store, claim)
    await warm(store)
    call = asyncio.create_task(store.renew(claim, limit=0.05))
    for _ in range(5):
        await asyncio.sleep(0)
    time.sleep(0.2)
    assert await call == Renewed()
    assert states(store) == ["open", "open"]


async def test_p4_the_application_s_pool_is_of_no_concern(the_server: Server) -> None:
    async with the_server.client(max_connections=1) as client:
        store = open_store(client, "aioelect")
        async with client.client() as the_only_one:
            await the_only_one.ping()
            await granted(store, a_claim())
        await aioelect.aclose(client)


# -- sharing and ending -----------------------------------------------------------------------------------------------


async def test_stores_with_equal_settings_share_connections(proxy: Proxy, connect: Connect) -> None:
    one, two = (open_store(connect(proxy), prefix) for prefix in ("one", "two"))
    await granted(one, a_claim())
    await granted(two, a_claim())
    assert proxy.accepted <= 2
    other = open_store(connect(proxy, client_name="other"), "one")
    assert one.key == other.key
    await granted(other, a_claim("another"))
    assert proxy.accepted >= 2


async def test_p15_aclose_closes_everything_and_a_store_opens_again(store: RedisStore, proxy: Proxy) -> None:
    await warm(store)
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    assert len(proxy.connections) == 3
    await store.aclose()
    await until(lambda: not proxy.connections)
    assert not watch.live
    assert await watch.next(0.01) is None
    await granted(store, a_claim())


async def test_calls_in_flight_end_when_the_store_is_closed(store: RedisStore, proxy: Proxy) -> None:
    await warm(store)
    rule = proxy.request("EVALSHA").hold()
    call = asyncio.create_task(store.acquire(a_claim(), limit=LIMIT))
    await rule.reached()
    await store.aclose()
    with pytest.raises(StoreUnavailable):
        await call
    rule.release()


def run(code: str, server: Server, *flags: str) -> str:
    """Run a program in a process of its own and return all that it said."""
    program = f"import asyncio, gc, os, sys\nPORT = {server.port}\n" + textwrap.dedent(code)
    here = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", *flags, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


USE = """
from redis.asyncio import Redis
from aioelect._redis.store import open_store
from store.conftest import a_claim, granted
store = open_store(Redis(host="127.0.0.1", port=PORT), "aioelect")
async def use(end=True):
    claim = a_claim(os.urandom(4).hex())
    await granted(store, claim)
    await store.renew(claim, limit=5)
    watch = store.watch("name")
    assert await watch.ready(5)
    asyncio.ensure_future(watch.next(None)) if end else watch.close()
"""


def test_p15_a_loop_that_ends_without_aclose_leaves_no_sound(server: Server) -> None:
    said = run(USE + "for _ in range(3):\n    asyncio.run(use())\n    gc.collect()\n", server)
    assert not said


def test_p15_a_loop_that_is_merely_closed_leaves_no_sound(server: Server) -> None:
    code = """
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(use(end=False))
        loop.close()
        gc.collect()
    """
    assert not run(USE + textwrap.dedent(code), server)


def test_p15_a_child_after_a_fork_opens_its_own(server: Server) -> None:
    code = """
    async def main():
        asyncio.get_running_loop().slow_callback_duration = 10
        claim = a_claim()
        await granted(store, claim)
        child = os.fork()
        if child == 0:
            os.close(0)
            try:
                asyncio._set_running_loop(None)
                asyncio.run(use(end=False))
            except BaseException as error:
                print("child:", repr(error))
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        for _ in range(10):
            await store.renew(claim, limit=1)
        await store.aclose()
    asyncio.run(main())
    """
    assert not run(USE + textwrap.dedent(code), server)


def test_p15_construction_touches_no_event_loop(server: Server) -> None:
    # Made without a loop, used in two.
    said = run(USE + "repr(store), store.key\nasyncio.run(use(end=False))\nasyncio.run(use(end=False))\n", server)
    assert not said


def test_p15_importing_the_store_starts_nothing() -> None:
    code = "import sys, threading, aioelect._redis.store; assert threading.active_count() == 1; print('fine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "fine\n"
