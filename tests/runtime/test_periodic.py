"""Work that repeats: ticks while we lead, runs that count once for the whole cluster, a minimum hold; virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from aioelect import (
    ConfigurationError,
    Cron,
    Daily,
    Elector,
    FencedLock,
    Interval,
    Lease,
    NotAcquired,
    Schedule,
    StoreRejected,
    StoreUnavailable,
    Term,
    _periodic,
)
from aioelect._store import Capabilities, Claim
from aioelect.testing._memory import MemoryServer
from aioelect.testing._virtual import VirtualLoop
from runtime.world import NAME, TTL
from support.process import Process

BEGIN = datetime(2026, 3, 28, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
async def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualLoop:
    """The loop, whose wall clock is at BEGIN and is seldom looked at, since days pass."""
    monkeypatch.setattr(_periodic, "_LOOK", 600.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.wall_began = BEGIN.timestamp() - (loop.wall() - loop.wall_began)
    return loop


def lock(store: Process, **options: object) -> FencedLock:
    return FencedLock(store, NAME, ttl=TTL, observers=(), **options)  # type: ignore[arg-type]


# -- every ------------------------------------------------------------------------------------------------------------


async def times(ticks: AsyncIterator[None], count: int, work: Callable[[int], float] = lambda _: 0.0) -> list[float]:
    """When the ticks came, from the first call on."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    came: list[float] = []
    async for _ in ticks:
        came.append(round(loop.time() - began, 2))
        if len(came) == count:
            break
        await asyncio.sleep(work(len(came)))
    return came


async def test_ticks_come_at_once_and_then_on_one_grid_whatever_the_work_takes(ours: Process) -> None:
    async with lock(ours) as term:
        assert await times(term.every(1.0), 5, lambda n: 0.3 * n) == [0, 1, 2, 3, 4.2]
        assert await times(term.every(1.0, immediately=False), 3) == [1, 2, 3]


async def test_ticks_do_not_drift_over_a_day(ours: Process) -> None:
    async with FencedLock(ours, NAME, ttl=600, observers=()) as term:
        came = await times(term.every(60, jitter=5), 24 * 60, lambda n: n % 50)
    assert all(60 * n <= tick <= 60 * n + 5.01 for n, tick in enumerate(came))
    assert len({round(tick % 60, 1) for tick in came}) > 10


async def test_ticks_that_were_missed_are_left_out_or_brought_one_by_one(ours: Process) -> None:
    async with lock(ours) as term:
        work = {1: 4.5}
        assert await times(term.every(1.0), 4, lambda n: work.get(n, 0)) == [0, 4.5, 5, 6]
        assert await times(term.every(1.0, missed="catch_up"), 8, lambda n: work.get(n, 0)) == [
            *(0, 4.5, 4.5, 4.5),
            *(4.5, 5, 6, 7),
        ]


async def test_ticks_end_with_the_term(server: MemoryServer, ours: Process) -> None:
    ticks = 0

    async def work(term: Term) -> int:
        nonlocal ticks
        async for _ in term.every(0.1):
            ticks += 1
            if ticks == 10:
                server.seize(NAME, ttl=0.5)
            if ticks == 30:
                return ticks
        return -1

    assert await Elector(ours, NAME, ttl=TTL, observers=()).run(work) == 30


# -- once -------------------------------------------------------------------------------------------------------------


async def run_days(term: Term, into: list[str], days: int, schedule: Schedule, takes: float = 60.0) -> None:
    async for run in term.once(schedule):
        await asyncio.sleep(takes)
        into.append(f"{run.astimezone(ZoneInfo('Europe/Berlin')):%d %H:%M}")
        if len(into) >= days:
            term.resign()


async def test_a_nightly_job_runs_once_a_night_also_when_the_clocks_are_changed(ours: Process) -> None:
    nights: list[str] = []
    async with FencedLock(ours, NAME, ttl=3600, observers=()) as term:
        await run_days(term, nights, 2, Daily("02:30", ZoneInfo("Europe/Berlin")))
    assert nights == ["29 03:30", "30 02:30"]


async def test_the_same_by_a_cron_expression(ours: Process) -> None:
    nights: list[str] = []
    async with FencedLock(ours, NAME, ttl=3600, observers=()) as term:
        await run_days(term, nights, 3, Cron("30 2 * * *", tz=ZoneInfo("Europe/Berlin")))
    assert nights == ["29 03:00", "30 02:30", "31 02:30"]


