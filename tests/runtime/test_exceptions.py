"""What comes out of an `async with`: loss, outer timeout and outer cancel, alone and together; errors of the body."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import product

import anyio
import pytest
from anyio.abc import TaskGroup

from aioelect import (
    LeaseExpired,
    LeaseLost,
    LeaseTaken,
    ReleaseOutcome,
    StoreRejected,
    StoreUnavailable,
    Term,
)
from aioelect._store import Claim
from aioelect.facts import TermOver
from aioelect.testing._faults import Silence
from aioelect.testing._memory import MemoryServer
from aioelect.testing._virtual import virtual_loop
from runtime.conftest import Heard
from runtime.forms import Form, as_lock, every_form, groups
from runtime.world import NAME, TTL, turns
from support.process import Process

# -- loss, outer timeout and outer cancel ------------------------------------------------------------------------------


@dataclass
class Trouble:
    """Three ways to end a body from outside, to be used in one turn of the loop."""

    server: MemoryServer
    task: asyncio.Task[object] = field(init=False)
    timeout: asyncio.Timeout = field(init=False)
    term: Term = field(init=False)

    def loss(self) -> None:
        """The renew deadline has passed: whoever looks next finds out."""
        self.server.seize(NAME)
        virtual_loop().suspend(0.9 * TTL)
        self.term.resign()  # looks at the clock first, and finds the claim expired

    def outer_timeout(self) -> None:
        """The caller's own limit is over."""
        self.timeout.reschedule(virtual_loop().time())

    def outer_cancel(self) -> None:
        """The caller is cancelled."""
        self.task.cancel()


LOSS, TIMEOUT, CANCEL = Trouble.loss, Trouble.outer_timeout, Trouble.outer_cancel
TROUBLES = (LOSS, TIMEOUT, CANCEL)
SEQUENCES = [*((one,) for one in TROUBLES), *((a, b) for a, b in product(TROUBLES, TROUBLES) if a is not b)]


@groups
@every_form
@pytest.mark.parametrize("distance", [0, 1, 2, 3], ids=lambda turns: f"{turns} turns apart")
@pytest.mark.parametrize(
    "sequence", SEQUENCES, ids=lambda sequence: ", ".join(one.__name__.replace("_", " ") for one in sequence)
)
async def test_p8_the_outer_request_wins_over_a_loss_and_the_cancel_count_is_as_on_entry(
    server: MemoryServer,
    ours: Process,
    heard: Heard,
    sequence: tuple[Callable[[Trouble], None], ...],
    distance: int,
    form: Form,
    group: Callable[[], contextlib.AbstractAsyncContextManager[object]],
) -> None:
    trouble = Trouble(server)
    loop = asyncio.get_running_loop()
    facts: dict[str, object] = {}

    def strike(waiting: tuple[Callable[[Trouble], None], ...]) -> None:
        waiting[0](trouble)
        if waiting[1:] and distance:
            _after(distance, lambda: strike(waiting[1:]))
        elif waiting[1:]:
            strike(waiting[1:])

    async def section() -> None:
        async with form(ours, heard) as trouble.term:
            loop.call_later(0.01, strike, sequence)
            await asyncio.sleep(10)

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        trouble.task = task
        try:
            async with asyncio.timeout(None) as trouble.timeout:
                async with group():
                    await section()
        finally:
            facts["count"] = task.cancelling()

    task = asyncio.create_task(main())
    await asyncio.wait({task})
    error = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):  # a group of the caller's own wraps what leaves it
        assert len(error.exceptions) == 1
        error = error.exceptions[0]
    if CANCEL in sequence:
        # Python itself decides between a timeout and a cancel that meet: both are outer requests.
        assert task.cancelled() or (TIMEOUT in sequence and type(error) is TimeoutError)
        assert facts["count"] == 1
    elif TIMEOUT in sequence:
        # An outer timeout that strikes after the body has left on a loss finds nothing to cancel.
        assert type(error) is TimeoutError or (sequence[0] is LOSS and distance and type(error) is LeaseExpired)
        assert facts["count"] == 0
    else:
        assert type(error) is LeaseExpired
        assert facts["count"] == 0
    assert len(heard.of(TermOver)) == 1


def _after(count: int, act: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    if count > 1:
        loop.call_soon(_after, count - 1, act)
    else:
        loop.call_soon(act)


@every_form
async def test_p8_after_a_loss_a_later_timeout_and_a_later_scope_work(
    server: MemoryServer, ours: Process, heard: Heard, form: Form
) -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(LeaseTaken):
        async with form(ours, heard):
            server.seize(NAME)
            await asyncio.sleep(10)
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1)
    with anyio.move_on_after(0.01) as scope:
        await asyncio.sleep(1)
    assert scope.cancelled_caught
    await turns(3)


