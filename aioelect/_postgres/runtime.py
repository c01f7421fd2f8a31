"""What is open for one server in one event loop, shared by all stores that reach it with the same settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import TypeVar

from aioelect._background import spawn
from aioelect._per_loop import PerLoop

from .connections import Connections
from .grips import Grips
from .listener import Listener
from .refusals import timed_out
from .source import Source

__all__ = ["Runtime", "close_runtime", "runtime_of"]

T = TypeVar("T")


class Runtime:
    """Connections, the listener, and whose turn it is."""

    def __init__(self, source: Source, greeting: str | None) -> None:
        self.connections = Connections(lambda: source.dial(greeting))
        self.listener = Listener(source.dial)
        self.grips = Grips()
        self._turns: dict[str, asyncio.Task[object]] = {}

    async def in_turn(self, owner: str, limit: float, ask: Callable[[float], Coroutine[object, object, T]]) -> T:
        """Ask about a claim, in the order of the calls about it: an undoing must not overtake what it undoes.

        Whoever is cancelled leaves the call to itself: it is carried out all the same, within its limit.
        """
        if limit <= 0:
            raise timed_out(max(0.0, limit))
        deadline = asyncio.get_running_loop().time() + limit
        turn = spawn(self._after(self._turns.get(owner), ask, deadline), "call")
        self._turns[owner] = turn
        turn.add_done_callback(lambda over: self._over(owner, over))
        return await asyncio.shield(turn)

    def _over(self, owner: str, turn: asyncio.Task[T]) -> None:
        if self._turns.get(owner) is turn:
            del self._turns[owner]
        if not turn.cancelled():
            turn.exception()  # whoever left the call to itself does not ask how it went

    async def _after(
        self, before: asyncio.Task[object] | None, ask: Callable[[float], Coroutine[object, object, T]], deadline: float
    ) -> T:
        if before is not None:
            await asyncio.wait({before}, timeout=deadline - asyncio.get_running_loop().time())
        return await ask(deadline)

    async def aclose(self) -> None:
        """Close everything; claims that live by their connection end."""
        self.grips.drop_all()
        await asyncio.gather(self.connections.aclose(), self.listener.aclose())

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        self.grips.abandon()
        self.connections.abandon()
        self.listener.abandon()


_open: PerLoop[Runtime] = PerLoop()


def runtime_of(source: Source, greeting: str | None) -> Runtime:
    """Give what is open for a source in the running loop; made if need be."""
    return _open.get((source.key, greeting), lambda: Runtime(source, greeting))


async def close_runtime(source: Source, greeting: str | None) -> None:
    """Close what is open for a source in the running loop."""
    key: Hashable = (source.key, greeting)
    await _open.close(key)
