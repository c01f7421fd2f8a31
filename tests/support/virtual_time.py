"""An event loop whose time jumps to the next timer as soon as nothing is ready: an hour passes in a millisecond.

    loop = VirtualLoop()                    # as pytest-asyncio's loop factory, or `run(main)` without pytest-asyncio
    loop.suspend(60)                        # the machine sleeps: the library's clock moves on, timers do not
    loop.block(2)                           # the loop is blocked: both move on, and nothing ran meanwhile

While the loop runs, `aioelect._clock.now()` is its time. A turn of the loop takes `TURN`, as it does in reality: code
that spins makes time pass and can be counted. Waiting for something that nothing will bring about is a `Deadlock`, at
once. There are no threads and no sockets in virtual time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioelect import _clock

T = TypeVar("T")

TURN = 10e-6
"""Seconds that one turn of the loop takes."""


class Deadlock(BaseException):
    """Nothing is ready and no timer runs: whoever waits waits for ever. Not an Exception, so that nobody handles it."""


class _JumpingSelector(selectors.DefaultSelector):
    """Looks for I/O without waiting, and lets the loop's time pass instead."""

    elapse: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now (in practice: wake-ups by signals)."""
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if timeout is None and not ready:
            raise Deadlock("every task waits for something that nothing will bring about")
        self.elapse(TURN if ready else max(timeout or 0.0, TURN))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; see above."""

    def __init__(self) -> None:
        self._virtual_now = 1000.0
        self._asleep = 0.0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.elapse = self.block

    def time(self) -> float:
        """What timers go by."""
        return self._virtual_now

    def now(self) -> float:
        """What deadlines go by: `time`, and what was slept through."""
        return self._virtual_now + self._asleep

    def block(self, seconds: float) -> None:
        """Let time pass while nothing runs."""
        self._virtual_now += seconds

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: timers don't notice."""
        self._asleep += seconds

    def run_forever(self) -> None:
        """Run, with the library's clock being ours."""
        real, _clock.now = _clock.now, self.now
        try:
            super().run_forever()
        finally:
            _clock.now = real


def virtual_loop() -> VirtualLoop:
    """The running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Like `asyncio.run(main())`, in virtual time."""

    async def awaiting() -> T:
        return await main()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(awaiting())
