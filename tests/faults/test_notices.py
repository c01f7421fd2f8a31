"""Waiting for a name: what a waiter hears, what it misses, and what its waiting costs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import pytest

from aioelect import Term
from aioelect._line import line_for
from conftest import MakeServer
from faults.conftest import MakePeer, Peer, acquiring, claim_key, renewing
from support.candidate import candidate
from support.rules import Command
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

NAME = "job"
LONG = 20.0
"""A ttl that outlasts every limit in here: whoever gets in does not owe it to expiry."""
AT_ONCE = 1.5
"""Seconds that a busy machine may take for what needs milliseconds."""


class Taking:
    """A lock taken in a task of its own, held until told to give it back."""

    def __init__(self, peer: Peer, ttl: float = LONG):
        self.won_at: float | None = None
        self.term: Term | None = None
        self._give_back = asyncio.Event()
        self._task = asyncio.create_task(self._run(peer, ttl))

    async def _run(self, peer: Peer, ttl: float) -> None:
        async with peer.lock(NAME, ttl=ttl) as self.term:
            self.won_at = time.monotonic()
            await self._give_back.wait()

    @property
    def holds(self) -> bool:
        """Whether it is in."""
        return self.won_at is not None

    async def won(self, limit: float) -> float:
        """Wait until it is in, and say when."""
        return await until(lambda: self.won_at, limit)

    async def give_back(self) -> float:
        """Leave the body; the time before it."""
        at = time.monotonic()
        self._give_back.set()
        await self._task
        return at


def subscribing(command: Command) -> bool:
    """Match the wish to hear of this file's name."""
    return command.name == "SUBSCRIBE" and f"{claim_key(NAME)}:events".encode() in command.args


async def asleep(peer: Peer) -> None:
    """Wait until its waiter has subscribed and has tried once more in vain: from there on it waits for a notice."""
    commands = peer.proxy.commands
    await until(lambda: any(map(subscribing, commands)) and acquiring(commands[-1]))


# -- the herd ----------------------------------------------------------------------------------------------------------


async def test_p10_who_has_lost_a_race_for_a_released_name_does_not_ask_at_once_the_next_time(
    make_peer: MakePeer,
) -> None:
    holder, loser, rival = await make_peer(), await make_peer(), await make_peer()
    held = Taking(holder)
    await held.won(AT_ONCE)
    waiting = Taking(loser)
    await asleep(loser)
    line = line_for(loser.lock(NAME)._session.store.key, NAME)
    assert not line.crowded
    rule = loser.proxy.request("EVALSHA").hold()
    await held.give_back()
    await rule.reached()
    faster = Taking(rival)
    await faster.won(AT_ONCE)
    rule.release()
    await until(lambda: line.crowded)
    await faster.give_back()
    await waiting.won(AT_ONCE)
    await waiting.give_back()


# -- what may be missed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["request", "reply"])
async def test_p10_a_release_between_the_failed_try_and_the_subscription_is_not_missed(
    make_peer: MakePeer, where: str
) -> None:
    here, there = await make_peer(), await make_peer()
    holder = Taking(here)
    await holder.won(AT_ONCE)
    rule = (there.proxy.request if where == "request" else there.proxy.reply)(subscribing).hold()
    waiter = Taking(there)
    await rule.reached()
    await holder.give_back()
    assert not waiter.holds
    released = time.monotonic()
    rule.release()
    assert await waiter.won(AT_ONCE) >= released
    await waiter.give_back()


async def test_p10_a_waiter_gets_in_when_the_ttl_of_a_killed_holder_is_up_and_not_before(
    server: Server, make_peer: MakePeer
) -> None:
    ttl = 1.0
    peer = await make_peer()
    with candidate(server, NAME, ttl=ttl) as child:
        await child.expect(event="leads")
        waiter = Taking(peer)
        await asleep(peer)
        child.kill()
        left = server.call("PTTL", claim_key(NAME)) / 1000
        due = time.monotonic() + left
        late = await waiter.won(ttl + AT_ONCE) - due
    print(f"in {late * 1000:.1f} ms after the ttl of the killed holder")  # noqa: T201
    assert late > -0.05  # PTTL rounds, and it was answered before `due` was read
    await waiter.give_back()


@pytest.mark.parametrize("told", [False, True], ids=["tries in vain", "is told"])
async def test_p10_a_waiter_whose_notice_was_another_ones_luck_waits_on_and_gets_in_after_that_one(
    make_peer: MakePeer, told: bool
) -> None:
    first, second, third = await make_peer(), await make_peer(), await make_peer()
    holder = Taking(first)
    await holder.won(AT_ONCE)
    waiter = Taking(second)
    await asleep(second)
    late_notice = second.proxy.reply("MESSAGE").hold()
    if not told:
        second.proxy.reply("MESSAGE", nth=2).drop()  # that the third one is in
    await holder.give_back()
    await late_notice.reached()
    thief = Taking(third)
    await thief.won(AT_ONCE)
    seen = len(second.proxy.commands)
    late_notice.release()
    if not told:
        await until(lambda: second.proxy.commands[seen:])
    await asyncio.sleep(0.2)
    assert not waiter.holds
    await thief.give_back()
    await waiter.won(AT_ONCE)
    await waiter.give_back()


