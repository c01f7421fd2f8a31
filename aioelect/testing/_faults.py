"""Any store, with bad days on demand: what can happen between a process and its store, and to its claims.

A request is on its way for a while, and so is its answer. A call that was cancelled or ran into its limit does not call
its request back: it may still be carried out, as on a network.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary, WeakSet

from aioelect._background import spawn
from aioelect._core.names import check_identity
from aioelect._core.shares import Member
from aioelect._core.timing import Duration, seconds
from aioelect._errors import ConfigurationError, LeaseLost, StoreUnavailable
from aioelect._redis.store import open_store
from aioelect._store import (
    Capabilities,
    Claim,
    Contended,
    Granted,
    Heir,
    Holder,
    Mark,
    Marked,
    Record,
    Refused,
    Released,
    Renewed,
    StepDown,
    Store,
    Watchful,
    marks_of,
    members_of,
    roles_of,
)
from aioelect._term import Term
from aioelect.testing._hearing import Ear, Way

if TYPE_CHECKING:
    from aioelect._lease import Client

__all__ = ["Faults", "Request", "Silence"]

A = TypeVar("A")

Request = Literal["acquire", "renew", "release", "describe", "ask", "mark", "attend"]
"""What is asked of a store; the last four: who leads, a request to step down, the note of a finished run, and
who takes part in a group."""

_PATIENCE = 5.0  # seconds that the store gets for what the test itself asks of it


class Silence(Exception):
    """No answer at all, until the call's own limit."""


@dataclass
class _Plan:
    """Requests that will fail."""

    request: Request | None
    left: float
    error: Exception | None  # None: a StoreUnavailable of our own
    carried_out: bool

    def __post_init__(self) -> None:
        if self.request not in (None, *get_args(Request)):  # it would never strike, and the test show nothing
            raise ConfigurationError(f"request={self.request!r} is none of {', '.join(get_args(Request))}")

    def strike(self, request: Request, name: str, *, carried_out: bool) -> None:
        """Fail this request if it is one of them."""
        if self.left > 0 and self.request in (None, request) and self.carried_out == carried_out:
            self.left -= 1
            raise self.error or StoreUnavailable(
                f"{request} failed because the test wants it to", name=name, reason="fault"
            )


