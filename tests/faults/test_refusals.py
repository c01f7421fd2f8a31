"""P11: what a server refuses for a while. Acquiring goes on in the time left; a holder goes on to the renew deadline.

Each test has a server of its own and brings it into the state for real. `Trouble` knows how, and how to end it.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from aioelect import (
    Elector,
    FencedLock,
    Lease,
    LeaseExpired,
    LeaseLost,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    Term,
    aclose,
)
from conftest import Connect, MakeServer
from support import servers
from support.servers import Binary, Server, ServerFailed, free_port
from support.wait import until

pytestmark = pytest.mark.faults

Act = Callable[[Server], Awaitable[None]]


@dataclass(frozen=True)
class Trouble:
    """A state in which a server doesn't serve."""

    reason: str
    begin: Act
    end: Act
    passing: bool = False
    """Told at once to those that make one try (a refusal), or the same as a server that can't be reached."""
    renews: bool = False
    """Whether renewals are served meanwhile."""

    @property
    def error(self) -> type[StoreError]:
        """What one try raises."""
        return StoreRejected if self.passing else StoreUnavailable


def config(**settings: object) -> Act:
    async def act(server: Server) -> None:
        for name, value in settings.items():
            server.call("CONFIG", "SET", name.replace("_", "-"), str(value))

    return act


async def demote(server: Server) -> None:
    """Its master cannot be reached, so its data stays as it is."""
    server.call("REPLICAOF", "127.0.0.1", free_port())


async def promote(server: Server) -> None:
    server.call("REPLICAOF", "NO", "ONE")


async def spoil_the_disk(server: Server) -> None:
    (server.folder / "dump.rdb").mkdir()  # nothing can be renamed to that
    server.call("CONFIG", "SET", "save", "3600 1000000")
    await saved(server, "err")


async def mend_the_disk(server: Server) -> None:
    shutil.rmtree(server.folder / "dump.rdb")
    await saved(server, "ok")


async def saved(server: Server, status: str) -> None:
    server.call("BGSAVE")
    await until(
        lambda: (
            (info := server.info("persistence"))["rdb_bgsave_in_progress"] == "0"
            and info["rdb_last_bgsave_status"] == status
        )
    )


async def run_a_long_script(server: Server) -> None:
    server.call("CONFIG", "SET", "lua-time-limit", 20)

    def call() -> None:
        with contextlib.suppress(ServerFailed):  # killed
            server.call("EVAL", "while true do end", 0, limit=30)

    task = asyncio.create_task(asyncio.to_thread(call))
    await until(lambda: busy(server))
    scripts[server] = task


async def kill_the_script(server: Server) -> None:
    server.call("SCRIPT", "KILL")
    await scripts.pop(server)


scripts: dict[Server, asyncio.Task[None]] = {}


def busy(server: Server) -> bool:
    try:
        server.call("PING")
    except ServerFailed as error:
        return str(error).startswith("BUSY")
    return False


fill = config(maxmemory_policy="noeviction", maxmemory=1)

TROUBLES = (
    Trouble("readonly", demote, promote),
    Trouble("oom", fill, config(maxmemory=0), passing=True, renews=True),
    Trouble("noreplicas", config(min_replicas_to_write=1), config(min_replicas_to_write=0), passing=True),
    Trouble("misconf", spoil_the_disk, mend_the_disk, passing=True),
    Trouble("busy", run_a_long_script, kill_the_script),
)


@pytest.fixture(params=servers.found().values(), ids=lambda binary: binary.key)
def binary(request: pytest.FixtureRequest) -> Binary:
    """Each server program: their texts differ, and so does where the refusal shows."""
    found: Binary = request.param
    return found


@pytest.fixture
async def own(binary: Binary, make_server: MakeServer) -> Server:
    """A server for this test."""
    return make_server(binary=binary)


@pytest.fixture
async def redis(own: Server, connect: Connect) -> AsyncIterator[Redis]:
    """A client for it, with nothing left open."""
    client = connect(own)
    yield client
    await aclose(client)


async def lead_once(redis: Redis, led: list[Term]) -> None:
    async with Elector(redis, "election", ttl=1.0).lead() as term:
        led.append(term)


async def lock_once(redis: Redis, entered: list[Term]) -> None:
    async with FencedLock(redis, "lock", ttl=1.0, wait=20) as term:
        entered.append(term)


async def test_p11_acquiring_under_trouble_is_told_as_such_and_a_waiter_or_candidate_gets_in_when_it_is_over(
    binary: Binary, make_server: MakeServer, connect: Connect
) -> None:
    """All troubles at once, each on a server of its own."""

    async def endure(trouble: Trouble) -> None:
        own = make_server(binary=binary)
        redis = connect(own)
        async with FencedLock(redis, "warm"):
            pass
        await trouble.begin(own)
        with pytest.raises(trouble.error) as caught:
            await Lease(redis, "lease", ttl=1.0).try_acquire()
        assert caught.value.reason in (trouble.reason, "timeout")  # a busy server may take long to say so
        assert caught.value.name == "lease"
        if isinstance(caught.value, StoreRejected):
            assert caught.value.passing, trouble
        led: list[Term] = []
        entered: list[Term] = []
        standing = asyncio.create_task(lead_once(redis, led))
        waiting = asyncio.create_task(lock_once(redis, entered))
        await asyncio.sleep(0.2)
        assert (led, entered) == ([], []), trouble
        assert not standing.done(), trouble
        assert not waiting.done(), trouble
        await trouble.end(own)
        await asyncio.wait_for(asyncio.gather(standing, waiting), 15)
        assert (len(led), len(entered)) == (1, 1), trouble
        assert own.call("EXISTS", "aioelect:{lease}") == 0, trouble
        await aclose(redis)

    await asyncio.gather(*map(endure, TROUBLES))