async def test_a_finished_run_is_not_repeated_by_a_later_leader_whose_clock_is_behind(
    ours: Process, other: Process, clock: VirtualLoop
) -> None:
    ran: list[datetime] = []

    async def work(term: Term) -> None:
        async for run in term.once(60):
            ran.append(run)
            term.resign()

    for skew in (0.0, -0.03, -20.0, 0.03, -59.0):
        clock.wall_began += skew
        for store in (ours, other):
            async with Elector(store, NAME, ttl=TTL, observers=()).lead() as term:
                await work(term)
        clock.wall_began -= skew
    assert len(set(ran)) == len(ran) == 10
    assert all(later - earlier >= timedelta(minutes=1) for earlier, later in itertools.pairwise(ran))


@pytest.mark.parametrize("end", ["raises", "breaks", "is lost", "is cancelled"])
async def test_a_run_that_was_not_finished_is_due_again_for_the_next_leader(
    server: MemoryServer, ours: Process, other: Process, end: str
) -> None:
    begun: list[datetime] = []

    async def first() -> None:
        async with lock(ours) as term:
            async for run in term.once(60):
                begun.append(run)
                if end == "raises":
                    raise ZeroDivisionError
                if end == "breaks":
                    break
                if end == "is lost":
                    server.erase(NAME)
                await asyncio.sleep(30)

    task = asyncio.create_task(first())
    await asyncio.sleep(65)
    task.cancel()
    await asyncio.wait({task})
    async with lock(other) as term:
        assert await anext(term.once(60)) == begun[0]


@pytest.mark.parametrize("how", ["resign", "cancel"])
async def test_the_note_of_a_finished_run_is_made_also_when_the_work_is_told_to_stop(
    ours: Process, other: Process, how: str
) -> None:
    begun: list[datetime] = []

    async def first() -> None:
        async with lock(ours) as term:
            async for run in term.once(60):
                begun.append(run)
                if how == "resign":
                    term.resign()
                else:
                    task.cancel()

    task = asyncio.create_task(first())
    await asyncio.wait({task})
    assert task.cancelled() == (how == "cancel")
    async with lock(other) as term:
        assert await anext(term.once(60)) == begun[0] + timedelta(minutes=1)


async def test_after_an_absence_the_latest_run_is_made_up_for_or_all_of_them(ours: Process) -> None:
    async with lock(ours) as term:
        first = await anext(runs := term.once(60))
        await _finish(runs)
    await asyncio.sleep(600)
    async with lock(ours) as term:
        assert await anext(term.once(60)) - first == timedelta(minutes=10)
        late = term.once(60, missed="catch_up")
        assert [await anext(late) - first for _ in range(3)] == [timedelta(minutes=n) for n in (1, 2, 3)]


async def _finish(runs: AsyncIterator[datetime]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await anext(runs)


async def test_a_schedule_of_which_nothing_is_noted_begins_now(ours: Process, clock: VirtualLoop) -> None:
    clock.wall_began += 14 * 3600
    async with FencedLock(ours, NAME, ttl=3600, observers=()) as term:
        assert await anext(term.once(Daily("03:00"))) == datetime(2026, 3, 29, 3, tzinfo=UTC)
        assert await anext(term.once(Daily("04:00"))) == datetime(2026, 3, 29, 4, tzinfo=UTC)


async def test_a_schedule_can_begin_earlier_and_end_instead_of_waiting(ours: Process, other: Process) -> None:
    begin = BEGIN - timedelta(minutes=10)
    async with asyncio.timeout(60), lock(ours) as term:
        first = [run async for run in term.once(600, begin=begin, wait=False)]
        assert first == [BEGIN]
    async with lock(other) as term:  # what is noted counts, wherever another one would begin
        assert [run async for run in term.once(600, begin=begin, wait=False)] == []
        await asyncio.sleep(600)
        assert [run async for run in term.once(600, begin=begin, wait=False)] == [BEGIN + timedelta(minutes=10)]


async def test_several_schedules_of_one_name_do_not_disturb_each_other(ours: Process) -> None:
    ran: dict[str, int] = {}

    async def job(term: Term, key: str, interval: float) -> None:
        async for _ in term.once(interval, key=key):
            ran[key] = ran.get(key, 0) + 1

    async with lock(ours) as term:
        for key, interval in (("a", 60), ("b", 60), ("c", 7)):
            term.start_soon(job, term, key, interval)
        await asyncio.sleep(600.5)
    assert ran in ({"a": 10, "b": 10, "c": 86}, {"a": 10, "b": 10, "c": 85})


async def test_a_note_that_gets_no_answer_is_repeated_until_it_is_confirmed(ours: Process, other: Process) -> None:
    failures = 0

    def fail(verb: str, claim: Claim) -> None:
        nonlocal failures
        if verb == "mark" and failures < 6:
            failures += 1
            raise StoreUnavailable("down")

    ours.before = fail
    async with lock(ours) as term:
        runs = term.once(60)
        first = await anext(runs)
        assert failures == 6
        failures = 0
        assert await anext(runs) - first == timedelta(minutes=1)
        assert failures == 6
    async with lock(other) as term:
        assert await anext(term.once(60)) == first + timedelta(minutes=1)


async def test_a_store_that_refuses_for_good_says_so_in_the_loop(ours: Process) -> None:
    def refuse(verb: str, claim: Claim) -> None:
        if verb == "mark":
            raise StoreRejected("NOPERM")

    ours.before = refuse
    with pytest.raises(StoreRejected, match="NOPERM"):
        async with lock(ours) as term:
            await anext(term.once(60))


async def test_a_schedule_of_ones_own_will_do(ours: Process) -> None:
    class Hourly:
        def after(self, instant: datetime, /) -> datetime:
            return instant.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)

        def __str__(self) -> str:
            return "hourly"

    async with FencedLock(ours, NAME, ttl=600, observers=()) as term:
        runs = term.once(Hourly())
        assert [await anext(runs) for _ in range(3)] == [BEGIN + timedelta(hours=n) for n in (1, 2, 3)]


