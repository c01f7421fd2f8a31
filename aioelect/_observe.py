"""OFFER: who leads and who stands, for whoever takes no part; and a request that the leader step down."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from aioelect import _clock
from aioelect._core.campaign import Campaign, GiveUp, Next
from aioelect._core.names import check_identity, check_name, unpack_info
from aioelect._core.timing import Timing
from aioelect._errors import StoreRejected, StoreUnavailable, reason_of
from aioelect._events import log
from aioelect._follow import Leader
from aioelect._redis.store import open_store
from aioelect._store import Candidate, Holder, Record, RoleStore, StepDown, Watch, roles_of
from aioelect.facts import StoreFailing, StoreRecovered

if TYPE_CHECKING:
    from aioelect._lease import Client

__all__ = ["Leadership", "current", "info", "observe", "step_down"]

T = TypeVar("T")

_TIMING = Timing.of(15.0)  # of who takes no part: how long to wait for an answer, how often to look without notices


@dataclass(frozen=True, slots=True)
class Leadership:
    """A role at one instant, as the store told; never the owner value."""

    name: str
    leader: Leader | None  # None: nobody
    since: datetime | None  # when its term began, by the store's clock
    ttl: float | None  # seconds that a claim of the leader lasts unless renewed
    remaining: float  # seconds of that which were left; 0.0 if nobody leads
    step_down_asked: bool  # the leader has been asked to step down
    reserved_for: str | None  # nobody leads, and the next term is kept for this candidate for a while
    candidates: tuple[Candidate, ...]  # who stands, one for each process: seen by their tries, dead ones fall out


async def info(redis: Client, name: str, *, prefix: str = "aioelect") -> Leadership:
    """Who leads, since when, with which token, for how long; and who stands.

    Waits for one round trip. A cancelled call leaves nothing behind.

    Args:
        redis: a client or a store, as for `Elector`.
        name, prefix: of the election.

    Raises:
        StoreUnavailable: no answer.
        StoreRejected: the store refuses to serve.
        ConfigurationError: an argument is refused, or the store can't tell.

    Examples:
        >>> (await info(redis, "scheduler")).leader  # doctest: +SKIP
    """
    check_name(name)
    store = roles_of(open_store(redis, prefix), "info()")
    record = await _asked(lambda: store.describe(name, limit=_TIMING.response_limit))
    return Leadership(
        name,
        _leader(record),
        since=None if record.since is None else datetime.fromtimestamp(record.since, UTC),
        ttl=record.ttl,
        remaining=0.0 if record.holder is None else record.holder.remaining or 0.0,
        step_down_asked=record.asked_to_step_down,
        reserved_for=record.reserved_for,
        candidates=record.candidates,
    )


def observe(redis: Client, name: str, *, prefix: str = "aioelect") -> AsyncIterator[Leader | None]:
    """Follow who leads without standing: the present leader first, then every change; None while nobody does.

    Costs a subscription (one for all names), and a question at each change and each ttl. Each step waits, and may be
    cancelled at no loss; a slow consumer misses whole terms. While the store is out of reach the last leader is
    believed in as long as its claim may last, and the attempts go on for ever.

    Args:
        redis: a client or a store, as for `Elector`.
        name, prefix: of the election.

    Raises:
        StoreRejected: the store refuses to serve and has never done so (while iterating).
        ConfigurationError: an argument is refused, or the store can't tell.

    Examples:
        >>> async for leader in observe(redis, "scheduler"):  # doctest: +SKIP
        ...     print(leader.identity if leader else "nobody")
    """
    check_name(name)
    return _Observation(roles_of(open_store(redis, prefix), "observe()"), name)


async def step_down(redis: Client, name: str, *, to: str | None = None, prefix: str = "aioelect") -> Leader | None:
    """Ask the present leader to step down, from any process. It obeys at once, or after its `before_step_down` hook.

    Waits for one round trip, not for the leader; `observe` shows when it has happened. A holder that is no `Elector`
    takes no notice. The request is for the present term only.

    Args:
        redis: a client or a store, as for `Elector`.
        name, prefix: of the election.
        to: the identity of the candidate for which the next term is reserved for a while; None: whoever is first.

    Returns:
        Who was asked; None: nobody leads.

    Raises:
        StoreUnavailable: no answer; the request may have been left.
        StoreRejected: the store refuses to serve.
        ConfigurationError: an argument is refused, or the store passes no requests on.

    Examples:
        >>> await step_down(redis, "scheduler", to="pod-b")  # doctest: +SKIP
    """
    check_name(name)
    request = StepDown(None if to is None else check_identity(to))
    store = roles_of(open_store(redis, prefix), "step_down()")
    holder = await _asked(lambda: store.ask_to_step_down(name, request, limit=_TIMING.response_limit))
    return None if holder is None else _named(holder)


async def current(store: RoleStore, name: str) -> Leader | None:
    """Who leads, as the store tells now."""
    return _leader(await _asked(lambda: store.describe(name, limit=_TIMING.response_limit)))


async def _asked(question: Callable[[], Awaitable[T]]) -> T:
    try:
        return await question()
    except StoreUnavailable:
        return await question()  # most often a connection that had gone stale


def _named(holder: Holder, told: str | None = None) -> Leader:
    return Leader(holder.identity, holder.token, holder.id, None if told is None else unpack_info(told))


def _leader(record: Record) -> Leader | None:
    return None if record.holder is None else _named(record.holder, record.info)


class _Observation(AsyncIterator[Leader | None]):
    """A candidate that never stands: it waits like one, and looks instead of trying."""

    def __init__(self, store: RoleStore, name: str) -> None:
        self._store = store
        self._name = name
        self._watch: Watch | None = None
        self._campaign = Campaign(_TIMING, _clock.now(), until=None, candidate=True)
        self._look_at = 0.0
        self._leader: Leader | None = None
        self._until = 0.0  # the claim of the leader lasts so long, unless renewed
        self._shown = False
        self._failing_since: float | None = None

    async def __anext__(self) -> Leader | None:
        await asyncio.sleep(0)  # a step always lets a cancellation in
        watch = await self._listen()
        while True:
            if (left := self._look_at - _clock.now()) > 0:
                await watch.next(left)  # whatever it says is a hint
            leader = await self._look(watch)
            if leader != self._leader or (not self._shown and self._failing_since is None):
                self._leader, self._shown = leader, True
                return leader

    async def _listen(self) -> Watch:
        if self._watch is None:
            self._watch = self._store.watch(self._name)
            # Who breaks off the iteration says so to nobody.
            weakref.finalize(self, self._watch.close).atexit = False
            await self._watch.ready(_TIMING.response_limit)
        return self._watch

    async def _look(self, watch: Watch) -> Leader | None:
        step: Next
        try:
            record = await self._store.describe(self._name, limit=_TIMING.response_limit)
        except StoreUnavailable as exc:
            self._campaign, step = self._campaign.after_unavailable(_clock.now(), random.random())
            self._failed(exc, step)
            return self._leader if _clock.now() < self._until else None
        except StoreRejected as exc:
            self._campaign, step = self._campaign.after_rejected(_clock.now(), random.random(), passing=exc.passing)
            self._failed(exc, step)
            return self._leader if _clock.now() < self._until else None
        self._recovered()
        now = _clock.now()
        left = None if record.holder is None else record.holder.remaining
        self._until = now + (left or 0.0)
        self._campaign, step = self._campaign.after_contended(now, left, notices=watch.live, chance=random.random())
        self._wait(step, now)
        return _leader(record)

    def _wait(self, step: Next, now: float) -> None:
        assert not isinstance(step, GiveUp)
        self._look_at = now + step.delay

    def _failed(self, error: StoreUnavailable | StoreRejected, step: Next) -> None:
        if isinstance(step, GiveUp):
            raise error
        now = _clock.now()
        self._wait(step, now)
        if self._failing_since is None:
            self._failing_since = now
        if self._campaign.failures == 2:  # one failure may be a stale connection
            log(StoreFailing(self._name, "an observer", candidate=False, cause=str(error), reason=reason_of(error)))

    def _recovered(self) -> None:
        if self._failing_since is not None and self._campaign.failures >= 2:
            log(StoreRecovered(self._name, "an observer", candidate=False, lasted=_clock.now() - self._failing_since))
        self._failing_since = None
