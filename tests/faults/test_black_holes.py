"""Packets go nowhere and nobody says so: no RST, no FIN, only silence."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from aioelect import EndReason, LeaseExpired, StoreUnavailable, Term
from aioelect.facts import RenewalFailed, RenewalRecovered, TermStopped
from faults.conftest import MakePeer, Peer, renewing
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

SLACK = 1.5
"""Seconds that a busy machine may add."""


@dataclass
class Holding:
    """A body that holds a name until it is stopped, and what it saw when it was."""

    peer: Peer
    name: str
    ttl: float
    terms: list[Term] = field(default_factory=list)
    stopped_at: float | None = None
    led_when_stopped: bool | None = None

    @property
    def term(self) -> Term:
        """The term, once it has begun."""
        return self.terms[0]

    async def run(self) -> None:
        async with self.peer.lock(self.name, ttl=self.ttl) as term:
            self.terms.append(term)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.led_when_stopped = term.is_leader
                self.stopped_at = time.monotonic()

    async def begun(self) -> asyncio.Task[None]:
        """Start it and wait until it holds the name."""
        task = asyncio.create_task(self.run())
        await until(lambda: self.terms)
        return task


async def ended(*tasks: asyncio.Task[None]) -> None:
    """Cancel the tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_p3_a_holder_that_is_cut_off_stops_before_another_gets_in_and_its_neighbours_never_notice(
    make_peer: MakePeer,
) -> None:
    ttl = 1.5
    rival = await make_peer()
    holdings = [Holding(await make_peer(), name, ttl) for name in ("cut off", "first", "second")]
    lost, *neighbours = holdings
    cut_off, *others = [await holding.begun() for holding in holdings]

    lost.peer.proxy.black_hole()
    async with rival.lock("cut off", ttl=ttl, wait=2 * ttl + SLACK):
        won_at = time.monotonic()
        assert not lost.term.is_leader
        assert not lost.term.is_valid
        with pytest.raises(LeaseExpired) as caught:
            await cut_off
    assert lost.stopped_at is not None
    assert lost.stopped_at < won_at
    assert lost.led_when_stopped is False
    assert (caught.value.name, caught.value.token) == ("cut off", lost.term.token)
    assert [fact.reason for fact in lost.peer.journal.of(TermStopped)] == [EndReason.EXPIRED]

    for neighbour in neighbours:
        assert neighbour.term.is_leader
        assert not neighbour.peer.journal.of(RenewalFailed)
        assert not neighbour.peer.journal.of(TermStopped)
    await ended(*others)


async def test_p4_claims_that_share_a_connection_survive_its_hanging_because_a_spare_takes_over(
    make_peer: MakePeer,
) -> None:
    ttl = 1.5
    peer = await make_peer()
    holdings = [Holding(peer, name, ttl) for name in ("first", "second", "third")]
    tasks = [await holding.begun() for holding in holdings]
    seen = len(peer.proxy.commands)
    rule = peer.proxy.request(renewing).hold()  # and with it whatever shares its write
    hung = (await rule.reached()).connection
    peer.proxy.black_hole(hung)
    peer.proxy.refuse()  # no new connection: what helps has to be open already

    # A newcomer's call meets the hung connection as well: it loses one try and no more.
    async with peer.lock("newcomer", ttl=ttl, wait=ttl + SLACK) as term:
        start = time.monotonic()
        while time.monotonic() - start < 1.2 * ttl:
            await asyncio.sleep(0.01)
            assert all(holding.term.is_leader for holding in holdings)
            assert term.is_leader
    failed = peer.journal.of(RenewalFailed)
    assert failed, "no renewal met the hung connection, so nothing was tested"
    assert max(fact.failures for fact in failed) == 1
    assert len(peer.journal.of(RenewalRecovered)) == len(failed) <= len(holdings)
    later = [command.connection for command in peer.proxy.commands[seen:] if renewing(command)]
    assert later[-1] != hung
    await ended(*tasks)


@pytest.mark.parametrize("where", ["request", "reply"])
async def test_p1_a_renewal_that_arrives_late_revives_nothing_and_none_is_sent_after_the_end(
    make_peer: MakePeer, where: str
) -> None:
    ttl = 1.0
    peer, rival = await make_peer(), await make_peer()
    holding = Holding(peer, "late", ttl)
    task = await holding.begun()
    rule = (peer.proxy.request if where == "request" else peer.proxy.reply)(renewing, times=None).hold()
    with pytest.raises(LeaseExpired):
        await task
    peer.proxy.rules.remove(rule)
    sent = sum(map(renewing, peer.proxy.commands))
    rule.release()
    assert not holding.term.is_leader
    # A late request may well prolong the claim in the server, whose holder has stopped: one ttl, and that is all.
    async with rival.lock("late", ttl=ttl, wait=2 * ttl + SLACK):
        assert not holding.term.is_leader
        assert not holding.term.is_valid
    assert len(peer.journal.of(TermStopped)) == 1
    assert not peer.journal.of(RenewalRecovered)
    # Held requests are counted when they come in, so what was held is among them.
    assert sum(map(renewing, peer.proxy.commands)) == sent


async def test_p13_a_candidate_that_was_cut_off_stands_again_when_the_network_is_back(make_peer: MakePeer) -> None:
    ttl = 1.0
    peer = await make_peer()
    tokens: list[int] = []

    async def work(term: Term) -> str:
        tokens.append(term.token)
        if len(tokens) == 1:
            peer.proxy.black_hole()
            await asyncio.get_running_loop().create_future()
        return "led again"

    running = asyncio.create_task(peer.elector("role", ttl=ttl).run(work))
    await until(lambda: peer.journal.of(TermStopped))
    await asyncio.sleep(ttl / 2)  # it meets the black hole as a candidate, too
    assert len(tokens) == 1
    peer.proxy.heal()
    async with asyncio.timeout(2 * ttl + SLACK):
        assert await running == "led again"
    assert tokens[0] < tokens[1]


async def test_p4_an_acquisition_into_a_black_hole_ends_by_its_own_limit(server: Server, make_peer: MakePeer) -> None:
    peer = await make_peer(socket_timeout=None)
    peer.proxy.black_hole()
    start = time.monotonic()
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(10), peer.lock("unreachable", ttl=20.0, wait=0.5):
            pytest.fail("the body ran without a confirmed token")
    assert time.monotonic() - start < 0.5 + SLACK
