"""A job in partitions: who gets what when members come, leave, crash; what becomes of errors; what it costs."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial

import pytest

from aioelect import ConfigurationError, Partition, Partitions, StoreRejected, StoreUnavailable, _clock
from aioelect._core import hold
from aioelect._keeper import Keeper
from aioelect._store import Claim
from aioelect.facts import CandidacyFailed, ConsumerFailed, StoreFailing, StoreRecovered
from aioelect.testing._faults import Request
from aioelect.testing._memory import MemoryServer
from runtime.conftest import LATENCY, Heard
from support.process import Process
from support.wait import until

COUNT = 64
TTL = 3.0
INTERVAL = TTL / 3


class Copy:
    """One copy of the service, and what it consumes."""

    def __init__(
        self, server: MemoryServer, who: str, count: int = COUNT, *, drain: float = 0.01, drain_limit: float = 60
    ) -> None:
        self.store = Process(server, key=who, latency=LATENCY)
        self.heard = Heard()
        self.drain = drain
        self.slow: dict[int, float] = {}  # by partition
        self.deaf: dict[int, asyncio.Event] = {}  # by partition: ignores all cancellations until then
        self.partitions = Partitions(
            self.store,
            "orders",
            count=count,
            ttl=TTL,
            identity=who,
            observers=[self.heard],
            drain_limit=drain_limit,
        )
        self.begun: Counter[int] = Counter()
        self.at_work: set[int] = set()

    async def consume(self, partition: Partition) -> None:
        """Work until told to stop; then for a while longer."""
        number = partition.number
        assert partition.term.is_leader and partition.term.name == f"orders:{number}"
        assert (number, "somebody") not in at_work
        at_work.add((number, "somebody"))
        self.begun[number] += 1
        self.at_work.add(number)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            try:
                with partition.term.cleanup():
                    await asyncio.sleep(self.slow.get(number, self.drain))
                    while number in self.deaf and not self.deaf[number].is_set():
                        at_work.discard((number, "somebody"))  # its term is over: others may
                        with suppress(asyncio.CancelledError):
                            await self.deaf[number].wait()
            finally:
                self.at_work.discard(number)
                at_work.discard((number, "somebody"))

    @property
    def numbers(self) -> set[int]:
        """The partitions that may be worked on here now."""
        return {partition.number for partition in self.partitions.held}


at_work: set[tuple[int, str]] = set()


@pytest.fixture(autouse=True)
def _nobody_at_work() -> None:
    at_work.clear()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def join(stack: AsyncExitStack, copy: Copy) -> AsyncExitStack:
    """Let a copy take part; what is returned makes it leave."""
    part = await stack.enter_async_context(AsyncExitStack())
    await part.enter_async_context(copy.partitions.running(copy.consume))
    return part


def elapsed() -> float:
    return asyncio.get_running_loop().time()


def fair(*copies: Copy) -> bool:
    sizes = sorted(len(copy.numbers) for copy in copies)
    least, more = divmod(COUNT, len(copies))
    everything = set().union(*(copy.numbers for copy in copies))
    return len(everything) == COUNT and sizes == [least] * (len(copies) - more) + [least + 1] * more


# -- who gets what -----------------------------------------------------------------------------------------------------


async def test_one_that_is_alone_holds_all_and_one_that_joins_gets_its_share_without_a_stop_of_all(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    copies = [Copy(server, f"copy-{number}") for number in range(5)]
    for here, copy in enumerate(copies, start=1):
        before = {other: dict(other.begun) for other in copies}
        began = elapsed()
        await join(stack, copy)
        await until(partial(fair, *copies[:here]), 60)
        assert elapsed() - began <= 4 * INTERVAL
        for other in copies[: here - 1]:
            assert other.begun == before[other], "a consumer was stopped and started again"
        assert sum(copy.begun.values()) == (COUNT if here == 1 else COUNT // here), "more was moved than had to be"
    assert copies[0].partitions.members == tuple(f"copy-{number}" for number in range(5))


async def test_p7_one_that_leaves_hands_over_at_once_and_nothing_else_moves(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    first, second, third = copies = [Copy(server, f"copy-{number}") for number in range(3)]
    first_part, *_ = [await join(stack, copy) for copy in copies]
    await until(lambda: fair(*copies), 60)
    await asyncio.sleep(3 * INTERVAL)
    held, begun = first.numbers, sum(second.begun.values()) + sum(third.begun.values())
    began = elapsed()
    await first_part.aclose()
    assert first.at_work == set() and first.partitions.held == ()
    await until(lambda: fair(second, third), 60)
    assert elapsed() - began < INTERVAL / 2
    assert sum(second.begun.values()) + sum(third.begun.values()) == begun + len(held)


async def test_p7_a_partition_is_let_go_only_when_its_consumer_has_ended_and_the_others_dont_wait_for_it(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    slow, other = Copy(server, "slow"), Copy(server, "other")
    part = await join(stack, slow)
    await until(lambda: len(slow.numbers) == COUNT, 60)
    await asyncio.sleep(INTERVAL)  # and has told
    slow.drain = 5 * TTL
    await join(stack, other)
    await asyncio.sleep(4 * TTL)
    assert len(slow.at_work) == COUNT and other.numbers == set(), "it was let go with its consumer at work"
    assert {verb for verb, _ in other.store.calls} == {"attend"}, "what is not free was tried"
    await until(lambda: fair(slow, other), 60)
    last = min(slow.numbers)
    slow.drain, slow.slow[last] = 0.0, 2 * TTL
    began, leaving = elapsed(), asyncio.create_task(part.aclose())
    await until(lambda: len(other.numbers) == COUNT - 1, 60)
    assert elapsed() - began < INTERVAL and slow.at_work == {last}
    await until(lambda: len(other.numbers) == COUNT, 60)
    await leaving


async def test_p7_past_the_drain_limit_others_take_over_and_this_member_takes_nothing_until_the_old_work_is_over(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    hung, other = Copy(server, "hung", 4, drain_limit=TTL), Copy(server, "other", 4)
    await join(stack, hung)
    await join(stack, other)
    await until(lambda: len(hung.numbers) == len(other.numbers) == 2, 60)
    stuck, fine = sorted(hung.numbers)
    over = hung.deaf[stuck] = asyncio.Event()
    for partition in hung.partitions.held:
        if partition.number == stuck:
            partition.term.resign()
    await until(lambda: stuck in other.numbers, 4 * TTL)
    assert hung.numbers == {fine}, "what it holds beside that is its own"
    await asyncio.sleep(2 * TTL)
    assert hung.numbers == {fine} and len(other.numbers) == 3
    over.set()
    await until(lambda: len(hung.numbers) == len(other.numbers) == 2, 60)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no eager tasks")
async def test_with_eager_tasks_all_is_as_without(server: MemoryServer, stack: AsyncExitStack) -> None:
    if sys.version_info >= (3, 12):  # mypy looks at the oldest Python
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    one, two = Copy(server, "one"), Copy(server, "two")
    await join(stack, one)
    await until(lambda: len(one.numbers) == COUNT, 60)
    part = await join(stack, two)
    await until(lambda: fair(one, two), 60)
    await part.aclose()
    await until(lambda: len(one.numbers) == COUNT, 60)


async def test_p1_the_partitions_of_one_that_is_cut_off_move_after_a_ttl_and_it_has_stopped_before(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    cut, *rest = copies = [Copy(server, f"copy-{number}") for number in range(4)]
    for copy in copies:
        await join(stack, copy)
    await until(lambda: fair(*copies), 60)
    await asyncio.sleep(3 * INTERVAL)
    cut.store.partition()
    began = elapsed()
    await until(lambda: fair(*rest), 60)  # a consumer asserts that nobody else is at work
    assert TTL - INTERVAL <= elapsed() - began <= TTL + INTERVAL
    assert cut.at_work == set()
    cut.store.heal()
    await until(lambda: fair(*copies), 60)


async def test_when_the_store_is_silent_for_long_all_stop_and_begin_anew_when_it_is_back(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    copies = [Copy(server, "a"), Copy(server, "b")]
    for copy in copies:
        await join(stack, copy)
    await until(lambda: fair(*copies), 60)
    for copy in copies:
        copy.store.partition()
    await asyncio.sleep(3 * TTL)
    assert not any(copy.at_work or copy.partitions.held for copy in copies)
    for copy in copies:
        copy.store.heal()
    await until(lambda: fair(*copies), 60)
    failing = [fact for fact in copies[0].heard.of(StoreFailing) if getattr(fact, "name", "") == "orders"]
    recovered = [fact for fact in copies[0].heard.of(StoreRecovered) if getattr(fact, "name", "") == "orders"]
    assert (len(failing), len(recovered)) == (1, 1)


async def test_in_calm_a_member_asks_once_a_renew_interval_for_each_partition_and_once_for_itself(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    copies = [Copy(server, f"copy-{number}") for number in range(4)]
    for copy in copies:
        await join(stack, copy)
    await until(lambda: fair(*copies), 60)
    await asyncio.sleep(2 * INTERVAL)
    for copy in copies:
        copy.store.calls.clear()
    await asyncio.sleep(100 * INTERVAL)
    for copy in copies:
        asked = Counter(verb for verb, _ in copy.store.calls)
        assert set(asked) == {"renew", "attend"}
        assert asked["renew"] <= 1.02 * 100 * COUNT / 4 and asked["attend"] <= 101


async def test_while_consumers_end_one_by_one_a_member_tells_of_itself_twenty_times_a_second_at_most(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    first, second = copies = [Copy(server, "a"), Copy(server, "b")]
    ends = itertools.count(1)

    async def consume(partition: Partition) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            with partition.term.cleanup():
                await asyncio.sleep(next(ends) / 16)

    await stack.enter_async_context(first.partitions.running(consume))
    await until(lambda: len(first.numbers) == COUNT, 60)
    began = elapsed()
    await join(stack, second)
    await until(lambda: fair(*copies), 60)
    assert elapsed() - began > 1.9
    for copy in copies:
        told = sum(verb == "attend" for verb, _ in copy.store.calls)
        assert told <= 20 * (elapsed() - began) + 3


async def test_a_partition_that_is_lost_while_its_member_hears_that_it_has_too_many_does_no_harm(
    server: MemoryServer, stack: AsyncExitStack
) -> None:
    crowded, other = Copy(server, "crowded", 4, drain=0.0), Copy(server, "other", 4)
    await join(stack, crowded)
    await until(lambda: len(crowded.numbers) == 4, 60)
    await asyncio.sleep(2 * INTERVAL)
    joined = False

    def lose(request: Request, claim: Claim) -> None:
        if joined and request == "attend":
            for partition in crowded.partitions.held:
                keeper = partition.term._supervisor
                assert isinstance(keeper, Keeper)
                keeper._feed(hold.Refused(_clock.now()))

    crowded.store.before = lose  # its answer is then on its way for longer than it takes to stop
    crowded.store.delay(LATENCY, 0.1)
    joined = True
    await join(stack, other)
    await until(lambda: not crowded.numbers, 60)
    joined = False
    await until(lambda: len(crowded.numbers) == len(other.numbers) == 2, 60)
    assert crowded.partitions.is_taking_part


# -- consumers ---------------------------------------------------------------------------------------------------------


async def test_a_consumer_that_raises_ends_its_own_term_and_is_started_again_under_a_new_one(
    ours: Process, heard: Heard
) -> None:
    tokens: dict[int, list[int]] = {0: [], 1: []}

    async def consume(partition: Partition) -> None:
        tokens[partition.number].append(partition.term.token)
        if partition.number == 0 and len(tokens[0]) < 3:
            raise ValueError("bad message")
        await asyncio.get_running_loop().create_future()

    async with Partitions(ours, "orders", count=2, ttl=TTL, observers=[heard]).running(consume) as partitions:
        await until(lambda: len(tokens[0]) == 3, 30)
        assert len(partitions.held) == 2
    assert tokens[0] == sorted(set(tokens[0])) and len(tokens[1]) == 1
    failed = [fact for fact in heard if isinstance(fact, ConsumerFailed)]
    assert [(fact.name, str(fact.error)) for fact in failed] == [("orders:0", "bad message")] * 2


@pytest.mark.parametrize("how", ["return", "resign", "cancel"])
async def test_a_consumer_that_ends_otherwise_is_started_again_after_a_while(ours: Process, how: str) -> None:
    at: list[float] = []

    async def consume(partition: Partition) -> None:
        at.append(elapsed())
        match how:
            case "resign":
                partition.term.resign()
                await asyncio.get_running_loop().create_future()
            case "cancel":
                raise asyncio.CancelledError

    async with Partitions(ours, "orders", count=1, ttl=TTL, observers=()).running(consume) as partitions:
        await until(lambda: len(at) == 3, 30)
        assert partitions.is_taking_part
    assert all(later - earlier > 0.02 for earlier, later in itertools.pairwise(at))


async def test_p7_a_cancelled_run_stops_all_consumers_then_releases_and_then_comes_out(server: MemoryServer) -> None:
    for instant in (0.0, 0.0005, 0.0015, 0.0025, 0.0035, 0.01, 1.0):
        copy = Copy(server, "copy", 4)
        life = asyncio.create_task(copy.partitions.run(copy.consume))
        await asyncio.sleep(instant)
        life.cancel()
        with suppress(asyncio.CancelledError):
            await life
        assert life.cancelled() and not copy.at_work and not copy.partitions.is_taking_part
        assert [server.holder(f"orders:{number}") for number in range(4)] == [None] * 4
        assert not server.groups.get("orders")


async def test_what_the_body_raises_comes_out_as_it_is(server: MemoryServer) -> None:
    copy = Copy(server, "copy", 4)
    with pytest.raises(ValueError, match="bad"):
        async with copy.partitions.running(copy.consume):
            await asyncio.sleep(1)
            raise ValueError("bad")
    assert not copy.at_work and server.holder("orders:0") is None


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_p11_a_store_that_refuses_at_once_comes_out_and_one_that_did_serve_is_tried_for_ever(
    ours: Process, heard: Heard
) -> None:
    async def consume(partition: Partition) -> None:
        await asyncio.get_running_loop().create_future()

    ours.fail_next(request="attend", error=StoreRejected("no permission"))
    with pytest.raises(StoreRejected, match="no permission"):
        await Partitions(ours, "orders", count=2, ttl=TTL, observers=[heard]).run(consume)
    assert len(heard.of(CandidacyFailed)) == 1
    ours.fail_next(3, request="attend", error=StoreUnavailable("down"))
    async with Partitions(ours, "orders", count=2, ttl=TTL, observers=()).running(consume) as partitions:
        await until(lambda: len(partitions.held) == 2, 30)
        ours.fail_next(3, request="attend", error=StoreRejected("no permission"))
        await asyncio.sleep(3 * TTL)
        assert len(partitions.held) == 2 and partitions.is_taking_part


@pytest.mark.parametrize("count", [0, -1, 1025, True, 1.5, "4", None])
def test_p14_a_count_that_makes_no_sense_is_refused(ours: Process, count: object) -> None:
    with pytest.raises(ConfigurationError, match="count="):
        Partitions(ours, "orders", count=count)  # type: ignore[arg-type]


async def test_p14_the_name_has_to_leave_room_for_the_numbers(ours: Process) -> None:
    Partitions(ours, "n" * 198, count=10, observers=())
    with pytest.raises(ConfigurationError, match="name takes 201 bytes"):
        Partitions(ours, "n" * 198, count=11, observers=())


async def test_one_object_takes_part_once(server: MemoryServer) -> None:
    copy = Copy(server, "copy", 4)
    async with copy.partitions.running(copy.consume):
        with pytest.raises(ConfigurationError, match="already"):
            await copy.partitions.run(copy.consume)
    async with copy.partitions.running(copy.consume):
        pass
