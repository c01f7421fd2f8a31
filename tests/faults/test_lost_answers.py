"""Answers that get lost, requests that arrive late, releases that are cut short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from aioelect import ReleaseOutcome, StoreUnavailable, Term
from aioelect.facts import TermBegan, TermOver
from faults.conftest import MakePeer, Peer, acquiring, claim_key, releasing
from support.rules import Command, Rule
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

NAME = "job"
KEY = claim_key(NAME)
LONG = 20.0
"""A ttl that outlasts every limit in here: whoever gets in does not owe it to expiry."""
SLACK = 1.5
"""Seconds that a busy machine may add."""

FATES: dict[str, Callable[[Rule], object]] = {
    "held": Rule.hold,
    "dropped": Rule.drop,
    "closed": Rule.cut,
    "reset": lambda rule: rule.cut(reset=True),
}


def exists(server: Server) -> bool:
    """Whether anybody's claim lies in the server."""
    return bool(server.call("EXISTS", KEY))


# -- acquiring ---------------------------------------------------------------------------------------------------------


async def hold(peer: Peer, ttl: float, wait: float | None = None) -> None:
    async with peer.lock(NAME, ttl=ttl, wait=wait):
        pytest.fail("the body ran without a confirmed token")


async def its_own_limit(peer: Peer, rule: Rule, ttl: float) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await hold(peer, ttl, wait=0.3)
    assert caught.value.name == NAME
    assert caught.value.waited is not None and caught.value.waited >= 0.25


