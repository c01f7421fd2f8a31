"""How you test leader work of your own: a small service, and its bad days. Read it from top to bottom.

The service copies stock figures from a supplier, in one of its copies at a time. Each test is one thing that happens to
such a service, in virtual time: the hours in here take milliseconds, and nothing depends on luck.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest
from redis.asyncio import Redis

from aioelect import Elector, EndReason, StaleToken, StoreRejected, Term, aclose
from aioelect.fencing import SqliteGuard
from aioelect.testing import Faults, MemoryStore, pause, suspend, virtual_time

# -- the service: what you would import from your own code -------------------------------------------------------------


class StockSync:
    """One copy of the service."""

    def __init__(self, store: Faults | Redis, identity: str, supplier: Callable[[], Awaitable[int]]) -> None:
        self.elector = Elector(store, "stock", ttl=15, identity=identity)
        self.supplier = supplier
        self.db = DB
        self.terms: list[Term] = []  # for the tests to look at
        self.refused = 0
        self.tidied = 0

    def leads(self) -> bool:
        """For a health check."""
        return self.elector.is_leader

    @asynccontextmanager
    async def running(self) -> AsyncIterator["StockSync"]:
        """What the lifespan of a FastAPI application would enter."""
        async with self.elector.running(self.work):
            yield self

    async def work(self, term: Term) -> None:
        """The leader's work."""
        self.terms.append(term)
        try:
            async for _ in term.every(5):
                quantity = await self.supplier()
                try:
                    SqliteGuard(self.db).update(term, "stock", {"sku": "SKU-001"}, {"qty": quantity})
                except StaleToken:  # a newer leader has written; our term is over, and the loop finds out
                    self.refused += 1
        finally:
            await self.tidy()

    async def tidy(self) -> None:
        """What has to be done before another copy may begin: shielded, or the next await would be cancelled."""
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(0.5)
        self.tidied += 1


DB = sqlite3.connect(":memory:")
DB.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, qty INTEGER, fence_token INTEGER)")


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    DB.execute("INSERT INTO stock VALUES ('SKU-001', 0, 0)")
    yield
    DB.execute("DELETE FROM stock")


def quantity() -> int:
    """What stands in the table."""
    (found,) = DB.execute("SELECT qty FROM stock").fetchone()
    return int(found)


async def ordinary_day() -> int:
    """A supplier that answers after 0.1 s."""
    await asyncio.sleep(0.1)
    return 95


# -- an ordinary day: the store in memory is passed where a Redis client is passed -------------------------------------


@virtual_time
async def test_the_leader_does_the_work(aioelect_store: MemoryStore) -> None:
    async with StockSync(Faults(aioelect_store), "pod-a", ordinary_day).running() as sync:
        await asyncio.sleep(60)
        assert quantity() == 95
        assert sync.leads()
        leader = aioelect_store.holder("stock")
        assert leader is not None and leader.identity == "pod-a"


# -- two copies: a Faults for each -------------------------------------------------------------------------------------


@pytest.fixture
def one(aioelect_store: MemoryStore) -> StockSync:
    return StockSync(Faults(aioelect_store), "pod-a", ordinary_day)


@pytest.fixture
def store_of_two(aioelect_store: MemoryStore) -> Faults:
    return Faults(aioelect_store)


@pytest.fixture
def two(store_of_two: Faults) -> StockSync:
    return StockSync(store_of_two, "pod-b", ordinary_day)


@asynccontextmanager
async def two_leads(one: StockSync, two: StockSync) -> AsyncIterator[Term]:
    """Both run; the second was there first."""
    async with two.running():
        await asyncio.sleep(1)
        async with one.running():
            await asyncio.sleep(60)
            assert two.elector.term is not None and not one.leads()
            yield two.elector.term


@virtual_time
async def test_a_rolling_deploy_hands_over_at_once_and_after_the_clean_up(one: StockSync, two: StockSync) -> None:
    async with one.running():
        async with two.running():
            await asyncio.sleep(60)
            first, second = (one, two) if one.leads() else (two, one)
            assert (len(first.terms), len(second.terms)) == (1, 0)
            first.terms[0].resign()  # what leaving `running()` does, too
            await asyncio.sleep(0.4)
            assert not second.leads(), "the other one is tidying up"
            await asyncio.sleep(0.2)
            assert second.leads() and first.tidied == 1
        assert first.terms[0].end_reason is EndReason.RELEASED


@virtual_time
async def test_a_copy_that_is_cut_off_stops_in_time_and_another_leads_after_one_ttl(
    one: StockSync, two: StockSync, store_of_two: Faults
) -> None:
    async with two_leads(one, two) as term:
        store_of_two.partition()
        await asyncio.sleep(12.1)  # 0.8 ttl after its last confirmed renewal
        assert not term.is_leader and not one.leads()
        await asyncio.sleep(3)
        assert one.leads()
        assert two.tidied == 1 and term.end_reason is EndReason.EXPIRED
        store_of_two.heal()
        await asyncio.sleep(60)
        assert one.leads() and len(two.terms) == 1, "it stands again and waits for its turn"


