"""Ending a term on purpose: resign, hand over, step down on request, resign when unfit; preference; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from aioelect import ConfigurationError, Elector, FencedLock, Leader, Lease, NotAcquired, NotHeld, Term, step_down
from aioelect._store import Capabilities
from aioelect.facts import FitnessChanged, StepDownAsked, StepDownHookFailed
from aioelect.testing._memory import MemoryServer
from runtime.conftest import Heard
from runtime.world import NAME, TTL, verbs
from support.process import Process

MOMENT = 0.02
"""A few round trips."""


class Crowd:
    """Several candidates, each in a process of its own, and who leads."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.led: list[str] = []
        self.terms: dict[str, Term] = {}
        self.ended_at = 0.0

    async def work(self, term: Term) -> None:
        self.led.append(term.identity)
        self.terms[term.identity] = term
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            with term.cleanup():
                await asyncio.sleep(0.05)
            self.ended_at = asyncio.get_running_loop().time()

    def elector(self, identity: str, **options: object) -> Elector:
        store = Process(self.server, key=identity, latency=0.001)
        options = {"ttl": TTL, "observers": (), **options}
        return Elector(store, NAME, identity=identity, **options)  # type: ignore[arg-type]

    @asynccontextmanager
    async def standing(self, *identities: str, **options: object) -> AsyncIterator[None]:
        """All stand; the first leads."""
        async with AsyncExitStack() as stack:
            for identity in identities:
                await stack.enter_async_context(self.elector(identity, **options).running(self.work))
                await asyncio.sleep(MOMENT)
            yield


@pytest.fixture
def crowd(server: MemoryServer) -> Crowd:
    """Candidates of one name."""
    return Crowd(server)


# -- hand over ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("notices", [True, False], ids=["with notices", "polling"])
async def test_p7_a_hand_over_goes_to_the_candidate_it_is_for(
    crowd: Crowd, server: MemoryServer, notices: bool
) -> None:
    if not notices:
        server.mute()
    async with crowd.standing("a", "b", "c", "d"):
        await asyncio.sleep(TTL)
        for heir in ("d", "b", "c", "a", "c"):
            await asyncio.sleep(TTL)  # whoever has just resigned stands again
            crowd.terms[crowd.led[-1]].hand_over(heir, within=2.0)
            await asyncio.sleep(0.05 + (MOMENT if notices else 0.3))
            assert crowd.led[-1] == heir
    assert crowd.led == ["a", "d", "b", "c", "a", "c"]


async def test_an_heir_that_does_not_come_is_waited_for_no_longer_than_a_renew_interval(crowd: Crowd) -> None:
    async with crowd.standing("a", "b"):
        crowd.terms["a"].hand_over("nobody")
        await asyncio.sleep(0.05 + TTL / 3 - MOMENT)
        assert crowd.led == ["a"]
        await asyncio.sleep(3 * MOMENT)
        assert len(crowd.led) == 2


async def test_the_reservation_counts_from_the_release_and_not_from_the_wish(crowd: Crowd) -> None:
    async def slow(term: Term) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with term.cleanup():
                await asyncio.sleep(0.8)

    async with crowd.elector("a").running(slow) as leading, crowd.standing("b", "c"):
        await asyncio.sleep(2 * TTL)
        (await leading.wait_elected()).hand_over("c", within=0.2)
        await asyncio.sleep(0.8 + MOMENT)
        assert crowd.led == ["c"]


async def test_a_lock_may_hand_over_and_who_takes_no_part_is_told_that_it_is_not_free(
    ours: Process, other: Process
) -> None:
    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        term.hand_over("heir", within=5.0)
        await asyncio.sleep(1)
    with pytest.raises(NotAcquired) as caught:
        async with Lease(other, NAME, ttl=TTL, observers=()):
            pytest.fail("it is reserved")
    assert (caught.value.reason, caught.value.holder) == ("reserved", "heir")
    async with Lease(other, NAME, ttl=TTL, identity="heir", observers=()):
        pass


@pytest.mark.parametrize(
    ("to", "within", "named"), [("", 1, "identity"), ("a\nb", 1, "identity"), ("b", 0, "within"), ("b", -1, "within")]
)
async def test_p14_a_bad_hand_over_is_refused_and_changes_nothing(
    ours: Process, to: str, within: float, named: str
) -> None:
    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        with pytest.raises(ConfigurationError, match=named):
            term.hand_over(to, within=within)
        await asyncio.sleep(TTL)
        assert term.is_leader