@pytest.mark.parametrize("group", [asyncio.TaskGroup, anyio.create_task_group], ids=["TaskGroup", "anyio group"])
async def test_p8_a_sibling_that_fails_cancels_a_holder_and_its_error_comes_out(
    server: MemoryServer,
    ours: Process,
    heard: Heard,
    group: Callable[[], contextlib.AbstractAsyncContextManager[asyncio.TaskGroup | TaskGroup]],
) -> None:
    async def hold() -> None:
        async with as_lock(ours, heard):
            await asyncio.sleep(10)

    async def fail() -> None:
        await asyncio.sleep(0.1)
        raise ValueError("a sibling")

    with pytest.raises(BaseExceptionGroup) as caught:
        async with group() as tasks:
            for function in (hold, fail):
                if isinstance(tasks, asyncio.TaskGroup):
                    tasks.create_task(function())
                else:
                    tasks.start_soon(function)
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert server.holder(NAME) is None


# -- how the body ends x what the release answers ----------------------------------------------------------------------


class Mine(Exception):
    """The body's own error."""


async def returns(task: asyncio.Task[object]) -> None:
    await asyncio.sleep(0)


async def raises(task: asyncio.Task[object]) -> None:
    raise Mine("the body")


async def is_cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.sleep(10)


def ok(server: MemoryServer) -> None:
    pass


def not_ours(server: MemoryServer) -> None:
    server.seize(NAME)


def gone(server: MemoryServer) -> None:
    server.erase(NAME)


def unavailable(server: MemoryServer) -> None:
    raise StoreUnavailable("connection refused")


def hangs(server: MemoryServer) -> None:
    raise Silence


def denied(server: MemoryServer) -> None:
    raise StoreRejected("NOPERM: grant +evalsha")


UNCONFIRMED = "was not confirmed"


@dataclass(frozen=True)
class Cell:
    """One row of the table: what the release answers; what a body that returned then raises; the note; the outcome."""

    answer: Callable[[MemoryServer], None]
    returned: type[Exception] | None
    note: str | None
    outcome: ReleaseOutcome


CELLS = [
    Cell(ok, None, None, ReleaseOutcome.RELEASED),
    Cell(not_ours, LeaseTaken, "intruder holds it", ReleaseOutcome.ALREADY_LOST),
    Cell(gone, LeaseTaken, "it is gone", ReleaseOutcome.ALREADY_LOST),
    Cell(unavailable, None, UNCONFIRMED, ReleaseOutcome.UNKNOWN),
    Cell(hangs, None, UNCONFIRMED, ReleaseOutcome.UNKNOWN),
    Cell(denied, None, UNCONFIRMED, ReleaseOutcome.UNKNOWN),
]


@every_form
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.answer.__name__.replace("_", " "))
@pytest.mark.parametrize("body", [returns, raises, is_cancelled], ids=lambda body: body.__name__.replace("_", " "))
async def test_p8_what_the_body_does_comes_out_whatever_the_release_answers(
    server: MemoryServer,
    ours: Process,
    heard: Heard,
    form: Form,
    cell: Cell,
    body: Callable[[asyncio.Task[object]], Awaitable[None]],
) -> None:
    def at_release(verb: str, claim: Claim) -> None:
        if verb == "release":
            cell.answer(server)

    ours.before = at_release
    seen: list[BaseException] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with form(ours, heard):
                await body(task)
        except BaseException as error:
            seen.append(error)
            raise

    loop = asyncio.get_running_loop()
    began = loop.time()
    task = asyncio.create_task(main())
    await asyncio.wait({task})
    assert loop.time() - began < 2.2
    if body is is_cancelled:
        assert task.cancelled()
    else:
        error = task.exception()
        came_out = None if error is None else type(error)
        assert came_out is (Mine if body is raises else cell.returned)
    if body is not returns and cell.note is not None:
        assert cell.note in "".join(getattr(seen[0], "__notes__", []))
    if body is not returns and cell.note is None:
        assert not hasattr(seen[0], "__notes__")
    (over,) = heard.of(TermOver)
    assert isinstance(over, TermOver) and over.outcome is cell.outcome


@every_form
async def test_p6_gone_after_an_unanswered_release_is_no_loss(
    server: MemoryServer, ours: Process, heard: Heard, form: Form
) -> None:
    def lose_the_first_answer(verb: str, claim: Claim) -> None:
        if [called for called, _ in ours.calls].count("release") == 1 and verb == "release":
            raise StoreUnavailable("the answer got lost")

    ours.after = lose_the_first_answer
    async with form(ours, heard):
        pass
    (over,) = heard.of(TermOver)
    assert isinstance(over, TermOver) and over.outcome is ReleaseOutcome.UNCONFIRMED
    assert server.holder(NAME) is None


@every_form
async def test_p8_a_body_that_returns_in_the_instant_of_the_loss_raises_lease_lost(
    server: MemoryServer, ours: Process, heard: Heard, form: Form
) -> None:
    with pytest.raises(LeaseLost):
        async with form(ours, heard):
            virtual_loop().pause(2 * TTL)
            server.seize(NAME)
    assert server.holder(NAME) is not None  # the successor's claim is untouched


@every_form
async def test_p8_a_body_that_raises_in_the_instant_of_the_loss_raises_its_own_error_with_a_note(
    server: MemoryServer, ours: Process, heard: Heard, form: Form
) -> None:
    with pytest.raises(Mine) as caught:
        async with form(ours, heard) as term:
            virtual_loop().pause(2 * TTL)
            server.seize(NAME)
            raise Mine("the body")
    assert f"token {term.token}" in "".join(caught.value.__notes__)
