"""A guarded transaction on a real PostgreSQL, through every driver: who gets in, what stays, what comes out."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from aioelect import ConfigurationError, Lease, LeaseExpired, LeaseLost, NotHeld, StaleToken, aclose
from aioelect.fencing import Gate, PostgresGuard
from fencing.conftest import KINDS, TOKEN, MakeWay, Way, article, fence
from support.postgres import execute

LIFE = 30.0


async def test_what_is_written_inside_is_committed_and_an_older_token_is_refused_before_the_body(
    way: Way, stocked: str
) -> None:
    guard = way.guard()
    for token in (TOKEN, TOKEN, TOKEN + 1):
        async with guard.transaction(token, resource="stock", limit=LIFE) as handle:
            await way.run(handle, f"UPDATE stock SET qty = {token - TOKEN + 95}")
    with pytest.raises(StaleToken, match=f"stock: token {TOKEN} is older than {TOKEN + 1}") as caught:
        async with guard.transaction(TOKEN, resource="stock", limit=LIFE):
            pytest.fail("a stale holder got in")
    assert (caught.value.token, caught.value.newest, caught.value.resource) == (TOKEN, TOKEN + 1, "stock")
    async with guard.transaction(TOKEN, resource="another", limit=LIFE) as handle:
        await way.run(handle, "SELECT 1")
    assert article(stocked)[0] == 96
    assert fence(stocked) == {"stock": TOKEN + 1, "another": TOKEN}


async def test_an_error_of_the_body_comes_out_as_it_is_and_leaves_nothing_behind(way: Way, stocked: str) -> None:
    error = KeyError("of the body")
    with pytest.raises(KeyError) as caught:
        async with way.guard().transaction(TOKEN, resource="stock", limit=LIFE) as handle:
            await way.run(handle, "UPDATE stock SET qty = 1")
            raise error
    assert caught.value is error
    assert article(stocked)[0] == 100 and fence(stocked) == {}
    await way.guard().admit("stock", TOKEN)  # it can be used again


@pytest.mark.parametrize("means", ["task", "scope"])
async def test_a_cancelled_body_rolls_back_at_once_so_that_nobody_waits_for_its_lock(
    way: Way, stocked: str, means: str
) -> None:
    waiting = asyncio.Event()
    scope = anyio.CancelScope()

    async def hold() -> None:
        with scope:
            async with way.guard().transaction(TOKEN, resource="stock", limit=LIFE) as handle:
                await way.run(handle, "UPDATE stock SET qty = 1")
                waiting.set()
                await way.run(handle, "SELECT pg_sleep(60)")

    holder = asyncio.create_task(hold())
    await waiting.wait()
    await asyncio.sleep(0.05)
    if means == "task":
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
    else:
        scope.cancel()
        await holder
        assert scope.cancelled_caught
    execute(stocked, "SET lock_timeout = '2s'; UPDATE stock SET qty = qty + 1")
    assert article(stocked)[0] == 101
    assert fence(stocked) == {}
    if way.kind != "psycopg connection":  # psycopg closes a connection whose query was cancelled
        await way.guard().admit("stock", TOKEN)


async def test_the_limits_are_those_of_the_transaction_and_stricter_ones_stay(way: Way, stocked: str) -> None:
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
    show = f"SELECT concat_ws(' ', {', '.join(f'''current_setting('{name}', true)''' for name in names)})"

    async with way.guard().transaction(TOKEN, resource="stock", limit=3.0) as handle:
        inside = str(await way.run(handle, show)).split()
        await way.run(handle, "SET statement_timeout = '1s'")  # of the session, as a user may have set it
        later = await way.run(handle, show)
    assert all(2000 < int(value.removesuffix("ms")) <= 3000 for value in inside), inside
    assert "1s" in str(later)
    if way.kind.endswith(("connection", "session")):
        async with way.guard().transaction(TOKEN, resource="stock", limit=3.0) as handle:
            assert str(await way.run(handle, show)).split()[1] == "1s"
        if way.kind == "sqlalchemy session":
            return  # it gives its connection back after each transaction
        outside = await way.run(way.target, show)
        await way.commit()
        assert outside.startswith("0 1s 0")


async def test_a_transaction_that_has_begun_already_is_refused(stocked: str, make_way: MakeWay) -> None:
    for kind in ("asyncpg connection", "psycopg connection", "sqlalchemy connection", "sqlalchemy session"):
        way = await make_way(kind, stocked)
        await way.run(way.target, "BEGIN" if kind.startswith("asyncpg") else "SELECT 1")
        with pytest.raises(ConfigurationError, match="in a transaction already"):
            async with way.guard().transaction(TOKEN, resource="stock", limit=LIFE):
                pytest.fail("it began")
        await (way.run(way.target, "ROLLBACK") if kind.startswith("asyncpg") else way.commit())
        await way.guard().admit("stock", TOKEN)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "sqlalchemy" in kind])
async def test_autocommit_is_refused_since_it_would_guard_nothing(kind: str, stocked: str, make_way: MakeWay) -> None:
    way = await make_way(kind, stocked, isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError, match="commits every statement by itself"):
        async with way.guard().transaction(TOKEN, resource="stock", limit=LIFE):
            pytest.fail("it began")


async def test_a_missing_fence_table_is_told_with_what_to_do(database: str, make_way: MakeWay) -> None:
    for kind in KINDS:
        way = await make_way(kind, database)
        with pytest.raises(ConfigurationError, match=r"run the DDL that fence_table\('fences'\) gives"):
            await way.guard(table="fences").admit("stock", TOKEN)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith(("connection", "session"))])
async def test_at_every_isolation_level_writers_come_one_by_one_see_what_was_written_and_tokens_never_fall(
    stocked: str, make_way: MakeWay, kind: str, isolation: str
) -> None:
    """Also where the row does not exist yet: the first claims race to insert it."""
    name = stocked.rsplit("/", 1)[1]
    execute(stocked, f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{isolation}'")
    execute(stocked, "CREATE TABLE history (n SERIAL, token BIGINT, seen INTEGER)")
    way = await make_way(kind, stocked)
    guard = way.guard()
    outcomes: list[str] = []

    async def write(token: int) -> None:
        await asyncio.sleep(random.random() * 0.05)
        try:
            async with guard.transaction(token, resource="stock", limit=LIFE) as handle:
                assert await way.run(handle, "SHOW transaction_isolation") == isolation
                seen = await way.run(handle, "SELECT count(*) FROM history")
                await asyncio.sleep(0.002)
                await way.run(handle, f"INSERT INTO history (token, seen) VALUES ({token}, {seen})")
                await way.run(handle, "UPDATE stock SET qty = qty + 1")
            outcomes.append("written")
        except StaleToken as stale:
            outcomes.append("stale" if (stale.newest or 0) > token == stale.token else "wrong numbers")

    tokens = [TOKEN + number for number in range(8) for _ in range(3)]
    random.shuffle(tokens)
    await asyncio.gather(*map(write, tokens))
    rows = execute(stocked, "SELECT token, seen FROM history ORDER BY n")
    written = [token for token, _ in rows]
    assert written == sorted(written), "an older token was accepted after a newer one"
    assert [seen for _, seen in rows] == list(range(len(rows))), "a writer did not see what was written before it"
    assert len(rows) == outcomes.count("written") == article(stocked)[0] - 100
    assert len(rows) + outcomes.count("stale") == len(tokens) and max(written) == TOKEN + 7


async def test_a_holder_that_lost_its_claim_gets_no_transaction_and_no_commit(
    pool: Way, stocked: str, redis: Redis
) -> None:
    guard = pool.guard()
    term = await Lease(redis, "stock", ttl=0.3).try_acquire()
    assert term is not None
    async with guard.transaction(term) as handle:
        await pool.run(handle, "UPDATE stock SET qty = 95")
    assert fence(stocked) == {"stock": term.token}, "the resource is the name"
    with pytest.raises(LeaseExpired):
        async with guard.transaction(term) as handle:
            await pool.run(handle, "UPDATE stock SET qty = 7")
            time.sleep(max(0.0, term.remaining()))  # the loop is blocked; the server's own limit is a moment later
    assert article(stocked)[0] == 95
    with pytest.raises(LeaseLost):
        async with guard.transaction(term):
            pytest.fail("it began")
    await asyncio.sleep(0.05)
    later = await Lease(redis, "stock", ttl=5).try_acquire()
    assert later is not None
    with pytest.raises(NotHeld):
        async with guard.transaction(later, limit=60) as handle:
            await pool.run(handle, "UPDATE stock SET qty = 7")
            await later.release()
    assert article(stocked)[0] == 95
    await aclose(redis)


async def test_a_bare_token_needs_a_resource_and_a_limit(pool: Way) -> None:
    guard = pool.guard()
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (7, {"limit": 1}, "give resource="),
        (7, {"resource": "a"}, "give limit="),
        (0, {"resource": "a", "limit": 1}, "token=0"),
        (True, {"resource": "a", "limit": 1}, "token=True"),
        (2**63, {"resource": "a", "limit": 1}, "2\\^63"),
        (7, {"resource": "", "limit": 1}, "resource=''"),
        (7, {"resource": "a\0b", "limit": 1}, "NUL"),
        (7, {"resource": "a", "limit": 0}, "limit=0 is too short"),
        (7, {"resource": "a", "limit": 10**6}, "limit=1000000 is too long"),
    ]
    for token, options, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            async with guard.transaction(token, **options):
                pytest.fail("it began")


def test_a_target_that_is_no_way_to_postgresql_is_refused() -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    with pytest.raises(ConfigurationError, match="psycopg AsyncConnectionPool or AsyncConnection"):
        PostgresGuard("postgresql://localhost")
    with pytest.raises(ConfigurationError, match="no way to PostgreSQL"):
        PostgresGuard(create_async_engine("postgresql+asyncpg://localhost").sync_engine)


async def test_a_guard_is_a_gate(pool: Way) -> None:
    guard = pool.guard()
    assert isinstance(guard, Gate)
    await guard.admit("stock", 34)
    await guard.admit("stock", 34)
    with pytest.raises(StaleToken, match="token 33 is older than 34"):
        await guard.admit("stock", 33)
