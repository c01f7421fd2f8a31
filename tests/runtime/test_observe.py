"""Who leads, for whoever takes no part: observe(), info(), current(); in virtual time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from aioelect import ConfigurationError, Elector, FencedLock, Leader, StoreRejected, StoreUnavailable, info, observe
from aioelect._store import Capabilities, Claim
from aioelect.testing._memory import MemoryServer
from runtime.world import NAME, TTL
from support.process import Process


class Watched(list[str | None]):
    """Whom an observer has shown, in order."""

    def __init__(self, store: Process) -> None:
        self.task = asyncio.create_task(self._watch(store))

    async def _watch(self, store: Process) -> None:
        async for leader in observe(store, NAME):
            self.append(None if leader is None else leader.identity)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        del self.task  # its traceback holds the iterator


def elector(store: Process, identity: str) -> Elector:
    return Elector(store, NAME, ttl=TTL, identity=identity, observers=(), info={"url": f"http://{identity}"})


async def test_p13_an_observer_sees_the_present_state_first_and_then_every_change(
    server: MemoryServer, ours: Process, other: Process
) -> None:
    nobody = Watched(other)
    await asyncio.sleep(1)
    assert nobody == [None]
    async with elector(ours, "first") as first:
        await first.wait_elected()
        late = Watched(other)
        await asyncio.sleep(50 * TTL)
        assert late == ["first"] and nobody == [None, "first"]
    await asyncio.sleep(0.1)
    assert late == ["first", None]
    async with elector(ours, "second") as second:
        await second.wait_elected()
        await asyncio.sleep(0.1)
        assert late == ["first", None, "second"]
    for watched in (nobody, late):
        await watched.stop()
    gc.collect()
    assert not server.channels


async def test_p13_an_observer_does_not_stand(server: MemoryServer, other: Process) -> None:
    watched = Watched(other)
    await asyncio.sleep(20)
    assert server.holder(NAME) is None and not server.describe(NAME).candidates
    assert {verb for verb, _ in other.calls} == {"describe"}
    await watched.stop()


async def test_p13_a_leader_that_died_is_shown_until_its_claim_is_over(server: MemoryServer, other: Process) -> None:
    server.seize(NAME, ttl=3.0, identity="dying")
    watched = Watched(other)
    await asyncio.sleep(2.9)
    assert watched == ["dying"]
    await asyncio.sleep(0.2)
    assert watched == ["dying", None]
    await watched.stop()


@pytest.mark.parametrize("notices", [True, False], ids=["with notices", "polling"])
async def test_p10_an_observer_asks_once_a_ttl_while_nothing_changes(
    server: MemoryServer, ours: Process, other: Process, notices: bool
) -> None:
    if not notices:
        server.mute()
    async with Elector(ours, NAME, ttl=15, observers=()) as standing:
        await standing.wait_elected()
        watched = Watched(other)
        await asyncio.sleep(5)
        asked = len(other.calls)
        await asyncio.sleep(20 * 15)
        assert len(other.calls) - asked <= (1.6 if notices else 12) * 20
        assert len(watched) == 1
    await asyncio.sleep(2)
    assert len(watched) == 2 and watched[-1] is None
    await watched.stop()


async def test_p13_in_an_outage_the_last_leader_is_believed_in_as_long_as_its_claim_may_last(
    server: MemoryServer, other: Process, caplog: pytest.LogCaptureFixture
) -> None:
    def down(verb: str, claim: Claim) -> None:
        raise StoreUnavailable("down")

    server.seize(NAME, ttl=10.0, identity="leader")
    watched = Watched(other)
    await asyncio.sleep(0.1)
    server.seize(NAME, ttl=10.0, identity="leader")
    healthy, other.before = other.before, down
    await asyncio.sleep(9)
    assert watched == ["leader"]
    await asyncio.sleep(8)
    assert watched == ["leader", None]
    other.before = healthy
    server.seize(NAME, ttl=10.0, identity="successor")
    await asyncio.sleep(6)
    assert watched == ["leader", None, "successor"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]  # one at each end
    await watched.stop()


async def test_p11_a_store_that_never_served_comes_out_of_the_iterator(other: Process) -> None:
    def refuse(verb: str, claim: Claim) -> None:
        raise StoreRejected("NOPERM")

    other.before = refuse
    with pytest.raises(StoreRejected, match="NOPERM"):
        await anext(observe(other, NAME))


async def test_p13_a_step_that_is_cancelled_loses_nothing_and_breaking_off_leaves_nothing(
    server: MemoryServer, ours: Process, other: Process
) -> None:
    leaders = observe(other, NAME)
    assert await anext(leaders) is None
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await anext(leaders)
    async with elector(ours, "first"):
        leader = await anext(leaders)
        assert leader is not None and leader.identity == "first"
        async for _ in observe(other, NAME):
            break
        gc.collect()
        assert len(other._ears) == 1
    del leaders
    gc.collect()
    assert not other._ears


async def test_info_tells_all_but_the_owner_value(ours: Process, other: Process, server: MemoryServer) -> None:
    assert (await info(other, NAME)).leader is None
    async with elector(ours, "leader") as leading, Elector(other, NAME, ttl=TTL, identity="b", weight=7):
        term = await leading.wait_elected()
        await asyncio.sleep(5 * TTL)
        found = await info(other, NAME)
        assert found.leader == Leader("leader", term.token, term.id)
        assert found.leader.info == {"url": "http://leader"}
        assert found.ttl == TTL and 0 < found.remaining <= TTL and found.since is not None
        assert not found.step_down_asked and found.reserved_for is None
        assert [(candidate.identity, candidate.weight) for candidate in found.candidates] == [("b", 7)]
        owner = server.record(NAME).owner
        assert owner is not None and owner not in repr(found)


async def test_current_asks_the_store_whether_entered_or_not(ours: Process, other: Process) -> None:
    idle = elector(other, "idle")
    assert await idle.current() is None
    async with FencedLock(ours, NAME, ttl=TTL, identity="somebody", observers=()) as term:
        assert await idle.current() == Leader("somebody", term.token, term.id)
    async with elector(ours, "leader") as leading:
        await leading.wait_elected()
        leader = await leading.current()
        assert leader is not None and leader.info == {"url": "http://leader"}


async def test_one_failed_try_of_a_question_is_forgiven(other: Process) -> None:
    failures = 1

    def fail(verb: str, claim: Claim) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StoreUnavailable("a stale connection")

    other.before = fail
    assert (await info(other, NAME)).leader is None
    failures = 2
    with pytest.raises(StoreUnavailable):
        await info(other, NAME)


async def test_p14_a_store_without_roles_is_told_where_it_is_asked(
    ours: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "capabilities", Capabilities())
    for ask in (
        lambda: observe(ours, NAME),
        lambda: Elector(ours, NAME, weight=1, observers=()),
        lambda: Elector(ours, NAME, info={"a": "b"}, observers=()),
    ):
        with pytest.raises(ConfigurationError, match="candidates"):
            ask()
    with pytest.raises(ConfigurationError, match="candidates"):
        await info(ours, NAME)
    async with Elector(ours, NAME, ttl=TTL, observers=()) as plain:
        await plain.wait_elected()
        with pytest.raises(ConfigurationError, match="candidates"):
            await plain.current()


@pytest.mark.parametrize(
    ("refused", "named"),
    [
        ({"weight": -1}, "weight"),
        ({"weight": 1001}, "weight"),
        ({"weight": True}, "weight"),
        ({"weight": 0.5}, "weight"),
        ({"info": "text"}, "info"),
        ({"info": {"a": 1}}, "info"),
        ({"info": {"a": "x" * 2000}}, "info"),
    ],
)
async def test_p14_bad_input_is_refused_where_it_enters(ours: Process, refused: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Elector(ours, NAME, **refused)  # type: ignore[arg-type]
