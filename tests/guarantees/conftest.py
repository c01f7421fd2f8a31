"""What the tests behind docs/guarantees.md share: every mode on real servers, two participants, a place to write to."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from aioelect import FencedLock, Lease, StaleToken, Term
from aioelect.fencing import SqliteGuard
from support.lines import Network
from support.modes import POSTGRES, Mode, Store, deployed, on_postgres, until_reached
from support.postgres import Postgres

T = TypeVar("T")

LONG = 30.0
"""A ttl that outlasts every fault here: what ends a term in a test is the fault, and not the time."""


def on(*kinds: str) -> pytest.MarkDecorator:
    """Run a test in each of these modes; tests of one mode share a deployment."""
    return pytest.mark.parametrize("mode", kinds, indirect=True, scope="session")


@contextmanager
def at_hand(start: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    """Start it, or skip the test where this machine has no such server."""
    with ExitStack() as stack:
        try:
            started = stack.enter_context(start())
        except LookupError as error:
            pytest.skip(str(error))
        yield started


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[Postgres]:
    """A database server that may be restarted."""
    with at_hand(Postgres) as server:
        yield server


@pytest.fixture(scope="session")
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    """A deployment of the mode that the test is run in."""
    if request.param in POSTGRES:
        yield on_postgres(request.param, request.getfixturevalue("own_postgres"))
        return
    with at_hand(lambda: deployed(request.param)) as mode:
        yield mode


@dataclass
class Participant:
    """Towards the servers it behaves like a process of its own."""

    store: Store
    network: Network
    terms: list[Term] = field(default_factory=list)

    async def takes(self, name: str, ttl: float = LONG) -> Term | None:
        """Try until the answer is usable; the term is not renewed."""
        lease = Lease(self.store, name, ttl=ttl, observers=[])
        answer: Term | bool = await until_reached(lambda: _answer(lease))
        if isinstance(answer, Term):
            self.terms.append(answer)
            return answer
        return None

    async def holds(self, name: str, ttl: float = LONG) -> Term:
        """Get a free name."""
        term: Term = await until_reached(lambda: self.takes(name, ttl))
        return term

    def lock(self, name: str, *, ttl: float, wait: float | None = None, identity: str | None = None) -> FencedLock:
        """Make a lock."""
        return FencedLock(self.store, name, ttl=ttl, wait=wait, identity=identity, observers=[])


async def _answer(lease: Lease) -> Term | bool:
    return await lease.try_acquire() or False


@pytest.fixture
async def pair(mode: Mode) -> AsyncIterator[tuple[Participant, Participant]]:
    """Two participants of the test's mode, connected."""
    mode.prepare()
    async with AsyncExitStack() as stack:
        made = [Participant(*await stack.enter_async_context(mode.participant(name))) for name in ("one", "other")]
        for participant in made:
            warm = await participant.holds(mode.name())
            await warm.renew()
            await warm.release()
            participant.terms.clear()
        yield made[0], made[1]
        for participant in made:
            participant.network.go()
            for term in participant.terms:
                await _leave(term)


async def _leave(term: Term) -> None:
    try:
        await term.release()
    except Exception:
        return  # it was lost, which is what the test is about


class Stock:
    """A place that is written to, twice: one row is guarded, one is not."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._db.execute("CREATE TABLE stock (sku TEXT, qty INT, fence_token INT)")
        self._db.execute("INSERT INTO stock VALUES ('plain', 0, NULL), ('guarded', 0, NULL)")
        self._guard = SqliteGuard(self._db)

    def write(self, term: Term, qty: int) -> None:
        """Write both rows."""
        self._db.execute("UPDATE stock SET qty = ? WHERE sku = 'plain'", (qty,))
        self._guard.update(term, "stock", {"sku": "guarded"}, {"qty": qty})

    def qty(self, sku: str) -> int:
        """What a row says."""
        found: int = self._db.execute("SELECT qty FROM stock WHERE sku = ?", (sku,)).fetchone()[0]
        return found


def assert_two_hold_and_a_guard_refuses_the_older(older: Term, newer: Term) -> None:
    """Both believe, and rightly by all that they can know; what the older one writes late lands, unless guarded."""
    assert older.is_leader and newer.is_leader
    assert older.token < newer.token
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        stock = Stock(db)
        stock.write(newer, 95)
        with pytest.raises(StaleToken) as stale:
            stock.write(older, 120)
        rows = stock.qty("plain"), stock.qty("guarded")
    assert (stale.value.token, stale.value.newest) == (older.token, newer.token)
    assert rows == (120, 95)
