"""Tokens from elsewhere: asked once the claim is won, checked, bounded; the claim is given back where that fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from aioelect import (
    AcquireTimeout,
    ConfigurationError,
    Elector,
    FencedLock,
    Lease,
    StoreRejected,
    StoreUnavailable,
    _tokens,
)
from aioelect._floors import Floors
from aioelect.facts import StoreFailing, StoreRecovered
from aioelect.testing._memory import MemoryServer
from aioelect.testing._virtual import virtual_loop
from runtime.conftest import Heard
from runtime.world import NAME, TTL
from support.process import Process


@pytest.fixture(autouse=True)
def _no_token_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test as a process that has seen no token."""
    monkeypatch.setattr(_tokens, "_floors", Floors(100))


@pytest.fixture
def numbers() -> Callable[[str], Awaitable[int]]:
    """Count from 33 on."""
    counter = itertools.count(33)

    async def source(name: str) -> int:
        await asyncio.sleep(0.001)
        return next(counter)

    return source


async def holds(store: Process) -> bool:
    """Whether somebody else would get the name now."""
    term = await Lease(store, NAME, ttl=TTL, observers=()).try_acquire()
    if term is not None:
        await term.release()
    return term is not None


async def test_p9_a_term_has_the_token_of_its_source_which_is_asked_with_the_claim_in_hand(
    server: MemoryServer, ours: Process, numbers: Callable[[str], Awaitable[int]]
) -> None:
    asked: list[str] = []

    async def source(name: str) -> int:
        holder = server.holder(name)
        assert holder is not None and holder.identity == "ours", "it was asked without the claim"
        asked.append(name)
        return await numbers(name)

    lock = FencedLock(ours, NAME, ttl=TTL, identity="ours", observers=(), tokens=source)
    for token in (33, 34):
        async with lock as term:
            assert term.token == token
            await term.renew()
            assert term.token == token
    term_of_a_lease = await Lease(ours, NAME, ttl=TTL, identity="ours", observers=(), tokens=source).try_acquire()
    assert term_of_a_lease is not None and term_of_a_lease.token == 35
    await term_of_a_lease.release()
    async with Elector(ours, NAME, ttl=TTL, identity="ours", observers=(), tokens=source).lead() as term:
        assert term.token == 36
    assert asked == [NAME] * 4


async def test_p5_a_source_that_fails_fails_a_single_try_and_nothing_is_left_behind(
    ours: Process, other: Process
) -> None:
    async def source(name: str) -> int:
        raise ConnectionRefusedError("postgres://user:secret@host")

    with pytest.raises(StoreUnavailable, match="the token source failed: ConnectionRefusedError") as caught:
        async with Lease(ours, NAME, ttl=TTL, observers=(), tokens=source):
            pytest.fail("it began without a token")
    assert caught.value.name == NAME and caught.value.reason == "token source"
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert await holds(other)


async def test_p11_who_waits_tries_again_until_the_source_is_back_and_lets_others_in_meanwhile(
    ours: Process, other: Process, heard: Heard
) -> None:
    back_at = virtual_loop().time() + 3 * TTL
    failures = 0

    async def source(name: str) -> int:
        nonlocal failures
        if virtual_loop().time() < back_at:
            failures += 1
            raise ConnectionRefusedError
        return 33_001

    async def others() -> int:
        turns = 0
        while virtual_loop().time() < back_at - TTL:
            async with FencedLock(other, NAME, ttl=TTL, wait=TTL, observers=()):
                turns += 1
            await asyncio.sleep(0.1)
        return turns

    rival = asyncio.create_task(others())
    async with FencedLock(ours, NAME, ttl=TTL, observers=[heard], tokens=source) as term:
        assert term.token == 33_001
        assert virtual_loop().time() >= back_at
    assert await rival > 5, "the name was blocked while there were no tokens"
    owners = {claim.owner for verb, claim in ours.calls if verb == "acquire"}
    assert len(owners) == failures + 1 > 3, "the undoing of one try, if it came late, would undo the next one"
    assert len(heard.of(StoreFailing)) == len(heard.of(StoreRecovered)) == 1

    async def never(name: str) -> int:
        raise ConnectionRefusedError

    with pytest.raises(StoreUnavailable):
        async with FencedLock(ours, NAME, ttl=TTL, wait=1, observers=(), tokens=never):
            pytest.fail("it began without a token")
    assert await holds(other)


