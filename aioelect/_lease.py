"""OFFER: `Lease`, one named, time-bounded claim; and the acquisition that the other primitives share."""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from aioelect._background import settled
from aioelect._bout import current_task, scope_class
from aioelect._core.names import check_identity, check_name
from aioelect._core.timing import RELEASE_LIMIT, Duration, Timing
from aioelect._errors import ConfigurationError, NotAcquired, NotHeld, reason_of
from aioelect._events import Observers, remember
from aioelect._guard import Guard, left_elsewhere
from aioelect._keeper import Keeper
from aioelect._line import Line
from aioelect._parting import undo
from aioelect._redis.store import open_store
from aioelect._store import Holder, Stand, Store
from aioelect._term import Term, check_function
from aioelect._tokens import TokenSource
from aioelect._waiter import LateWin, Request, Waiter
from aioelect.facts import AcquisitionFailed, Declared, Observer

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    Client = Redis | RedisCluster | Store

__all__ = ["Lease", "aclose"]

P = ParamSpec("P")
R = TypeVar("R")

_UNDO_PATIENCE = 0.1  # an acquisition that failed by itself waits so long for its undoing, which goes on detached


class Session:
    """What the three primitives are made of: a store, a name, durations; and how a claim on it is won."""

    def __init__(
        self,
        redis: Client,
        name: str,
        *,
        ttl: Duration,
        renew_interval: Duration | None,
        renew_deadline: Duration | None,
        drain_limit: Duration | None,
        fence_retention: Duration | None,
        identity: str | None,
        prefix: str,
        observers: Iterable[Observer] | None,
        tokens: TokenSource | None,
        fenced: bool = True,
        min_hold: Duration = 0.0,
    ) -> None:
        self.name = check_name(name)
        self.timing = Timing.of(
            ttl,
            renew_interval=renew_interval,
            renew_deadline=renew_deadline,
            drain_limit=drain_limit,
            retention=fence_retention,
            min_hold=min_hold,
        )
        self._identity = None if identity is None else check_identity(identity)
        if tokens is not None:
            check_function("tokens", tokens)
        self._tokens = tokens
        self.store: Store = open_store(redis, prefix)
        if fenced and tokens is None and not self.store.capabilities.mints:
            raise ConfigurationError(
                f"{self.store!r} has no fencing tokens: give it a sequence, or this object tokens=...; or take an "
                "AdvisoryLock, which does without",
                name=self.name,
                reason="tokens",
            )
        longest = self.store.capabilities.longest_ttl
        if longest is not None and self.timing.ttl > longest:
            raise ConfigurationError(
                f"ttl={self.timing.ttl:g} s is above the store's longest_ttl={longest:g} s: shorten it, or raise "
                "longest_ttl in every process",
                name=name,
                reason="ttl",
            )
        if self.timing.min_hold and not self.store.capabilities.keeps:
            raise ConfigurationError(
                f"min_hold: {type(self.store).__name__} can't keep a name after its work has ended",
                name=self.name,
                reason="min_hold",
            )
        self._line: Line | None = None
        self.observers = Observers(observers)
        self.observers(Declared(self.name, self.timing.ttl))

    def named(self, name: str) -> Session:
        """The same for another name."""
        other = copy.copy(self)
        other.name = check_name(name)
        other.observers(Declared(other.name, other.timing.ttl))
        return other

    @property
    def identity(self) -> str:
        """Who stands, for people: host name and process id unless given."""
        return self._identity or _default_identity(os.getpid())

    async def acquire(
        self,
        wait: float | None,
        *,
        kept: bool = True,
        stand: Stand | None = None,
        served: bool = False,
        on_holder: Callable[[Holder | None], None] | None = None,
    ) -> Keeper:
        """Win the name; whatever may be left behind of a failed or cancelled acquisition is undone."""
        scope_class()  # the first call loads anyio's backend: not with the claim in hand
        timing = self.timing if kept else self.timing.unattended()
        request = Request(self.name, self.identity, timing, wait, stand, served, self._tokens)
        waiter = Waiter(self.store, request, self.observers, on_holder)
        self._line = waiter.line  # so that it is there for who comes back

        def hold(sent_at: float, token: int) -> Keeper | None:
            keeper = Keeper(self.store, waiter.claim, timing, self.observers, waiter.line if kept else None)
            if not keeper.start(sent_at, token, waiter.waited, waiter.leaderless):
                return None
            remember(token, self.name, self.observers)
            return keeper

        while True:
            try:
                return await waiter.win(hold)
            except LateWin:
                await undo(self.store, waiter.claim, RELEASE_LIMIT)
                try:
                    waiter.renounce()
                except NotAcquired:
                    self.observers(AcquisitionFailed(self.name, self.identity, waiter.waited, "late"))
                    raise
            except BaseException as exc:
                reason = "cancelled" if _is_cancellation(exc) else reason_of(exc)
                self.observers(AcquisitionFailed(self.name, self.identity, waiter.waited, reason))
                if waiter.in_doubt:
                    await undo(self.store, waiter.claim, RELEASE_LIMIT if _is_cancellation(exc) else _UNDO_PATIENCE)
                raise


@functools.cache
def _default_identity(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}"


def _is_cancellation(exc: BaseException) -> bool:
    return not isinstance(exc, Exception)


