"""Ends that come from inside: the work, a child or another task ends the term, and nothing gets stuck."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from aioelect import (
    ConfigurationError,
    Elector,
    FencedLock,
    Leader,
    LeaderChanged,
    Lease,
    LeaseLost,
    NotHeld,
    ReleaseOutcome,
    Term,
)
from aioelect._store import Holder, Notice, NoticeKind
from aioelect.facts import Fact, TermStopped
from aioelect.testing._memory import MemoryServer
from runtime.conftest import Heard
from runtime.world import NAME, TTL
from support.process import Process


async def _alone(term: Term) -> None:
    assert await term.release() is ReleaseOutcome.RELEASED


async def _through_gather(term: Term) -> None:
    await asyncio.gather(term.release(), asyncio.sleep(0.1))


async def _through_a_task_group(term: Term) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(term.release())


async def _through_an_anyio_group(term: Term) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(term.release)


async def _through_wait_for(term: Term) -> None:
    await asyncio.wait_for(term.release(), 3)


async def _by_two_children(term: Term) -> None:
    term.start_soon(term.release)
    term.start_soon(term.release)
    await asyncio.sleep(60)


async def _by_a_child_and_the_clean_up(term: Term) -> None:
    term.start_soon(term.release)
    try:
        await asyncio.sleep(60)
    finally:
        await term.release()


async def _by_another_task_and_the_clean_up(term: Term) -> None:
    other = asyncio.create_task(term.release())
    try:
        await asyncio.sleep(60)
    finally:
        await term.release()
        await other


Work = Callable[[Term], Coroutine[None, None, None]]


@pytest.mark.parametrize(
    "work",
    [
        _alone,
        _through_gather,
        _through_a_task_group,
        _through_an_anyio_group,
        _through_wait_for,
        _by_two_children,
        _by_a_child_and_the_clean_up,
        _by_another_task_and_the_clean_up,
    ],
    ids=lambda work: work.__name__.strip("_").replace("_", " "),
)
async def test_p6_a_release_from_inside_never_waits_for_itself(
    server: MemoryServer, ours: Process, other: Process, work: Work
) -> None:
    with contextlib.suppress(asyncio.CancelledError):  # gather and wait_for pass on that their task was stopped
        async with asyncio.timeout(5):
            async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
                await work(term)
    assert server.holder(NAME) is None
    assert not term.is_leader
    for store in (ours, other):
        async with FencedLock(store, NAME, ttl=TTL, wait=1, observers=()):
            pass


async def test_p7_while_a_child_releases_the_body_is_stopped_and_nobody_leads(
    server: MemoryServer, ours: Process
) -> None:
    leading: list[bool] = []
    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        term.start_soon(term.release)
        try:
            await asyncio.sleep(60)
        finally:
            with term.cleanup():
                await asyncio.sleep(TTL / 2)
                leading.append(term.is_leader)
                assert server.holder(NAME) is not None, "released before the work was over"
    assert leading == [False]


async def test_p8_a_scope_that_expires_while_a_release_is_on_its_way_does_not_make_it_go_out_twice(
    server: MemoryServer, ours: Process
) -> None:
    with anyio.CancelScope() as scope:

        def expire(request: str, _: object) -> None:
            if request == "release":
                scope.cancel()

        ours.before = expire
        async with FencedLock(ours, NAME, ttl=TTL, observers=()):
            ours.delay(0.05)
    assert [request for request, _ in ours.calls] == ["acquire", "release"]
    assert server.holder(NAME) is None


async def _open_scope(_: Term) -> None:
    scope = anyio.CancelScope()
    scope.__enter__()  # as left behind by `break` out of an async generator that holds one


@pytest.mark.parametrize("form", ["lock", "lease", "lead"])
async def test_p6_a_scope_that_the_body_left_open_does_not_keep_the_claim(
    server: MemoryServer, ours: Process, form: str
) -> None:
    async def use() -> None:
        sections: dict[str, contextlib.AbstractAsyncContextManager[Term, bool | None]] = {}
        sections["lock"] = FencedLock(ours, NAME, ttl=TTL, observers=())
        sections["lease"] = Lease(ours, NAME, ttl=TTL, observers=())
        sections["lead"] = Elector(ours, NAME, ttl=TTL, observers=()).lead()
        async with sections[form] as term:
            await _open_scope(term)

    with pytest.raises(RuntimeError, match="cancel scope"):
        await asyncio.create_task(use())
    assert server.holder(NAME) is None


async def test_p6_a_generator_that_is_left_with_break_gives_its_lock_back(server: MemoryServer, ours: Process) -> None:
    lock = FencedLock(ours, NAME, ttl=TTL, observers=())
    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(repr(told.get("exception"))))

    async def numbers() -> AsyncIterator[int]:
        async with lock:
            yield 1

    async def worker() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(3 * TTL)
        assert server.holder(NAME) is None, "renewed for a body that is over"

    await worker()
    assert len(errors) == 1
    assert "another task" in errors[0]


class _Raises:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self, fact: Fact, /) -> None:
        if isinstance(fact, TermStopped):
            raise self._error


class _BrokenHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log server is down")


@pytest.mark.parametrize("broken", ["handler", "observer", "cancelling observer"])
async def test_p13_a_broken_log_handler_or_observer_does_not_keep_the_work_from_being_stopped(
    server: MemoryServer, ours: Process, heard: Heard, broken: str
) -> None:
    logger, handler = logging.getLogger("aioelect"), _BrokenHandler()
    observer = _Raises(asyncio.CancelledError() if "cancelling" in broken else ValueError("bad"))
    if broken == "handler":
        logger.addHandler(handler)
    try:
        with pytest.raises(LeaseLost):
            async with FencedLock(ours, NAME, ttl=TTL, observers=[observer, heard]):
                server.seize(NAME)
                await asyncio.sleep(60)
    finally:
        logger.removeHandler(handler)
    assert len(heard.of(TermStopped)) == 1


async def test_p15_a_term_refuses_to_be_ended_from_a_thread_before_anything_is_changed(ours: Process) -> None:
    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        for end in (term.resign, lambda: term.start_soon(asyncio.sleep, 0)):
            with ThreadPoolExecutor() as threads:
                error = threads.submit(end).exception()
            assert isinstance(error, ConfigurationError)
            assert "call_soon_threadsafe" in str(error)
        assert term.is_leader


async def test_a_term_of_try_acquire_has_no_work_to_resign_from(ours: Process) -> None:
    term = await Lease(ours, NAME, ttl=TTL, observers=()).try_acquire()
    assert term is not None
    with pytest.raises(NotHeld, match=r"release\(\) is yours"):
        term.resign()
    await term.release()


async def test_p10_undoing_a_claim_that_never_was_does_not_tell_that_nobody_leads(
    server: MemoryServer, ours: Process, other: Process
) -> None:
    seen: list[Leader | None] = []

    async def follow() -> None:
        async with Elector(other, NAME, ttl=TTL, observers=()) as elector:
            async for event in elector:
                if isinstance(event, LeaderChanged):
                    seen.append(event.leader)  # noqa: PERF401 - one by one, as they come

    async with FencedLock(ours, NAME, ttl=TTL, observers=()) as term:
        follower = asyncio.create_task(follow())
        await asyncio.sleep(TTL)
        server.tell(NAME, Notice(NoticeKind.RELEASED, Holder("bystander", None, "0" * 16, None)))
        await asyncio.sleep(TTL)
        assert [leader.id if leader else None for leader in seen] == [term.id]
    follower.cancel()
    await asyncio.wait({follower})
