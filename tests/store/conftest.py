"""The stores that the contract is held against: one per server program found, and the memory store.

A test asks for `store`; for a second participant on another machine, so to speak, it asks for `other`, which shares no
connection with the first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from aioelect import QuorumStore, ReplicatedStore
from aioelect._floors import Floors
from aioelect._postgres import store as postgres_module
from aioelect._postgres.advisory import AdvisoryStore
from aioelect._postgres.store import PostgresStore
from aioelect._redis import store as store_module
from aioelect._redis.store import open_store
from aioelect._store import Claim, Granted, Holder, Store
from aioelect.testing import Faults, MemoryStore
from aioelect.testing._memory import MemoryServer
from support import servers
from support.postgres import execute, sessions
from support.quorums import commissioned
from support.servers import Server
from support.topologies import start_replica_of
from support.wait import until

MakeStore = Callable[[], Store]

PASSWORD = "geheim"
BEHIND = "faults behind "
WARM = ("store-0", "store-1")
"""Whose connections may be open before a test begins."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat tests that ask for `make_store` once per kind of store."""
    if "make_store" in metafunc.fixturenames:
        option = metafunc.config.getoption("--servers")
        others = ["replicated", "quorum", "postgres", "advisory", "tokenless", "memory"]
        wanted = option.split(",") if option else [*servers.found(), *others]
        if metafunc.function.__module__.endswith("test_contract"):
            # The wrapper knows nothing of what it wraps: one of each nature will do.
            wanted += [BEHIND + kind for kind in wanted if kind in ("memory", servers.newest().key, "advisory")]
        lacking = getattr(metafunc.module, "LACKING", ())  # the kinds of stores that say they can't do what it is about
        able = [kind for kind in wanted if kind.removeprefix(BEHIND) not in lacking]
        metafunc.parametrize("make_store", able, indirect=True)


@pytest.fixture
async def make_store(request: pytest.FixtureRequest) -> AsyncIterator[MakeStore]:
    """Make stores that contend with each other and share no connection."""
    kinds = {"memory": _memory, "quorum": _quorum, "replicated": _replicated}
    kinds |= dict.fromkeys(("postgres", "advisory", "tokenless"), _postgres)
    kind = request.param.removeprefix(BEHIND)
    maker = await kinds.get(kind, _redis)(request, kind)
    made: list[Store] = []

    def make() -> Store:
        made.append(maker(f"store-{len(made)}"))
        return made[-1]

    yield make if kind == request.param else lambda: Faults(make(), process="one")
    for store in (*made, *map(maker, WARM)):
        await store.aclose()


# Each gives what makes a store; a name of its own gives it connections of its own.


async def _memory(request: pytest.FixtureRequest, kind: str) -> Callable[[str], Store]:
    memory = MemoryServer()
    return lambda _: MemoryStore(memory)


async def _postgres(request: pytest.FixtureRequest, kind: str) -> Callable[[str], Store]:
    url = request.getfixturevalue("database")
    execute(url, "CREATE SEQUENCE fence")
    if kind == "postgres":
        await PostgresStore(url).create()
        return lambda name: PostgresStore(f"{url}?application_name={name}")
    sequence = "fence" if kind == "advisory" else None
    return lambda name: AdvisoryStore(f"{url}?application_name={name}", sequence=sequence)


async def _quorum(request: pytest.FixtureRequest, kind: str) -> Callable[[str], Store]:
    nodes: list[Server] = request.getfixturevalue("shared_quorum")
    for node in nodes:
        node.call("FLUSHALL")
    commissioned(nodes)

    def make(name: str) -> QuorumStore:
        return QuorumStore([node.client(client_name=name) for node in nodes], longest_ttl=60)

    # A grant is worth something within its ttl only, and some tests' ttls are shorter than a handshake may take. What
    # is open is shared by stores with equal settings.
    for name in WARM:
        store, claim = make(name), a_claim("warm-up")
        await granted(store, claim)
        await store.renew(claim, limit=5.0)
        await store.release(claim, limit=5.0)
    return make


async def _replicated(request: pytest.FixtureRequest, kind: str) -> Callable[[str], Store]:
    master: Server = request.getfixturevalue("replicated_server")
    master.call("FLUSHALL")
    return lambda name: ReplicatedStore(master.client(client_name=name), min_replicas=1)


