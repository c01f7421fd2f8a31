"""Cancelled twice, or before it began; and what cancelled work may still do."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count

import anyio
import pytest

from aioelect import FencedLock, LeaseExpired, StoreUnavailable, Term
from aioelect._store import Claim
from aioelect.testing._virtual import virtual_loop
from runtime.operations import (
    Run,
    lead,
    lease_section,
    lock,
    lock_section,
    named,
    run,
    running,
    try_acquire,
    wait_elected,
)
from runtime.world import NAME, TTL, World, refuse_renewals, turns
from support.checkpoints import Steps

# -- cancelled more than once, or before -------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [0, 1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize(
    "operation", [try_acquire, lease_section, lock_section, run, lead, running, wait_elected], ids=named
)
async def test_p6_p8_a_second_cancellation_at_any_distance_changes_nothing(operation: Run, again: int) -> None:
    for at in count(1):
        world, steps = World(), Steps()
        task = asyncio.create_task(_cancelled_twice(steps, operation, world, at, again))
        await asyncio.wait({task})
        assert task.cancelled() == steps.acted
        if not steps.acted:
            await task
        await world.assert_clean()
        if not steps.acted:
            return


async def _cancelled_twice(steps: Steps, operation: Run, world: World, at: int, again: int) -> None:
    task = asyncio.current_task()
    assert task is not None

    def cancel_in(turns_left: int) -> None:
        if turns_left:
            asyncio.get_running_loop().call_soon(cancel_in, turns_left - 1)
        else:
            task.cancel()

    def cancel_twice() -> None:
        task.cancel()
        cancel_in(again)

    async def coroutine() -> None:
        await operation(world)

    await steps.through(coroutine(), at=at, act=cancel_twice)


@pytest.mark.parametrize("operation", [try_acquire, lease_section, lock_section, run, lead], ids=named)
async def test_p8_nothing_is_claimed_in_a_scope_that_is_cancelled_already(operation: Run) -> None:
    world = World()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await operation(world)
    assert scope.cancelled_caught
    assert not world.terms and world.loose is None
    await world.assert_clean()


@pytest.mark.parametrize("operation", [lease_section, lock_section, lead], ids=named)
async def test_p6_a_section_left_inside_a_cancelled_scope_is_released(operation: Run) -> None:
    world = World()
    with anyio.CancelScope() as scope:

        async def cancel_within(term: Term) -> None:
            scope.cancel()

        world.body = cancel_within  # type: ignore[method-assign]
        await operation(world)
    assert world.server.holder(NAME) is None
    await world.assert_clean()


# -- what cancelled work may do ----------------------------------------------------------------------------------------


async def test_p8_clean_up_under_the_terms_shield_runs_to_its_end_and_without_it_is_interrupted() -> None:
    world = World()
    ran: list[str] = []

    async def work(shielded: bool) -> None:
        async with lock(world) as term:
            try:
                await asyncio.sleep(10)
            finally:
                if shielded:
                    with term.cleanup():
                        await asyncio.sleep(0.3)
                        ran.append("shielded")
                else:
                    await asyncio.sleep(0.3)
                    ran.append("unshielded")

    for shielded in (True, False):
        with anyio.move_on_after(0.1):
            await work(shielded)
    assert ran == ["shielded"]
    await world.assert_clean()


@pytest.mark.parametrize("renewed", [True, False])
async def test_p8_the_terms_shield_is_bounded_by_the_life_left_and_the_drain_limit(*, renewed: bool) -> None:
    world = World()
    loop, drain = asyncio.get_running_loop(), 3 * TTL
    lock = FencedLock(world.ours, NAME, ttl=TTL, drain_limit=drain, observers=())
    with contextlib.suppress(LeaseExpired):
        async with lock as term:
            if not renewed:
                world.ours.before = refuse_renewals(StoreUnavailable("gone"))
            with anyio.CancelScope() as scope:
                scope.cancel()
                began, left = loop.time(), term.remaining()
                with term.cleanup():
                    await asyncio.sleep(60)
                assert loop.time() - began == pytest.approx(drain if renewed else left, abs=0.01)
    if renewed:
        await world.assert_clean()


@pytest.mark.parametrize("ttl", [0.3, 1.0])
async def test_p5_a_win_that_comes_after_its_own_renew_deadline_is_undone(ttl: float) -> None:
    world = World()
    world.ours.delay(0.0)
    loop = virtual_loop()

    def sleep_at_first_grant(verb: str, claim: Claim) -> None:
        if verb == "acquire" and len(world.ours.calls) == 1:
            loop.suspend(0.85 * ttl)

    world.ours.after = sleep_at_first_grant
    async with FencedLock(world.ours, NAME, ttl=ttl, wait=5, observers=()) as term:
        verbs = [verb for verb, _ in world.ours.calls]
        assert verbs == ["acquire", "release", "acquire"]
        assert len({claim.owner for _, claim in world.ours.calls}) == 2
        await world.body(term)
    await world.assert_clean()


async def test_p10_a_cancelled_waiter_hands_its_turn_on() -> None:
    """Cancelled in the very turn of the loop in which it is called up."""
    for distance in range(8):
        world = World()
        entered = asyncio.Event()

        async def wait_in_line(world: World = world, entered: asyncio.Event = entered) -> None:
            async with lock(world):
                entered.set()

        async with lock(world):
            first = asyncio.create_task(wait_in_line())
            await turns(3)
            second = asyncio.create_task(wait_in_line())
            await turns(3)
        await turns(distance)
        first.cancel()
        async with asyncio.timeout(1):
            await second
        await asyncio.wait({first})
        await world.assert_clean()