async def test_p14_what_can_not_be_handed_over_says_so(ours: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    term = await Lease(ours, NAME, ttl=TTL, observers=()).try_acquire()
    assert term is not None
    with pytest.raises(NotHeld, match="not supervised"):
        term.hand_over("b")
    await term.release()
    monkeypatch.setattr(Process, "capabilities", Capabilities())
    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as held:
        with pytest.raises(ConfigurationError, match=r"hand_over"):
            held.hand_over("b")
        assert held.is_leader


# -- step down ---------------------------------------------------------------------------------------------------------


async def test_a_leader_that_is_asked_steps_down_at_once_and_another_gets_it(
    crowd: Crowd, other: Process, heard: Heard
) -> None:
    async with crowd.standing("a", "b", observers=[heard]):
        asked = await step_down(other, NAME)
        term = crowd.terms["a"]
        assert asked == Leader("a", term.token, term.id)
        await asyncio.sleep(0.05 + 2 * MOMENT)
        assert crowd.led == ["a", "b"] and not term.is_leader
        assert [fact.to for fact in heard if isinstance(fact, StepDownAsked)] == [None]
        await asyncio.sleep(10 * TTL)
        assert crowd.led == ["a", "b"]  # asked once, obeyed once


async def test_without_notices_a_request_is_obeyed_with_the_next_renewal(
    crowd: Crowd, server: MemoryServer, other: Process
) -> None:
    server.mute()
    async with crowd.standing("a", "b"):
        await asyncio.sleep(TTL)
        await step_down(other, NAME, to="b")
        await asyncio.sleep(TTL / 3 + 0.05 + 0.3)
        assert crowd.led == ["a", "b"]


async def test_a_request_may_name_who_is_to_follow(crowd: Crowd, other: Process) -> None:
    async with crowd.standing("a", "b", "c", "d"):
        for heir in ("d", "b", "c"):
            await asyncio.sleep(TTL)
            await step_down(other, NAME, to=heir)
            await asyncio.sleep(0.05 + 2 * MOMENT)
            assert crowd.led[-1] == heir


async def test_where_nobody_leads_or_no_elector_does_nothing_is_stopped(ours: Process, other: Process) -> None:
    assert await step_down(other, NAME) is None
    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        assert await step_down(other, NAME) is not None
        await asyncio.sleep(3 * TTL)
        assert term.is_leader


async def test_following_requests_costs_the_leader_no_command(crowd: Crowd) -> None:
    standing = crowd.elector("a")
    async with standing:
        await standing.wait_elected()
        await asyncio.sleep(30 * TTL)
        store = standing._session.store
        assert isinstance(store, Process)
        assert verbs(store).count("renew") == len(verbs(store)) - 1 <= 91


@pytest.mark.parametrize("hook_takes", [0.5, 60.0], ids=["in time", "too long"])
async def test_a_hook_may_delay_the_step_down_but_not_for_ever(
    crowd: Crowd, other: Process, heard: Heard, hook_takes: float
) -> None:
    saw: list[Term] = []

    async def hook(term: Term) -> None:
        saw.append(term)
        await asyncio.sleep(hook_takes)

    async with crowd.standing("a", "b", before_step_down=hook, drain_limit=2.0, observers=[heard]):
        for _ in range(3):
            await step_down(other, NAME)
        await asyncio.sleep(min(hook_takes, 2.0) - MOMENT)
        assert crowd.led == ["a"] and saw == [crowd.terms["a"]] and saw[0].is_leader
        await asyncio.sleep(0.05 + 3 * MOMENT)
        assert crowd.led == ["a", "b"]
    assert len(heard.of(StepDownHookFailed)) == (hook_takes > 2)


async def test_a_hook_that_raises_is_reported_and_the_leader_steps_down(
    crowd: Crowd, other: Process, heard: Heard
) -> None:
    async def hook(term: Term) -> None:
        raise ZeroDivisionError

    async with crowd.standing("a", "b", before_step_down=hook, observers=[heard]):
        await step_down(other, NAME)
        await asyncio.sleep(0.05 + 2 * MOMENT)
        assert crowd.led == ["a", "b"]
    (failed,) = heard.of(StepDownHookFailed)
    assert isinstance(failed, StepDownHookFailed) and "ZeroDivisionError" in failed.cause


async def test_a_hook_in_progress_ends_with_the_term(crowd: Crowd, other: Process) -> None:
    over: list[bool] = []

    async def hook(term: Term) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            over.append(True)

    async with crowd.standing("a", before_step_down=hook, drain_limit=30.0):
        await step_down(other, NAME)
        await asyncio.sleep(1)
        assert not over
    assert over


async def test_lead_ends_in_silence_when_it_is_asked_to(crowd: Crowd, other: Process) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with crowd.elector("a").lead() as term:
        await step_down(other, NAME)
        await asyncio.sleep(60)
    assert not term.is_valid and loop.time() - began < 1


# -- preference --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("notices", [True, False], ids=["with notices", "polling"])
async def test_a_candidate_of_a_higher_weight_leads_next_however_the_term_ended(
    crowd: Crowd, server: MemoryServer, notices: bool
) -> None:
    if not notices:
        server.mute()
    async with (
        crowd.standing("a", weight=1),
        crowd.standing("far", weight=1),
        crowd.standing("near", weight=9),
        crowd.standing("middle", weight=5),
    ):
        await asyncio.sleep(5 * TTL)
        assert crowd.led == ["a"]  # a better candidate disturbs nobody
        for end in ("resign", "erase", "resign"):
            await asyncio.sleep(5 * TTL)
            if end == "resign":
                crowd.terms[crowd.led[-1]].resign()
            else:
                server.erase(NAME)
            await asyncio.sleep(0.35 + 0.05 + MOMENT)
            if end == "resign":
                assert crowd.led[-1] == ("near" if crowd.led[-2] != "near" else "middle")
    assert crowd.led[1] == "near"


async def test_a_preferred_candidate_that_is_gone_delays_the_others_once_and_briefly(
    crowd: Crowd, server: MemoryServer
) -> None:
    loop = asyncio.get_running_loop()
    async with crowd.standing("a"):
        async with crowd.standing("near", weight=9):
            await asyncio.sleep(TTL)
        async with crowd.standing("far"):
            await asyncio.sleep(TTL)
            crowd.terms["a"].resign()
            began = loop.time()
            while crowd.led == ["a"]:
                await asyncio.sleep(0.001)
            assert 0.3 < loop.time() - began < 0.5
            crowd.terms["far"].resign()
            await asyncio.sleep(15)  # by then it isn't listed any more
            crowd.terms[crowd.led[-1]].resign()
            led = len(crowd.led)
            await asyncio.sleep(0.05 + 2 * MOMENT)
            assert len(crowd.led) == led + 1


# -- conditions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async", "raising", "hanging"])
async def test_a_candidate_that_is_not_fit_does_not_stand_and_a_leader_that_stays_unfit_resigns(
    crowd: Crowd, heard: Heard, kind: str
) -> None:
    fit = True

    def sync() -> bool:
        return fit

    async def answering() -> bool:
        await asyncio.sleep(0.001)
        return fit

    async def raising() -> bool:
        assert fit
        return True

    async def hanging() -> bool:
        if not fit:
            await asyncio.sleep(3600)
        return True

    checks: dict[str, Callable[[], bool | Awaitable[bool]]] = {
        "sync": sync,
        "async": answering,
        "raising": raising,
        "hanging": hanging,
    }
    ready = checks[kind]
    async with crowd.standing("a", ready=ready, observers=[heard]), crowd.standing("b"):
        await asyncio.sleep(3 * TTL)
        fit = False
        await asyncio.sleep(0.5 * TTL)
        fit = True  # a short spell is forgiven
        await asyncio.sleep(5 * TTL)
        assert crowd.led == ["a"]
        fit = False
        await asyncio.sleep(3 * TTL)
        assert crowd.led == ["a", "b"]
        crowd.terms["b"].resign()
        await asyncio.sleep(10 * TTL)
        assert crowd.led == ["a", "b", "b"]
        fit = True
        await asyncio.sleep(2 * TTL)
        crowd.terms["b"].resign()
        await asyncio.sleep(TTL)
        assert crowd.led == ["a", "b", "b", "a"]
    changes = [fact.fit for fact in heard if isinstance(fact, FitnessChanged)]
    assert changes == [False, True] * (len(changes) // 2) and 2 <= len(changes) <= 6


async def test_a_candidate_that_becomes_unfit_leaves_the_line(crowd: Crowd, server: MemoryServer) -> None:
    fit = True
    async with crowd.standing("a"), crowd.standing("b", ready=lambda: fit):
        await asyncio.sleep(TTL)
        assert [c.identity for c in server.describe(NAME).candidates] == ["b"]
        fit = False
        await asyncio.sleep(TTL)
        assert len(server.channels) == 1, "both listen"


async def test_an_unfit_candidate_can_be_left(crowd: Crowd) -> None:
    async with crowd.standing("a", ready=lambda: False):
        await asyncio.sleep(10)
    assert not crowd.led
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5), crowd.elector("a", ready=lambda: False).lead():
            pytest.fail("it is not fit")


@pytest.mark.parametrize("field", ["ready", "before_step_down"])
async def test_p14_what_can_not_be_called_is_refused(ours: Process, field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Elector(ours, NAME, **{field: "text"})  # type: ignore[arg-type]