async def test_p11_a_holder_goes_on_through_trouble_that_ends_before_its_renew_deadline(
    binary: Binary, make_server: MakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """All troubles at once, each on a server of its own."""

    async def endure(trouble: Trouble) -> None:
        own = make_server(binary=binary)
        redis = connect(own)
        async with FencedLock(redis, trouble.reason, ttl=4.0) as term:
            token = term.token
            await trouble.begin(own)
            if trouble.renews:
                for _ in range(3):
                    await term.renew()
            else:
                with pytest.raises((StoreUnavailable, StoreRejected)):
                    await term.renew()
            assert term.is_leader, trouble
            await trouble.end(own)
            await renewed(term)
            await asyncio.sleep(0.05)
            assert (term.is_leader, term.token) == (True, token), trouble
        await aclose(redis)

    await asyncio.gather(*map(endure, TROUBLES))
    for trouble in TROUBLES:
        records = [record for record in caplog.records if vars(record).get("lease_name") == trouble.reason]
        levels = [record.levelname for record in records if record.levelno >= logging.WARNING]
        assert levels == ([] if trouble.renews else ["WARNING", "WARNING"]), caplog.text


async def renewed(term: Term) -> None:
    """By hand, so that the test doesn't wait for the next turn."""
    for _ in range(100):
        with contextlib.suppress(StoreUnavailable, StoreRejected):
            await term.renew()
            return
    pytest.fail("not renewed")


async def test_p11_trouble_that_outlasts_the_renew_deadline_is_a_loss_with_its_cause(
    server: Server, make_server: MakeServer, connect: Connect
) -> None:
    """All troubles at once, each on a server of its own."""

    async def endure(trouble: Trouble) -> None:
        own = make_server(binary=server.binary)
        redis = connect(own)
        with pytest.raises(LeaseExpired) as caught:
            async with FencedLock(redis, "name", ttl=1.5):
                await trouble.begin(own)
                await asyncio.sleep(20)
        cause = caught.value.__cause__
        assert isinstance(cause, StoreUnavailable | StoreRejected), trouble
        assert cause.reason in (trouble.reason, "timeout"), trouble
        assert str(cause) in str(caught.value), trouble
        await trouble.end(own)
        await aclose(redis)

    await asyncio.gather(*(endure(trouble) for trouble in TROUBLES if not trouble.renews))


async def test_p11_a_full_server_goes_on_renewing_for_many_ttls(own: Server, redis: Redis) -> None:
    async with FencedLock(redis, "name", ttl=0.6) as term:
        await fill(own)
        await asyncio.sleep(1.5)
        assert term.remaining() > 0.1
        await config(maxmemory=0)(own)


async def test_p11_a_leader_of_a_demoted_server_stands_again_and_recovers_by_itself(
    own: Server, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    tokens: list[int] = []

    async def work(term: Term) -> None:
        tokens.append(term.token)
        await asyncio.Event().wait()

    async with Elector(redis, "election", ttl=0.6).running(work) as elector:
        await elector.wait_elected()
        await demote(own)
        await until(lambda: not elector.is_leader)
        await asyncio.sleep(0.5)
        assert not elector.is_leader
        await promote(own)
        await until(lambda: elector.is_leader, limit=10)
    assert len(tokens) == 2
    assert tokens[1] > tokens[0]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) <= 1


async def test_p11_a_demoted_master_that_follows_another_is_not_written_to(
    own: Server, binary: Binary, make_server: MakeServer, redis: Redis
) -> None:
    """It takes over the other's data: the claim is gone, so the term is lost, and nothing is claimed at a replica."""
    master = make_server(binary=binary)
    with pytest.raises(LeaseLost) as caught:
        async with FencedLock(redis, "name", ttl=2.0):
            own.call("REPLICAOF", "127.0.0.1", master.port)
            await asyncio.sleep(20)
    assert caught.value.name == "name"
    await until(lambda: own.info("replication")["master_link_status"] == "up", limit=15)
    with pytest.raises(StoreUnavailable, match="replica"):
        await Lease(redis, "name").try_acquire()
    assert own.call("KEYS", "*") == []
    await promote(own)
    async with FencedLock(redis, "name", wait=10) as term:
        term.check()


async def test_p11_while_the_server_loads_its_data_one_try_fails_and_all_others_wait(
    binary: Binary, make_server: MakeServer, connect: Connect
) -> None:
    # A millisecond for every key; the server looks at its clients after every 2 MB.
    own = make_server(binary=binary, key_load_delay=1000, rdbcompression="no")
    own.call("DEBUG", "POPULATE", 800, "padding", 16384)
    redis = connect(own)
    led: list[Term] = []
    entered: list[Term] = []
    async with FencedLock(redis, "held", ttl=8.0) as held:
        token = held.token
        own.save()
        await own.astop()
        starting = asyncio.create_task(own.astart())
        await until(lambda: loading(own))
        with pytest.raises(StoreUnavailable) as caught:
            await Lease(redis, "lease", ttl=8.0).try_acquire()
        assert caught.value.reason == "loading"
        standing = asyncio.create_task(lead_once(redis, led))
        waiting = asyncio.create_task(lock_once(redis, entered))
        await starting
        await asyncio.wait_for(asyncio.gather(standing, waiting), 15)
        assert (len(led), len(entered)) == (1, 1)
        await renewed(held)
        assert (held.is_leader, held.token) == (True, token)
    await aclose(redis)


def loading(server: Server) -> bool:
    try:
        server.call("PING")
    except ServerFailed as error:
        return str(error).startswith("LOADING")
    except OSError:
        return False
    return False