class Faults:
    """One copy of the service as its store sees it, and everything that can go wrong between the two.

    It is a store itself: pass it where a Redis client is passed. Calm, it changes nothing. Each `Faults` is a process
    of its own to aioelect: two of them over one store contend as two pods do, and can be cut off one by one.

    Args:
        client: what is wrapped: a `MemoryStore`, a `redis.asyncio.Redis` or `RedisCluster`, or a store.
        process: copies with equal values count as one process, with one local line; default: a process of its own.
        prefix: of the keys in Redis.

    Raises:
        ConfigurationError: an argument is refused.

    Examples:
        >>> store = MemoryStore()
        >>> one, two = Faults(store), Faults(store)
        >>> one.partition()  # two is not concerned
        >>> one.heal()
    """

    def __init__(self, client: Client, *, process: Hashable = None, prefix: str = "aioelect") -> None:
        self._store: Store = open_store(client, prefix)
        self._process = object() if process is None else process
        self._way = Way()
        self._plans: list[_Plan] = []
        self._claims: dict[str, Claim] = {}
        self._ears: set[Ear] = set()
        self._siblings = _siblings.setdefault(client, WeakSet())
        self._siblings.add(self)

    # -- bad days

    def partition(self) -> None:
        """From now on nothing gets through, in either direction: calls run into their limits, notices are missed."""
        self._way.cut = True

    def delay(self, there: Duration, back: Duration | None = None) -> None:
        """From now on requests take `there` seconds to arrive, and answers and notices `back` (default: as long)."""
        self._way.there = seconds("there", there, least=0.0)
        self._way.back = self._way.there if back is None else seconds("back", back, least=0.0)

    def fail_next(self, count: int = 1, *, request: Request | None = None, error: Exception | None = None) -> None:
        """Let the next requests fail at once, without being carried out.

        An acquisition that failed is undone by a release, which is a request, too.

        Args:
            count: how many.
            request: only those of one kind: "acquire", "renew", "release", "describe" (who leads?), "ask" (to step
                down), "mark" (a run is finished) or "attend" (who takes part in a group).
            error: what comes out; default: a StoreUnavailable. (A StoreRejected is a store that refuses to serve.)
        """
        self._plans.append(_Plan(request, count, error, carried_out=False))

    def drop_answers(self, count: int | None = None, *, request: Request | None = None) -> None:
        """Let the next requests be carried out and their answers get lost: the calls run into their limits.

        Args:
            count: how many; None: all, until `heal`.
            request: only those of one kind: "acquire", "renew", "release", "describe" (who leads?), "ask" (to step
                down), "mark" (a run is finished) or "attend" (who takes part in a group).
        """
        self._plans.append(_Plan(request, float("inf") if count is None else count, Silence(), carried_out=True))

    def heal(self) -> None:
        """All is well again: no partition, no delay, no failures to come."""
        was_cut, self._way.cut = self._way.cut, False
        self._way.there = self._way.back = 0.0
        self._plans.clear()
        if was_cut:
            for ear in tuple(self._ears):
                ear.healed()

    async def lose(self, term: Term, *, to: str | None = None) -> None:
        """Take a term's claim away, as an operator, an eviction or a failover does.

        Returns when the term has heard of it (through this copy's connection, such as it is): its work has been told to
        stop, and its error is a LeaseTaken. Called by the work itself, the cancellation comes out of here.

        Args:
            term: one that was won through this `Faults`.
            to: the identity of somebody else who holds the name from now on, for one ttl; None: nobody does.

        Raises:
            ConfigurationError: the term was won otherwise.
            NotHeld: it has been released.
        """
        claim = self._claims.get(term.name)
        if claim is None or claim.id != term.id:
            raise ConfigurationError(
                f"the term {term.id} of {term.name!r} was not won through this Faults: pass it to the Elector, "
                "FencedLock or Lease instead of the store that it wraps",
                name=term.name,
            )
        await self._store.release(claim, limit=_PATIENCE)
        if to is not None:
            another = Claim(claim.name, secrets.token_hex(16), check_identity(to), claim.ttl, claim.retention)
            await self._store.acquire(another, limit=_PATIENCE)
        with suppress(LeaseLost, StoreUnavailable):
            await term.renew()

    def __repr__(self) -> str:
        return f"<Faults of {self._store!r}{' partitioned' if self._way.cut else ''}>"

    # -- the store

    @property
    def key(self) -> Hashable:
        """Whose line this is."""
        return (self._store.key, self._process)

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._store.capabilities

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Claim the name if it is free."""
        answer = await self._ask("acquire", claim, lambda: self._store.acquire(claim, limit=limit), limit)
        if isinstance(answer, Granted):
            self._claims[claim.name] = claim
        return answer

    async def renew(self, claim: Claim, *, limit: float) -> Renewed | Refused:
        """Prolong the claim if it is ours."""
        return await self._ask("renew", claim, lambda: self._store.renew(claim, limit=limit), limit)

    async def release(
        self, claim: Claim, *, keep: float = 0.0, heir: Heir | None = None, limit: float
    ) -> Released | Refused:
        """Give the claim up if it is ours."""
        return await self._ask("release", claim, lambda: self._release(claim, keep, heir, limit), limit)

    async def _release(self, claim: Claim, keep: float, heir: Heir | None, limit: float) -> Released | Refused:
        # The wrapped store knows nothing of the other copies that share it.
        told = sum(copy.hears(claim.name) for copy in self._siblings if copy is not self)
        if heir is None:
            answer = await self._store.release(claim, keep=keep, limit=limit)
        else:
            answer = await roles_of(self._store, "heir").release(claim, keep=keep, heir=heir, limit=limit)
        return Released(answer.told + told) if isinstance(answer, Released) else answer

    async def describe(self, name: str, *, limit: float) -> Record:
        """Who leads and who stands."""
        store = roles_of(self._store, "describe")
        return await self._ask("describe", _about(name), lambda: store.describe(name, limit=limit), limit)

    async def ask_to_step_down(self, name: str, request: StepDown, *, limit: float) -> Holder | None:
        """Leave a request for the present holder."""
        store = roles_of(self._store, "step_down")
        return await self._ask("ask", _about(name), lambda: store.ask_to_step_down(name, request, limit=limit), limit)

    async def mark(self, claim: Claim, mark: Mark, *, limit: float) -> Marked | Refused:
        """Note a finished run in the holder's name."""
        store = marks_of(self._store, "mark")
        return await self._ask("mark", claim, lambda: store.mark(claim, mark, limit=limit), limit)

    async def attend(self, group: str, member: Member, *, tell: bool, limit: float) -> tuple[Member, ...]:
        """Take part in a group, or leave, and learn who does."""
        ask = partial(members_of(self._store, "attend").attend, group, member, tell=tell, limit=limit)
        return await self._ask("attend", _about(group), ask, limit)

    def on_loss(self, claim: Claim, tell: Callable[[], None]) -> None:
        """Call `tell` once the wrapped store finds out by itself that a claim is gone, if it is one that may."""
        if isinstance(self._store, Watchful):
            self._store.on_loss(claim, tell)

    def watch(self, name: str) -> Ear:
        """Listen to the notices of a name."""
        return Ear(name, self._store.watch(name), self._way, self._ears)

    def hears(self, name: str) -> bool:
        """True if this copy would hear of a change."""
        return any(ear.name == name and ear.live for ear in self._ears)

    async def aclose(self) -> None:
        """Close what the wrapped store keeps open."""
        await self._store.aclose()

    # -- the way there and back

    def arriving(self, request: Request, claim: Claim) -> None:
        """A request is about to be carried out; what is raised here is its answer instead."""
        if self._way.cut:
            raise Silence
        for plan in self._plans:
            plan.strike(request, claim.name, carried_out=False)

    def answering(self, request: Request, claim: Claim) -> None:
        """A request was carried out; what is raised here is its answer instead."""
        if self._way.cut:
            raise Silence
        for plan in self._plans:
            plan.strike(request, claim.name, carried_out=True)

    async def _ask(self, request: Request, claim: Claim, ask: Callable[[], Awaitable[A]], limit: float) -> A:
        if limit <= 0:
            raise StoreUnavailable("no time is left to ask", name=claim.name, reason="timeout")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()

        async def carry_out() -> None:
            try:
                self.arriving(request, claim)
                result = await ask()
            except asyncio.CancelledError:
                raise  # the event loop is being closed
            except BaseException as error:  # noqa: BLE001 - it comes out of the call
                loop.call_later(self._way.back, _fail, answer, error)
            else:
                loop.call_later(self._way.back, come_back, result)

        def come_back(result: A) -> None:
            try:
                self.answering(request, claim)
            except BaseException as error:  # noqa: BLE001 - it comes out of the call
                _fail(answer, error)
            else:
                if not answer.done():
                    answer.set_result(result)

        late = StoreUnavailable(f"no answer within {limit:.3g} s", name=claim.name, reason="timeout")
        loop.call_later(self._way.there, lambda: spawn(carry_out(), f"{request} of {claim.name}"))
        timer = loop.call_later(limit, _fail, answer, late)
        try:
            return await answer
        finally:
            timer.cancel()


def _about(name: str) -> Claim:
    return Claim(name, "", "nobody", 0.0, 0.0)


def _fail(answer: asyncio.Future[A], error: BaseException) -> None:
    if not isinstance(error, Silence) and not answer.done():
        answer.set_exception(error)


_siblings: WeakKeyDictionary[object, WeakSet[Faults]] = WeakKeyDictionary()
