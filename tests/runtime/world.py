"""A small world for operations under cancellation: two processes, a name, work that watches its own claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from aioelect import FencedLock, Term
from aioelect._line import lines
from aioelect._store import Claim, Store
from aioelect._tokens import TokenSource
from aioelect.testing._memory import MemoryServer
from support.checkpoints import Steps
from support.process import Hook, Process

NAME = "name"
TTL = 1.0
LATENCY = 0.001


@dataclass
class World:
    """Who takes part, and what happened."""

    server: MemoryServer = field(default_factory=MemoryServer)
    terms: list[Term] = field(default_factory=list)
    tokens: TokenSource | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    at_work: int = 0
    loose: Term | None = None  # of try_acquire: its release is up to the caller
    rivals: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ours = self.process("ours")
        self.theirs = self.process("theirs")

    def process(self, key: str) -> Process:
        """A process of its own."""
        return Process(self.server, key=(id(self.server), key), latency=LATENCY)

    async def body(self, term: Term) -> None:
        """Work that never runs without its claim, from the first step to the last."""
        self.assert_claimed(term)
        assert term.is_leader
        self.terms.append(term)
        self.began.set()
        self.at_work += 1
        assert self.at_work == 1
        try:
            for _ in range(2):
                await asyncio.sleep(0.002)
                self.assert_claimed(term)
        finally:
            self.assert_claimed(term)  # whoever cancels waits for the work before the release
            self.at_work -= 1

    def assert_claimed(self, term: Term) -> None:
        """The store and the clock say that the claim is ours."""
        holder = self.server.holder(NAME)
        assert holder is not None and holder.id == term.id, "the work ran without a claim"
        assert term.is_valid

    async def endless(self, term: Term) -> None:
        """The same, until it is cancelled."""
        await self.body(term)
        await asyncio.get_running_loop().create_future()

    def rival(self, store: Store, seconds: float) -> None:
        """Somebody else holds the name for a while, from before we start."""

        async def hold() -> None:
            async with FencedLock(store, NAME, ttl=TTL, wait=0, observers=()):
                holding.set()
                await asyncio.sleep(seconds)

        holding = asyncio.Event()
        self.rivals.append(asyncio.create_task(hold()))
        self.rivals.append(asyncio.create_task(holding.wait()))  # type: ignore[arg-type]

    async def rivals_hold(self) -> None:
        """Wait until the rivals hold what they hold."""
        for rival in self.rivals[1::2]:
            await rival

    async def assert_clean(self, *, free_within: float = 0.05) -> None:
        """No task, no claim and no place in a line is left; everybody else gets in."""
        for rival in self.rivals:
            await rival
        if self.loose is not None:
            await self.loose.release()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for store in (self.theirs, self.ours, self.process("third")):
            left = free_within - (loop.time() - began)
            async with FencedLock(store, NAME, ttl=TTL, wait=max(left, 0.05), observers=()):
                pass
        assert self.at_work == 0
        await turns(5)
        left_over = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left_over, f"tasks were left: {left_over}"
        for line in lines().values():
            assert not (line._queue or line._contending or line._holders or line._listeners), (
                "a place in a line was left"
            )
        assert not self.server.channels


def verbs(store: Process, since: int = 0) -> list[str]:
    """What was asked of the store, in order."""
    return [verb for verb, _ in store.calls[since:]]


def refuse_renewals(error: BaseException) -> Hook:
    """Let no renewal arrive any more."""

    def hook(verb: str, claim: Claim) -> None:
        if verb == "renew":
            raise error

    return hook


async def quiet(store: Process) -> bool:
    """Nothing is asked any more about a term that is over."""
    asked = len(store.calls)
    await asyncio.sleep(10 * TTL)
    return len(store.calls) == asked


async def turns(count: int) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


Canceller = Callable[[Callable[[], Awaitable[object]], int, bool], Awaitable[bool]]
"""Runs an operation, cancels it at the k-th checkpoint (early or late), and says whether that was reached."""


async def by_task_cancel(operation: Callable[[], Awaitable[object]], at: int, late: bool) -> bool:
    """`task.cancel()`, once: it comes out as CancelledError, and the count is left at one, as ever."""
    steps = Steps()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        await _through(steps, operation, at, late, task.cancel)

    task = asyncio.create_task(main())
    await asyncio.wait({task})
    if not steps.acted:
        await task
        return False
    assert task.cancelled(), f"a cancellation was lost: {task!r}"
    assert task.cancelling() == 1
    return True


async def by_timeout(operation: Callable[[], Awaitable[object]], at: int, late: bool) -> bool:
    """`asyncio.timeout`: it comes out as TimeoutError, the count is as on entry, and a later timeout works."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        came_out: type[TimeoutError] | None = None
        try:
            async with asyncio.timeout(None) as limit:
                await _through(steps, operation, at, late, lambda: limit.reschedule(0.0))
                await turns(2)  # a timeout that comes as the operation ends is found here
        except TimeoutError as error:
            came_out = type(error)
        assert came_out is (TimeoutError if steps.acted else None), "a timeout was lost"
        assert task.cancelling() == 0
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(1)
        except TimeoutError:
            return
        raise AssertionError("a later timeout did not work")

    steps = Steps()
    await asyncio.create_task(main())
    return steps.acted


async def by_scope(operation: Callable[[], Awaitable[object]], at: int, late: bool) -> bool:
    """An anyio scope: it absorbs its own cancellation, the count is as on entry, and a later scope works."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with anyio.CancelScope() as scope:
            await _through(steps, operation, at, late, scope.cancel)
            await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught == steps.acted, "a cancellation was lost"
        assert task.cancelling() == 0
        with anyio.move_on_after(0.01) as later:
            await asyncio.sleep(1)
        assert later.cancelled_caught

    steps = Steps()
    await asyncio.create_task(main())
    return steps.acted


async def _through(
    steps: Steps, operation: Callable[[], Awaitable[object]], at: int, late: bool, act: Callable[[], object]
) -> None:
    async def coroutine() -> None:
        await operation()

    await steps.through(coroutine(), at=at, act=act, late=late)
