"""One stretch of work in one task, and how it is cancelled.

anyio delivers a cancellation again at every turn of the loop until the work gives in. That is what makes it certain (a
single `task.cancel()` gets lost under a socket timeout on Python 3.11), and what burns a CPU if it never gives in. So
the scope that is cancelled has another one inside, which shields the work most of the time once it has been asked often
enough, and lets a cancellation through now and then.
"""

from __future__ import annotations

import asyncio
import functools
from types import TracebackType
from typing import Self

import anyio

__all__ = ["Bout", "current_task", "scope_class"]

_INSIST = 0.05  # seconds of delivery at every turn of the loop
_PAUSE = 0.1  # from then on: between two deliveries


@functools.cache
def scope_class() -> type[anyio.CancelScope]:
    """The class of this backend's scopes: made by way of `anyio.CancelScope`, each would be set up twice.

    The first call loads the backend, which takes 50 ms.
    """
    return type(anyio.CancelScope())


def current_task() -> asyncio.Task[object]:
    """The task that runs."""
    task = asyncio.current_task()
    assert task is not None
    return task


class Bout:
    """A cancellable stretch of work of `task`, which is the current one. Enter and exit in that task."""

    __slots__ = ("_cancelling", "_inner", "_outer", "_timer", "task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self._cancelling = task.cancelling()
        scope = scope_class()
        self._outer = scope()
        self._inner = scope()
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None

    def __enter__(self) -> Self:
        self._outer.__enter__()
        self._inner.__enter__()
        return self

    def stop(self) -> None:
        """Cancel the work; it ends at its next await that suspends. Never waits, safe to repeat."""
        if not self._outer.cancel_called:
            self._outer.cancel()
            self._timer = asyncio.get_running_loop().call_later(_INSIST, self._relent)

    def _relent(self) -> None:
        self._inner.shield = True
        self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._insist)

    def _insist(self) -> None:
        self._inner.shield = False  # anyio delivers at once
        self._timer = asyncio.get_running_loop().call_soon(self._relent)

    def shelter(self) -> None:
        """The work is over: what its task does from here on is not interrupted, but by a cancellation of the task."""
        if self._timer is not None:
            self._timer.cancel()
        self._inner.shield = True

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """True if the exception was our own cancellation and nobody else asked for one."""
        self.shelter()
        self._inner.__exit__(exc_type, exc, traceback)
        try:
            ours = bool(self._outer.__exit__(exc_type, exc, traceback))
        except BaseExceptionGroup:
            # anyio raises what is left of the body's group without our cancellation; the body's error leaves as it was.
            return False
        if isinstance(exc, asyncio.CancelledError) and self._outer.cancel_called:
            # Also one of unknown make (grpc raises its own) that our stop has caused; and also if an outer request came
            # in the same turn of the loop, which asyncio folds into one exception: then that one wins.
            return self.task.cancelling() <= self._cancelling
        return ours
