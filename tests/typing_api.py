"""What users write, held against the type checker by `make check`; never run."""

import sqlite3
from typing import assert_type

import psycopg
import redis as sync_redis
from psycopg_pool import AsyncConnectionPool
from redis.asyncio import Redis, RedisCluster
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from aioelect import Elector, FencedLock, LeaderChanged, Lease, Term, TermEnded, TermStarted, aclose
from aioelect.facts import Fact, TermOver
from aioelect.fencing import Gate, PostgresGuard, PostgresSequence, RedisGuard, SqliteGuard, TokenSource


async def work(term: Term) -> int:
    return term.token


async def a_value_may_be_returned_from_inside_a_section(redis: Redis) -> int:
    async with FencedLock(redis, "a", wait=5) as term:
        return term.token


async def and_from_inside_a_lease(redis: RedisCluster) -> int:
    async with Lease(redis, "a") as term:
        return term.token


async def run_returns_what_the_work_returns(redis: Redis) -> int:
    return await Elector(redis, "a").run(work)


async def the_forms_of_an_elector(redis: Redis) -> bool:
    async with Elector(redis, "a").running(work) as elector:
        leads = elector.is_leader
    async with Elector(redis, "a").lead() as term:
        term.start_soon(work, term)
        async for _ in term.every(5):
            term.check()
    async with Elector(redis, "a") as standing:
        async for event in standing:
            match event:
                case TermStarted(term=begun):
                    begun.resign()
                case TermEnded(reason=reason):
                    print(reason.value)
                case LeaderChanged(leader=leader):
                    print(leader.identity if leader else None)
    await aclose(redis)
    return leads


def a_decorator_keeps_the_signature(redis: Redis) -> None:
    @FencedLock(redis, "a")
    async def reserve(sku: str, *, quantity: int = 1) -> str:
        return f"{quantity} of {sku}"

    async def use() -> str:
        await reserve(1)  # type: ignore[arg-type]
        return await reserve("SKU-001", quantity=3)

    print(use)


def clients_that_block_are_refused(redis: sync_redis.Redis) -> None:
    Elector(redis, "a")  # type: ignore[arg-type]
    Elector("redis://localhost", "a")  # type: ignore[arg-type]


def observer(fact: Fact) -> None:
    if isinstance(fact, TermOver):
        print(fact.outcome)


def an_observer_is_a_callable(redis: Redis) -> None:
    Lease(redis, "a", observers=[observer])


async def a_guard_hands_out_what_its_driver_calls_a_connection(
    term: Term, engine: AsyncEngine, session: AsyncSession, pool: AsyncConnectionPool, redis: Redis
) -> None:
    async with PostgresGuard(engine).transaction(term) as of_the_engine:
        assert_type(of_the_engine, AsyncConnection)
    async with PostgresGuard(session).transaction(33, resource="stock", limit=5) as of_the_session:
        assert_type(of_the_session, AsyncSession)
    async with PostgresGuard(pool).transaction(term) as of_the_pool:
        assert_type(of_the_pool, psycopg.AsyncConnection)
    assert_type(await PostgresGuard(pool).update(term, "stock", {"sku": "a"}, {"qty": 1}), int)
    gates: list[Gate] = [PostgresGuard(pool), RedisGuard(redis), SqliteGuard(sqlite3.connect(":memory:"))]
    sources: list[TokenSource] = [PostgresSequence(pool)]
    FencedLock(redis, "a", tokens=sources[0])
    await gates[0].admit("stock", 33)
