"""One claim and its work: failed renewals, losses, clean-up, overrun, work that does not give in, children."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
from collections.abc import Iterator

import anyio
import pytest

from aioelect import (
    Elector,
    EndReason,
    FencedLock,
    LeaseExpired,
    LeaseLost,
    LeaseTaken,
    ReleaseOutcome,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    Term,
)
from aioelect._line import lines
from aioelect.facts import DrainOverrun, RenewalFailed, RenewalRecovered, TermOver, TermStopped
from aioelect.testing._faults import Silence
from aioelect.testing._memory import MemoryServer
from aioelect.testing._virtual import virtual_loop
from runtime.conftest import Heard
from runtime.world import NAME, TTL, quiet, refuse_renewals, verbs
from support.process import Process, fail_nth

DOWN = StoreUnavailable("connection refused")


class Shifts:
    """When who worked."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float]] = []

    @contextlib.contextmanager
    def __call__(self, who: str) -> Iterator[None]:
        began = virtual_loop().time()
        try:
            yield
        finally:
            self.spans.append((who, began, virtual_loop().time()))

    def assert_apart(self, *order: str) -> None:
        """They worked in this order, one after the other."""
        spans = sorted(self.spans, key=lambda span: span[1])
        assert tuple(who for who, _, _ in spans) == order
        for (_, _, end), (_, began, _) in itertools.pairwise(spans):
            assert end <= began, f"two worked at once: {spans}"


# -- clean-up and overrun ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["cancelled", "left", "resigned", "taken", "expired"])
async def test_p7_a_second_of_clean_up_never_overlaps_the_next_holders_work(
    server: MemoryServer, ours: Process, other: Process, end: str
) -> None:
    shifts, began = Shifts(), asyncio.Event()

    async def work(term: Term) -> None:
        with shifts("old"):
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                with term.cleanup():
                    await asyncio.sleep(1)

    async def next_holder() -> None:
        async with FencedLock(other, NAME, ttl=4, observers=()):
            with shifts("new"):
                await asyncio.sleep(0.1)

    async def lead() -> None:
        async with Elector(ours, NAME, ttl=4, observers=()).lead() as term:
            asyncio.get_running_loop().call_later(10, resign, term)
            await work(term)

    def resign(term: Term) -> None:
        if end == "resigned":
            term.resign()

    leading = asyncio.create_task(lead())
    await began.wait()
    waiting = asyncio.create_task(next_holder())
    await asyncio.sleep(10)
    struck = virtual_loop().time()
    if end in ("cancelled", "left"):
        leading.cancel()
    elif end == "taken":
        # The claim is gone, but whoever comes next does not come at once.
        server.seize(NAME, ttl=3, identity="passer-by")
    elif end == "expired":
        ours.before = refuse_renewals(DOWN)
    await asyncio.wait({leading, waiting})
    shifts.assert_apart("old", "new")
    if end in ("cancelled", "left", "resigned"):  # released as soon as the work is over, not at the ttl
        assert shifts.spans[0][2] - struck == pytest.approx(1, abs=0.01)
        assert shifts.spans[1][1] - shifts.spans[0][2] < 0.02
    if end == "expired":
        assert isinstance(leading.exception(), LeaseExpired)
    if end == "taken":
        assert isinstance(leading.exception(), LeaseTaken)


async def test_p7_renewal_goes_on_while_the_work_drains_and_is_leader_is_false(
    server: MemoryServer, ours: Process, heard: Heard
) -> None:
    seen: list[tuple[bool, bool]] = []

    async def work(term: Term) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(30):
                    seen.append((term.is_leader, term.is_valid))
                    await asyncio.sleep(0.1)

    elector = Elector(ours, NAME, ttl=TTL, drain_limit=10, observers=[heard])
    async with elector.running(work):
        await asyncio.sleep(0.5)
        before = len(ours.calls)
    assert seen == [(False, True)] * 30
    assert verbs(ours, before).count("renew") >= 7
    assert verbs(ours)[-1] == "release"
    assert not heard.of(DrainOverrun)
    assert server.holder(NAME) is None