# -- losing it ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_after_a_loss_the_work_is_tidied_up_and_another_goes_on_with_a_higher_token(
    one: StockSync, two: StockSync, store_of_two: Faults
) -> None:
    async with two_leads(one, two) as term:
        await store_of_two.lose(term)  # an operator, an eviction, a failover
        assert not term.is_leader
        await asyncio.sleep(5)
        assert two.tidied == 1 and term.end_reason is EndReason.TAKEN
        (leader,) = [sync.elector.term for sync in (one, two) if sync.elector.term]
        assert leader.token > term.token


# -- standing still ----------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_leader_that_was_paused_before_its_write_is_refused_by_the_fence(two: StockSync) -> None:
    async def paused_after_the_answer() -> int:
        await asyncio.sleep(0.1)
        if not two.refused:
            pause(20)  # garbage collection, a paused VM, SIGSTOP: longer than the ttl, and meanwhile...
            SqliteGuard(DB).update(two.terms[0].token + 1, "stock", {"sku": "SKU-001"}, {"qty": 95})  # pod-a writes
            return 120
        return 96

    two.supplier = paused_after_the_answer
    async with two.running():
        await asyncio.sleep(0.5)
        assert two.refused == 1
        assert quantity() == 95, "the older figure did not replace the newer one"
        assert not two.terms[0].is_leader


@virtual_time
async def test_a_machine_that_slept_does_not_go_on_where_it_was(two: StockSync) -> None:
    async with two.running():
        await asyncio.sleep(60)
        suspend(8 * 3600)  # event-loop timers stand still, deadlines don't
        assert not two.terms[0].is_leader, "at once, without an await"
        await asyncio.sleep(5)
        assert len(two.terms) == 2 and two.terms[1].is_leader


# -- trouble with Redis ------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_short_outage_is_not_even_noticed(two: StockSync, store_of_two: Faults) -> None:
    async with two.running():
        await asyncio.sleep(1)
        store_of_two.fail_next(2, request="renew")
        await asyncio.sleep(60)
        store_of_two.drop_answers(1)
        await asyncio.sleep(60)
        store_of_two.delay(0.5)
        await asyncio.sleep(60)
        assert len(two.terms) == 1 and two.leads()


@virtual_time
async def test_a_service_that_starts_before_redis_leads_as_soon_as_that_is_there(
    two: StockSync, store_of_two: Faults
) -> None:
    store_of_two.partition()
    async with two.running():
        await asyncio.sleep(600)
        assert not two.terms and two.elector.is_standing
        store_of_two.heal()
        await asyncio.sleep(15)
        assert two.leads()


@virtual_time
async def test_a_redis_that_refuses_to_serve_ends_the_service_with_the_reason(
    two: StockSync, store_of_two: Faults
) -> None:
    store_of_two.fail_next(error=StoreRejected("NOPERM this user has no permissions to run the 'evalsha' command"))
    with pytest.raises(StoreRejected, match="NOPERM"):
        async with two.running():
            await asyncio.sleep(1)
            assert not two.elector.is_standing  # for a health check


# -- a clean-up that takes too long ------------------------------------------------------------------------------------


@virtual_time
async def test_past_the_drain_limit_the_other_copy_waits_for_the_ttl(one: StockSync, two: StockSync) -> None:
    async def tidy_for_too_long() -> None:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(60)
        two.tidied += 1

    two.tidy = tidy_for_too_long  # type: ignore[method-assign]
    async with two_leads(one, two) as term:
        term.resign()
        await asyncio.sleep(14)  # the drain limit is one ttl, unless you set it; renewals go on
        assert not one.leads()
        await asyncio.sleep(16)
        assert one.leads() and two.tidied == 0
        await asyncio.sleep(60)
        assert two.tidied == 1 and term.end_reason is EndReason.OVERRUN


# -- the same on a real server, in real time ---------------------------------------------------------------------------


async def test_it_works_on_a_real_server_too(aioelect_redis: Redis) -> None:
    async with StockSync(aioelect_redis, "pod-a", ordinary_day).running() as sync:
        began = time.monotonic()
        while quantity() == 0 and time.monotonic() - began < 10:
            await asyncio.sleep(0.01)
        assert quantity() == 95 and sync.leads()
        assert await aioelect_redis.exists("aioelect:{stock}")
    assert not await aioelect_redis.exists("aioelect:{stock}")
    await aclose(aioelect_redis)  # as your lifespan does
