"""The store on PostgreSQL in trouble: sessions that hang or are killed, locks, failovers, a lost listener."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import asyncpg
import pytest

from aioelect import PostgresStore, StoreRejected, StoreUnavailable
from aioelect._postgres import listener as listener_module
from aioelect._store import NoticeKind, Renewed
from store.conftest import a_claim, granted, on_own_connection
from support.postgres import Postgres, execute, hanging, sessions
from support.wait import until

LIMIT = 5.0


@pytest.fixture
def store(postgres_store: PostgresStore) -> PostgresStore:
    """A store with its table."""
    return postgres_store


@pytest.fixture
def other(other_postgres_store: PostgresStore) -> PostgresStore:
    """Another participant, with connections of its own."""
    return other_postgres_store


async def warm(store: PostgresStore, database: str) -> list[int]:
    """Open the connection that works and the spare, both ready for use; their process ids."""
    await granted(store, a_claim("warm"))
    await until(lambda: len(store._runtime.connections._idle) == 2)
    return sessions(database)


# -- trouble ----------------------------------------------------------------------------------------------------------


async def test_p4_a_session_that_hangs_costs_one_limit_and_the_spare_goes_on(
    store: PostgresStore, database: str
) -> None:
    claim = a_claim()
    pids = await warm(store, database)
    await granted(store, claim)
    with hanging(pids[0]):
        answers = [await _timed(store.renew(claim, limit=0.3)) for _ in range(3)]
        assert max(took for _, took in answers) < 1.0
        assert [isinstance(answer, StoreUnavailable) for answer, _ in answers].count(True) <= 1
        assert answers[-1][0] == Renewed()


async def test_p4_a_server_that_swallows_everything_is_given_up_within_the_limit_and_found_again(
    store: PostgresStore, database: str
) -> None:
    claim = a_claim()
    pids = await warm(store, database)
    await granted(store, claim)
    with hanging(*pids):
        answers = [await _timed(store.renew(claim, limit=0.2)) for _ in range(3)]
        assert max(took for _, took in answers) < 1.0
        assert isinstance(answers[0][0], StoreUnavailable)
    assert await store.renew(claim, limit=LIMIT) == Renewed()


async def test_p15_a_call_whose_caller_was_cancelled_fails_without_a_sound(store: PostgresStore, database: str) -> None:
    claim = a_claim()
    pids = await warm(store, database)
    with hanging(*pids):
        calling = asyncio.create_task(store.renew(claim, limit=0.2))
        await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.wait({calling})
        await asyncio.sleep(0.3)  # it goes on by itself, and runs into its limit; the loop is not to hear of it


async def _timed(call: object) -> tuple[object, float]:
    start = time.monotonic()
    try:
        answer: object = await call  # type: ignore[misc]
    except StoreUnavailable as error:
        answer = error
    return answer, time.monotonic() - start


async def test_p4_a_row_that_somebody_has_locked_costs_no_more_than_the_limit_and_no_other_name(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    await granted(other, a_claim("free"))
    claim = a_claim()
    await granted(store, claim)
    locker = await asyncpg.connect(database)
    async with locker.transaction():
        await locker.execute("SELECT * FROM aioelect.leases WHERE name = 'name' FOR UPDATE")
        blocked = asyncio.create_task(store.renew(claim, limit=0.5))
        await asyncio.sleep(0.05)
        await granted(store, a_claim("unconcerned"))
        assert not blocked.done()
        with pytest.raises(StoreUnavailable):
            await blocked
    await locker.close()
    assert await store.renew(claim, limit=LIMIT) == Renewed()


async def test_p5_a_claim_that_waited_for_a_lock_too_long_is_not_made_later(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    await granted(store, a_claim(ttl=0.1))
    await asyncio.sleep(0.15)
    locker = await asyncpg.connect(database)
    async with locker.transaction():
        await locker.execute("SELECT * FROM aioelect.leases WHERE name = 'name' FOR UPDATE")
        with pytest.raises(StoreUnavailable):
            await store.acquire(a_claim(), limit=0.2)
        # Its session stops waiting by itself, also where the client is gone.
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        await until(lambda: execute(database, waiting) == [(0,)])
    await locker.close()
    await granted(other, a_claim())


async def test_p5_the_undoing_of_a_cancelled_try_does_not_overtake_it(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    await granted(store, a_claim(ttl=0.1))
    await asyncio.sleep(0.15)
    claim = a_claim()
    locker = await asyncpg.connect(database)
    async with locker.transaction():
        await locker.execute("SELECT * FROM aioelect.leases WHERE name = 'name' FOR UPDATE")
        trying = asyncio.create_task(store.acquire(claim, limit=LIMIT))
        await asyncio.sleep(0.05)
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
        undoing = asyncio.create_task(store.release(claim, limit=LIMIT))
        await asyncio.sleep(0.05)
    await locker.close()
    await undoing
    await granted(other, a_claim())


async def test_p11_a_killed_session_is_unavailable_at_most_once_and_nothing_is_lost(
    store: PostgresStore, database: str
) -> None:
    claim = a_claim()
    token = await granted(store, claim)
    for pid in await warm(store, database):
        execute(database, "SELECT pg_terminate_backend(%s)", pid)

    async def same() -> bool:
        try:
            return await granted(store, claim) == token
        except StoreUnavailable:
            return False

    await until(same)


async def test_p11_a_read_only_server_is_unavailable_and_reached_again_when_it_takes_writes(
    store: PostgresStore, database: str
) -> None:
    await warm(store, database)
    name = database.rpartition("/")[2]
    execute(database, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    for pid in sessions(database):  # a failover ends them, too
        execute(database, "SELECT pg_terminate_backend(%s)", pid)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.acquire(a_claim(), limit=1.0)
    execute(database.replace(name, "postgres"), f'ALTER DATABASE "{name}" RESET default_transaction_read_only')

    async def served() -> bool:
        try:
            return bool(await granted(store, a_claim()))
        except StoreUnavailable:
            return False

    await until(served)


async def test_p11_a_session_that_became_read_only_is_not_used_again(store: PostgresStore, database: str) -> None:
    await warm(store, database)
    await on_own_connection(store, "SELECT set_config('default_transaction_read_only', 'on', false) AS it")
    await on_own_connection(store, "SELECT set_config('default_transaction_read_only', 'on', false) AS it")
    with pytest.raises(StoreUnavailable, match="read-only") as caught:
        await store.acquire(a_claim(), limit=LIMIT)
    assert caught.value.reason == "readonly"
    await granted(store, a_claim())


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (("postgres@", "nobody@"), StoreRejected, "refused the user or password"),
        (("/aioelect_", "/absent_"), StoreRejected, "no such database"),
        (("127.0.0.1", "127.0.0.9"), StoreUnavailable, "no connection"),
    ],
)
async def test_p11_what_is_wrong_with_the_address_is_said_without_its_password(
    database: str, change: tuple[str, str], kind: type[Exception], says: str
) -> None:
    url = database.replace(*change).replace("@", ":geheim@")
    url = (
        url
        if kind is StoreRejected
        else database.replace("postgres@", "postgres:geheim@").replace("127.0.0.1", "127.0.0.9")
    )
    store = PostgresStore(url)
    with pytest.raises(kind, match=says) as caught:
        await store.acquire(a_claim(), limit=LIMIT)
    assert "geheim" not in f"{caught.value} {store!r} {store.key}"
    await store.aclose()


# -- notices ----------------------------------------------------------------------------------------------------------


async def test_p10_what_nobody_waits_for_is_not_notified(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    heard: list[str] = []
    eavesdropper = await asyncpg.connect(database)
    channel = store._where("name")[0]
    await eavesdropper.add_listener(channel, lambda *notice: heard.append(notice[-1]))
    claim = a_claim()
    await granted(store, claim)
    await store.release(claim, limit=LIMIT)
    await eavesdropper.execute("SELECT 1")
    assert heard == []
    watch = other.watch("name")
    assert await watch.ready(LIMIT)
    await granted(store, claim)
    await until(lambda: len(heard) == 1)
    watch.close()
    await eavesdropper.close()


async def test_p10_a_listener_that_was_lost_listens_again_and_says_that_something_may_have_been_missed(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    watch = other.watch("name")
    assert await watch.ready(LIMIT)
    execute(database, "SELECT pg_terminate_backend(%s)", other._runtime.listener.pid)
    await until(lambda: not watch.live)
    notice = await watch.next(LIMIT)
    assert notice is not None and notice.kind is NoticeKind.RESYNC and watch.live
    await granted(store, a_claim())
    notice = await watch.next(LIMIT)
    assert notice is not None and notice.kind is NoticeKind.ACQUIRED
    watch.close()


async def test_p10_a_channel_is_left_when_nobody_watches_it_and_the_connection_with_the_last_one(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_LINGER", 0.02)
    monkeypatch.setattr(listener_module, "_IDLE", 0.05)
    monkeypatch.setattr(listener_module, "_PING", 0.02)
    first, second = store.watch("one"), store.watch("two")
    assert await first.ready(LIMIT) and await second.ready(LIMIT)
    shared = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
    assert execute(database, shared) == [(2,)]
    first.close()
    await until(lambda: execute(database, shared) == [(1,)])
    again = store.watch("one")
    assert await again.ready(LIMIT)
    again.close()
    second.close()
    await until(lambda: sessions(database) == [])


async def test_p11_a_server_that_restarts_is_found_again_with_its_claims(
    make_postgres: Callable[..., Postgres],
) -> None:
    server = make_postgres(fsync="on")
    store = PostgresStore(server.url)
    await store.create()
    claim = a_claim(ttl=60)
    token = await granted(store, claim)
    server.crash()
    with pytest.raises(StoreUnavailable):
        await store.renew(claim, limit=0.5)
    server.start()

    async def renewed() -> bool:
        try:
            return await store.renew(claim, limit=1.0) == Renewed()
        except StoreUnavailable:
            return False

    await until(renewed)
    await store.release(claim, limit=LIMIT)
    assert await granted(store, a_claim()) > token
    await store.aclose()
