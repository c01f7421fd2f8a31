"""Do something at the k-th await that suspends: how "cancelled at any await point" is tested point by point.

    steps = Steps()
    await steps.through(operation(), at=3, act=task.cancel)
    steps.count, steps.acted

A checkpoint that is not reached is not acted on: that is how a loop over k knows that it is through.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Steps:
    """Counts the checkpoints (awaits that suspend) of a coroutine."""

    def __init__(self) -> None:
        self.count = 0
        self.acted = False

    @types.coroutine
    def through(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        at: int | None = None,
        act: Callable[[], object] = lambda: None,
        late: bool = False,
    ) -> Generator[Any, Any, T]:
        """Await `coroutine` and call `act` at its checkpoint number `at` (from 1).

        At once, as the task goes to sleep there; or `late`, when what it waits for has just come true and the task has
        not run yet: the race in which a result gets lost.
        """
        resume: Callable[[], Any] = lambda: coroutine.send(None)  # noqa: E731 - replaced below
        while True:
            try:
                awaited = resume()
            except StopIteration as stop:
                result: T = stop.value
                return result
            self.count += 1
            if self.count == at:
                self.acted = True
                if late and awaited is not None:
                    awaited.add_done_callback(lambda _: act())
                else:
                    act()
            try:
                yield awaited
            except BaseException as error:
                resume = _throwing(coroutine, error)
            else:
                resume = _sending(coroutine)


def _sending(coroutine: Coroutine[Any, Any, Any]) -> Callable[[], Any]:
    return lambda: coroutine.send(None)


def _throwing(coroutine: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)
