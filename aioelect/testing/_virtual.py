"""An event loop whose time jumps to the next timer as soon as nothing is ready: an hour passes in a millisecond.

While the loop runs, `aioelect._clock` follows its time, the wall clock too. A turn of the loop takes `TURN`, as it does
in reality: code that spins makes time pass and can be counted. While a thread works for the loop, time passes as it
really does.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

from aioelect import _clock
from aioelect._background import running_loop
from aioelect._core.timing import Duration, seconds
from aioelect._errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["Deadlock", "VirtualLoop", "pause", "suspend", "virtual_time"]

P = ParamSpec("P")
R = TypeVar("R")

TURN = 10e-6
"""Seconds that one turn of the loop takes."""


class Deadlock(BaseException):
    """In virtual time nothing is ready and no timer runs: whoever waits would wait for ever.

    Raised at once, out of the event loop. Not an Exception, so that nothing under test handles it.
    """


def _outside() -> RuntimeError:
    return RuntimeError(
        "there are no sockets, pipes and processes in virtual time: replace what needs them (a database, a client) by "
        "a stand-in for this test, or run the test in real time"
    )


class _JumpingSelector(selectors.DefaultSelector):
    """Looks for I/O without waiting, and lets the loop's time pass instead."""

    loop: VirtualLoop
    sealed = False  # the loop has registered what it needs itself
    threads = 0  # at work for the loop

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:  # what comes in over a socket takes real time, which doesn't pass here
        """Refuse sockets."""
        if self.sealed:
            raise _outside()
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now (in practice: wake-ups by threads and signals)."""
        if self.threads:
            with self.loop.real_time():
                return super().select(timeout)
        ready = super().select(0)
        if timeout is None and not ready:
            raise Deadlock("every task waits for something that nothing will bring about, and no timer runs")
        self.loop.pause(TURN if ready else max(timeout or 0.0, TURN))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, as a loop factory: for all tests of a folder, or for a program.

    Time jumps to the next timer as soon as no task can go on, for `asyncio`, `anyio` and aioelect alike. Threads
    (`asyncio.to_thread`) work and take the time that they really take; sockets, pipes and processes are refused.

    Examples:
        >>> async def sleep_for_a_day() -> None:
        ...     await asyncio.sleep(86400)
        >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ...     runner.run(sleep_for_a_day())
    """

    def __init__(self) -> None:
        # What time it was, and since when it has been passing as it really does; replaced, since threads read it.
        self._anchor: tuple[float, float | None] = (1000.0, None)
        self._asleep = 0.0
        self.wall_began = _clock.wall()  # what the wall clock says when the loop begins; set it to test a date
        self._began = self.now()
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.loop = self
        self._jumping.sealed = True

    def time(self) -> float:
        """What timers go by, seconds."""
        then, since = self._anchor
        return then if since is None else then + time.monotonic() - since

    def now(self) -> float:
        """What deadlines go by: `time`, and what was slept through."""
        return self.time() + self._asleep

    def wall(self) -> float:
        """What schedules go by: the wall clock, seconds since 1970."""
        return self.wall_began + self.now() - self._began

    def pause(self, duration: float) -> None:
        """See `aioelect.testing.pause`."""
        then, since = self._anchor
        self._anchor = (then + duration, since)

    def suspend(self, duration: float) -> None:
        """See `aioelect.testing.suspend`."""
        self._asleep += duration

    @contextmanager
    def real_time(self) -> Iterator[None]:
        """Let time pass as it really does, and a turn at least."""
        began = self.time()
        self._anchor = (began, time.monotonic())
        try:
            yield
        finally:
            self._anchor = (max(self.time(), began + TURN), None)

    def run_forever(self) -> None:
        """Run, with the library's clocks being ours."""
        real = _clock.now, _clock.wall
        _clock.now, _clock.wall = self.now, self.wall
        try:
            super().run_forever()
        finally:
            _clock.now, _clock.wall = real

    def run_in_executor(self, executor, func, *args):  # type: ignore[no-untyped-def,override]
        """Let a thread work; until it has ended, time passes as it really does."""
        self._jumping.threads += 1
        try:
            future = super().run_in_executor(executor, func, *args)
        except BaseException:
            self._jumping.threads -= 1
            raise
        future.add_done_callback(self._thread_done)
        return future

    async def subprocess_exec(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse processes."""
        raise _outside()

    subprocess_shell = subprocess_exec

    def _thread_done(self, _: object) -> None:
        self._jumping.threads -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads, which takes real time."""
        self._jumping.threads += 1
        try:
            if sys.version_info >= (3, 12):
                await super().shutdown_default_executor(timeout)
            else:
                await super().shutdown_default_executor()
        finally:
            self._jumping.threads -= 1


def virtual_time(test: Callable[P, Coroutine[object, object, R]]) -> Callable[P, R]:
    """Run an async test (or any coroutine function) in virtual time, in an event loop of its own.

    It makes a plain function of it, so that no plugin for async tests is needed, and none is in the way. Fixtures and
    parameters work as ever; async fixtures don't, they belong to another loop. For those, and for all tests of a folder
    at once, give `VirtualLoop` to your plugin as the loop factory.

    Examples:
        >>> @virtual_time
        ... async def test_a_day_passes_at_once():
        ...     await asyncio.sleep(86400)
        >>> test_a_day_passes_at_once()
    """

    @functools.wraps(test)
    def in_virtual_time(*args: P.args, **kwargs: P.kwargs) -> R:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(test(*args, **kwargs))

    return in_virtual_time


def pause(duration: Duration) -> None:
    """Let this whole process stand still: garbage collection, SIGSTOP, a call that blocks the event loop.

    Nothing runs meanwhile, and time passes for all clocks. In a real event loop it really blocks.

    Examples:
        >>> pause(0.001)
    """
    length = seconds("duration", duration, least=0.0)
    loop = running_loop()
    if isinstance(loop, VirtualLoop):
        loop.pause(length)
    else:
        time.sleep(length)


def suspend(duration: Duration) -> None:
    """Let the machine sleep: event-loop timers stand still meanwhile, deadlines and ttls don't. In virtual time only.

    Raises:
        ConfigurationError: the running event loop is a real one.

    Examples:
        >>> @virtual_time
        ... async def a_night():
        ...     suspend(8 * 3600)
        >>> a_night()
    """
    virtual_loop().suspend(seconds("duration", duration, least=0.0))


def virtual_loop() -> VirtualLoop:
    """The running loop, which has to be a virtual one."""
    loop = running_loop()
    if isinstance(loop, VirtualLoop):
        return loop
    raise ConfigurationError(
        "this needs virtual time: decorate the test with aioelect.testing.virtual_time, or give VirtualLoop to your "
        "test plugin as the loop factory"
    )
