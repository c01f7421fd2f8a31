"""What is particular about the store on PostgreSQL: its table and sequence, its refusals, its connections."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from aioelect import AdvisoryStore, ConfigurationError, FencedLock, PostgresStore, StoreRejected
from aioelect._store import Contended, Granted
from store.conftest import a_claim, granted, on_own_connection
from support.postgres import execute, sessions
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


# -- what lies in the database ----------------------------------------------------------------------------------------


async def test_the_table_holds_a_digest_and_never_the_owner_value(store: PostgresStore, database: str) -> None:
    claim = a_claim(identity="me")
    token = await granted(store, claim)
    (row,) = execute(database, "SELECT name, owner, token, id, identity FROM aioelect.leases")
    assert row == ("name", hashlib.sha256(claim.owner.encode()).digest(), token, claim.id, "me")
    assert claim.owner not in str(execute(database, "SELECT * FROM aioelect.leases"))
    assert claim.owner not in str(execute(database, "SELECT query FROM pg_stat_activity"))


async def test_p9_tokens_rise_after_the_row_was_deleted_and_after_a_release(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    claim = a_claim()
    tokens = [await granted(store, claim)]
    await store.release(claim, limit=LIMIT)
    assert execute(database, "SELECT count(*) FROM aioelect.leases") == [(0,)]
    tokens.append(await granted(other, a_claim()))
    execute(database, "DELETE FROM aioelect.leases")
    tokens.append(await granted(store, a_claim()))
    assert tokens == sorted(set(tokens))


async def test_p9_numbers_that_a_failover_lost_are_not_given_out_again(
    store: PostgresStore, database: str, floors: Callable[[], None]
) -> None:
    token = await granted(store, a_claim())
    assert token > (time.time() - 3600) * 1e6  # the clock, in microseconds
    await store.aclose()  # as the failover would
    floors()  # whoever is next has seen none of them
    execute(database, "DELETE FROM aioelect.leases")
    execute(database, "SELECT setval('aioelect.tokens', 1)")
    fresh = PostgresStore(f"{database}?application_name=fresh")
    assert await granted(fresh, a_claim()) > token
    await fresh.aclose()


async def test_p9_a_sequence_that_fell_behind_is_raised_above_what_this_process_has_seen(
    store: PostgresStore, database: str
) -> None:
    claim = a_claim()
    token = await granted(store, claim)
    await store.release(claim, limit=LIMIT)
    execute(database, "SELECT setval('aioelect.tokens', 1)")
    later = await granted(store, claim)
    assert later > token
    assert execute(database, "SELECT last_value FROM aioelect.tokens") == [(later,)]


async def test_p9_a_number_is_drawn_when_the_name_is_ours_and_not_before(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    locker = await asyncpg.connect(database)
    inserting = locker.transaction()
    await inserting.start()
    await locker.execute("INSERT INTO aioelect.leases VALUES ('name', '', 1, clock_timestamp(), '', '')")
    trying = asyncio.create_task(store.acquire(a_claim(), limit=LIMIT))
    await until(lambda: execute(database, "SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
    drawn_meanwhile = await granted(other, a_claim("another name"))
    await inserting.rollback()
    await locker.close()
    answer = await trying
    assert isinstance(answer, Granted) and answer.token > drawn_meanwhile


async def test_p9_tokens_of_many_who_take_one_name_in_turns_rise_in_the_order_of_their_terms(
    store: PostgresStore, other: PostgresStore
) -> None:
    tokens: list[int] = []

    async def take(who: PostgresStore) -> None:
        for _ in range(15):
            async with FencedLock(who, "contended", ttl=5, observers=[]) as term:
                tokens.append(term.token)

    await asyncio.gather(*(take(who) for who in (store, other) for _ in range(2)))
    assert len(tokens) == 60 and tokens == sorted(set(tokens))


async def test_a_failed_try_writes_nothing_and_waits_for_nobody(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    await granted(store, a_claim())
    await granted(other, a_claim("warm"))
    before = execute(database, "SELECT ctid, xmin, xmax FROM aioelect.leases WHERE name = 'name'")
    locker = await asyncpg.connect(database)
    async with locker.transaction():
        await locker.execute("SELECT * FROM aioelect.leases FOR UPDATE")
        before_try = time.monotonic()
        assert isinstance(await other.acquire(a_claim(), limit=LIMIT), Contended)
        assert time.monotonic() - before_try < 1.0
    await locker.close()
    after = execute(database, "SELECT ctid, xmin FROM aioelect.leases WHERE name = 'name'")
    assert after == [row[:2] for row in before]


async def test_rows_that_crashed_holders_left_are_removed_by_whoever_connects_next(
    store: PostgresStore, other: PostgresStore, database: str
) -> None:
    await granted(store, a_claim("old", ttl=0.1))
    await granted(store, a_claim("new", ttl=0.1))
    execute(database, "UPDATE aioelect.leases SET expires = expires - interval '2 hours' WHERE name = 'old'")
    await granted(other, a_claim("third"))
    assert execute(database, "SELECT name FROM aioelect.leases ORDER BY name") == [("new",), ("third",)]


async def test_a_server_that_forgets_commits_is_told_not_to_for_claims(store: PostgresStore, database: str) -> None:
    execute(database, f'ALTER DATABASE "{database.rpartition("/")[2]}" SET synchronous_commit = off')
    row = await on_own_connection(store, "SELECT current_setting('synchronous_commit') AS it")
    assert row == "on"


async def test_the_default_isolation_of_the_database_does_not_matter(database: str) -> None:
    execute(
        database, f"ALTER DATABASE \"{database.rpartition('/')[2]}\" SET default_transaction_isolation = 'serializable'"
    )
    store = PostgresStore(database)
    await store.create()
    answers = await asyncio.gather(*(store.acquire(a_claim(), limit=LIMIT) for _ in range(10)))
    assert [type(answer) for answer in answers].count(Granted) == 1
    await store.aclose()


# -- create -----------------------------------------------------------------------------------------------------------


async def test_without_its_table_a_store_says_what_to_call(database: str) -> None:
    store = PostgresStore(database)
    with pytest.raises(StoreRejected, match=r"call `await store.create\(\)` once") as caught:
        await store.acquire(a_claim("mine"), limit=LIMIT)
    assert caught.value.name == "mine" and not caught.value.passing
    await store.create()
    await granted(store, a_claim("mine"))
    execute(database, "DROP TABLE aioelect.leases")
    with pytest.raises(StoreRejected, match="create"):
        await store.acquire(a_claim("mine"), limit=LIMIT)
    await store.aclose()


async def test_create_may_be_called_by_many_at_once_and_again(store: PostgresStore, database: str) -> None:
    token = await granted(store, a_claim())
    others = [PostgresStore(database, schema=schema) for schema in ("aioelect", "another") for _ in range(4)]
    await asyncio.gather(*(other.create() for other in others))
    assert isinstance(answer := await store.acquire(a_claim(), limit=LIMIT), Contended)
    assert answer.holder.token == token
    another = others[-1]
    await granted(another, a_claim())  # another schema, another world
    assert (
        another.key != store.key
        and "aioelect" not in another.ddl.replace("-- ", "").split("CREATE", 1)[1].split("(")[0]
    )
    await another.aclose()


async def test_a_user_without_privileges_is_told_so_and_the_documented_ones_suffice(
    store: PostgresStore, database: str
) -> None:
    user = f"app_{os.getpid()}"
    execute(database, f"CREATE ROLE {user} LOGIN")
    try:
        restricted = PostgresStore(database.replace("postgres@", f"{user}@"))
        with pytest.raises(StoreRejected, match="lacks a privilege"):
            await restricted.acquire(a_claim(), limit=LIMIT)
        with pytest.raises(StoreRejected, match="lacks a privilege"):
            await PostgresStore(database.replace("postgres@", f"{user}@"), schema="fresh").create()
        for grant in grants():
            execute(database, grant.replace("app_user", user))
        claim = a_claim()
        await granted(restricted, claim)
        await restricted.renew(claim, limit=LIMIT)
        await restricted.release(claim, limit=LIMIT)
        await restricted.aclose()
    finally:
        execute(database, f"DROP OWNED BY {user}")
        execute(database, f"DROP ROLE {user}")


def grants() -> list[str]:
    """The privileges that the page lists."""
    page = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text()
    return [line for line in page.splitlines() if line.startswith("GRANT ")]


# -- arguments --------------------------------------------------------------------------------------------------------


async def test_a_pool_gives_its_settings_and_none_of_its_connections(store: PostgresStore, database: str) -> None:
    async with asyncpg.create_pool(database, min_size=0, max_size=1) as pool:
        from_pool = PostgresStore(pool)
        async with pool.acquire():  # the only one it has
            token = await granted(from_pool, a_claim())
        assert isinstance(answer := await store.acquire(a_claim(), limit=LIMIT), Contended)
        assert answer.holder.token == token
        await from_pool.aclose()


@pytest.mark.parametrize("wrong", ["", "host=db", "mysql://db", "localhost:5432", None, 5, object()])
def test_p14_what_is_no_address_is_refused_where_it_enters(wrong: object) -> None:
    for kind in (PostgresStore, AdvisoryStore):
        with pytest.raises(ConfigurationError, match="dsn_or_pool"):
            kind(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("schema", ["", "Big", "a b", 'a"b', "1a", "x" * 64, "a.b"])
def test_p14_what_is_no_schema_is_refused_where_it_enters(schema: str) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        PostgresStore("postgresql://db", schema=schema)


def test_urls_of_sqlalchemy_are_understood_and_equal_places_contend() -> None:
    plain = PostgresStore("postgresql://user:secret@db/app")
    assert PostgresStore("postgresql+asyncpg://other@db/app?application_name=x").key == plain.key
    assert PostgresStore("postgres://user@db/other").key != plain.key
    assert "secret" not in f"{plain!r} {plain.key}"


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'aioelect\[postgres\]'"):
        PostgresStore("postgresql://db/app")


# -- life -------------------------------------------------------------------------------------------------------------

_UNCLOSED = """
import asyncio, gc, sys
from aioelect import AdvisoryLock, Elector, FencedLock, Lease, PostgresStore