class Sections:
    """Which task is inside which `async with` of one object: a module-level object serves many tasks at once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._entered: dict[asyncio.Task[object], Guard] = {}

    async def enter(self, wait: float | None) -> Term:
        """Win the name and begin the body."""
        task = current_task()
        if task in self._entered:
            raise ConfigurationError(
                f"this task holds {self._session.name!r} already and would wait for itself: it is not re-entrant",
                name=self._session.name,
                reason="re-entered",
            )
        keeper = await self._session.acquire(wait)
        guard = self._entered[task] = Guard(keeper, self._forget)
        return guard.begin(task)

    def leave(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[object, object, bool | None]:
        """End the body of the current task."""
        guard = self._entered.pop(current_task(), None)
        if guard is None and len(self._entered) == 1:
            _, guard = self._entered.popitem()  # left in another task: its body is over, which ends the term
        if guard is None:
            raise left_elsewhere(self._session.name)
        return guard.__aexit__(exc_type, exc, traceback)

    def _forget(self, task: asyncio.Task[object]) -> None:
        self._entered.pop(task, None)


def decorate(
    section: AbstractAsyncContextManager[Term, bool | None], function: Callable[P, Awaitable[R]]
) -> Callable[P, Coroutine[None, None, R]]:
    """`function` as a critical section, its signature kept."""
    check_function("function", function)

    @functools.wraps(function)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        async with section as term:
            return await function(*args, **kwargs)
        raise NotHeld(f"term {term.id} of {term.name!r} was ended on purpose before the function returned")

    return guarded


class Lease:
    """One named, time-bounded claim with a fencing token: take it or go home.

    `async with` takes the lease in one try, renews it in the background, and releases it when the body has ended. One
    object may be used by many tasks and in successive event loops.

    Args:
        redis: a `redis.asyncio.Redis` (also from `Sentinel.master_for`), a `redis.asyncio.RedisCluster`, or a store.
        name: what is contended for: 1 to 200 bytes, no braces, no control characters.
        ttl: lifetime of the claim in the store, 0.1 s to 24 h; the worst case of a take-over after a crash.
        renew_interval: how often it is renewed; default ttl/3, so that two renewals in a row may fail.
        renew_deadline: the work is stopped so long after the last confirmed renewal; default 0.8 ttl.
        drain_limit: how long cancelled work may take before it counts as overrun; default ttl.
        fence_retention: how long the last token is remembered after the last renewal; default max(1 h, 2 ttl).
        identity: who we are, for people; default host name and process id.
        prefix: of the keys in the store.
        observers: who hears of what happens, beside the log; default: the Prometheus metrics.
        tokens: where fencing tokens come from: an async callable that takes the name and answers an int above every
            earlier one, such as `aioelect.fencing.PostgresSequence`; default: the store mints them. It is asked once
            the claim is won; if it fails, is silent up to the renew deadline, or answers a number that has not risen,
            the claim is given back as if the store had not answered.

    All durations are seconds (int or float) or timedelta.

    Raises:
        ConfigurationError: an argument is refused.
    """

    def __init__(
        self,
        redis: Client,
        name: str,
        *,
        ttl: Duration = 15.0,
        renew_interval: Duration | None = None,
        renew_deadline: Duration | None = None,
        drain_limit: Duration | None = None,
        fence_retention: Duration | None = None,
        identity: str | None = None,
        prefix: str = "aioelect",
        observers: Iterable[Observer] | None = None,
        tokens: TokenSource | None = None,
    ) -> None:
        self._session = Session(
            redis,
            name,
            ttl=ttl,
            renew_interval=renew_interval,
            renew_deadline=renew_deadline,
            drain_limit=drain_limit,
            fence_retention=fence_retention,
            identity=identity,
            prefix=prefix,
            observers=observers,
            tokens=tokens,
        )
        self._sections = Sections(self._session)

    async def try_acquire(self) -> Term | None:
        """One try: the term, or None if another holds the name.

        The term is not renewed in the background: `term.renew()` and `term.release()` are yours, and `term.is_valid`
        tells how long it may be used. Waits for one round trip, at most one try. A cancelled or failed call leaves no
        claim behind (in the worst case one that ends with its ttl).

        Raises:
            StoreUnavailable: no answer.
            StoreRejected: the store refuses to serve.

        Examples:
            >>> term = await Lease(redis, "report").try_acquire()  # doctest: +SKIP
        """
        try:
            keeper = await self._session.acquire(0.0, kept=False)
        except NotAcquired:
            return None
        return keeper.term

    def __aenter__(self) -> Coroutine[object, object, Term]:
        """Take the lease, or raise NotAcquired. Waits for one round trip; a cancelled call leaves no claim behind."""
        return self._sections.enter(0.0)

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[object, object, bool | None]:
        """Stop and await the children, then release: at most 2 s; a cancellation comes out when that is done.

        Raises:
            LeaseLost: the claim was lost while the body ran, and the body raised nothing itself.
        """
        return self._sections.leave(exc_type, exc, traceback)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[None, None, R]]:
        """As a decorator: every call of `function` takes the lease, runs, and releases; NotAcquired if it is held."""
        return decorate(self, function)

    def __repr__(self) -> str:
        return f"<Lease {self._session.name!r} ttl={self._session.timing.ttl:g}>"


async def aclose(redis: Client) -> None:
    """Close what aioelect keeps open for this client (or store) in the running event loop: connections, subscription.

    Waits for releases that go on in the background, at most 2 s. The client itself stays open and may be used again,
    also with aioelect. Without this call everything ends silently with the event loop.
    """
    store = open_store(redis, "aioelect")
    await settled(RELEASE_LIMIT)
    await store.aclose()