async def task_cancel(peer: Peer, rule: Rule, ttl: float) -> None:
    task = asyncio.create_task(hold(peer, ttl))
    await rule.reached()
    task.cancel("the caller's own")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def asyncio_timeout(peer: Peer, rule: Rule, ttl: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await hold(peer, ttl)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def anyio_scope(peer: Peer, rule: Rule, ttl: float) -> None:
    with pytest.raises(TimeoutError), anyio.fail_after(0.3):
        await hold(peer, ttl)


Leave = Callable[[Peer, Rule, float], Awaitable[None]]


@pytest.mark.parametrize(
    "leave", [its_own_limit, task_cancel, asyncio_timeout, anyio_scope], ids=lambda leave: leave.__name__
)
@pytest.mark.parametrize("fate", ["held", "reset"])
async def test_p5_an_acquisition_whose_answers_get_lost_is_undone_when_its_caller_leaves(
    make_peer: MakePeer, fate: str, leave: Leave
) -> None:
    first, second = await make_peer(), await make_peer()
    rule = first.proxy.reply(acquiring, times=None)
    FATES[fate](rule)
    await leave(first, rule, LONG)
    assert rule.hits, "the server never granted the claim, so nothing was tested"
    async with second.lock(NAME, ttl=LONG, wait=2.0):
        pass


@pytest.mark.parametrize("leave", [its_own_limit, task_cancel], ids=lambda leave: leave.__name__)
async def test_p5_a_request_that_arrives_after_its_caller_left_keeps_others_out_for_one_ttl_at_most(
    server: Server, make_peer: MakePeer, leave: Leave
) -> None:
    ttl = 1.0
    first, second = await make_peer(), await make_peer()
    rule = first.proxy.request(acquiring, times=None).hold()
    await leave(first, rule, ttl)
    assert not exists(server)
    rule.release()
    await until(lambda: server.call("EXISTS", f"{KEY}:fence"))  # it has arrived
    arrived = time.monotonic()
    async with second.lock(NAME, ttl=LONG, wait=ttl + SLACK):
        waited = time.monotonic() - arrived
    assert waited < ttl + SLACK


@pytest.mark.parametrize(
    ("fate", "options"),
    [
        ("held", {}),
        ("dropped", {}),
        ("closed", {}),
        ("reset", {}),
        ("reset", {"retry": Retry(ExponentialBackoff(), 10)}),
        ("held", {"retry": Retry(ExponentialBackoff(), 10), "socket_timeout": 0.1}),
        ("reset", {"single_connection_client": True}),
        ("dropped", {"protocol": 3, "decode_responses": True, "health_check_interval": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "defaults",
)
async def test_p5_a_lost_reply_and_a_client_with_retries_of_its_own_make_one_acquisition_with_one_token(
    server: Server, make_peer: MakePeer, fate: str, options: dict[str, Any]
) -> None:
    tokens: list[bytes] = []

    def granted(command: Command) -> bool:
        if acquiring(command):
            tokens.append(server.call("HGET", f"{KEY}:fence", "token"))
        return acquiring(command)

    peer = await make_peer(**options)
    before = len(peer.proxy.commands)
    FATES[fate](peer.proxy.reply(granted))
    async with peer.lock(NAME, ttl=2.0, wait=10.0) as term:
        tries = [command for command in peer.proxy.commands[before:] if acquiring(command)]
        assert len(tries) == 2
        assert tries[0].args == tries[1].args  # one owner value, one floor: the same question
        assert tokens == [b"%d" % term.token] * 2
    assert len(peer.journal.of(TermBegan)) == 1
    assert not exists(server)


# -- releasing ---------------------------------------------------------------------------------------------------------


def outcomes(peer: Peer) -> list[ReleaseOutcome | None]:
    """What became of the claims that this participant gave up."""
    return [fact.outcome for fact in peer.journal.of(TermOver)]


@pytest.mark.parametrize("fate", FATES)
async def test_p6_a_release_whose_answer_gets_lost_is_repeated_and_is_no_loss(
    server: Server, make_peer: MakePeer, fate: str
) -> None:
    peer = await make_peer()
    async with peer.lock(NAME, ttl=LONG):
        FATES[fate](peer.proxy.reply(releasing))
    assert not exists(server)
    assert outcomes(peer) == [ReleaseOutcome.UNCONFIRMED]


async def held_until(leave: asyncio.Event, peer: Peer, terms: list[Term]) -> None:
    async with peer.lock(NAME, ttl=LONG) as term:
        terms.append(term)
        await leave.wait()


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("where", ["request", "reply"])
async def test_p6_a_release_that_is_cancelled_goes_on_and_may_be_repeated(
    server: Server, make_peer: MakePeer, where: str, cancels: int
) -> None:
    peer = await make_peer()
    leave, terms = asyncio.Event(), list[Term]()
    task = asyncio.create_task(held_until(leave, peer, terms))
    await until(lambda: terms)
    rule: Rule = getattr(peer.proxy, where)(releasing).hold()
    leave.set()
    await rule.reached()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([task], timeout=2.0 + SLACK)
    assert task.cancelled()
    assert not exists(server)
    assert await terms[0].release() in (ReleaseOutcome.RELEASED, ReleaseOutcome.UNCONFIRMED)
    assert len(outcomes(peer)) == 1


async def test_p6_a_cancellation_that_waits_for_the_end_of_the_body_does_not_stop_the_release(
    server: Server, make_peer: MakePeer
) -> None:
    peer = await make_peer()

    async def work() -> None:
        async with peer.lock(NAME, ttl=LONG):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # delivered at the first await after the body

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    assert task.cancelled()
    assert not exists(server)
    assert outcomes(peer) == [ReleaseOutcome.RELEASED]


async def test_p6_a_body_that_is_left_inside_a_cancelled_scope_releases(server: Server, make_peer: MakePeer) -> None:
    peer = await make_peer()
    with anyio.CancelScope() as scope:
        async with peer.lock(NAME, ttl=LONG):
            scope.cancel()
        await asyncio.sleep(0)
        pytest.fail("a cancelled scope was left alive")
    assert not exists(server)
    assert outcomes(peer) == [ReleaseOutcome.RELEASED]


@pytest.mark.parametrize("late", [False, True], ids=["never arrived", "arrives late"])
async def test_p6_a_release_without_an_answer_takes_two_seconds_and_a_second_one_is_a_safe_retry(
    server: Server, make_peer: MakePeer, late: bool
) -> None:
    peer = await make_peer()
    async with peer.lock(NAME, ttl=LONG) as term:
        peer.proxy.black_hole()
        start = time.monotonic()
        assert await term.release() is ReleaseOutcome.UNKNOWN
        assert time.monotonic() - start < 2.0 + SLACK
        assert not term.is_valid
        assert exists(server)
        peer.proxy.heal(deliver=late)
        if late:
            await until(lambda: not exists(server))
        for _ in range(2):
            assert await term.release() is (ReleaseOutcome.UNCONFIRMED if late else ReleaseOutcome.RELEASED)
    assert not exists(server)


async def test_p6_a_claim_whose_release_never_arrives_ends_with_its_ttl(server: Server, make_peer: MakePeer) -> None:
    ttl = 3.0
    first, second = await make_peer(), await make_peer()
    async with first.lock(NAME, ttl=ttl):
        first.proxy.black_hole()
    assert exists(server)  # ttl is longer than the two seconds of the release
    assert outcomes(first) == [ReleaseOutcome.UNKNOWN]
    async with second.lock(NAME, ttl=ttl, wait=ttl + SLACK):
        pass