async def test_p7_work_that_outlives_the_drain_limit_is_reported_and_nothing_is_released(
    server: MemoryServer,
    ours: Process,
    other: Process,
    heard: Heard,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shifts, loop, meanwhile = Shifts(), virtual_loop(), list[str]()

    async def stubborn(term: Term) -> None:
        with shifts("old"):
            try:
                await asyncio.sleep(60)
            finally:
                with anyio.CancelScope(shield=True):
                    await asyncio.sleep(5)
                meanwhile.extend(verbs(ours, asked))

    async def after_us(store: Process, who: str) -> None:
        async with FencedLock(store, NAME, ttl=TTL, observers=()):
            with shifts(who):
                await asyncio.sleep(0.01)

    async with Elector(ours, NAME, ttl=TTL, drain_limit=0.5, observers=[heard]).running(stubborn):
        await asyncio.sleep(2)
        local = asyncio.create_task(after_us(ours, "local"))
        remote = asyncio.create_task(after_us(other, "remote"))
        await asyncio.sleep(0.1)
        leaving, asked = loop.time(), len(ours.calls)
    assert loop.time() - leaving == pytest.approx(5, abs=0.01)  # the work is awaited all the same
    assert set(meanwhile) == {"renew"}, "released, or stood again, before the old work was over"
    await asyncio.wait({local, remote})
    (old, (who, entered, _), (last, at, _)) = sorted(shifts.spans, key=lambda span: span[1])
    assert (who, last) == ("remote", "local")
    assert leaving + 0.5 < entered < leaving + 0.5 + TTL + 0.05  # by the ttl, since renewal stopped
    assert at >= old[2]
    assert len(heard.of(DrainOverrun)) == 1
    (over,) = heard.of(TermOver)
    assert isinstance(over, TermOver) and (over.reason, over.outcome) == (EndReason.OVERRUN, None)
    assert [record.levelname for record in caplog.records if "drain limit" in record.message] == ["ERROR"]


async def test_p7_a_candidate_that_overran_stands_again_only_after_its_old_work(
    server: MemoryServer, ours: Process
) -> None:
    shifts = Shifts()

    async def work(term: Term) -> None:
        with shifts("work"):
            if shifts.spans:
                return
            asyncio.get_running_loop().call_later(1, term.resign)
            try:
                await asyncio.sleep(60)
            finally:
                with anyio.CancelScope(shield=True):
                    await asyncio.sleep(3 * TTL)

    async with asyncio.timeout(20):
        await Elector(ours, NAME, ttl=TTL, drain_limit=0.2, observers=()).run(work)
    shifts.assert_apart("work", "work")
    assert server.holder(NAME) is None


@pytest.mark.parametrize("clean_up", [0.0, 0.04, 0.06, 0.1, 0.14, 0.18])
async def test_p7_leaving_an_elector_begins_no_other_term(ours: Process, heard: Heard, clean_up: float) -> None:
    loop = virtual_loop()

    async def work(term: Term) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(clean_up)

    async with Elector(ours, NAME, ttl=0.1, observers=[heard]).running(work):
        await asyncio.sleep(0.5)
        leaving = loop.time()
    assert loop.time() - leaving == pytest.approx(clean_up, abs=0.01)
    assert len(heard.of(TermOver)) == 1


async def test_p7_after_a_loss_the_work_is_awaited_and_nothing_is_released(server: MemoryServer, ours: Process) -> None:
    loop, ended = virtual_loop(), 0.0
    with pytest.raises(LeaseTaken):
        async with FencedLock(ours, NAME, ttl=TTL, observers=()):
            server.seize(NAME, ttl=60)
            try:
                await asyncio.sleep(60)
            finally:
                with anyio.CancelScope(shield=True):
                    await asyncio.sleep(2)
                ended = loop.time()
    assert ended and loop.time() - ended < 0.01
    assert "release" not in verbs(ours)
    assert server.holder(NAME) is not None


# -- renewals that fail ------------------------------------------------------------------------------------------------


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("answer", [DOWN, Silence(), StoreRejected("OOM"), RuntimeError("a surprise")], ids=repr)
async def test_p3_after_one_or_two_failed_renewals_work_goes_on_with_one_warning_at_each_end(
    ours: Process, heard: Heard, caplog: pytest.LogCaptureFixture, failures: int, answer: BaseException
) -> None:
    ours.before = fail_nth(1, answer, verb="renew", times=failures)
    async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]) as term:
        for _ in range(300):
            await asyncio.sleep(0.01)
            assert term.is_leader and term.is_valid
            term.check()
    assert len(heard.of(RenewalFailed)) == failures
    assert len(heard.of(RenewalRecovered)) == 1
    (over,) = heard.of(TermOver)
    assert isinstance(over, TermOver) and over.outcome is ReleaseOutcome.RELEASED
    begin, end = warnings_in(caplog)
    assert "a renewal failed" in begin and "renewed again" in end


