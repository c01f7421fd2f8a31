"""What is particular about advisory locks: they live by a connection, and have tokens only from a sequence."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import asyncpg
import pytest

from aioelect import (
    AcquireTimeout,
    AdvisoryLock,
    AdvisoryStore,
    ConfigurationError,
    Elector,
    FencedLock,
    Lease,
    LeaseExpired,
    LeaseTaken,
    NotAcquired,
    NotHeld,
    ReleaseOutcome,
    StoreRejected,
    Term,
)
from aioelect._postgres.wire import lock_key
from aioelect._store import Contended, Granted, Watchful
from store.conftest import a_claim, granted
from support.postgres import execute
from support.wait import until

LIMIT = 5.0


@pytest.fixture
async def store(database: str) -> AsyncIterator[AdvisoryStore]:
    """A store with a sequence."""
    execute(database, "CREATE SEQUENCE fence")
    made = AdvisoryStore(database, sequence="fence")
    yield made
    await made.aclose()


@pytest.fixture
async def other(store: AdvisoryStore, database: str) -> AsyncIterator[AdvisoryStore]:
    """Another participant, with connections of its own."""
    made = AdvisoryStore(f"{database}?application_name=other", sequence="fence")
    yield made
    await made.aclose()


def holder(database: str) -> int:
    """The process id of the session that has the lock."""
    rows = execute(database, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'")
    ((pid,),) = rows
    return int(pid)


def locks(database: str) -> int:
    """How many advisory locks are held."""
    return len(execute(database, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"))


# -- a lost connection ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["AdvisoryLock", "FencedLock", "Lease", "Elector"])
async def test_a_lost_connection_stops_the_work_at_once_and_not_at_the_next_renewal(
    store: AdvisoryStore, database: str, how: str
) -> None:
    forms: dict[str, Callable[[], AbstractAsyncContextManager[Term, bool | None]]] = {
        "AdvisoryLock": lambda: AdvisoryLock(database, "name", ttl=300, observers=[]),
        "FencedLock": lambda: FencedLock(store, "name", ttl=300, observers=[]),
        "Lease": lambda: Lease(store, "name", ttl=300, observers=[]),
        "Elector": lambda: Elector(store, "name", ttl=300, observers=[]).lead(),
    }
    killed = stopped = 0.0
    lock = forms[how]()
    with pytest.raises(LeaseTaken):
        async with lock as term:
            killed = time.monotonic()
            execute(database, "SELECT pg_terminate_backend(%s)", holder(database))
            try:
                await asyncio.sleep(60)
            finally:
                stopped = time.monotonic()
                assert not term.is_leader and not term.is_valid
    assert stopped - killed < 2.0  # the next renewal would have been due after 100 s
    await AdvisoryStore(database).aclose()


async def test_a_connection_that_was_lost_before_anybody_listened_is_told_too(
    store: AdvisoryStore, database: str
) -> None:
    assert isinstance(store, Watchful)
    claim, told = a_claim(), []
    await granted(store, claim)
    execute(database, "SELECT pg_terminate_backend(%s)", holder(database))
    await until(lambda: store._runtime.grips.get(claim.owner) is None)
    store.on_loss(claim, lambda: told.append("gone"))
    assert told == ["gone"]


async def test_a_release_tells_nobody_that_the_claim_was_lost(store: AdvisoryStore, database: str) -> None:
    claim, told = a_claim(), []
    await granted(store, claim)
    store.on_loss(claim, lambda: told.append("gone"))
    await store.release(claim, limit=LIMIT)
    await store.aclose()
    assert told == []


async def test_p3_a_connection_that_is_silent_stops_the_work_at_the_renew_deadline_and_is_closed_at_the_ttl(
    store: AdvisoryStore, database: str
) -> None:
    began = stopped = 0.0
    pid = 0
    try:
        with pytest.raises(LeaseExpired):
            async with FencedLock(store, "name", ttl=0.6, observers=[]) as term:
                pid = holder(database)
                os.kill(pid, signal.SIGSTOP)
                began = time.monotonic()
                try:
                    await asyncio.sleep(60)
                finally:
                    stopped = time.monotonic()
                    assert not term.is_leader
    finally:
        os.kill(pid, signal.SIGCONT)
    assert 0.2 < stopped - began < 5.0
    await until(lambda: locks(database) == 0)  # nobody released it: its connection was closed


async def test_a_renewal_that_is_slow_but_comes_before_the_deadline_is_no_loss(
    store: AdvisoryStore, database: str
) -> None:
    async with FencedLock(store, "name", ttl=6, renew_interval=0.1, observers=[]) as term:
        pid = holder(database)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2.0)  # several tries run into their limits
        finally:
            os.kill(pid, signal.SIGCONT)
        await term.renew()
        assert term.is_leader and holder(database) == pid


async def test_a_term_that_nobody_renews_ends_with_its_ttl_as_long_as_its_process_lives(
    store: AdvisoryStore, other: AdvisoryStore
) -> None:
    term = await Lease(store, "name", ttl=1.5, observers=[]).try_acquire()
    assert term is not None
    assert isinstance(await other.acquire(a_claim(), limit=LIMIT), Contended)

    async def free() -> bool:
        return isinstance(await other.acquire(a_claim(), limit=LIMIT), Granted)

    await until(free)
    assert not term.is_valid


# -- tokens -----------------------------------------------------------------------------------------------------------


async def test_without_a_sequence_there_is_a_lock_but_no_token(database: str) -> None:
    lock = AdvisoryLock(database, "name", observers=[])
    async with lock as term:
        assert term.is_leader and locks(database) == 1
        with pytest.raises(NotHeld, match="sequence"):
            _ = term.token
        assert "token" in repr(term)
    assert locks(database) == 0
    await lock.aclose()


@pytest.mark.parametrize("primitive", [Lease, FencedLock, Elector])
def test_p14_tokens_are_refused_at_construction_where_the_store_has_none(primitive: type[Lease]) -> None:
    store = AdvisoryStore("postgresql://db/app")
    with pytest.raises(ConfigurationError, match="no fencing tokens: give it a sequence"):
        primitive(store, "name")

    async def source(name: str) -> int:
        return 7

    primitive(store, "name", tokens=source, observers=[])
    primitive(AdvisoryStore("postgresql://db/app", sequence="fence"), "name", observers=[])


async def test_p9_tokens_are_the_sequence_s_and_rise(database: str) -> None:
    execute(database, "CREATE SCHEMA app")
    execute(database, "CREATE SEQUENCE app.fence START 34")
    lock = AdvisoryLock(database, "name", sequence="app.fence", observers=[])
    tokens = []
    for _ in range(3):
        async with lock as term:
            tokens.append(term.token)
    assert tokens == [34, 35, 36]
    await lock.aclose()


async def test_a_sequence_that_is_missing_is_a_rejection_and_no_lock_stays(database: str) -> None:
    lock = AdvisoryLock(database, "name", sequence="absent", observers=[])
    with pytest.raises(StoreRejected, match="absent"):
        async with lock:
            pass
    await until(lambda: locks(database) == 0)
    await lock.aclose()


@pytest.mark.parametrize("sequence", ["", "a b", "a'b", "a;b", 5])
def test_p14_what_is_no_sequence_is_refused_where_it_enters(sequence: str) -> None:
    with pytest.raises(ConfigurationError, match="sequence"):
        AdvisoryStore("postgresql://db/app", sequence=sequence)


# -- use --------------------------------------------------------------------------------------------------------------


async def test_it_is_a_decorator_waits_and_says_who_holds_it(database: str) -> None:
    mine = AdvisoryLock(database, "name", identity="worker-7", observers=[])
    theirs = AdvisoryLock(f"{database}?application_name=x", "name", wait=0, prefix="aioelect", observers=[])
    assert "name" in repr(mine)

    @theirs
    async def critical(number: int) -> int:
        return number + 1

    async with mine:
        with pytest.raises(NotAcquired) as caught:
            await critical(1)
        assert caught.value.holder == "worker-7"
    assert await critical(1) == 2
    await mine.aclose()
    await theirs.aclose()


async def test_a_program_that_has_taken_the_same_key_by_hand_keeps_us_out(database: str) -> None:
    lock = AdvisoryLock(database, "name", wait=0.2, ttl=5, observers=[])
    application = await asyncpg.connect(database)
    await application.execute(f"SELECT pg_advisory_lock({lock_key('advisory:aioelect', 'name')})")
    with pytest.raises(AcquireTimeout):
        async with lock:
            pass
    await application.close()
    async with lock:
        pass
    await lock.aclose()


async def test_many_claims_at_once_each_have_a_connection_and_leave_two(store: AdvisoryStore, database: str) -> None:
    names = [f"name-{number}" for number in range(12)]
    terms = await asyncio.gather(*(Lease(store, name, observers=[]).try_acquire() for name in names))
    assert all(term is not None and term.is_leader for term in terms) and locks(database) == 12
    for term in terms:
        assert term is not None and await term.release() is ReleaseOutcome.RELEASED
    assert locks(database) == 0
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await until(lambda: execute(database, sessions) == [(2,)])
