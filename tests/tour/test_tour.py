"""A tour: what the three primitives do, one behaviour per test, on a real server. Read it from top to bottom."""

import asyncio

import pytest
from redis.asyncio import Redis

from aioelect import (
    AcquireTimeout,
    Elector,
    FencedLock,
    LeaderChanged,
    Lease,
    LeaseLost,
    NotAcquired,
    ReleaseOutcome,
    Term,
    TermEnded,
    TermStarted,
)
from support.wait import until


async def test_a_lease_is_taken_in_one_try_and_given_back_at_the_end_of_the_block(redis: Redis) -> None:
    async with Lease(redis, "report") as term:
        assert term.is_leader and term.is_valid
        assert await redis.exists("aioelect:{report}")
    assert not await redis.exists("aioelect:{report}")
    assert not term.is_valid


async def test_a_lease_that_another_holds_is_refused_at_once(redis: Redis) -> None:
    async with Lease(redis, "report", identity="pod-a"):
        with pytest.raises(NotAcquired, match="held by pod-a") as caught:
            async with Lease(redis, "report", identity="pod-b"):
                pytest.fail("two holders")
    assert caught.value.holder == "pod-a"


async def test_try_acquire_gives_a_term_that_is_yours_to_renew_and_release(redis: Redis) -> None:
    term = await Lease(redis, "report", ttl=2).try_acquire()
    assert term is not None
    assert await Lease(redis, "report").try_acquire() is None
    await term.renew()
    assert 1 < term.remaining() <= 2
    assert await term.release() is ReleaseOutcome.RELEASED


async def test_a_lock_is_renewed_in_the_background_as_long_as_its_block_lasts(redis: Redis) -> None:
    async with FencedLock(redis, "stock", ttl=0.3) as term:
        await asyncio.sleep(0.7)
        term.check()
        await term.renew()


async def test_waiters_stand_in_line_and_are_served_first_come_first_served(redis: Redis) -> None:
    served: list[int] = []

    async def customer(number: int) -> None:
        async with FencedLock(redis, "counter"):
            served.append(number)

    await asyncio.gather(*(customer(number) for number in range(5)))
    assert served == [0, 1, 2, 3, 4]


async def test_a_limited_wait_ends_with_a_timeout_that_says_who_holds_the_lock(redis: Redis) -> None:
    async with FencedLock(redis, "stock", identity="pod-a"):
        with pytest.raises(AcquireTimeout, match="pod-a"):
            async with FencedLock(redis, "stock", wait=0.05):
                pytest.fail("two holders")


async def test_every_term_has_a_higher_token_than_the_one_before(redis: Redis) -> None:
    tokens: list[int] = []
    for _ in range(3):
        async with FencedLock(redis, "stock") as term:
            tokens.append(term.token)
    assert tokens == sorted(set(tokens))


async def test_a_lock_is_a_decorator_that_keeps_the_signature(redis: Redis) -> None:
    @FencedLock(redis, "stock")
    async def reserve(sku: str, *, quantity: int = 1) -> str:
        assert await redis.exists("aioelect:{stock}")
        return f"{quantity} of {sku}"

    assert await reserve("SKU-001", quantity=3) == "3 of SKU-001"


async def test_when_the_lock_is_lost_the_block_is_cancelled_and_lease_lost_is_raised(redis: Redis) -> None:
    with pytest.raises(LeaseLost, match="token"):
        async with FencedLock(redis, "stock", ttl=0.3):
            await redis.delete("aioelect:{stock}")  # an operator, or FLUSHALL
            await asyncio.sleep(10)
            pytest.fail("the block was not cancelled")


async def test_the_leader_runs_the_work_and_the_next_one_follows_when_it_ends(redis: Redis) -> None:
    async def work(term: Term) -> int:
        return term.token

    first = await Elector(redis, "scheduler").run(work)
    second = await Elector(redis, "scheduler").run(work)
    assert second > first


async def test_running_campaigns_beside_an_application_and_hands_over_at_its_end(redis: Redis) -> None:
    ended = asyncio.Event()

    async def work(term: Term) -> None:
        try:
            async for _ in term.every(60):
                pass
        finally:
            ended.set()

    async with Elector(redis, "scheduler").running(work) as elector:
        await until(lambda: elector.is_leader)
    assert ended.is_set()
    assert not await redis.exists("aioelect:{scheduler}")


async def test_lead_waits_to_be_elected_and_leads_in_a_block_with_children(redis: Redis) -> None:
    ticks: list[None] = []

    async def tick() -> None:
        while True:
            ticks.append(None)
            await asyncio.sleep(0.01)

    async with Elector(redis, "scheduler").lead() as term:
        term.start_soon(tick)
        await until(lambda: len(ticks) > 2)
    count = len(ticks)
    await asyncio.sleep(0.05)
    assert len(ticks) == count, "the child outlived its term"


async def test_a_candidacy_tells_its_story_as_events(redis: Redis) -> None:
    story: list[str] = []
    async with Elector(redis, "scheduler", identity="pod-a") as elector:
        async for event in elector:
            match event:
                case TermStarted(term=term):
                    story.append("started")
                    term.resign()
                case TermEnded(reason=reason):
                    story.append(f"ended: {reason.value}")
                case LeaderChanged(leader=leader):
                    story.append(f"leader: {leader.identity if leader else 'nobody'}")
            if len(story) == 3:
                break
    assert story[0] == "started"
    assert "ended: released" in story


async def test_resigning_lets_another_copy_lead(redis: Redis) -> None:
    async with (
        Elector(redis, "scheduler", identity="pod-a") as first,
        Elector(redis, "scheduler", identity="pod-b") as second,
    ):
        leads, follows = first, second
        if not await until(lambda: first.is_leader or second.is_leader) or second.is_leader:
            leads, follows = second, first
        (await leads.wait_elected()).resign()
        await until(lambda: follows.is_leader)
        assert not leads.is_leader