@pytest.mark.parametrize("answer", [DOWN, Silence(), StoreRejected("NOPERM"), RuntimeError("a surprise")], ids=repr)
async def test_p3_p11_renewals_that_keep_failing_cancel_the_work_at_the_renew_deadline_before_the_claim_can_expire(
    server: MemoryServer, ours: Process, heard: Heard, caplog: pytest.LogCaptureFixture, answer: BaseException
) -> None:
    loop, ended = virtual_loop(), 0.0
    ours.before = refuse_renewals(answer)
    began = loop.time()
    with pytest.raises(LeaseExpired) as caught:
        async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]) as term:
            try:
                await asyncio.sleep(60)
            finally:
                ended = loop.time()
                holder = server.holder(NAME)
                assert holder is not None and holder.id == term.id
                assert not term.is_leader and term.is_valid
                term.check()  # clean-up can still prove itself
    assert 0.79 * TTL < ended - began < 0.82 * TTL
    assert isinstance(caught.value.__cause__, StoreError)
    assert verbs(ours).count("renew") >= 3
    assert len(heard.of(TermStopped)) == len(heard.of(TermOver)) == 1
    begin, end = warnings_in(caplog)
    assert "a renewal failed" in begin and "lost" in end


@pytest.mark.parametrize("how", ["taken", "gone", "expired"])
@pytest.mark.parametrize("swallows", [False, True])
async def test_p3_a_refused_renewal_ends_the_work_at_once_and_a_loss_is_told_exactly_once(
    server: MemoryServer, ours: Process, heard: Heard, caplog: pytest.LogCaptureFixture, how: str, swallows: bool
) -> None:
    loop, stopped = virtual_loop(), 0.0
    struck = loop.time() + 1
    loop.call_at(struck, lambda: _strike(server, ours, how))
    with pytest.raises(LeaseLost) as caught:
        async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]) as term:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                stopped = loop.time()
                if not swallows:
                    raise
            assert not term.is_leader
    assert stopped - struck < (0.82 if how == "expired" else 0.35) * TTL
    assert type(caught.value) is (LeaseExpired if how == "expired" else LeaseTaken)
    (told,) = heard.of(TermStopped)
    assert isinstance(told, TermStopped) and told.reason.value == ("expired" if how == "expired" else "taken")
    assert len(heard.of(TermOver)) == 1
    assert len([line for line in warnings_in(caplog) if "lost" in line]) == 1
    assert await quiet(ours)


def _strike(server: MemoryServer, ours: Process, how: str) -> None:
    if how == "taken":
        server.seize(NAME)
    elif how == "gone":
        server.erase(NAME)
    else:
        ours.before = refuse_renewals(DOWN)


async def test_p1_validity_counts_from_the_send_of_a_request(server: MemoryServer) -> None:
    slow = Process(server, latency=0.0, back=0.1)
    loop = virtual_loop()
    asked = loop.time()
    async with FencedLock(slow, NAME, ttl=TTL, observers=()) as term:
        assert term.remaining() == pytest.approx(TTL - 0.013 - (loop.time() - asked), abs=0.001)
        await asyncio.sleep(5)
        holder = server.holder(NAME)
        assert holder is not None and holder.remaining is not None
        assert term.remaining() < holder.remaining


async def test_p3_a_hanging_renewal_is_repeated_before_the_renew_deadline(ours: Process) -> None:
    """Each try has its own limit, so that three fit."""
    ours.before = fail_nth(1, Silence(), verb="renew", times=2)
    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        await asyncio.sleep(2 * TTL)
        assert term.is_leader


async def test_p6_no_renewal_is_sent_once_release_began(server: MemoryServer) -> None:
    slow = Process(server, latency=0.04)
    async with FencedLock(slow, NAME, ttl=TTL, renew_interval=0.1, observers=()):
        await asyncio.sleep(0.03)
    assert verbs(slow) == ["acquire", "renew", "release"]  # the renewal was in flight
    assert await quiet(slow)
    assert server.holder(NAME) is None


async def test_p13_a_claim_that_goes_while_the_work_drains_is_no_second_end(
    server: MemoryServer, ours: Process, heard: Heard
) -> None:
    with pytest.raises(LeaseTaken):
        async with FencedLock(ours, NAME, ttl=TTL, observers=[heard]) as term:
            term.resign()
            server.seize(NAME)
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.9 * TTL)
    assert len(heard.of(TermStopped)) == len(heard.of(TermOver)) == 1


async def test_p10_whoever_comes_back_to_a_name_finds_its_line(ours: Process) -> None:
    lock = FencedLock(ours, NAME, ttl=TTL)
    async with lock:
        pass
    gc.collect()
    assert (ours.key, NAME) in lines()
    del lock
    gc.collect()
    assert not lines()


async def test_p10_the_line_is_silent_while_a_local_term_is_held(ours: Process) -> None:
    order: list[int] = []

    async def wait_in_line(place: int) -> None:
        async with FencedLock(ours, NAME, ttl=TTL, observers=()):
            order.append(place)
            asked = len(ours.calls)
            await asyncio.sleep(5 * TTL)
            assert set(verbs(ours, asked)) == {"renew"}

    await asyncio.gather(*(wait_in_line(place) for place in range(4)))
    assert order == [0, 1, 2, 3]
    assert verbs(ours).count("acquire") == 4