class Nameless:
    """A schedule whose `str()` is another in every process, so that each would run it."""

    def after(self, instant: datetime, /) -> datetime:
        return instant + timedelta(hours=1)


async def test_p14_what_can_not_be_done_once_is_refused_where_it_is_asked(
    ours: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lock(ours) as term:
        for refused in ("0 3 * * *", None, 0, -1):
            with pytest.raises(ConfigurationError):
                term.once(refused)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="key"):
            term.once(60, key="")
        with pytest.raises(ConfigurationError, match="give Nameless a __str__, or key="):
            term.once(Nameless())
        term.once(Nameless(), key="hourly")
        with pytest.raises(ConfigurationError, match="missed"):
            term.once(60, missed="never")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="begin="):
            term.once(60, begin=datetime(2026, 3, 28))  # noqa: DTZ001
        monkeypatch.setattr(Process, "capabilities", Capabilities())
        with pytest.raises(ConfigurationError, match="finished"):
            term.once(Interval(60))


# -- a minimum hold ---------------------------------------------------------------------------------------------------


async def test_short_work_that_is_started_everywhere_at_about_the_same_time_is_done_once(server: MemoryServer) -> None:
    done = 0

    async def strike(number: int, skew: float) -> None:
        nonlocal done
        await asyncio.sleep(skew)
        try:
            store = Process(server, key=number, latency=0.001)
            async with FencedLock(store, NAME, ttl=TTL, wait=0, min_hold=0.5, observers=()):
                done += 1
                await asyncio.sleep(0.001)
        except NotAcquired:
            pass

    for _ in range(20):
        await asyncio.gather(*(strike(number, 0.01 * number) for number in range(4)))
        await asyncio.sleep(0.5)
    assert done == 20


async def test_a_minimum_hold_counts_from_the_begin_and_delays_nobody_who_worked_longer(
    ours: Process, other: Process
) -> None:
    loop = asyncio.get_running_loop()
    for worked, waited in ((0.1, 0.4), (0.5, 0.0), (2.0, 0.0)):
        async with lock(ours, min_hold=0.5):
            await asyncio.sleep(worked)
        released = loop.time()
        async with lock(other):
            assert loop.time() - released == pytest.approx(waited, abs=0.02)


async def test_p14_a_minimum_hold_has_to_fit_into_the_ttl_and_the_store(
    ours: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    for refused in (TTL + 0.1, -1, "1"):
        with pytest.raises(ConfigurationError, match="min_hold"):
            lock(ours, min_hold=refused)
    monkeypatch.setattr(Process, "capabilities", Capabilities(keeps=False))
    with pytest.raises(ConfigurationError, match="min_hold"):
        lock(ours, min_hold=0.1)
    Lease(ours, NAME, ttl=TTL, observers=())