async def held(store):
    await Lease(store, "held").try_acquire()

async def waiting(store):
    await Lease(store, "waiting").try_acquire()
    asyncio.create_task(FencedLock(PostgresStore(sys.argv[1] + "?application_name=x"), "waiting").__aenter__())
    await asyncio.sleep(0.3)

async def candidacy(store):
    elector = Elector(store, "candidacy")
    await elector.__aenter__()
    await elector.wait_elected()

async def advisory(store):
    await AdvisoryLock(sys.argv[1], "advisory").__aenter__()

async def settled(how):
    # Cancelled in the middle of a handshake, asyncpg itself may complain.
    await how(store)
    await asyncio.sleep(0.2)
    while any(task.get_name() == "aioelect-handshake" for task in asyncio.all_tasks()):
        await asyncio.sleep(0.01)

store = PostgresStore(sys.argv[1])
for how in (held, waiting, candidacy, advisory):
    asyncio.run(settled(how))
for how in (held, advisory):  # a loop that is merely closed; a task of the user's own would be the user's
    loop = asyncio.new_event_loop()
    loop.run_until_complete(settled(how))
    loop.close()
asyncio.run(held(store))
gc.collect()
print("done")
"""


async def test_p15_what_was_not_closed_ends_silently_with_its_loop(store: PostgresStore, database: str) -> None:
    script = textwrap.dedent(_UNCLOSED)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", "-W", "error", "-c", script, database],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    await until(lambda: sessions(database) == [])
