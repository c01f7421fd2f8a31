"""P10: the local line of one process and event loop: first come first served, silent while a local term is held."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from aioelect import _line
from aioelect._core.timing import Timing
from aioelect._line import Line, line_for
from aioelect._store import Holder
from aioelect.facts import TermInfo
from support.wait import until

TIMING = Timing.of(1.0)
TERM = TermInfo("name", "us", 7, "id", 1.0)
US = Holder("us", 7, "id", None)


@pytest.fixture
async def line() -> Line:
    return line_for("server", "name")


class Queue:
    """Tasks that stand in a line, and in what order they were called up."""

    def __init__(self, line: Line) -> None:
        self.called: list[str] = []
        self._line = line
        self._tasks: dict[str, asyncio.Task[bool]] = {}

    async def join(self, who: str, limit: float | None = None) -> asyncio.Task[bool]:
        """Stand at the end."""
        task = self._tasks[who] = asyncio.create_task(self._stand(who, limit))
        await asyncio.sleep(0)  # it has taken its place
        return task

    async def _stand(self, who: str, limit: float | None) -> bool:
        called = await self._line.turn(limit)
        if called:
            self.called.append(who)
        return called

    async def next(self) -> None:
        """The head is done; let the next one notice."""
        self._line.done()
        await settle()

    async def clear(self) -> None:
        """Whoever still stands goes."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@pytest.fixture
async def queue(line: Line) -> AsyncIterator[Queue]:
    queue = Queue(line)
    yield queue
    await queue.clear()


async def settle() -> None:
    """A few turns of the loop, so that whoever can run has run."""
    for _ in range(5):
        await asyncio.sleep(0)


# -- order


async def test_p10_an_empty_line_lets_in_at_once(line: Line) -> None:
    assert await line.turn(0.0)


async def test_p10_who_came_first_is_called_first_and_one_at_a_time(queue: Queue) -> None:
    for who in "abcd":
        await queue.join(who)
    for count in (1, 2, 3, 4):
        await settle()
        assert queue.called == list("abcd")[:count]
        await queue.next()


async def test_p10_who_comes_while_others_stand_does_not_slip_in(line: Line, queue: Queue) -> None:
    await queue.join("a")
    await queue.join("b")
    line.done()  # b is called, and has not noticed yet
    await queue.join("c")
    await settle()
    assert queue.called == ["a", "b"]


# -- limits and cancellation


async def test_p10_the_limit_of_a_place_is_kept(queue: Queue) -> None:
    await queue.join("head")
    started = asyncio.get_running_loop().time()
    assert await (await queue.join("late", limit=0.05)) is False
    assert asyncio.get_running_loop().time() - started >= 0.049
    await queue.next()
    assert queue.called == ["head"]


async def test_p10_a_place_that_was_given_up_is_skipped(queue: Queue) -> None:
    await queue.join("head")
    short = await queue.join("short", limit=0.01)
    await queue.join("last")
    await short
    await queue.next()
    assert queue.called == ["head", "last"]


async def test_p10_a_place_whose_limit_passes_in_the_turn_it_could_be_called_is_skipped(
    line: Line, queue: Queue
) -> None:
    await queue.join("head")
    short = await queue.join("short", limit=0.0)
    await queue.join("last")
    await until(short.done)
    line.done()
    await settle()
    assert queue.called == ["head", "last"]


async def test_p10_a_cancelled_place_is_skipped(queue: Queue) -> None:
    await queue.join("head")
    gone = await queue.join("gone")
    await queue.join("last")
    gone.cancel()
    await settle()
    assert gone.cancelled()
    await queue.next()
    assert queue.called == ["head", "last"]


@pytest.mark.parametrize("first", ["called up", "cancelled"])
async def test_p10_who_is_called_up_and_cancelled_at_once_lets_the_next_one_go(
    line: Line, queue: Queue, first: str
) -> None:
    await queue.join("head")
    gone = await queue.join("gone")
    await queue.join("next")
    if first == "called up":
        line.done()
        gone.cancel()
    else:
        gone.cancel()
        line.done()
    await settle()
    assert gone.cancelled()
    assert queue.called == ["head", "next"]


async def test_p10_a_crowd_that_is_cancelled_at_every_turn_never_blocks_the_line(line: Line, queue: Queue) -> None:
    """Whoever goes, whenever: the line moves on."""
    for turns in range(6):
        await queue.join("head")
        crowd = [await queue.join(str(number)) for number in range(4)]
        line.done()
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in crowd:
            task.cancel()
        await settle()
        if any(not task.cancelled() for task in crowd):  # it was the head by then
            line.done()
        assert await line.turn(1.0)
        line.done()


# -- a local term


