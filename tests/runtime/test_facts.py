"""What observers hear beyond the course of a term: renewals, failures by class, take-overs, candidacies, lateness."""

from __future__ import annotations

import asyncio

import pytest

from aioelect import Elector, FencedLock, LeaseLost, StoreUnavailable
from aioelect.facts import (
    CandidacyBegan,
    CandidacyOver,
    LoopLag,
    RenewalConfirmed,
    RenewalFailed,
    RenewalRecovered,
    StoreFailed,
    TermBegan,
    TermStopped,
)
from aioelect.testing._memory import MemoryServer
from runtime.conftest import LATENCY, Heard
from runtime.world import NAME
from support.process import Process, fail_nth

TTL = 15.0
NEAR = pytest.approx


def _failovers(heard: Heard) -> list[float | None]:
    return [fact.failover for fact in heard if isinstance(fact, TermBegan)]


async def test_every_confirmed_renewal_tells_its_round_trip_and_the_life_that_was_left(
    ours: Process, heard: Heard
) -> None:
    async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]):
        await asyncio.sleep(16)
    confirmed = heard.of(RenewalConfirmed)
    assert len(confirmed) == 3
    for fact in confirmed:
        assert isinstance(fact, RenewalConfirmed)
        assert 0 < fact.round_trip <= 3 * LATENCY
        assert fact.life_left == NEAR(7.0, abs=0.1)  # 0.8 ttl less the interval
    assert not heard.of(StoreFailed, RenewalFailed)


async def test_a_failed_renewal_is_told_by_class_and_the_next_confirmed_one_ends_the_doubt(
    ours: Process, heard: Heard
) -> None:
    ours.before = fail_nth(1, StoreUnavailable("silence", reason="timeout"), verb="renew")
    async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]):
        await asyncio.sleep(9)
    assert heard.of(StoreFailed) == [StoreFailed(NAME, "renew", "timeout")]
    kinds = [type(fact) for fact in heard.of(RenewalFailed, RenewalConfirmed, RenewalRecovered)]
    assert kinds == [RenewalFailed, RenewalConfirmed, RenewalRecovered]
    (failed,) = heard.of(RenewalFailed)
    assert isinstance(failed, RenewalFailed) and failed.reason == "timeout"


async def test_a_renewal_that_is_answered_no_confirms_nothing(
    server: MemoryServer, ours: Process, heard: Heard
) -> None:
    with pytest.raises(LeaseLost):
        async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]):
            server.seize(NAME)
            await asyncio.sleep(20)
    assert not heard.of(RenewalConfirmed, RenewalFailed)


async def test_a_take_over_tells_the_time_since_the_last_sign_of_life_of_the_one_before(
    server: MemoryServer, ours: Process, heard: Heard
) -> None:
    server.seize(NAME, ttl=TTL)  # renewed at 0, and never again
    await asyncio.sleep(4)
    async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]):
        pass
    assert _failovers(heard) == [NEAR(TTL, abs=0.05)]


async def test_after_a_release_it_is_the_time_since_the_notice(ours: Process, other: Process, heard: Heard) -> None:
    async with FencedLock(other, NAME, ttl=TTL, observers=[]):
        waiting = asyncio.create_task(FencedLock(ours, NAME, ttl=TTL, observers=[heard]).__aenter__())
        await asyncio.sleep(7)
        assert not waiting.done()
    await (await waiting).release()
    (failover,) = _failovers(heard)
    assert failover is not None and failover < 0.05


async def test_after_a_release_in_the_same_process_it_is_the_time_since_that(ours: Process, heard: Heard) -> None:
    async with FencedLock(ours, NAME, ttl=TTL, observers=[]):
        waiting = asyncio.create_task(FencedLock(ours, NAME, ttl=TTL, observers=[heard]).__aenter__())
        await asyncio.sleep(7)
    await (await waiting).release()
    (failover,) = _failovers(heard)
    assert failover is not None and failover < 0.05


async def test_who_finds_the_name_free_takes_over_from_nobody(ours: Process, heard: Heard) -> None:
    async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]):
        pass
    assert _failovers(heard) == [None]


async def test_a_term_tells_from_anywhere_for_how_long_it_leads_and_0_from_its_stop_on(
    ours: Process, heard: Heard
) -> None:
    at_the_stop: list[float] = []

    def observer(fact: object) -> None:
        if isinstance(fact, TermStopped):
            at_the_stop.append(began.leads_for())

    async with FencedLock(ours, NAME, ttl=TTL, observers=[heard, observer]):
        (began,) = [fact for fact in heard if isinstance(fact, TermBegan)]
        assert began.leads_for() == NEAR(12.0, abs=0.1)
        assert at_the_stop == []
    assert at_the_stop == [0.0]
    assert began.leads_for() == 0.0


@pytest.mark.parametrize("form", ["run", "running", "lead", "entered"])
async def test_a_candidacy_is_told_once_from_its_beginning_to_its_end_over_all_its_terms(
    form: str, ours: Process, heard: Heard
) -> None:
    elector = Elector(ours, NAME, ttl=TTL, observers=[heard])
    match form:
        case "run":
            await elector.run(lambda term: asyncio.sleep(1))
        case "running":
            async with elector.running(lambda term: asyncio.sleep(30)):
                await asyncio.sleep(1)
        case "lead":
            async with elector.lead():
                pass
        case _:
            async with elector:
                (await elector.wait_elected()).resign()
                await asyncio.sleep(6)
                await elector.wait_elected()
    told = [type(fact) for fact in heard]
    assert told.count(CandidacyBegan) == told.count(CandidacyOver) == 1
    assert told.index(CandidacyBegan) < told.index(TermBegan)
    assert told[-1] is CandidacyOver


async def test_a_candidacy_that_fails_is_over_too(ours: Process, heard: Heard) -> None:
    async def work(_: object) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Elector(ours, NAME, ttl=TTL, observers=[heard]).run(work)
    assert len(heard.of(CandidacyOver)) == 1


async def test_while_a_term_is_held_the_lateness_of_the_loop_is_told_about_once_a_second(
    ours: Process, heard: Heard
) -> None:
    async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]):
        await asyncio.sleep(10)
        told = len(heard.of(LoopLag))
        assert 9 <= told <= 13
    await asyncio.sleep(10)
    assert len(heard.of(LoopLag)) <= told + 2
