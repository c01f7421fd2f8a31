"""The public operations, as the cancellation tests run them, and the circumstances that they run in."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aioelect import Elector, FencedLock, Lease, StoreUnavailable, TermStarted
from aioelect._store import Claim
from aioelect._tokens import TokenSource
from aioelect.testing._faults import Silence
from runtime.world import NAME, TTL, World
from support.process import fail_nth

Run = Callable[[World], Awaitable[None]]

_numbers = itertools.count(1)


def lease(world: World) -> Lease:
    return Lease(world.ours, NAME, ttl=TTL, observers=(), tokens=world.tokens)


def lock(world: World) -> FencedLock:
    return FencedLock(world.ours, NAME, ttl=TTL, wait=10, observers=(), tokens=world.tokens)


def elector(world: World) -> Elector:
    return Elector(world.ours, NAME, ttl=TTL, observers=(), tokens=world.tokens)


# -- the operations ----------------------------------------------------------------------------------------------------


async def try_acquire(world: World) -> None:
    world.loose = await lease(world).try_acquire()
    assert world.loose is not None


async def lease_section(world: World) -> None:
    async with lease(world) as term:
        await world.body(term)


async def lock_section(world: World) -> None:
    async with lock(world) as term:
        await world.body(term)


async def lock_with_children(world: World) -> None:
    async with lock(world) as term:
        term.start_soon(world.endless, term)
        await asyncio.sleep(0.002)


async def decorated(world: World) -> None:
    @lock(world)
    async def section() -> None:
        assert world.server.holder(NAME) is not None
        await asyncio.sleep(0.002)

    await section()


async def renew_and_release(world: World) -> None:
    async with lock(world) as term:
        await term.renew()
        await world.body(term)
        await term.release()
        await asyncio.sleep(0)


async def cleanup(world: World) -> None:
    async with lock(world) as term:
        try:
            await asyncio.sleep(0.002)
        finally:
            with term.cleanup():
                await world.body(term)


async def run(world: World) -> None:
    await elector(world).run(world.body)


async def running(world: World) -> None:
    async with elector(world).running(world.endless):
        await world.began.wait()
        await asyncio.sleep(0.002)


async def lead(world: World) -> None:
    async with elector(world).lead() as term:
        await world.body(term)


async def every(world: World) -> None:
    async with elector(world).lead() as term:
        async for _ in term.every(0.002):
            await world.body(term)
            if len(world.terms) > 2:
                break


async def wait_elected(world: World) -> None:
    async with elector(world) as standing:
        term = await standing.wait_elected()
        term.start_soon(world.endless, term)
        await asyncio.sleep(0.004)


async def events(world: World) -> None:
    async with elector(world) as standing:
        async for event in standing:
            if isinstance(event, TermStarted):
                event.term.start_soon(world.body, event.term)
                await asyncio.sleep(0.001)
                event.term.resign()
            elif world.terms:
                break


@dataclass(frozen=True)
class Arrangement:
    """What the operation finds."""

    name: str
    prepare: Callable[[World], None]
    free_within: float = 0.05

    def __repr__(self) -> str:
        return self.name


def alone(world: World) -> None:
    pass


def behind_another_process(world: World) -> None:
    world.rival(world.theirs, 0.02)


def behind_our_own_process(world: World) -> None:
    world.rival(world.ours, 0.02)


def answers_to_acquire_lost(world: World) -> None:
    world.ours.after = fail_nth(1, StoreUnavailable("the answer got lost"), verb="acquire")


def tokens_from_elsewhere(world: World) -> None:
    world.tokens = slow_counter(0)


def tokens_from_elsewhere_at_the_second_try(world: World) -> None:
    world.tokens = slow_counter(1)


def slow_counter(failures: int) -> TokenSource:
    """Count up, after so many failures; takes a while."""

    async def source(name: str) -> int:
        nonlocal failures
        await asyncio.sleep(0.001)
        if failures:
            failures -= 1
            raise ConnectionRefusedError
        return next(_numbers)

    return source


def silent_store(world: World) -> None:
    """Acquisitions are carried out, but no request is ever answered; releases don't even arrive."""

    def not_arriving(verb: str, claim: Claim) -> None:
        if verb == "release":
            raise Silence

    def unanswered(verb: str, claim: Claim) -> None:
        raise Silence

    world.ours.before, world.ours.after = not_arriving, unanswered


ALONE = Arrangement("alone", alone)
OPERATIONS: list[tuple[Run, Arrangement]] = [
    *(
        (operation, ALONE)
        for operation in (
            try_acquire,
            lease_section,
            lock_section,
            lock_with_children,
            decorated,
            renew_and_release,
            cleanup,
            run,
            running,
            lead,
            every,
            wait_elected,
            events,
        )
    ),
    *(
        (operation, Arrangement("behind another process", behind_another_process))
        for operation in (lock_section, run, running, lead, wait_elected)
    ),
    *(
        (operation, Arrangement("behind our own process", behind_our_own_process))
        for operation in (lock_section, run, lead)
    ),
    *(
        (operation, Arrangement("an answer lost", answers_to_acquire_lost))
        for operation in (try_acquire, lease_section, lock_section, run, lead)
    ),
    *(
        (operation, Arrangement("tokens from elsewhere", tokens_from_elsewhere))
        for operation in (try_acquire, lease_section, lock_section, run, lead)
    ),
    *(
        (operation, Arrangement("tokens from elsewhere at the second try", tokens_from_elsewhere_at_the_second_try))
        for operation in (lock_section, run)
    ),
]


def named(value: object) -> str:
    """For the ids of tests."""
    return getattr(value, "__name__", repr(value)).replace("_", " ")
