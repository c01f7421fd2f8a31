"""What is open for one server in one event loop, shared by all stores that reach it with the same settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol

from aioelect._per_loop import PerLoop

from .notices import Notices
from .pipeline import RawConnection
from .refusals import timed_out
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
        self._loop = asyncio.get_running_loop()

    def deadline_in(self, limit: float) -> float:
        """The instant of the loop's clock that is `limit` seconds away; no time at all is an error."""
        if limit <= 0:
            raise timed_out(limit).error()
        return self._loop.time() + limit

    async def aclose(self) -> None:
        """Close everything."""
        await asyncio.gather(self.route.aclose(), self.notices.aclose())

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        self.route.abandon()
        self.notices.abandon()


_open: PerLoop[Runtime] = PerLoop()


def runtime_of(origin: Origin) -> Runtime:
    """Give what is open for an origin in the running loop; made if need be."""
    return _open.get(origin.key, lambda: Runtime(origin))


async def close_runtime(origin: Origin) -> None:
    """Close what is open for an origin in the running loop."""
    await _open.close(origin.key)
