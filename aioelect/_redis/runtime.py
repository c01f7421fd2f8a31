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
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loops: dict[asyncio.AbstractEventLoop, dict[Hashable, Runtime]] = {}


_registry = _Registry()
_inherited: list[_Registry] = []  # kept for ever: collecting a parent's connections would disturb the parent


def runtime_of(origin: Origin) -> Runtime:
    """What is open for an origin in the running loop; made if need be."""
    loop = asyncio.get_running_loop()
    runtimes = _own().loops.get(loop)
    if runtimes is None:
        _forget_ended()
        if not _own().loops:
            atexit.unregister(_at_exit)
            atexit.register(_at_exit)
        runtimes = _own().loops.setdefault(loop, {})
    runtime = runtimes.get(origin.key)
    if runtime is None:
        runtime = runtimes[origin.key] = Runtime(origin)
    return runtime


async def close_runtime(origin: Origin) -> None:
    """Close what is open for an origin in the running loop."""
    runtime = _own().loops.get(asyncio.get_running_loop(), {}).pop(origin.key, None)
    if runtime is not None:
        await runtime.aclose()


def _at_exit() -> None:
    _forget_ended(at_exit=True)


def _own() -> _Registry:
    global _registry
    if _registry.pid != os.getpid():
        _inherited.append(_registry)
        _registry = _Registry()
    return _registry


def _forget_ended(*, at_exit: bool = False) -> None:
    for loop in list(_own().loops):
        if loop.is_closed() or (at_exit and not loop.is_running()):
            for runtime in _own().loops.pop(loop).values():
                runtime.abandon()