async def _redis(request: pytest.FixtureRequest, kind: str) -> Callable[[str], Store]:
    server = request.getfixturevalue("shared_servers")(servers.found()[kind])
    server.call("FLUSHALL")
    return lambda name: open_store(server.client(client_name=name), "aioelect")


@pytest.fixture(scope="session")
def replicated_server() -> Iterator[Server]:
    """A master that has a replica."""
    with Server(servers.newest(), repl_diskless_sync_delay=0) as master, ExitStack() as stack:
        stack.callback(start_replica_of(master).close)
        yield master


@pytest.fixture(scope="session")
def shared_quorum() -> Iterator[list[Server]]:
    """Three servers, of different make where they are at hand."""
    kinds = list(servers.found().values())
    with ExitStack() as stack:
        yield [stack.enter_context(Server(kinds[-n % len(kinds)])) for n in range(3)]


@pytest.fixture(autouse=True)
def floors(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Begin each test as a process that has seen no token; call it to begin anew."""

    def forget() -> None:
        monkeypatch.setattr(store_module, "_floors", Floors(100))
        monkeypatch.setattr(postgres_module, "_floors", Floors(100))

    forget()
    return forget


@pytest.fixture
async def postgres_store(database: str) -> AsyncIterator[PostgresStore]:
    """Make a store on PostgreSQL, with its table and no connection yet."""
    made = PostgresStore(database)
    await made.create()
    await until(lambda: sessions(database) == [])
    yield made
    await made.aclose()


@pytest.fixture
async def other_postgres_store(postgres_store: PostgresStore, database: str) -> AsyncIterator[PostgresStore]:
    """Make another participant's, with connections of its own."""
    made = PostgresStore(f"{database}?application_name=other")
    yield made
    await made.aclose()


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    """Make a store."""
    return make_store()


@pytest.fixture
def other(store: Store, make_store: MakeStore) -> Store:
    """Make another participant's store."""
    return make_store()


def a_claim(name: str = "name", *, identity: str = "someone", ttl: float = 10.0, retention: float = 3600.0) -> Claim:
    """Make a new acquisition's claim."""
    return Claim(name, secrets.token_hex(16), identity, ttl, retention)


def again(claim: Claim, **changes: object) -> Claim:
    """Copy a claim with something else about it."""
    return dataclasses.replace(claim, **changes)  # type: ignore[arg-type]


async def granted(store: Store, claim: Claim) -> int:
    """Acquire and return the token."""
    answer = await store.acquire(claim, limit=5.0)
    assert isinstance(answer, Granted), answer
    return answer.token


async def granted_after_expiry(store: Store, claim: Claim) -> int:
    """Acquire what ran out just now: at once, or, where a ttl is kept by closing a connection, when that is through."""
    if store.capabilities.expires:
        return await granted(store, claim)

    async def won() -> Granted | None:
        answer = await store.acquire(claim, limit=5.0)
        return answer if isinstance(answer, Granted) else None

    return (await until(won)).token


def is_described(store: Store, holder: Holder | None, claim: Claim, token: int) -> bool:
    """Whether the holder is that claim's, as far as this store tells anything."""
    assert holder is not None
    if not store.capabilities.describes:
        return (holder.token, holder.id, holder.remaining) == (None, None, None)
    assert holder.remaining is not None and claim.ttl - 1 < holder.remaining <= claim.ttl
    return (holder.identity, holder.token, holder.id) == (claim.identity, token, claim.id)


async def on_own_connection(store: PostgresStore, query: str) -> object:
    """Ask something over a connection of the store's."""
    row = await store._runtime.connections.ask(query, (), asyncio.get_running_loop().time() + 5.0)
    return row["it"]


class FakeLink:
    """A link that knows a native form."""

    native: bytes | None = b"DELEX"
    probed = True


class FakeRoute:
    """A server that answers as told."""

    def __init__(self, *answers: list[object]) -> None:
        self.link, self.answers = FakeLink(), list(answers)
        self.asked: list[Sequence[Sequence[bytes]]] = []

    async def exchange(self, key: bytes, commands: Any, deadline: float, /) -> Any:
        """Take down what is asked, and answer."""
        self.asked.append(commands(self.link))
        return self.answers.pop(0)

    def drop(self, key: bytes, /) -> None:
        """Nothing to drop."""