# -- trouble with the subscription -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def waiting(server: Server, make_peer: MakePeer, ttl: float) -> AsyncIterator[tuple[Taking, Taking, Peer]]:
    """A holder and one who waits for it on a live subscription; the waiter has to get in within the ttl."""
    here, there = await make_peer(server), await make_peer(server)
    holder = Taking(here, ttl)
    await holder.won(AT_ONCE)
    waiter = Taking(there, ttl)
    await asleep(there)
    yield holder, waiter, there
    await waiter.won(ttl + AT_ONCE)
    await waiter.give_back()


def subscription_of(peer: Peer) -> int:
    """The number of the connection that listens."""
    return next(command.connection for command in reversed(peer.proxy.commands) if subscribing(command))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said above INFO."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("reset", [False, True], ids=["killed", "reset"])
async def test_p10_a_release_that_a_broken_subscription_missed_is_found_when_it_is_there_again(
    server: Server, make_peer: MakePeer, caplog: pytest.LogCaptureFixture, reset: bool
) -> None:
    async with waiting(server, make_peer, LONG) as (holder, waiter, peer):
        again = peer.proxy.request(subscribing).hold()
        if reset:
            peer.proxy.cut(subscription_of(peer), reset=True)
        else:
            server.call("CLIENT", "KILL", "TYPE", "pubsub")
        await again.reached()
        await holder.give_back()
        assert not waiter.holds
        again.release()
        await waiter.won(AT_ONCE)
    assert not warnings(caplog)  # a single drop that mends at once is no outage


async def test_p10_a_subscription_that_hangs_costs_a_waiter_no_more_than_the_holders_ttl(
    server: Server, make_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    ttl = 1.2
    async with waiting(server, make_peer, ttl) as (holder, waiter, peer):
        peer.proxy.black_hole(subscription_of(peer))
        await holder.give_back()
        await asyncio.sleep(0.1)
        assert not waiter.holds, "the notice came through, so nothing was tested"
    assert not warnings(caplog)


async def test_p10_a_waiter_survives_a_restart_of_the_server_and_hears_the_release_after_it(
    make_server: MakeServer, make_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    async with waiting(server, make_peer, LONG) as (holder, waiter, peer):
        heard = sum(map(subscribing, peer.proxy.commands))
        await server.arestart(keep_data=True)
        assert server.call("EXISTS", claim_key(NAME))
        await until(lambda: sum(map(subscribing, peer.proxy.commands)) > heard)
        await holder.give_back()
        await waiter.won(AT_ONCE)
    assert len(warnings(caplog)) <= 2  # the two ends of one outage


async def test_p10_without_channel_rights_a_waiter_polls_ten_times_a_ttl_and_says_so_once(
    make_server: MakeServer, make_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    ttl = 5.0
    server = make_server("user default on nopass ~* resetchannels +@all")
    here, there = await make_peer(server), await make_peer(server)
    holder = Taking(here, ttl)
    await holder.won(AT_ONCE)
    denied = there.proxy.reply(subscribing).delay(0.0)
    waiters = [Taking(there, ttl), Taking(there, ttl)]
    await denied.reached()
    await asyncio.sleep(0.3)
    released = await holder.give_back()
    first = await until(lambda: next((waiter for waiter in waiters if waiter.holds), None), limit=2 * ttl)
    assert first.won_at is not None
    assert first.won_at - released < 1.1 * max(0.25, ttl / 10) + AT_ONCE
    for waiter in waiters:
        await waiter.won(ttl)
        await waiter.give_back()
    said = warnings(caplog)
    assert len(said) == 1
    assert "subscribe" in said[0]


# -- what it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waiters", [1, 5])
async def test_p10_waiting_costs_one_and_a_quarter_commands_a_ttl_and_process_at_most(
    server: Server, make_peer: MakePeer, waiters: int
) -> None:
    ttl, lives = 0.5, 7
    here, there = await make_peer(), await make_peer()
    holder = Taking(here, ttl)
    await holder.won(AT_ONCE)
    crowd = [Taking(there, ttl) for _ in range(waiters)]
    await asleep(there)
    started = len(there.proxy.commands)
    renewals = sum(map(renewing, here.proxy.commands))
    start = time.monotonic()
    await asyncio.sleep(lives * ttl)
    elapsed = (time.monotonic() - start) / ttl
    sent = there.proxy.names()[started:]
    print(f"{len(sent) / elapsed:.2f} commands a ttl, {waiters} waiting")  # noqa: T201
    assert sum(map(renewing, here.proxy.commands)) - renewals >= 2 * lives, "the holder did not keep renewing"
    assert not any(taking.holds for taking in crowd)
    assert len(sent) <= 1.25 * elapsed + 1, sent
    await holder.give_back()
    while crowd:
        first = await until(lambda: next((one for one in crowd if one.holds), None))
        crowd.remove(first)
        await first.give_back()