async def test_p10_the_line_stands_still_while_a_local_term_is_held(line: Line, queue: Queue) -> None:
    assert await line.turn(None)
    line.hold("term", TERM)
    line.done()
    await queue.join("a")
    await settle()
    assert (queue.called, line.holder) == ([], US)
    line.let_go("term", told=0)
    await settle()
    assert (queue.called, line.holder) == (["a"], None)


async def test_p10_two_local_terms_have_to_be_over_before_the_line_moves(line: Line, queue: Queue) -> None:
    line.hold("one", TERM)
    line.hold("other", TERM)
    await queue.join("a")
    line.let_go("one", told=0)
    await settle()
    assert queue.called == []
    line.let_go("other", told=0)
    await settle()
    assert queue.called == ["a"]


async def test_p10_a_term_that_lets_go_twice_calls_nobody_up_twice(line: Line, queue: Queue) -> None:
    line.hold("term", TERM)
    await queue.join("a")
    await queue.join("b")
    line.let_go("term", told=0)
    line.let_go("term", told=0)
    await settle()
    assert queue.called == ["a"]


async def test_p10_whoever_stands_in_line_hears_who_holds_the_name(line: Line) -> None:
    heard: list[Holder | None] = []
    with line.listening(heard.append):
        line.hold("term", TERM)
        line.let_go("term", told=0)
    line.saw(US)
    assert heard == [US, None]


# -- other processes


async def test_p10_without_others_the_next_one_starts_at_once(line: Line) -> None:
    line.hold("term", TERM)
    line.let_go("term", told=0)
    assert line.head_start(TIMING, 0.9) == 0.0


async def test_p10_with_others_waiting_the_next_one_takes_the_same_jitter_once(line: Line) -> None:
    line.hold("term", TERM)
    line.let_go("term", told=2)
    assert line.head_start(TIMING, 0.9) == TIMING.wakeup_delay(0.9)
    assert line.head_start(TIMING, 0.9) == 0.0


async def test_p10_after_several_hand_ons_in_a_row_the_process_steps_back(line: Line) -> None:
    starts = []
    for _ in range(9):
        line.hold("term", TERM)
        line.let_go("term", told=1)
        starts.append(line.head_start(TIMING, 0.5))
    plain = TIMING.wakeup_delay(0.5)
    stepped_back = plain + TIMING.stepping_back()
    assert starts == [plain] * 3 + [stepped_back] + [plain] * 3 + [stepped_back] + [plain]


async def test_p10_a_turn_without_others_begins_the_count_again(line: Line) -> None:
    for told in (1, 1, 1, 0, 1):
        line.hold("term", TERM)
        line.let_go("term", told=told)
    assert line.head_start(TIMING, 0.5) == TIMING.wakeup_delay(0.5)


async def test_p10_that_others_wait_is_forgotten_after_a_while(line: Line) -> None:
    line.hold("term", TERM)
    line.let_go("term", told=1)
    await asyncio.sleep(2 * _line._MEMORY)
    assert line.head_start(TIMING, 0.5) == 0.0


async def test_p10_several_that_heard_of_a_release_are_a_crowd_and_one_is_none(line: Line) -> None:
    seen = []
    for told in (0, 1, 2, 1):
        line.hold("term", TERM)
        line.let_go("term", told=told)
        seen.append(line.crowded)
    assert seen == [False, False, True, False]


# -- the registry


async def test_p10_one_line_for_each_server_and_name(line: Line) -> None:
    others = [line_for("other", "name"), line_for("server", "other")]
    assert line_for("server", "name") is line
    assert len({id(each) for each in [line, *others]}) == 3


async def test_p15_each_event_loop_has_lines_of_its_own(line: Line) -> None:
    async def elsewhere() -> bool:
        return line_for("server", "name") is line

    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) is False


async def test_p15_the_registry_keeps_no_line_that_nobody_uses() -> None:
    async def pass_by(name: str) -> None:
        assert line_for("server", name).holder is None  # a single try looks, and stands in no line
        line = line_for("server", name)
        assert await line.turn(None)
        line.hold("term", TERM)
        line.done()
        line.let_go("term", told=1)

    for number in range(50):
        await pass_by(f"name-{number}")
    registry = _line.lines()
    gc.collect()
    await until(lambda: not registry)


async def test_p15_a_line_in_use_stays_the_same_line(queue: Queue) -> None:
    del queue
    line = line_for("server", "busy")
    line.hold("term", TERM)
    waiting = asyncio.create_task(line.turn(None))
    await asyncio.sleep(0)
    address = id(line)
    del line
    gc.collect()
    again = line_for("server", "busy")
    assert id(again) == address
    again.let_go("term", told=0)
    assert await waiting
