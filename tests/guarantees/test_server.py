"""What keeps the claims is restarted, forgets all, or a part of it."""

from __future__ import annotations

import pytest

import aioelect
from aioelect import AcquireTimeout, Lease, LeaseLost, StoreUnavailable, Term
from conftest import Connect, MakeServer
from guarantees.conftest import LONG, Participant, assert_two_hold_and_a_guard_refuses_the_older, on
from support.modes import MODES, QUORUMS, REDIS, Mode, until_reached
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

Pair = tuple[Participant, Participant]
ROWS = (*REDIS, "postgres")


@on(*MODES)
async def test_while_it_is_held_nobody_else_gets_a_name_and_afterwards_the_next_one_does(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    assert await other.takes(name) is None
    await first.renew()
    await first.release()
    second = await other.takes(name)
    assert second is not None and second.token > first.token


# -- restarted ---------------------------------------------------------------------------------------------------------


@on(*REDIS, *QUORUMS, "postgres")
async def test_a_claim_survives_a_crash_of_servers_that_log_every_write(mode: Mode, pair: Pair) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    mode.restart(keep_data=True)
    await until_reached(lambda: _renewed(first))
    if mode.kind in QUORUMS:
        mode.prepare()  # else nobody gets in for the longest ttl, in any case
    assert await other.takes(name) is None
    assert first.is_leader


async def _renewed(term: Term) -> bool:
    await term.renew()
    return True


@on("advisory")
async def test_a_restart_ends_all_sessions_and_their_work_at_once(mode: Mode, pair: Pair) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    mode.restart(keep_data=True)
    await until(lambda: not first.is_valid)
    second = await other.holds(name)
    assert second.token > first.token and not first.is_valid


@on(*REDIS)
async def test_after_a_restart_without_the_data_two_hold_a_name_until_the_older_ones_next_renewal(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    mode.restart(keep_data=False)
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
    with pytest.raises(LeaseLost):
        await until_reached(lambda: _renewed(first))
    assert not first.is_valid and second.is_leader


@on(*QUORUMS)
async def test_after_all_nodes_lost_their_data_nobody_is_let_in_for_the_longest_ttl_and_the_holder_is_told(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    for forget in (mode.empty, lambda: mode.restart(keep_data=False)):
        mode.prepare()
        name = mode.name()
        first = await one.holds(name)
        forget()
        with pytest.raises(StoreUnavailable, match="it votes in"):
            await until_reached(lambda: Lease(other.store, name, ttl=20.0).try_acquire(), limit=0.5)  # noqa: B023
        with pytest.raises(LeaseLost):
            await until_reached(lambda: _renewed(first))  # noqa: B023
        assert not first.is_valid


# -- emptied -----------------------------------------------------------------------------------------------------------


@on(*ROWS)
async def test_after_everything_was_deleted_two_hold_a_name_until_the_older_ones_next_renewal(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    mode.empty()
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
    with pytest.raises(LeaseLost):
        await first.renew()
    assert not first.is_valid and second.is_leader


@on("advisory")
async def test_whose_session_is_ended_is_stopped_within_moments(mode: Mode, pair: Pair) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    mode.empty()
    await until(lambda: not first.is_valid, limit=3.0)  # the next renewal would have been due after 10 s
    assert (await other.holds(name)).token > first.token


@on("advisory")
async def test_whose_session_is_ended_while_it_hears_nothing_two_hold_a_name_until_the_renew_deadline(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name, ttl=2.0)
    one.network.stop("answers")
    mode.empty()
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
    await until(lambda: not first.is_leader, limit=2.0)
    assert second.is_leader
    one.network.cut()


# -- evicted -----------------------------------------------------------------------------------------------------------


@on(*REDIS, *QUORUMS)
async def test_after_its_claim_was_evicted_two_hold_a_name_until_the_older_ones_next_renewal(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    mode.evict(name)
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
    with pytest.raises(LeaseLost):
        await first.renew()
    assert second.is_leader


@pytest.mark.leaves_keys("they have a ttl, but not all of them fit")
async def test_a_full_server_that_may_evict_what_has_a_ttl_evicts_claims_and_two_hold_a_name(
    make_server: MakeServer, connect: Connect
) -> None:
    server = make_server()
    redis = connect(server)
    first = await Lease(redis, "name", ttl=LONG).try_acquire()
    assert first is not None
    server.call("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    server.call("CONFIG", "SET", "maxmemory", int(server.info("memory")["used_memory"]) + 2**20)
    for number in range(10_000):
        if not await redis.exists("aioelect:{name}"):
            break
        await redis.set(f"other:{number}", "x" * 10_000, ex=3600)
    second = await Lease(redis, "name", ttl=LONG).try_acquire()
    assert second is not None
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
    await aioelect.aclose(redis)


@on("postgres", "advisory")
async def test_nothing_is_evicted_where_rows_and_sessions_are_kept(mode: Mode, pair: Pair) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    mode.evict(name)
    assert await other.takes(name) is None
    await first.renew()


# -- scripts -----------------------------------------------------------------------------------------------------------


@on(*MODES)
async def test_a_lost_cache_of_scripts_is_noticed_by_nobody(mode: Mode, pair: Pair) -> None:
    one, other = pair
    name = mode.name()
    first = await one.holds(name)
    mode.forget_scripts()
    await first.renew()
    mode.forget_scripts()
    assert await other.takes(name) is None
    mode.forget_scripts()
    await first.release()
    assert await other.takes(name) is not None


# -- one identity ------------------------------------------------------------------------------------------------------


@on(*MODES)
async def test_an_identity_lets_no_second_one_in(mode: Mode, pair: Pair) -> None:
    one, other = pair
    name = mode.name()
    async with one.lock(name, ttl=LONG, wait=20, identity="twin") as first:
        with pytest.raises(AcquireTimeout):
            async with other.lock(name, ttl=LONG, wait=0.5, identity="twin"):
                pytest.fail("it is held by the other twin")
        await first.renew()
    async with other.lock(name, ttl=LONG, wait=20, identity="twin") as second:
        assert second.token > first.token
