"""Waiting for a name: the local line, the notice, the ttl. What comes next is decided in `_core/campaign.py`.

Subscribe, await the confirmation, try again, and only then sleep: a release between the failed try and the subscription
is not missed. A notice is a hint; the timer on the holder's ttl is what makes a take-over certain.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from aioelect import _clock
from aioelect._core.campaign import Campaign, GiveUp, Next
from aioelect._core.timing import RELEASE_LIMIT, Timing
from aioelect._errors import (
    AcquireTimeout,
    AioelectError,
    NotAcquired,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    reason_of,
)
from aioelect._events import Observers
from aioelect._gate import gate
from aioelect._line import line_for
from aioelect._parting import undo
from aioelect._store import Claim, Contended, Granted, Holder, Notice, NoticeKind, Stand, Store, Watch
from aioelect._tokens import TokenSource, mint
from aioelect.facts import StoreFailed, StoreFailing, StoreRecovered

__all__ = ["Hold", "LateWin", "Request", "Waiter"]

_TELLING = 0.01  # that a try with less time than this had no answer says nothing: what was known before, does


class Request(NamedTuple):
    """What one acquisition wants."""

    name: str
    identity: str
    timing: Timing
    wait: float | None  # seconds; 0: one try; None: no limit
    stand: Stand | None = None  # for a role, for ever
    served: bool = False  # the store has served this candidate before
    tokens: TokenSource | None = None  # None: the store mints them

    @property
    def candidate(self) -> bool:
        """Stands for a role."""
        return self.stand is not None


T = TypeVar("T")
Hold = Callable[[float, int], T | None]
"""Takes a grant over: the instant from which it counts, and its token; None if that is too late."""


class Waiter:
    """One acquisition. All its tries carry one owner value, until `renounce` begins another."""

    # fmt: off
    __slots__ = (
        "_campaign", "_failing_since", "_last", "_observers", "_on_holder", "_others_last", "_outage_told", "_racing",
        "_request", "_reserved", "_silent_ends", "_store", "claim", "in_doubt", "line", "started",
    )
    # fmt: on

    def __init__(
        self,
        store: Store,
        request: Request,
        observers: Observers,
        on_holder: Callable[[Holder | None], None] | None = None,
    ) -> None:
        self.started = _clock.now()
        self.in_doubt = False  # a claim of ours may exist, or come to exist, that nobody knows of
        self.claim = self._new_claim(request)
        self.line = line_for(store.key, request.name)
        self._store = store
        self._request = request
        self._observers = observers
        self._on_holder = on_holder
        until = None if request.wait is None else self.started + request.wait
        self._campaign = Campaign(request.timing, self.started, until, request.candidate, request.served)
        self._silent_ends = not store.capabilities.expires  # no notice tells of a crash, and no ttl either: so poll
        self._last: Holder | AioelectError | None = None
        self._racing = False  # a release was heard, and perhaps by others, too
        self._reserved = False  # it is free, and kept for another
        self._failing_since: float | None = None
        self._outage_told = False
        self._others_last: float | None = None  # the latest instant at which another is known to have held the name

    @staticmethod
    def _new_claim(request: Request) -> Claim:
        timing = request.timing
        owner = os.urandom(16).hex()
        return Claim(request.name, owner, request.identity, timing.ttl, timing.retention, request.stand)

    @property
    def waited(self) -> float:
        """Seconds since the start."""
        return _clock.now() - self.started

    @property
    def leaderless(self) -> float | None:
        """Seconds since the last sign of life of another holder; None: none was seen."""
        return None if self._others_last is None else max(0.0, _clock.now() - self._others_last)

    def renounce(self) -> None:
        """The claim has been undone: its owner value is never used again, since the undoing may arrive late.

        Raises:
            NotAcquired, AcquireTimeout: there is no time for another try.
        """
        self.claim = self._new_claim(self._request)
        self.in_doubt = False
        self._campaign = self._campaign.answered()
        if self._campaign.time_for_try(_clock.now()) <= 0:
            self._last = None
            raise self._failure()

    async def win(self, hold: Hold[T]) -> T:
        """Try until a grant is taken over by `hold`, in the same turn of the loop as the line learns of it.

        Returns:
            What `hold` has made of it.

        Raises:
            NotAcquired, AcquireTimeout: another holds the name.
            StoreUnavailable, StoreRejected: no answer; a refusal to serve.
        """
        if self._request.wait == 0:
            self._last = self.line.holder
            if self._last is not None:
                raise self._failure()
            return await self._contend(hold, waits=False)
        if self._on_holder is None:
            return await self._stand_in_line(hold)
        with self.line.listening(self._on_holder):
            return await self._stand_in_line(hold)

    async def _stand_in_line(self, hold: Hold[T]) -> T:
        line, wait = self.line, self._request.wait
        behind = line.holder is not None
        if not await line.turn(None if wait is None else max(0.0, wait - self.waited)):
            self._last = line.holder or (line.seen and line.seen._replace(remaining=None))
            raise self._failure()
        if behind:
            self._others_last = _clock.now()
        try:
            delay = line.head_start(self._request.timing, random.random())
            if delay:
                await asyncio.sleep(delay)
            return await self._contend(hold, waits=True)
        finally:
            line.done()

    async def _contend(self, hold: Hold[T], *, waits: bool) -> T:
        watch: Watch | None = None
        passage = gate()
        try:
            while True:
                if not passage.enter():
                    came_at = _clock.now()
                    await passage.turn()
                    if self._last is None:  # has not asked yet
                        self._campaign = self._campaign.put_off(_clock.now() - came_at)
                try:
                    sent_at = _clock.now()
                    limit = self._campaign.time_for_try(sent_at)
                    if limit <= 0:
                        raise self._failure()
                    step = await self._try(sent_at, limit, watch)
                finally:
                    passage.leave()
                if isinstance(step, Granted):
                    if (held := hold(sent_at, step.token)) is None:
                        raise LateWin
                    self.in_doubt = False
                    return held
                if isinstance(step, GiveUp):
                    raise self._failure()
                if watch is None and waits and isinstance(self._last, Holder):
                    watch = self._store.watch(self._request.name)
                    await watch.ready(min(step.delay, self._request.timing.response_limit))
                    continue  # a release so far went unheard; and how long to sleep depends on the confirmation
                await self._sleep(watch, step.delay)
        finally:
            if watch is not None:
                watch.close()

    async def _try(self, sent_at: float, limit: float, watch: Watch | None) -> Granted | Next:
        doubted, self.in_doubt = self.in_doubt, True
        try:
            answer = await self._store.acquire(self.claim, limit=limit)
            if isinstance(answer, Granted) and self._request.tokens is not None:
                answer = Granted(await self._mint(self._request.tokens, sent_at))
        except StoreUnavailable as exc:
            if self._last is None or limit >= _TELLING:
                self._last = exc
            self._campaign, step = self._campaign.after_unavailable(_clock.now(), random.random())
            self._report_outage(exc)
            return step
        except StoreRejected as exc:
            self._last = exc
            self._campaign, step = self._campaign.after_rejected(_clock.now(), random.random(), passing=exc.passing)
            self._report_outage(exc)
            if exc.claimed:
                await self._start_over()
            return step
        if self._failing_since is not None and (isinstance(answer, Granted) or self._request.tokens is None):
            self._report_recovery()  # unless the source of tokens may be what is out of order
        match answer:
            case Granted():
                return answer
            case Contended():
                holder = self._known(answer.holder)
                self.in_doubt = doubted  # this try left nothing behind; an unanswered one before it may yet
                if self._racing:
                    self._racing, self.line.crowded = False, True
                self._saw(holder, reserved=answer.reserved)
                self._campaign, step = self._campaign.after_contended(
                    _clock.now(),
                    holder.remaining,
                    notices=watch is None or self._hears(watch),
                    chance=random.random(),
                )
                return step

    async def _mint(self, tokens: TokenSource, sent_at: float) -> int:
        """The token for the claim that was just won, in the time that it may be used; else the claim is undone."""
        until = sent_at + self._request.timing.renew_deadline
        if self._request.wait and self._campaign.until is not None:
            until = min(until, self._campaign.until)
        try:
            return await mint(tokens, self._store.key, self._request.name, until - _clock.now())
        except StoreError:
            await self._start_over()
            raise

    async def _start_over(self) -> None:
        """Undo what was won; the next try carries another owner value, since the undoing may arrive late."""
        await undo(self._store, self.claim, RELEASE_LIMIT)
        self.claim, self.in_doubt = self._new_claim(self._request), False

    def _known(self, holder: Holder) -> Holder:
        # Where tokens come from elsewhere, the number that the store minted is nobody's token.
        return holder if self._request.tokens is None else holder._replace(token=None)

    async def _sleep(self, watch: Watch | None, delay: float) -> None:
        """Until the time is up, or a notice says that trying again is worth it."""
        if watch is None or isinstance(self._last, AioelectError):
            await asyncio.sleep(delay)
            return
        until = _clock.now() + delay
        while (left := until - _clock.now()) > 0:
            notice = await watch.next(left)
            if notice is None:
                return
            if notice.kind is NoticeKind.ACQUIRED and notice.holder is not None and notice.holder.remaining is not None:
                # Somebody else was faster: its ttl is what we wait for now.
                self._saw(self._known(notice.holder))
                self._campaign, step = self._campaign.after_contended(
                    _clock.now(), notice.holder.remaining, notices=self._hears(watch), chance=random.random()
                )
                if isinstance(step, GiveUp):
                    return
                until = _clock.now() + step.delay
                continue
            if notice.kind is NoticeKind.RELEASED:
                if self._is_holders(notice):
                    self._others_last = _clock.now()
                    self.line.saw(None)
                self._racing = True
                if self.line.crowded:
                    await asyncio.sleep(self._request.timing.wakeup_delay(random.random()))
            return

    def _hears(self, watch: Watch) -> bool:
        return watch.live and not self._silent_ends

    def _is_holders(self, notice: Notice) -> bool:
        # Undoing a claim that never was tells the channel, too.
        known = self._last.id if isinstance(self._last, Holder) else None
        return known is None or notice.holder is None or notice.holder.id == known

    # -- who is told what

    def _saw(self, holder: Holder, *, reserved: bool = False) -> None:
        self._last, self._reserved = holder, reserved
        self.line.saw(None if reserved else holder)
        if not reserved:
            now = _clock.now()
            # What is left of the ttl tells when it was renewed last (the candidates of a name share their ttl).
            self._others_last = now if holder.remaining is None else min(now, now + holder.remaining - self.claim.ttl)

    def _report_outage(self, error: AioelectError) -> None:
        self._observers(StoreFailed(self._request.name, "acquire", reason_of(error)))
        if self._failing_since is None:
            self._failing_since = _clock.now()
        if self._request.wait == 0 or self._outage_told:
            return
        if self._campaign.failures == 2:  # one failure may be a stale connection
            self._outage_told, who = True, self._request
            self._observers(StoreFailing(who.name, who.identity, who.candidate, str(error), reason_of(error)))

    def _report_recovery(self) -> None:
        if self._outage_told:
            assert self._failing_since is not None
            who, lasted = self._request, _clock.now() - self._failing_since
            self._observers(StoreRecovered(who.name, who.identity, who.candidate, lasted))
        self._failing_since, self._outage_told = None, False

    def _failure(self) -> AioelectError:
        name, waited = self._request.name, self.waited
        last = self._last
        if isinstance(last, AioelectError):
            last.name, last.waited = name, waited
            return last
        holder = Holder(None, None, None, None) if last is None else last
        who = "somebody else" if holder.identity is None else f"{holder.identity} (token {holder.token})"
        still = "" if holder.remaining is None else f", for another {holder.remaining:.3f} s unless renewed"
        facts = f"{name!r} is held by {who}{still}"
        if self._reserved:
            facts = f"{name!r} is free, but reserved for {holder.identity or 'a preferred candidate'}"
        if last is None:
            late = "won too late to be used, and given back" if self._campaign.served else "not asked for in time"
            facts = f"{name!r} was {late}"
        if self._request.wait == 0:
            error = NotAcquired(f"{facts}; do without it, or wait in line with FencedLock(wait=...)")
        else:
            error = AcquireTimeout(f"{facts}; gave up after {waited:.3f} s: do without it, or allow a longer wait")
        error.name, error.holder, error.token, error.term_id = name, holder.identity, holder.token, holder.id
        error.reason = "reserved" if self._reserved else "late" if last is None else "held"
        error.waited = waited
        return error


class LateWin(Exception):
    """A grant came after its own renew deadline: it has to be undone."""
