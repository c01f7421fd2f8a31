"""What is open for one server in one event loop, shared by all stores that reach it with the same settings.

Made on first use, closed by `aclose`; if the loop ends without that, it is let go silently. A child process after a
fork uses nothing of its parent's: the sockets, and on Linux even the registrations in the selector, are shared with it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Hashable
from typing import Protocol

from .notices import Notices
from .pipeline import RawConnection
from .scripts import Route

__all__ = ["Origin", "Runtime", "close_runtime", "runtime_of"]


class Origin(Protocol):
    """Where a store's claims live: equal keys mean the same servers with the same settings."""

    @property
    def key(self) -> Hashable: ...

    def open(self) -> tuple[Route, Callable[[], RawConnection]]:
        """A way to the servers, and what makes connections for the subscription, for the running event loop."""


class Runtime:
    """The connections of one origin in the running event loop."""

    def __init__(self, origin: Origin) -> None:
        self.route, make = origin.open()
        self.notices = Notices(make)

    async def aclose(self) -> None:
        """Close everything."""
        await asyncio.gather(self.route.aclose(), self.notices.aclose())

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        self.route.abandon()
        self.notices.abandon()


class _Registry:
    """What is open, by event loop."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loops: dict[asyncio.AbstractEventLoop, dict[Hashable, Runtime]] = {}
        self._inherited: list[object] = []

    def of(self, loop: asyncio.AbstractEventLoop) -> dict[Hashable, Runtime]:
        """Give what is open in a loop, to read and to change."""
        loops = self._own()
        if loop not in loops:
            self.forget(lambda other: other.is_closed())
            if not loops:
                atexit.unregister(self._at_exit)
                atexit.register(self._at_exit)
            loops[loop] = {}
        return loops[loop]

    def forget(self, ended: Callable[[asyncio.AbstractEventLoop], bool]) -> None:
        """Let go of the loops that have ended."""
        loops = self._own()
        for loop in filter(ended, list(loops)):  # a copy: other threads have loops of their own
            for runtime in loops.pop(loop, {}).values():
                runtime.abandon()

    def _own(self) -> dict[asyncio.AbstractEventLoop, dict[Hashable, Runtime]]:
        if self._pid != os.getpid():
            # Kept for ever: if a parent's connections were collected here, that would disturb the parent.
            self._inherited.append(self._loops)
            self._pid, self._loops = os.getpid(), {}
        return self._loops

    def _at_exit(self) -> None:
        self.forget(lambda loop: not loop.is_running())


_registry = _Registry()


def runtime_of(origin: Origin) -> Runtime:
    """Give what is open for an origin in the running loop; made if need be."""
    runtimes = _registry.of(asyncio.get_running_loop())
    runtime = runtimes.get(origin.key)
    if runtime is None:
        runtime = runtimes[origin.key] = Runtime(origin)
    return runtime


async def close_runtime(origin: Origin) -> None:
    """Close what is open for an origin in the running loop."""
    runtime = _registry.of(asyncio.get_running_loop()).pop(origin.key, None)
    if runtime is not None:
        await runtime.aclose()
