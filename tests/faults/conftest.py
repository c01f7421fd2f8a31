"""What the fault tests share: participants that don't know of each other, a journal of facts, names for what is sent.

A `Peer` has a proxy of its own, and so an address of its own: no connection, no subscription and no local line is
shared with another peer. Towards the store it behaves like another process.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from redis.asyncio import Redis

import aioelect
from aioelect._redis import scripts
from conftest import MakeServer
from support.proxy import Proxy
from support.quorums import commissioned
from support.rules import Command
from support.servers import Server

F = TypeVar("F")


@dataclass
class Journal:
    """An observer that remembers every fact and when it came."""

    entries: list[tuple[float, object]] = field(default_factory=list)

    def __call__(self, fact: object) -> None:
        self.entries.append((time.monotonic(), fact))

    def of(self, kind: type[F]) -> list[F]:
        """All facts of one kind, in order."""
        return [fact for _, fact in self.entries if isinstance(fact, kind)]

    def when(self, kind: type[object]) -> float:
        """The time of the first fact of a kind."""
        return next(at for at, fact in self.entries if isinstance(fact, kind))


@dataclass
class Peer:
    """One participant: its proxy, its client, and the facts of all that it holds."""

    proxy: Proxy
    redis: Redis
    journal: Journal = field(default_factory=Journal)

    def lock(self, name: str, **options: Any) -> aioelect.FencedLock:
        """Make a lock of this participant."""
        return aioelect.FencedLock(self.redis, name, observers=[self.journal], **options)

    def elector(self, name: str, **options: Any) -> aioelect.Elector:
        """Make an elector of this participant."""
        return aioelect.Elector(self.redis, name, observers=[self.journal], **options)

    async def warm_up(self) -> None:
        """Open its connections and let the server learn the scripts, so that rules meet plain requests only."""
        async with self.lock("warm-up") as term:
            await term.renew()
        self.journal.entries.clear()


MakePeer = Callable[..., Awaitable[Peer]]
MakeQuorum = Callable[..., aioelect.QuorumStore]


@pytest.fixture
async def make_peer(the_server: Server) -> AsyncIterator[MakePeer]:
    """Make participants, warmed up; what they opened is closed after the test."""
    async with AsyncExitStack() as stack:

        async def make(server: Server | None = None, **options: Any) -> Peer:
            proxy = await stack.enter_async_context(Proxy(server or the_server))
            peer = Peer(proxy, proxy.client(**options))
            stack.push_async_callback(_close, peer)
            await peer.warm_up()
            return peer

        yield make


@pytest.fixture
def nodes(make_server: MakeServer) -> list[Server]:
    """Three masters that vote."""
    servers = [make_server() for _ in range(3)]
    commissioned(servers)
    return servers


@pytest.fixture
async def make_quorum() -> AsyncIterator[MakeQuorum]:
    """Make stores of separate processes, so to speak; closed after the test."""
    async with AsyncExitStack() as stack:
        count = 0

        def make(*to: Server | Proxy, longest_ttl: float = 60.0, **options: Any) -> aioelect.QuorumStore:
            nonlocal count
            count += 1
            clients = [one.client(client_name=f"process-{count}", **options) for one in to]
            store = aioelect.QuorumStore(clients, longest_ttl=longest_ttl)
            for client in clients:
                stack.push_async_callback(client.aclose)
            stack.push_async_callback(aioelect.aclose, store)
            return store

        yield make


async def _close(peer: Peer) -> None:
    peer.proxy.clear()
    peer.proxy.heal()
    await aioelect.aclose(peer.redis)
    await peer.redis.aclose()


def acquiring(command: Command) -> bool:
    """Match a try to acquire."""
    return _runs("acquire", command)


def renewing(command: Command) -> bool:
    """Match a renewal."""
    return _runs("renew", command)


def releasing(command: Command) -> bool:
    """Match a release in any form, but not the question whether the server has a native one."""
    native = command.name in ("DELEX", "DELIFEQ") and scripts._NOBODY not in command.args
    return native or _runs("release", command)


def _runs(script: str, command: Command) -> bool:
    return command.name in ("EVAL", "EVALSHA") and command.args[1] in scripts._script(script)


def claim_key(name: str) -> str:
    """Where the claim on a name lies."""
    return f"aioelect:{{{name}}}"
