"""P9, P11, P12: the server is upgraded, replaced or restored, as docs/operations.md says; clients are not restarted."""

import asyncio

import pytest
from redis.asyncio import Redis

from aioelect import Elector, Lease, Term, aclose
from conftest import MakeServer
from support import servers
from support.servers import Binary, Server
from support.topologies import SentinelGroup
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def binary(key: str) -> Binary:
    found = servers.found()
    if key not in found:
        pytest.skip(f"{key} not on this machine")
    return found[key]


async def until_cancelled(_: Term) -> None:
    await asyncio.Event().wait()


def native_releases(server: Server) -> int:
    stats = server.info("commandstats")
    calls = [stats.get(f"cmdstat_{name}", "") for name in ("delex", "delifeq")]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in calls if line)


@pytest.mark.parametrize(
    ("old", "new"), [("redis-6.2", "redis-8.10"), ("redis-6.2", "valkey-9.1"), ("valkey-8.1", "valkey-9.1")]
)
async def test_a_term_lives_through_a_rolling_upgrade_and_the_next_token_is_higher(old: str, new: str) -> None:
    with SentinelGroup(binary(old), successor=binary(new)) as group:
        redis = group.sentinel().master_for(group.name)
        try:
            elector = Elector(redis, "name", ttl=20, observers=[])
            async with elector.running(until_cancelled):
                await until(lambda: elector.is_leader)
                term = elector.term
                assert term is not None
                group.master.call("WAIT", 1, 5000)
                group.sentinels[0].call("SENTINEL", "FAILOVER", group.name)
                upgraded = await group.promoted()
                group.master.stop()  # at once: it goes on as a master for some seconds otherwise
                await until(lambda: renewed(term), 15)
                assert elector.term is term
                before = native_releases(upgraded)
            assert upgraded.call("EXISTS", "aioelect:{name}") == 0
            following = await Lease(redis, "name", observers=[]).try_acquire()
            assert following is not None and following.token > term.token
            await following.release()
            assert native_releases(upgraded) > before  # what the new server can do was found out
        finally:
            await aclose(redis)
            await redis.aclose()


async def test_two_lead_for_a_while_if_the_old_master_is_not_stopped() -> None:
    with SentinelGroup(servers.newest()) as group:
        first = group.sentinel().master_for(group.name)
        second = Redis(port=group.replica.port)  # as whoever connects now is sent there
        try:
            elector = Elector(first, "name", ttl=3, observers=[])
            async with elector.running(until_cancelled):
                term = await until(lambda: elector.term)
                group.master.call("WAIT", 1, 5000)
                group.sentinels[0].call("SENTINEL", "FAILOVER", group.name)
                await group.promoted()
                other = await until(Lease(second, "name", ttl=3, observers=[]).try_acquire, 9)
                assert term.is_leader  # the old master confirms it still
                assert other.token > term.token  # so that a fence refuses the older one
                await other.release()
        finally:
            for redis in (first, second):
                await aclose(redis)
                await redis.aclose()


async def renewed(term: Term) -> bool:
    try:
        await term.renew()
    except Exception:  # the master may still be on its way
        return False
    return True


@pytest.mark.parametrize(("old", "new"), [("redis-8.10", "valkey-9.1"), ("redis-8.2", "valkey-9.1")])
async def test_what_redis_8_writes_no_valkey_can_read(old: str, new: str) -> None:
    with Server(binary(old)) as master, Server(binary(new), replicaof=f"127.0.0.1 {master.port}") as replica:
        await until(lambda: "handle RDB format version" in replica.log, 15)
        assert replica.info("replication")["master_link_status"] == "down"


async def test_to_a_server_without_replication_one_ttl_of_nothing_keeps_terms_apart() -> None:
    ttl = 1.0
    with Server(binary("redis-8.10")) as old:
        one, other = Redis(port=old.port), Redis(port=old.port, client_name="other")
        electors = [Elector(redis, "name", ttl=ttl, observers=[]) for redis in (one, other)]
        try:
            async with electors[0].running(until_cancelled), electors[1].running(until_cancelled):
                await until(lambda: any(elector.is_leader for elector in electors))
                (first,) = [elector.term for elector in electors if elector.term is not None]
                old.kill()
                await asyncio.sleep(ttl)  # the documented wait: whatever was held is over
                assert not first.is_valid
                with Server(binary("valkey-9.1"), port=old.port):
                    await until(lambda: any(elector.is_leader for elector in electors), 20)
                    (second,) = [elector.term for elector in electors if elector.term not in (None, first)]
                    assert second.token > first.token
                    async with asyncio.timeout(10):
                        await second.renew()
        finally:
            for redis in (one, other):
                await aclose(redis)
                await redis.aclose()


async def test_p9_claims_of_a_backup_last_until_their_ttl_and_later_tokens_are_higher_all_the_same(
    make_server: MakeServer,
) -> None:
    server = make_server()
    redis = Redis(port=server.port)
    lease = Lease(redis, "name", ttl=4, observers=[])
    try:
        backed_up = await lease.try_acquire()
        assert backed_up is not None
        server.save()
        await backed_up.release()
        later = await lease.try_acquire()  # of which the backup knows nothing
        assert later is not None
        await later.release()
        server.kill()
        server.start()
        assert 0 < server.call("PTTL", "aioelect:{name}") < 4000  # nobody's, and it counts
        assert await lease.try_acquire() is None
        restored = await until(lease.try_acquire, 15)
        assert restored.token > later.token > backed_up.token
    finally:
        await aclose(redis)
        await redis.aclose()
