"""Events of an elector: they alternate, a slow consumer misses whole terms, each iterator stands alone."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from aioelect import (
    Elector,
    EndReason,
    FencedLock,
    Leader,
    LeaderChanged,
    LeaderEvent,
    Term,
    TermEnded,
    TermStarted,
)
from aioelect.facts import Fact, RenewalFailed, TermBegan
from aioelect.testing._memory import MemoryServer
from runtime.conftest import Heard
from runtime.world import NAME, TTL
from support.process import Process


def assert_alternate(events: list[LeaderEvent]) -> list[Term]:
    """Started and ended in turn, each end belonging to the start before it; returns the terms."""
    own = [event for event in events if not isinstance(event, LeaderChanged)]
    for started, ended in zip(own[::2], own[1::2], strict=False):
        assert isinstance(started, TermStarted) and isinstance(ended, TermEnded)
        assert started.term is ended.term
    assert all(isinstance(event, TermStarted) for event in own[::2])
    terms = [event.term for event in own[::2]]
    tokens = [term.token for term in terms]
    assert tokens == sorted(set(tokens))
    return terms


async def churn(standing: Elector, server: MemoryServer, terms: int) -> None:
    """Let terms begin and end in every way."""
    chance = random.Random(7)
    for _ in range(terms):
        term = await standing.wait_elected()
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 0.5]))
        match chance.randrange(3):
            case 0:
                term.resign()
            case 1:
                server.seize(NAME, ttl=chance.choice([0.05, 0.5]))
            case _:
                server.erase(NAME)
        while term.end_reason is None:
            await asyncio.sleep(0.01)


async def collect(standing: Elector, into: list[LeaderEvent], pause: float) -> None:
    async for event in standing:
        into.append(event)
        await asyncio.sleep(pause)


async def test_p13_events_alternate_and_consumers_of_any_pace_miss_whole_terms_but_never_half_of_one(
    server: MemoryServer, ours: Process, heard: Heard
) -> None:
    paces = (0.0, 0.003, 0.1, 0.7, 5.0)
    seen: dict[float, list[LeaderEvent]] = {pace: [] for pace in paces}
    standing = Elector(ours, NAME, ttl=TTL, observers=[heard])
    async with standing:
        consumers = [asyncio.create_task(collect(standing, seen[pace], pace)) for pace in paces]
        await churn(standing, server, 40)
    await asyncio.wait(consumers)
    began = [fact.term.id for fact in heard if isinstance(fact, TermBegan)]
    assert len(began) >= 40
    shown = {pace: [term.id for term in assert_alternate(events)] for pace, events in seen.items()}
    assert shown[0.0] == began[: len(shown[0.0])] and len(shown[0.0]) >= 40
    for terms in shown.values():
        assert set(terms) <= set(began)
    assert 1 <= len(shown[5.0]) < len(began) / 2
    for events in seen.values():  # the last word is an end: nobody is left believing
        assert isinstance([event for event in events if not isinstance(event, LeaderChanged)][-1], TermEnded)


async def test_p13_the_reason_is_told_and_the_ended_terms_work_is_over(server: MemoryServer, ours: Process) -> None:
    over: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            over.append("child")

    reasons: list[EndReason] = []
    async with Elector(ours, NAME, ttl=TTL, observers=()) as standing:
        async for event in standing:
            if isinstance(event, TermStarted):
                event.term.start_soon(child)
                await asyncio.sleep(0.01)
                if reasons:
                    event.term.resign()
                else:
                    server.seize(NAME, ttl=0.5)
            elif isinstance(event, TermEnded):
                reasons.append(event.reason)
                assert len(over) == len(reasons)
                assert not event.term.is_leader
                if len(reasons) == 2:
                    break
    assert reasons == [EndReason.TAKEN, EndReason.RELEASED]


async def test_p13_a_new_iterator_shows_the_present_state_first(ours: Process) -> None:
    async with Elector(ours, NAME, ttl=TTL, observers=()) as standing:
        term = await standing.wait_elected()
        await asyncio.sleep(3)
        for _ in range(3):
            assert await anext(aiter(standing)) == TermStarted(term)


async def test_p13_leaving_an_iterator_does_not_resign(server: MemoryServer, ours: Process) -> None:
    async with Elector(ours, NAME, ttl=TTL, observers=()) as standing:
        async for event in standing:
            if isinstance(event, TermStarted):
                break
        with contextlib.suppress(ZeroDivisionError):
            async for _ in standing:
                raise ZeroDivisionError
        waiting = asyncio.ensure_future(_exhaust(aiter(standing)))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.sleep(5 * TTL)
        assert standing.is_leader
        assert server.holder(NAME) is not None
    assert server.holder(NAME) is None


async def _exhaust(events: AsyncIterator[LeaderEvent]) -> None:
    async for _ in events:
        pass


async def test_p13_a_consumer_that_blocks_or_raises_never_delays_a_renewal(ours: Process, heard: Heard) -> None:
    async with Elector(ours, NAME, ttl=TTL, observers=[heard]) as standing:
        events = aiter(standing)
        event = await anext(events)
        assert isinstance(event, TermStarted)
        await asyncio.sleep(50 * TTL)  # the consumer is busy with something else
        assert event.term.is_leader
    assert not heard.of(RenewalFailed)


async def test_p13_an_observer_that_raises_is_dropped_and_hurts_nothing(
    ours: Process, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(fact: Fact) -> None:
        raise ZeroDivisionError

    async with FencedLock(ours, NAME, ttl=TTL, observers=[raises, heard]) as term:
        await asyncio.sleep(3 * TTL)
        assert term.is_leader
    assert len([record for record in caplog.records if record.exc_info]) == 1
    assert heard.of(TermBegan)


async def test_p13_followers_hear_who_leads_and_when_nobody_does(
    server: MemoryServer, ours: Process, other: Process
) -> None:
    leaders: list[str | None] = []

    async def follow(standing: Elector) -> None:
        async for event in standing:
            match event:
                case LeaderChanged(leader=Leader(identity=identity)):
                    leaders.append(identity)
                case LeaderChanged():
                    leaders.append(None)

    async with FencedLock(other, NAME, ttl=TTL, identity="first", observers=()):
        standing = Elector(ours, NAME, ttl=TTL, identity="us", observers=())
        await standing.__aenter__()
        following = asyncio.create_task(follow(standing))
        await asyncio.sleep(1)
        assert leaders == ["first"]
        assert standing.leader is not None and standing.leader.identity == "first"
    term = await standing.wait_elected()
    await asyncio.sleep(0.1)
    assert leaders[-1] == "us" and set(leaders[1:-1]) <= {None}
    server.seize(NAME, ttl=1.5, identity="third")
    while term.end_reason is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert leaders[-1] == "third"
    await standing.__aexit__(None, None, None)
    await following
