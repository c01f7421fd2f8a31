"""A cancellation at any await point of any operation: it comes out, and nothing is left behind.

Each operation is run again and again and cancelled at its first, second, third ... checkpoint, until one run has fewer
checkpoints than that: by `task.cancel()`, by `asyncio.timeout` and by an anyio scope; as the task goes to sleep there
("early"), and when what it waits for has just come true ("late").
"""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from aioelect import Elector, FencedLock, StoreUnavailable, TermStarted
from runtime.operations import (
    OPERATIONS,
    Arrangement,
    Run,
    elector,
    lead,
    lease,
    lease_section,
    lock,
    lock_section,
    named,
    run,
    silent_store,
    try_acquire,
)
from runtime.world import NAME, TTL, Canceller, World, by_scope, by_task_cancel, by_timeout, turns

MOST = 400
"""No operation here has that many checkpoints."""

by_all_means = pytest.mark.parametrize("cancelled", [by_task_cancel, by_timeout, by_scope], ids=named)
early_or_late = pytest.mark.parametrize("late", [False, True], ids=["early", "late"])


@early_or_late
@by_all_means
@pytest.mark.parametrize(("operation", "arrangement"), OPERATIONS, ids=named)
async def test_p5_p6_p7_p8_a_cancellation_at_any_await_point_comes_out_and_leaves_nothing(
    operation: Run, arrangement: Arrangement, cancelled: Canceller, late: bool
) -> None:
    for at in count(1):
        assert at < MOST
        world = World()
        arrangement.prepare(world)
        await world.rivals_hold()
        try:
            reached = await cancelled(lambda world=world: operation(world), at, late)  # type: ignore[misc]
            await world.assert_clean()
        except BaseException as error:
            error.add_note(f"cancelled at checkpoint {at}")
            raise
        if not reached:
            assert at > 1, "the operation has no checkpoint"
            return


# -- a store that does not answer --------------------------------------------------------------------------------------


@early_or_late
@by_all_means
@pytest.mark.parametrize("operation", [try_acquire, lease_section, lock_section, run, lead], ids=named)
async def test_p5_where_the_store_is_silent_a_cancelled_acquisition_is_bounded_and_its_claim_ends_with_the_ttl(
    operation: Run, cancelled: Canceller, late: bool
) -> None:
    for at in count(1):
        world = World()
        silent_store(world)
        loop = asyncio.get_running_loop()

        async def bounded(world: World = world) -> None:
            async with asyncio.timeout(30):
                try:
                    await operation(world)
                except StoreUnavailable:
                    await asyncio.sleep(0)

        began = loop.time()
        reached = await cancelled(bounded, at, late)
        asked = [claim for verb, claim in world.ours.calls if verb == "acquire"]
        assert loop.time() - began < at * TTL + 3
        assert not world.terms and world.loose is None
        world.ours.before = world.ours.after = lambda verb, claim: None
        await asyncio.sleep(2.1)  # the undoing goes on for 2 s, detached
        assert len({claim.owner for claim in asked}) == 1
        await world.assert_clean(free_within=TTL)
        if not reached or at == 12:
            return


@by_all_means
async def test_p6_where_the_store_is_silent_a_cancelled_release_takes_2_s_and_the_claim_ends_with_the_ttl(
    cancelled: Canceller,
) -> None:
    async def release(world: World) -> None:
        async with lock(world) as term:
            await world.body(term)
            silent_store(world)

    for at in count(1):
        world = World()
        loop = asyncio.get_running_loop()
        began = loop.time()
        reached = await cancelled(lambda world=world: release(world), at, late=False)  # type: ignore[call-arg,misc]
        assert loop.time() - began < 2.2
        world.ours.before = world.ours.after = lambda verb, claim: None
        await world.assert_clean(free_within=TTL)
        if not reached:
            return


# -- what a cancellation leaves as it was ------------------------------------------------------------------------------


@early_or_late
@by_all_means
async def test_p8_a_cancelled_renewal_leaves_the_term_as_it_was(cancelled: Canceller, late: bool) -> None:
    for at in count(1):
        world = World()
        term = await lease(world).try_acquire()
        assert term is not None
        reached = await cancelled(term.renew, at, late)
        assert term.is_leader and term.end_reason is None
        world.assert_claimed(term)
        await term.renew()
        world.loose = term
        await world.assert_clean()
        if not reached:
            return


@early_or_late
@by_all_means
async def test_p6_a_cancelled_release_is_carried_out_and_a_second_one_is_safe(cancelled: Canceller, late: bool) -> None:
    for at in count(1):
        world = World()
        term = await lease(world).try_acquire()
        assert term is not None
        reached = await cancelled(term.release, at, late)
        assert world.server.holder(NAME) is None
        await world.assert_clean()
        async with FencedLock(world.theirs, NAME, ttl=TTL, observers=()) as theirs:
            await term.release()
            world.assert_claimed(theirs)
        if not reached:
            return


@early_or_late
@by_all_means
@pytest.mark.parametrize("what", ["wait_elected", "iterate"])
async def test_p13_cancelling_a_consumer_at_any_await_point_leaves_the_candidacy_alone(
    what: str, cancelled: Canceller, late: bool
) -> None:
    for at in count(1):
        world = World()
        world.rival(world.theirs, 0.02)
        await world.rivals_hold()
        async with elector(world) as standing:

            async def consume(standing: Elector = standing) -> None:
                if what == "wait_elected":
                    await standing.wait_elected()
                    return
                async for event in standing:
                    if isinstance(event, TermStarted):
                        return

            reached = await cancelled(consume, at, late)
            term = await standing.wait_elected()
            await turns(3)
            assert standing.is_leader and term.is_leader
            world.assert_claimed(term)
        await world.assert_clean()
        if not reached:
            return
