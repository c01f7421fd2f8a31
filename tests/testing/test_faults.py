"""Bad days on demand, in virtual time over the store in memory; at the end the same on a real server, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

import aioelect
from aioelect import (
    ConfigurationError,
    Elector,
    EndReason,
    FencedLock,
    Lease,
    LeaseExpired,
    LeaseTaken,
    NotAcquired,
    NotHeld,
    StoreRejected,
    StoreUnavailable,
    Term,
)
from aioelect.testing import Faults, MemoryStore, pause, suspend, virtual_time
from support.wait import until

NAME, TTL = "name", 3.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def one(store: MemoryStore) -> Faults:
    return Faults(store)


@pytest.fixture
def two(store: MemoryStore) -> Faults:
    return Faults(store)


def now() -> float:
    return asyncio.get_running_loop().time()


def lock(store: Faults, wait: float | None = 0, identity: str = "pod") -> FencedLock:
    return FencedLock(store, NAME, ttl=TTL, wait=wait, identity=identity, observers=())


# -- who takes part ----------------------------------------------------------------------------------------------------


@virtual_time
async def test_two_copies_over_one_store_contend_and_wake_each_other(one: Faults, two: Faults) -> None:
    async with lock(one, identity="pod-a"):
        with pytest.raises(NotAcquired, match="pod-a"):
            async with lock(two):
                pytest.fail("two holders")
        waiter = asyncio.create_task(_hold(lock(two, wait=None)))
        await asyncio.sleep(0.1)
        released = now()
    assert await waiter - released < 0.05


@virtual_time
async def test_a_copy_knows_that_others_wait_and_lets_them_in(one: Faults, two: Faults) -> None:
    """A store can't tell its copies apart, so that without the wrapper's help the local line would go on for ever."""
    turns: list[str] = []

    async def use(copy: Faults, who: str) -> None:
        async with lock(copy, wait=None):
            turns.append(who)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(use(one, "one") for _ in range(40)), use(two, "two"))
    assert turns.index("two") < 20


def test_copies_that_are_one_process_have_one_key(store: MemoryStore) -> None:
    assert Faults(store).key != Faults(store).key
    assert Faults(store, process="web").key == Faults(store, process="web").key != Faults(store, process="job").key
    assert Faults(store, process="web").key != Faults(MemoryStore(), process="web").key


def test_p14_what_is_no_client_is_refused_where_it_enters() -> None:
    with pytest.raises(ConfigurationError, match="a store"):
        Faults(object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="there"):
        Faults(MemoryStore()).delay(-1)
    with pytest.raises(ConfigurationError, match="back"):
        Faults(MemoryStore()).delay(1, float("nan"))


# -- partition ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_copy_that_is_cut_off_stops_before_another_is_let_in(one: Faults, two: Faults) -> None:
    stopped = 0.0

    async def holds() -> None:
        nonlocal stopped
        try:
            async with lock(one):
                one.partition()
                await asyncio.sleep(100)
        finally:
            stopped = now()

    began = now()
    holder = asyncio.create_task(holds())
    await asyncio.sleep(0.01)
    let_in = await _hold(lock(two, wait=None)) - began
    assert stopped - began == pytest.approx(0.8 * TTL, abs=0.01)
    assert let_in == pytest.approx(TTL, abs=0.02)
    with pytest.raises(LeaseExpired):
        await holder


@virtual_time
async def test_a_partition_that_heals_in_time_is_survived(one: Faults) -> None:
    async with lock(one) as term:
        one.partition()
        await asyncio.sleep(0.6 * TTL)
        with pytest.raises(StoreUnavailable):
            await term.renew()
        one.heal()
        await asyncio.sleep(10 * TTL)
        assert term.is_leader


@virtual_time
async def test_after_a_partition_a_waiter_looks_at_once(one: Faults, two: Faults) -> None:
    holder = Lease(two, NAME, ttl=600, observers=())
    term = await holder.try_acquire()
    assert term is not None
    waiter = asyncio.create_task(_hold(lock(one, wait=None)))
    await asyncio.sleep(0.1)
    one.partition()
    await term.release()  # unheard
    await asyncio.sleep(1)
    assert not waiter.done()
    one.heal()
    healed = now()
    assert await waiter - healed < 0.1


@virtual_time
async def test_a_copy_that_starts_cut_off_joins_when_it_is_healed(one: Faults) -> None:
    one.partition()
    waiter = asyncio.create_task(_hold(lock(one, wait=None)))
    await asyncio.sleep(60)
    assert not waiter.done()
    one.heal()
    healed = now()
    assert await waiter - healed < 2 * TTL, "it backs off, by a ttl at most"


# -- delay, failures, lost answers -------------------------------------------------------------------------------------


@virtual_time
async def test_a_delay_lengthens_the_way_there_and_the_way_back(one: Faults, store: MemoryStore) -> None:
    one.delay(0.1, 0.3)
    trying = asyncio.create_task(Lease(one, NAME, ttl=TTL, observers=()).try_acquire())
    await asyncio.sleep(0.09)
    assert store.holder(NAME) is None
    await asyncio.sleep(0.02)
    assert store.holder(NAME) is not None
    began = now()
    assert await trying is not None
    assert now() - began == pytest.approx(0.29, abs=0.01)


@virtual_time
async def test_p5_a_request_that_its_caller_gave_up_is_carried_out_all_the_same(
    one: Faults, store: MemoryStore
) -> None:
    one.delay(2 * TTL, 0)
    with pytest.raises(StoreUnavailable):
        await Lease(one, NAME, ttl=TTL, observers=()).try_acquire()
    assert store.holder(NAME) is None
    await asyncio.sleep(2 * TTL)
    one.heal()
    assert store.holder(NAME) is None, "the release that came after it has undone it"
    term = await Lease(one, NAME, ttl=TTL, observers=()).try_acquire()
    assert term is not None and term.token == 2


@virtual_time
async def test_failures_come_in_the_number_and_of_the_kind_that_was_asked_for(one: Faults) -> None:
    lease = Lease(one, NAME, ttl=TTL, observers=())
    one.fail_next(2, request="acquire", error=StoreRejected("NOPERM"))
    one.fail_next(request="renew")
    for _ in range(2):
        with pytest.raises(StoreRejected, match="NOPERM"):
            await lease.try_acquire()
    term = await lease.try_acquire()
    assert term is not None
    with pytest.raises(StoreUnavailable, match="the test wants it to"):
        await term.renew()
    await term.renew()
    one.fail_next(5)
    one.heal()
    await term.renew()


def test_a_kind_of_request_that_does_not_exist_is_refused_at_once(one: Faults) -> None:
    with pytest.raises(ConfigurationError, match="'renewal' is none of acquire, renew"):
        one.fail_next(request="renewal")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'get' is none of acquire"):
        one.drop_answers(request="get")  # type: ignore[arg-type]


@virtual_time
async def test_p5_an_answer_that_is_dropped_is_no_refusal(one: Faults, store: MemoryStore) -> None:
    one.drop_answers(1, request="acquire")
    async with lock(one, wait=TTL) as term:
        assert term.token == 1, "the second try has found its own claim"


@virtual_time
async def test_answers_are_dropped_until_it_is_healed(one: Faults, store: MemoryStore) -> None:
    async with lock(one) as term:
        one.drop_answers()
        await asyncio.sleep(0.7 * TTL)
        holder = store.holder(NAME)
        assert holder is not None and holder.id == term.id and term.is_leader
        one.heal()
        await asyncio.sleep(TTL)
        assert term.is_leader


# -- loss --------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_lost_term_has_heard_of_it_and_its_work_is_stopped(one: Faults, store: MemoryStore) -> None:
    terms: list[Term] = []
    with pytest.raises(LeaseTaken, match="it is gone"):
        async with lock(one) as term:
            terms.append(term)
            await one.lose(term)
            pytest.fail("the work went on")
    assert not terms[0].is_leader and not terms[0].is_valid
    assert store.holder(NAME) is None


@virtual_time
async def test_a_term_is_lost_to_somebody_else_for_one_ttl(one: Faults, two: Faults, store: MemoryStore) -> None:
    lease = Lease(one, NAME, ttl=TTL, observers=())
    term = await lease.try_acquire()
    assert term is not None
    await one.lose(term, to="pod-b")
    with pytest.raises(LeaseTaken, match=f"pod-b holds it .token {term.token + 1}."):
        term.check()
    began = now()
    assert await _hold(lock(two, wait=None)) - began == pytest.approx(TTL, abs=0.02)


@virtual_time
async def test_a_candidate_that_loses_stands_again(one: Faults) -> None:
    terms: list[Term] = []

    async def work(term: Term) -> None:
        terms.append(term)
        await asyncio.sleep(3600)

    async with Elector(one, NAME, ttl=TTL, observers=()).running(work) as elector:
        await asyncio.sleep(1)
        assert elector.term is terms[0]
        await one.lose(terms[0])
        await asyncio.sleep(1)
        assert elector.term is terms[1]
    assert [term.end_reason for term in terms] == [EndReason.TAKEN, EndReason.RELEASED]
    assert terms[1].token > terms[0].token


@virtual_time
async def test_behind_a_partition_a_loss_goes_unheard_until_the_clock_tells(one: Faults) -> None:
    term = await Lease(one, NAME, ttl=TTL, observers=()).try_acquire()
    assert term is not None
    one.partition()
    await one.lose(term)
    assert term.is_leader
    await asyncio.sleep(TTL)
    with pytest.raises(LeaseExpired):
        term.check()


@virtual_time
async def test_only_a_term_of_this_copy_that_is_held_can_be_lost(one: Faults, two: Faults) -> None:
    term = await Lease(one, NAME, ttl=TTL, observers=()).try_acquire()
    assert term is not None
    with pytest.raises(ConfigurationError, match="not won through this Faults"):
        await two.lose(term)
    await term.release()
    with pytest.raises(NotHeld):
        await one.lose(term)


# -- time --------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_p2_after_a_pause_or_a_suspend_the_term_is_invalid_without_an_await(one: Faults) -> None:
    for stand_still in (pause, suspend):
        term = await Lease(one, NAME, ttl=TTL, observers=()).try_acquire()
        assert term is not None
        stand_still(TTL)
        assert not term.is_valid


async def test_in_real_time_a_pause_blocks_and_a_suspend_is_refused() -> None:
    began = now()
    pause(0.02)
    assert now() - began >= 0.02
    with pytest.raises(ConfigurationError, match="virtual_time"):
        suspend(1)


# -- a real server -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def real(redis: Redis) -> AsyncIterator[Faults]:
    faults = Faults(redis)
    yield faults
    await aioelect.aclose(faults)


async def test_the_same_bad_days_happen_to_a_real_server(redis: Redis, real: Faults) -> None:
    other = Faults(redis)
    term = await Lease(real, NAME, ttl=TTL).try_acquire()
    assert term is not None and await redis.exists("aioelect:{name}")
    real.fail_next()
    with pytest.raises(StoreUnavailable, match="the test wants it to"):
        await term.renew()
    real.drop_answers(1)
    with pytest.raises(StoreUnavailable, match="no answer"):
        await term.renew()
    await real.lose(term, to="pod-b")
    with pytest.raises(LeaseTaken, match="pod-b"):
        term.check()
    assert await Lease(other, NAME).try_acquire() is None


async def test_a_partition_from_a_real_server_ends_a_term_and_another_copy_leads(redis: Redis, real: Faults) -> None:
    async def work(term: Term) -> None:
        await asyncio.sleep(60)

    other = Faults(redis)
    async with (
        Elector(real, NAME, ttl=0.5).running(work) as first,
        Elector(other, NAME, ttl=0.5).running(work) as second,
    ):
        await until(lambda: first.is_leader or second.is_leader)
        leading, cut_off, follows = (first, real, second) if first.is_leader else (second, other, first)
        cut_off.partition()
        await until(lambda: follows.is_leader)
        assert not leading.is_leader
        cut_off.heal()
    assert not await redis.exists("aioelect:{name}")


async def _hold(section: FencedLock) -> float:
    """When it was let in."""
    async with section:
        return now()
