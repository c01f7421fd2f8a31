"""KEEP: one member of a group: it tells what it holds, hears what the others do, and takes or lets go accordingly.

Each partition is a claim of its own, with a campaign of its own; this file only decides which campaigns there are, by
`_core/shares.py`. What is let go leaves the list of what we hold once its consumer has ended and its claim is released,
or once the drain limit is over: then the claim is left to its ttl, and we take nothing more until that work has ended.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import anyio

from aioelect import _clock
from aioelect._background import outlast, spawn
from aioelect._candidacy import Candidacy
from aioelect._core.shares import Member, decide, quotas
from aioelect._core.timing import EXPIRY_LAG, RELEASE_LIMIT
from aioelect._errors import (
    AioelectError,
    LeaseLost,
    NotAcquired,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    reason_of,
)
from aioelect._follow import Standing
from aioelect._guard import Guard
from aioelect._lease import Session
from aioelect._store import MemberStore, NoticeKind, Watch
from aioelect._term import Term
from aioelect._vitals import Vitals
from aioelect.facts import CandidacyFailed, ConsumerFailed, StoreFailed, StoreFailing, StoreRecovered

__all__ = ["Membership"]

_MOST_ROUNDS = 20  # in a renew interval, and in a second, while members come and go

_SETTLING = 1.8  # renew intervals without a change: everybody has told of itself since the last one

Work = Callable[[int, Term], Awaitable[object]]


class Membership:
    """One member's part, from coming to leaving, in tasks of its own. `sessions`: one for each partition."""

    def __init__(self, group: str, store: MemberStore, sessions: Sequence[Session], work: Work, vitals: Vitals) -> None:
        self.loop = asyncio.get_running_loop()
        self.failure: Exception | None = None
        self.members: tuple[Member, ...] = ()  # as last heard
        self._group = group
        self._store = store
        self._sessions = sessions
        self._work = work
        self._vitals = vitals
        self._identity, self._timing, self._observers = sessions[0].identity, sessions[0].timing, sessions[0].observers
        self._id = secrets.token_hex(8)
        self._serving: dict[int, Candidacy] = {}  # all that we hold, want, or still let go
        self._stopping: set[int] = set()
        self._leaving = False
        self._tell = False  # something has become free
        self._changed = asyncio.Event()
        self._failures = 0
        self._failing_since = 0.0
        self._served = False
        self._quotas: dict[str, int] = {}
        self._settles_at = 0.0
        self.task = spawn(self._run(), f"membership in {group}")

    @property
    def terms(self) -> dict[int, Term]:
        """What may be worked on now, by partition."""
        serving = tuple(self._serving.items())  # other threads may ask
        terms = {number: candidacy.standing.term for number, candidacy in sorted(serving)}
        return {number: term for number, term in terms.items() if term is not None and term.is_leader}

    async def leave(self) -> None:
        """Stop all consumers, wait for them, release; a cancellation is raised when that is over."""
        self._leaving = True
        self._changed.set()
        await outlast(self.task)

    # -- the member

    async def _run(self) -> None:
        watch = self._store.watch(self._group)
        listening = spawn(self._listen(watch), f"notices of {self._group}")
        try:
            while not self._leaving:
                await self._sleep(await self._round())
        except Exception as exc:  # noqa: BLE001 - it comes out where the membership is left
            self.failure = exc
            self._observers(CandidacyFailed(self._group, self._identity, exc))
        finally:
            listening.cancel()
            watch.close()
        await self._wind_down()

    async def _wind_down(self) -> None:
        self._leaving = True
        for number in tuple(self._serving):
            self._let_go(number)
        while self._serving:  # so that the others take over one by one, as consumers end
            await self._sleep(await self._round())
        if self._served:
            with suppress(StoreError):  # then the entry ends with its ttl
                await self._store.attend(self._group, self._as_member(0.0), tell=True, limit=RELEASE_LIMIT)

    async def _round(self) -> float:
        """Tell, hear and act; how many seconds may pass until the next round."""
        self._changed.clear()
        tell, self._tell = self._tell, False
        timing = self._timing
        try:
            members = await self._store.attend(
                self._group, self._as_member(timing.ttl), tell=tell, limit=timing.response_limit
            )
        except StoreError as exc:
            self._tell = self._tell or tell
            return self._after_failure(exc)
        self._after_success()
        now, due = _clock.now(), quotas(len(self._sessions), members)
        if due != self._quotas:
            self._quotas, self._settles_at = due, now + _SETTLING * timing.interval
        self.members = members
        if not self._leaving:
            moves = decide(
                len(self._sessions),
                self._id,
                members,
                frozenset(self._stopping),
                settled=now >= self._settles_at,
            )
            for number in moves.let_go:
                self._let_go(number)
            for number in moves.take:
                self._serving[number] = Candidacy(self._sessions[number], partial(self._serve, number))
            if moves.take:
                self._changed.set()  # the others are to know it soon
        # Whoever falls out earlier has failed to tell: its partitions become free then.
        pauses = [m.remaining + EXPIRY_LAG for m in members if m.id != self._id]
        if now < self._settles_at:
            pauses.append(self._settles_at - now)
        return min([timing.interval, *pauses])

    def _as_member(self, listed: float) -> Member:
        overrun = {
            number
            for number, candidacy in self._serving.items()
            if (term := candidacy.standing.term) is not None and term.id in self._vitals.overruns
        }
        holds, stays = frozenset(self._serving) - overrun, not (self._leaving or overrun)
        return Member(self._id, self._identity, holds, stays, listed)

    async def _sleep(self, delay: float) -> None:
        with anyio.move_on_after(delay):
            await self._changed.wait()
        if not self._leaving:  # what happens at once is answered by one round
            await asyncio.sleep(min(self._timing.interval, 1.0) / _MOST_ROUNDS)

    async def _listen(self, watch: Watch) -> None:
        while (notice := await watch.next(None)) is not None:
            # Our own was told together with the answer to it, which knows more than any notice before.
            if notice.kind is not NoticeKind.MEMBERS or notice.holder is None or notice.holder.id != self._id:
                self._changed.set()

    def _after_failure(self, error: StoreError) -> float:
        if isinstance(error, StoreRejected) and not error.passing and not self._served:
            raise error
        self._observers(StoreFailed(self._group, "attend", reason_of(error)))
        self._failures += 1
        if self._failures == 1:
            self._failing_since = self.loop.time()
        elif self._failures == 2:  # one may be a stale connection
            self._observers(StoreFailing(self._group, self._identity, True, str(error), reason_of(error)))  # noqa: FBT003
        return self._timing.outage_delay(self._failures, random.random())

    def _after_success(self) -> None:
        if self._failures >= 2:
            lasted = self.loop.time() - self._failing_since
            self._observers(StoreRecovered(self._group, self._identity, True, lasted))  # noqa: FBT003
        self._failures, self._served = 0, True

    # -- its partitions

    def _let_go(self, number: int) -> None:
        candidacy = self._serving.get(number)  # it may have ended by itself since that was decided
        if candidacy is not None and number not in self._stopping:
            self._stopping.add(number)
            spawn(self._stop(number, candidacy), f"stop of {self._sessions[number].name}")

    async def _stop(self, number: int, candidacy: Candidacy) -> None:
        await candidacy.stop()
        self._over(number, candidacy)

    def _over(self, number: int, candidacy: Candidacy) -> None:
        if self._serving.get(number) is candidacy:
            del self._serving[number]
            self._stopping.discard(number)
            self._tell = True
            self._changed.set()

    async def _serve(self, number: int, standing: Standing) -> None:
        candidacy = self._serving[number]
        try:
            await self._campaign(number, standing)
        finally:
            self._over(number, candidacy)

    async def _campaign(self, number: int, standing: Standing) -> None:
        """Consume, again and again, until another has it or it is let go."""
        session, failures = self._sessions[number], 0
        while True:
            pause = self._timing.resign_pause()
            error: Exception | None = None
            try:
                # Whoever held it last may have renewed its claim an interval after it told of itself.
                keeper = await session.acquire(self._timing.interval)
            except (NotAcquired, StoreUnavailable):
                return  # the next round tells whose it is
            except StoreRejected as exc:
                error = exc
            else:
                term = keeper.term
                standing.began(term)
                try:
                    async with Guard(keeper):
                        await self._work(number, term)
                except Exception as exc:  # noqa: BLE001 - one consumer's error is not the others' end
                    if isinstance(exc, LeaseLost) and exc.term_id == term.id:
                        return
                    error = exc
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if number in self._stopping or task is None or task.cancelling():
                        raise
                    error = AioelectError("the consumer was cancelled, and not by aioelect", name=session.name)
                finally:
                    standing.ended(term)
            failures = failures + 1 if error is not None else 0
            if error is not None:
                pause = self._timing.outage_delay(failures, random.random())
                self._observers(ConsumerFailed(session.name, self._identity, error, pause))
            await asyncio.sleep(pause)
