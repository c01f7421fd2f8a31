"""Time passes and nobody notices: the loop is blocked, the process is stopped, the machine is suspended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from aioelect import EndReason, LeaseExpired, Term, _clock, aclose
from aioelect.facts import RenewalFailed, RenewalRecovered, TermStopped
from faults.conftest import Journal, MakePeer, Peer, renewing
from support.candidate import assert_one_at_a_time, candidate, now, reigns
from support.proxy import ThreadedProxy
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

SLACK = 1.5
"""Seconds that a busy machine may add."""


@pytest.fixture
async def peer(server: Server) -> AsyncIterator[Peer]:
    """A participant whose network goes on while the test blocks the loop."""
    with ThreadedProxy(server) as proxy:
        peer = Peer(proxy, proxy.client())
        await peer.warm_up()
        yield peer
        proxy.clear()
        await aclose(peer.redis)
        await peer.redis.aclose()


def reasons(journal: Journal) -> list[EndReason]:
    """Why work was told to stop, each time."""
    return [fact.reason for fact in journal.of(TermStopped)]


# -- the loop is blocked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["on its way", "none"])
async def test_p2_after_the_loop_was_blocked_for_longer_than_ttl_the_term_is_invalid_without_an_await(
    peer: Peer, answer: str
) -> None:
    ttl = 1.0
    with pytest.raises(LeaseExpired):
        async with peer.lock("blocked", ttl=ttl) as term:
            if answer == "on its way":
                # A renewal was carried out; its answer reaches the socket while nobody reads.
                rule = peer.proxy.reply(renewing).hold()
                await rule.reached()
                threading.Timer(0.2, rule.release).start()
            time.sleep(1.3 * ttl)
            assert not term.is_valid
            assert not term.is_leader
            assert term.remaining() == 0.0
            with pytest.raises(LeaseExpired):
                term.check()
            await asyncio.sleep(30)
            pytest.fail("the body went on")
    assert not term.is_valid
    assert reasons(peer.journal) == [EndReason.EXPIRED]
    assert not peer.journal.of(RenewalRecovered)


async def test_p8_a_body_that_never_awaits_stops_at_the_first_check_after_its_deadline(peer: Peer) -> None:
    ttl = 1.0
    effects: list[float] = []
    with pytest.raises(LeaseExpired):
        async with peer.lock("blocking", ttl=ttl) as term:
            held_at = time.monotonic()
            for _ in range(10):
                term.check()
                effects.append(time.monotonic() - held_at)
                time.sleep(0.4 * ttl)
    assert 1 <= len(effects) <= 3
    assert max(effects) < ttl


async def test_p3_a_loop_that_was_blocked_for_less_than_the_renew_deadline_goes_on(peer: Peer) -> None:
    ttl = 1.6
    async with peer.lock("blocked", ttl=ttl) as term:
        time.sleep(0.5 * ttl)
        assert term.is_leader
        await asyncio.sleep(0.6 * ttl)  # past what the first grant covered
        assert term.is_leader
        term.check()
    assert reasons(peer.journal) == [EndReason.RELEASED]


async def test_p3_between_renew_deadline_and_deadline_the_work_has_to_stop_but_can_still_prove_itself(
    peer: Peer,
) -> None:
    ttl = 2.0
    with pytest.raises(LeaseExpired):
        async with peer.lock("blocked", ttl=ttl) as term:
            time.sleep(term.remaining() - 0.15 * ttl)
            assert not term.is_leader
            assert term.is_valid
            term.check()
            await asyncio.sleep(30)
    assert reasons(peer.journal) == [EndReason.EXPIRED]


async def test_p13_a_candidate_whose_loop_was_blocked_stands_again_with_a_higher_token(peer: Peer) -> None:
    ttl = 0.5
    tokens: list[int] = []

    async def work(term: Term) -> None:
        tokens.append(term.token)
        if len(tokens) == 1:
            time.sleep(2 * ttl)
            await asyncio.sleep(30)

    async with asyncio.timeout(10):
        await peer.elector("role", ttl=ttl).run(work)
    assert len(tokens) == 2
    assert tokens[0] < tokens[1]
    assert reasons(peer.journal) == [EndReason.EXPIRED, EndReason.RELEASED]


# -- the machine is suspended ------------------------------------------------------------------------------------------


async def test_p2_a_clock_that_jumped_while_the_loops_time_stood_still_ends_the_term_within_a_tick(
    make_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await make_peer()
    real, jump = _clock.now, [0.0]
    monkeypatch.setattr(_clock, "now", lambda: real() + jump[0])
    with pytest.raises(LeaseExpired):
        async with peer.lock("suspended", ttl=15) as term:
            await asyncio.sleep(0.1)
            assert term.remaining() > 14
            jump[0] = 60.0
            woken = time.monotonic()
            assert not term.is_leader
            assert not term.is_valid
            with pytest.raises(LeaseExpired):
                term.check()
            try:
                await asyncio.sleep(10)
            finally:
                assert time.monotonic() - woken < 1.0 + SLACK  # no timer of the loop was due that early
    assert reasons(peer.journal) == [EndReason.EXPIRED]
    assert not peer.journal.of(RenewalFailed)


# -- the process is stopped --------------------------------------------------------------------------------------------


async def test_p2_a_process_that_was_stopped_for_3_ttl_has_lost_though_nobody_took_over_and_stands_again(
    server: Server,
) -> None:
    ttl = 0.7
    with candidate(server, "role", ttl=ttl) as child:
        first = await child.expect(event="leads")
        await child.expect(event="works", token=first["token"])
        child.pause()
        paused = now()
        await asyncio.sleep(3 * ttl)
        resumed = len(child.lines)
        child.resume()
        await child.expect(event="stops", token=first["token"], valid=False, after=resumed)
        again = await child.expect(event="leads", after=resumed)
        assert again["token"] > first["token"]
        earlier, later = assert_one_at_a_time([child])
        assert earlier.last <= paused + ttl
        assert later.token == again["token"]


async def test_p2_a_process_that_was_stopped_for_3_ttl_finds_its_successor_and_waits_for_the_next_turn(
    server: Server,
) -> None:
    ttl = 0.7
    with candidate(server, "role", ttl=ttl) as one, candidate(server, "role", ttl=ttl) as two:
        await until(lambda: reigns([one, two]))
        paused, other = (one, two) if one.find(event="leads") else (two, one)
        await paused.expect(event="works")
        await other.expect(event="stands")
        paused.pause()
        await asyncio.sleep(3 * ttl)
        resumed = len(paused.lines)
        first, *_, second = reigns([paused, other])
        assert other.find(event="leads", token=second.token)
        paused.resume()
        await paused.expect(event="stops", token=first.token, valid=False, after=resumed)
        other.terminate()
        assert await other.exited() == 0
        again = await paused.expect(event="leads", after=resumed)
        assert again["token"] > second.token
        assert_one_at_a_time([paused, other])
