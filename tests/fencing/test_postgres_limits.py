"""A guarded transaction does not outlive the claim: a holder that stands still does not keep its successor waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import psycopg
import pytest
from redis.asyncio import Redis

from aioelect import Lease, LeaseExpired, StaleToken, aclose
from fencing.conftest import KINDS, TOKEN, MakeWay, article, fence, stock
from support import postgres
from support.postgres import Postgres, execute

LIFE = 0.6
LATE = 5.0
"""For a machine that is busy: without the limit it would be for ever. `test_pause_story.py` measures."""


@pytest.fixture(scope="module", params=["the session's", "16"])
def each_release(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a server with and without a limit for whole transactions (`transaction_timeout` is new in 17)."""
    if request.param != "16":
        yield request.getfixturevalue("shared_database")
        return
    if postgres.programs(request.param) is None:
        pytest.skip(f"no PostgreSQL {request.param} at hand: {postgres.HOW}")
    with Postgres(request.param) as server:
        yield server.url


@pytest.fixture
def url(each_release: str) -> Iterator[str]:
    """URL of a stocked database there."""
    stock(each_release)
    yield each_release
    postgres.empty(each_release)


@contextmanager
def ended_by_the_server() -> Iterator[None]:
    """Each driver has its own errors for that; a note says what it means."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - see above
        yield
    assert any("then the server ends it" in note for note in getattr(caught.value, "__notes__", ())), caught.value


@pytest.mark.parametrize("kind", KINDS)
async def test_a_holder_that_stands_still_in_its_transaction_is_thrown_out_when_its_life_is_over(
    url: str, make_way: MakeWay, kind: str
) -> None:
    ours, theirs = await make_way(kind, url), await make_way("asyncpg pool", url)
    holding, waited = asyncio.Event(), asyncio.Event()

    async def stand_still() -> None:
        async with ours.guard().transaction(TOKEN, resource="stock", limit=LIFE) as handle:
            await ours.run(handle, "UPDATE stock SET qty = 120")
            holding.set()
            await waited.wait()

    holder = asyncio.create_task(stand_still())
    await holding.wait()
    began = time.monotonic()
    try:
        async with theirs.guard().transaction(TOKEN + 1, resource="stock", limit=3 * LATE) as handle:
            waited_for = time.monotonic() - began
            await theirs.run(handle, "UPDATE stock SET qty = 95")
    finally:
        waited.set()
    with ended_by_the_server():
        await holder
    assert waited_for < LIFE + LATE
    assert article(url)[0] == 95 and fence(url) == {"stock": TOKEN + 1}


async def test_a_stale_holder_that_stands_still_after_its_refusal_is_thrown_out_too(url: str) -> None:
    """Its claim locks the row of the resource, although it is refused."""
    execute(url, "INSERT INTO aioelect_fence VALUES ('stock', 34)")
    from aioelect.fencing.postgres import _claim_statement

    connection = await asyncpg.connect(url)
    await connection.execute("BEGIN")
    assert await connection.fetchval(_claim_statement("aioelect_fence"), "stock", 33, int(LIFE * 1000)) == 34
    began = time.monotonic()
    execute(url, "UPDATE aioelect_fence SET token = 35")
    assert 0.1 < time.monotonic() - began < LIFE + LATE
    await connection.close()


async def test_who_waits_for_the_row_waits_no_longer_than_its_own_life(
    url: str, make_way: MakeWay, redis: Redis
) -> None:
    way = await make_way("psycopg pool", url)
    term = await Lease(redis, "stock", ttl=LIFE).try_acquire()
    assert term is not None
    with psycopg.connect(url) as other:
        other.execute("INSERT INTO aioelect_fence VALUES ('stock', 33)")
        began = time.monotonic()
        with pytest.raises(LeaseExpired) as caught:
            async with way.guard().transaction(term):
                pytest.fail("it got in")
        assert time.monotonic() - began < LIFE + LATE
        assert isinstance(caught.value.__cause__, psycopg.Error)
    await aclose(redis)


@pytest.mark.parametrize("before", ["0", "30s"])
@pytest.mark.parametrize("kind", ["asyncpg pool", "psycopg pool", "sqlalchemy engine on psycopg"])
async def test_a_chain_of_short_statements_does_not_prolong_the_life(
    shared_postgres: str, stocked: str, make_way: MakeWay, kind: str, before: str
) -> None:
    """PostgreSQL 17 and up; also where a longer limit runs already."""
    ((version,),) = execute(shared_postgres, "SELECT current_setting('server_version_num')::int")
    if version < 170000:
        pytest.skip("AIOELECT_TEST_POSTGRES is older than 17")
    name = stocked.rsplit("/", 1)[1]
    execute(stocked, f"ALTER DATABASE \"{name}\" SET transaction_timeout = '{before}'")
    way = await make_way(kind, stocked)
    began = time.monotonic()
    with ended_by_the_server():
        async with way.guard().transaction(TOKEN, resource="stock", limit=LIFE) as handle:
            while time.monotonic() - began < 20:
                await way.run(handle, "UPDATE stock SET qty = qty + 1")
                await asyncio.sleep(0.05)
    assert time.monotonic() - began < LIFE + LATE
    assert article(stocked)[0] == 100 and fence(stocked) == {}


async def test_a_holder_that_is_killed_within_a_long_statement_leaves_no_lock(stocked: str, make_way: MakeWay) -> None:
    way = await make_way("asyncpg connection", stocked)
    holding = asyncio.Event()

    async def work() -> None:
        async with way.guard().transaction(TOKEN, resource="stock", limit=60) as handle:
            holding.set()
            await way.run(handle, "SELECT pg_sleep(60)")

    holder = asyncio.create_task(work())
    await holding.wait()
    await asyncio.sleep(0.05)
    way.target.terminate()  # as the kernel does it for a process that is gone
    with pytest.raises(asyncpg.ConnectionDoesNotExistError):
        await holder
    began = time.monotonic()
    other = await make_way("asyncpg connection", stocked)
    await other.guard().admit("stock", TOKEN + 1)
    assert time.monotonic() - began < 0.1 + LATE
    with pytest.raises(StaleToken):
        await other.guard().admit("stock", TOKEN)
