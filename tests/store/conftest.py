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
from typing import Any, TypeVar

import pytest
from redis.asyncio import Redis

from aioelect import QuorumStore
from aioelect._floors import Floors
from aioelect._postgres import store as postgres_module
from aioelect._postgres.advisory import AdvisoryStore
from aioelect._postgres.store import PostgresStore
from aioelect._redis import store as store_module
from aioelect._redis.store import open_store
from aioelect._store import Claim, Granted, Holder, Store
from support import servers
from support.postgres import execute, sessions
from support.quorums import commissioned
from support.servers import Server
from support.wait import until

T = TypeVar("T", bound=Store)
MakeStore = Callable[[], Store]

PASSWORD = "geheim"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat tests that ask for `make_store` once per kind of store."""
    if "make_store" in metafunc.fixturenames:
        option = metafunc.config.getoption("--servers")
        others = ["quorum", "postgres", "advisory", "tokenless", "memory"]
        wanted = option.split(",") if option else [*servers.found(), *others]
        lacking = getattr(metafunc.module, "LACKING", ())  # the kinds of stores that say they can't do what it is about
        metafunc.parametrize("make_store", [kind for kind in wanted if kind not in lacking], indirect=True)


@pytest.fixture
async def make_store(request: pytest.FixtureRequest) -> AsyncIterator[MakeStore]:
    """Make stores that contend with each other and share no connection."""
    made: list[Store] = []
    ready: list[Store] = []
    if request.param == "memory":
        from support.memory_store import MemoryServer, MemoryStore

        memory = MemoryServer()

        def make() -> Store:
            made.append(MemoryStore(memory))
            return made[-1]

    elif request.param in ("postgres", "advisory", "tokenless"):
        url = request.getfixturevalue("database")
        execute(url, "CREATE SEQUENCE fence")
        if request.param == "postgres":
            await PostgresStore(url).create()

        def make() -> Store:
            # A name of its own gives each store connections of its own.
            dsn = f"{url}?application_name=store-{len(made)}"
            store: Store
            if request.param == "postgres":
                store = PostgresStore(dsn)
            else:
                store = AdvisoryStore(dsn, sequence="fence" if request.param == "advisory" else None)
            made.append(store)
            return store

    elif request.param == "quorum":
        nodes: list[Server] = request.getfixturevalue("shared_quorum")
        for node in nodes:
            node.call("FLUSHALL")
        commissioned(nodes)
        # A grant is worth something within its ttl only, and some tests' ttls are shorter than a handshake may take.
        ready += [await warmed_up(QuorumStore(named(nodes, f"store-{n}"), longest_ttl=60)) for n in range(2)]

        def make() -> Store:
            clients = named(nodes, f"store-{len(made)}")
            made.append(ready.pop() if ready else QuorumStore(clients, longest_ttl=60))
            return made[-1]

    else:
        binary = servers.found()[request.param]
        server = request.getfixturevalue("shared_servers")(binary)
        server.call("FLUSHALL")

        def make() -> Store:
            # A name of its own gives each store connections of its own.
            client = server.client(client_name=f"store-{len(made)}")
            made.append(open_store(client, "aioelect"))
            return made[-1]

    yield make
    for store in made + ready:
        await store.aclose()


@pytest.fixture(scope="session")
def shared_quorum() -> Iterator[list[Server]]:
    """Three servers, of different make where they are at hand."""
    kinds = list(servers.found().values())
    with ExitStack() as stack:
        yield [stack.enter_context(Server(kinds[-n % len(kinds)])) for n in range(3)]


def named(nodes: list[Server], name: str) -> list[Redis]:
    """Make clients whose connections are their own."""
    return [node.client(client_name=name) for node in nodes]


async def warmed_up(store: T) -> T:
    """Open a store's connections, and let the servers learn the scripts."""
    claim = a_claim("warm-up")
    await granted(store, claim)
    await store.renew(claim, limit=5.0)
    await store.release(claim, limit=5.0)
    return store


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
        return self.link, self.answers.pop(0)

    def drop(self, key: bytes, /) -> None:
        """Nothing to drop."""