async def test_p11_a_candidate_stands_again_after_an_outage_of_its_token_source(ours: Process) -> None:
    answers: list[int | None] = [101, None, None, None, 102]
    seen: list[int] = []

    async def source(name: str) -> int:
        answer = answers.pop(0)
        if answer is None:
            raise ConnectionRefusedError
        return answer

    elector = Elector(ours, NAME, ttl=TTL, observers=(), tokens=source)

    async with elector:
        for _ in range(2):
            term = await elector.wait_elected()
            seen.append(term.token)
            term.resign()
            while elector.is_leader:
                await asyncio.sleep(0.01)
    assert seen == [101, 102]


@pytest.mark.parametrize("deaf", [False, True], ids=["silent", "silent and deaf to its cancellation"])
async def test_p5_a_silent_source_is_waited_for_up_to_the_renew_deadline_at_most(
    ours: Process, other: Process, deaf: bool
) -> None:
    async def source(name: str) -> int:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            if not deaf:
                raise
            await asyncio.sleep(5)
        return 1

    began = virtual_loop().time()
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.79") as caught:
        async with Lease(ours, NAME, ttl=TTL, observers=(), tokens=source):
            pytest.fail("it began without a token")
    assert caught.value.reason == "token timeout"
    assert virtual_loop().time() - began < 0.8 * TTL + 0.05
    assert await holds(other)

    began = virtual_loop().time()
    with pytest.raises((StoreUnavailable, AcquireTimeout)):
        async with FencedLock(ours, NAME, ttl=TTL, wait=0.3, observers=(), tokens=source):
            pytest.fail("it began without a token")
    assert virtual_loop().time() - began < 0.35
    await asyncio.sleep(6)


@pytest.mark.parametrize("again", [33, 32], ids=["the same", "a lower one"])
async def test_p9_a_source_whose_answer_has_not_risen_fails_the_acquisition_and_it_is_undone(
    ours: Process, other: Process, again: int
) -> None:
    answers = [33, again, 34]

    async def source(name: str) -> int:
        return answers.pop(0)

    lock = FencedLock(ours, NAME, ttl=TTL, observers=(), tokens=source)
    async with lock:
        pass
    with pytest.raises(StoreRejected, match=rf"answered {again}, which is not above the last one, 33") as caught:
        async with lock:
            pytest.fail("it began with an old token")
    assert caught.value.reason == "token not rising"
    assert await holds(other)
    async with lock as term:
        assert term.token == 34


@pytest.mark.parametrize("answer", [0, -1, True, "7", None, 7.0, 2**63])
async def test_p14_an_answer_that_is_no_token_is_refused(ours: Process, other: Process, answer: object) -> None:
    async def source(name: str) -> int:
        return answer  # type: ignore[return-value]

    with pytest.raises(StoreRejected, match="wanted: an int from 1 to"):
        await Lease(ours, NAME, ttl=TTL, observers=(), tokens=source).try_acquire()
    assert await holds(other)


async def test_p14_a_source_has_to_be_a_function(ours: Process) -> None:
    with pytest.raises(ConfigurationError, match="tokens is a int"):
        FencedLock(ours, NAME, observers=(), tokens=7)  # type: ignore[arg-type]


async def test_a_holders_number_in_the_store_is_not_passed_off_as_its_token(
    ours: Process, other: Process, numbers: Callable[[str], Awaitable[int]]
) -> None:
    async with FencedLock(other, NAME, ttl=TTL, identity="them", observers=(), tokens=numbers):
        with pytest.raises(AcquireTimeout) as caught:
            async with FencedLock(ours, NAME, ttl=TTL, wait=0.1, observers=(), tokens=numbers):
                pytest.fail("two hold it")
    assert caught.value.holder == "them" and caught.value.token is None


async def test_p1_a_token_that_comes_after_the_renew_deadline_starts_nothing(ours: Process, other: Process) -> None:
    """The loop was blocked while the answer lay there."""

    async def source(name: str) -> int:
        virtual_loop().pause(TTL)
        return 7

    with pytest.raises(AcquireTimeout):
        async with FencedLock(ours, NAME, ttl=TTL, wait=0.5 * TTL, observers=(), tokens=source):
            pytest.fail("it began too late")
    assert await holds(other)
