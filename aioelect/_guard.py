"""KEEP: one body under a claim, in the task that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from aioelect._background import spawn
from aioelect._bout import Bout, current_task
from aioelect._errors import ConfigurationError, LeaseLost
from aioelect._keeper import Keeper
from aioelect._supervisor import loss
from aioelect._term import Term

__all__ = ["Guard", "left_elsewhere"]


class Guard:
    """A body under a claim: cancelled when the claim is lost, joined before it is released."""

    __slots__ = ("_bout", "_forget", "_keeper")

    def __init__(self, keeper: Keeper, forget: Callable[[asyncio.Task[object]], None] | None = None) -> None:
        self._keeper = keeper
        self._forget = forget  # told of the task that is gone without having left

    async def __aenter__(self) -> Term:
        """Begin, in the task that will leave; never waits."""
        return self.begin(current_task())

    def begin(self, task: asyncio.Task[object]) -> Term:
        """The same, where the current task is known."""
        bout = self._bout = Bout(task)
        bout.__enter__()
        self._keeper.enter(bout)
        task.add_done_callback(self._abandoned)
        return self._keeper.term

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End: what the body raised, or an outer cancellation, comes out as it is; else a child's error or the loss."""
        keeper, bout = self._keeper, self._bout
        bout.task.remove_done_callback(self._abandoned)
        elsewhere = asyncio.current_task() is not bout.task
        ours = False
        bout.shelter()
        keeper.leave(bout)
        try:
            await keeper.finish()
        finally:
            if not elsewhere:
                ours = bout.__exit__(exc_type, exc, traceback)
        if elsewhere:
            raise left_elsewhere(keeper.info.name)
        if exc is not None and not ours:
            self._annotate(exc, keeper.child_errors)
            return False
        if keeper.child_errors:
            first = keeper.child_errors[0]
            self._annotate(first, keeper.child_errors[1:])
            raise first
        if keeper.lost:
            raise loss(keeper)
        return ours

    def _abandoned(self, task: asyncio.Task[object]) -> None:
        # The body's task is gone without having left: nobody works under this claim any more.
        if self._forget is not None:
            self._forget(task)
        self._keeper.leave(self._bout)
        spawn(self._keeper.finish(), f"release of {self._keeper.info.name}")

    def _annotate(self, exc: BaseException, others: tuple[Exception, ...]) -> None:
        keeper = self._keeper
        for other in others:
            exc.add_note(f"also raised by a child of term {keeper.info.id}: {other!r}")
        if keeper.lost and not isinstance(exc, LeaseLost):
            exc.add_note(str(loss(keeper)))
        if keeper.release_error is not None:
            exc.add_note(f"the release of {keeper.info.name!r} was not confirmed either: {keeper.release_error}")


def left_elsewhere(name: str) -> ConfigurationError:
    """The error of a body that is left in another task than it was entered in."""
    return ConfigurationError(
        f"{name!r} is left in another task than it was entered in, so its body could not have been cancelled; in a "
        "pytest fixture or an application hook use Elector.running(), or try_acquire()",
        name=name,
        reason="task",
    )
