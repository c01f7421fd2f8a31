"""What is open in each event loop, by what it is for.

Made on first use, closed by `close`; if the loop ends without that, it is let go silently. A child process after a
fork uses nothing of its parent's: the sockets, and on Linux even the registrations in the selector, are shared with it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

__all__ = ["LoopLocal", "PerLoop"]


class Resource(Protocol):
    """What can be closed while its loop runs, and let go of when it has ended."""

    async def aclose(self) -> None:
        """Close everything."""

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""


R = TypeVar("R", bound=Resource)
T = TypeVar("T")


class LoopLocal(Generic[T]):
    """One of a kind for each event loop, with nothing to close: made on first use."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], T]) -> None:
        self._make = make
        self._of: dict[asyncio.AbstractEventLoop, T] = {}

    def __call__(self) -> T:
        """The one of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._of.get(loop)
        if found is None:
            for other in tuple(self._of):
                if other.is_closed():  # never by itself, as a weak key would: a timer refers to its loop
                    self._of.pop(other, None)
            found = self._of[loop] = self._make(loop)
        return found


class PerLoop(Generic[R]):
    """Resources of the running event loop."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loops: dict[asyncio.AbstractEventLoop, dict[Hashable, R]] = {}
        self._inherited: list[object] = []

    def get(self, key: Hashable, make: Callable[[], R]) -> R:
        """Give what is open under a key in the running loop; made if need be."""
        here = self._of(asyncio.get_running_loop())
        resource = here.get(key)
        if resource is None:
            resource = here[key] = make()
        return resource

    async def close(self, key: Hashable) -> None:
        """Close what is open under a key in the running loop."""
        resource = self._of(asyncio.get_running_loop()).pop(key, None)
        if resource is not None:
            await resource.aclose()

    def _of(self, loop: asyncio.AbstractEventLoop) -> dict[Hashable, R]:
        loops = self._own()
        if loop not in loops:
            self._forget(lambda other: other.is_closed())
            if not loops:
                atexit.unregister(self._at_exit)
                atexit.register(self._at_exit)
            loops[loop] = {}
        return loops[loop]

    def _forget(self, ended: Callable[[asyncio.AbstractEventLoop], bool]) -> None:
        loops = self._own()
        for loop in filter(ended, list(loops)):  # a copy: other threads have loops of their own
            for resource in loops.pop(loop, {}).values():
                resource.abandon()

    def _own(self) -> dict[asyncio.AbstractEventLoop, dict[Hashable, R]]:
        if self._pid != os.getpid():
            # Kept for ever: if a parent's connections were collected here, that would disturb the parent.
            self._inherited.append(self._loops)
            self._pid, self._loops = os.getpid(), {}
        return self._loops

    def _at_exit(self) -> None:
        self._forget(lambda loop: not loop.is_running())
