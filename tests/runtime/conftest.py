"""The runtime ring: the whole library in virtual time, over the store in memory.

    async def test_it(server, ours, other): ...     # one MemoryServer; our process's way to it, another process's way

A test that passes here needs no luck with timing, and one that fails fails every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from aioelect.facts import Fact
from aioelect.testing._memory import MemoryServer
from aioelect.testing._virtual import VirtualLoop
from support.process import Process

LATENCY = 0.001


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    """Every test in this folder runs in virtual time."""
    return {"virtual": VirtualLoop}


class Heard(list[Fact]):
    """An observer that keeps what it hears."""

    def __call__(self, fact: Fact, /) -> None:
        """Take note."""
        self.append(fact)

    def of(self, *kinds: type[Fact]) -> list[Fact]:
        """The facts of some kinds, in order."""
        return [fact for fact in self if isinstance(fact, kinds)]


@pytest.fixture
def server() -> MemoryServer:
    """What all processes share."""
    return MemoryServer()


@pytest.fixture
def ours(server: MemoryServer) -> Process:
    """Our process's way to the server."""
    return Process(server, key="our process", latency=LATENCY)


@pytest.fixture
def other(server: MemoryServer) -> Process:
    """Another process's way to the server."""
    return Process(server, key="another process", latency=LATENCY)


@pytest.fixture
def heard() -> Heard:
    """An observer that keeps what it hears."""
    return Heard()
