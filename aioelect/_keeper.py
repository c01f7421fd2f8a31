"""KEEP: one claim, kept while its work runs. The only place that cancels work or releases a claim.

Order, always: stop the work, wait for it, then release. `_core/hold.py` decides what is due when; this file does it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

from aioelect import _clock
from aioelect._background import is_cancelled, outlast, running_loop, spawn
from aioelect._bout import Bout, current_task
from aioelect._core import hold
from aioelect._core.hold import Action, EndReason
from aioelect._core.timing import RELEASE_LIMIT, Timing
from aioelect._errors import StoreError, StoreUnavailable, reason_of
from aioelect._events import Observers
from aioelect._line import Line
from aioelect._parting import as_store_error, give_up
from aioelect._store import Claim, Heir, Holder, Refused, Renewed, StepDown, Store, Watchful, marks_of, roles_of
from aioelect._supervisor import Marker, elsewhere, ended, unsupervised
from aioelect._telling import facts_of
from aioelect._term import Term
from aioelect._ticker import ticker
from aioelect.facts import DrainOverrun, LoopLag, ReleaseOutcome, StoreFailed, TermBegan, TermInfo, TermOver

__all__ = ["Keeper"]


class Keeper:
    """One claim from its grant to its end, and the supervisor of its term."""

    # fmt: off
    __slots__ = (  # ten thousand of them may be alive at once
        "__weakref__", "_began", "_bouts", "_children", "_claim", "_closing", "_give_up_at", "_heir", "_line",
        "_loop", "_observers", "_overrun_timer", "_releasing", "_renewals", "_stopped", "_store", "_ticker",
        "_work_left", "cause", "child_errors", "end_reason", "info", "outcome", "release_error", "state", "taken_by",
        "term", "timing", "told", "when_asked",
    )
    # fmt: on

    info: TermInfo
    term: Term

    def __init__(self, store: Store, claim: Claim, timing: Timing, observers: Observers, line: Line | None) -> None:
        self.timing = timing
        self.state: hold.State = hold.Idle()
        self.cause: StoreError | None = None
        self.taken_by: Holder | None = None
        self.told = 0  # how many others heard of the release
        self.end_reason: EndReason | None = None
        self.outcome: ReleaseOutcome | None = None
        self.release_error: StoreError | None = None
        self.child_errors: tuple[Exception, ...] = ()
        self.when_asked: Callable[[StepDown], None] | None = None  # to step down, at every renewal from then on
        self._heir: Heir | None = None
        self._store = store
        self._claim = claim
        self._observers = observers
        self._line = line  # of a term that is kept, that is renewed and supervised
        self._bouts: set[Bout] = set()
        self._releasing: tuple[Bout, ...] = ()  # those that wait for the release
        self._children: set[asyncio.Task[None]] = set()
        self._work_left: asyncio.Future[None] | None = None
        self._stopped = False
        self._renewals: tuple[asyncio.Task[StoreError | None], ...] = ()
        self._closing: asyncio.Future[ReleaseOutcome] | None = None  # under way, or done
        self._give_up_at: float | None = None
        self._overrun_timer: asyncio.TimerHandle | None = None
        self._ticker = ticker()
        self._loop = self._ticker.loop

    def start(self, sent_at: float, token: int, waited: float, failover: float | None = None) -> bool:
        """Take the store's grant; False: it came after its own renew deadline and has to be undone."""
        now = _clock.now()
        self.info = TermInfo(self._claim.name, self._claim.identity, token, self._claim.id, self.timing.ttl)
        self._feed(hold.Granted(now, sent_at, token))
        if not isinstance(self.state, hold.Held):
            return False
        self._began = now
        term = self.term = Term(self)
        leads_for = lambda: hold.leads_for(self.state, _clock.now()) if term.is_leader else 0.0  # noqa: E731
        self._observers(TermBegan(self.info, waited, failover, leads_for))
        if self._line is not None:
            self._line.hold(self, self.info)
        if self._store.capabilities.tells:
            assert isinstance(self._store, Watchful)
            self._store.on_loss(self._claim, lambda: self._feed(hold.Refused(_clock.now())))
        return True

    # -- what the term may ask for

    async def renew(self) -> None:
        """See `Term.renew`."""
        now = _clock.now()
        self._feed(hold.Tick(now))
        if not isinstance(self.state, hold.Held):
            raise ended(self)
        renewal = self._start_renewal(self.timing.try_limit)
        await asyncio.wait({renewal})
        if not isinstance(self.state, hold.Held):
            raise ended(self)
        error = renewal.result()
        if error is not None:
            raise error

    def marker(self) -> Marker:
        """See `Term.once`."""
        return partial(marks_of(self._store, "once()").mark, self._claim)

    async def release(self) -> ReleaseOutcome:
        """See `Term.release`."""
        self._refuse_elsewhere()
        caller = asyncio.current_task()
        part = [bout for bout in self._bouts if bout.task is caller]
        self._releasing += (*part,)  # it waits for the release, so the release can't wait for it
        self._look_again()
        closing = self._closing
        if closing is None or (closing.done() and self.outcome is ReleaseOutcome.UNKNOWN):
            closing = self._begin_closing()
            self._close_detached()
        if part or not self._bouts:
            await outlast(closing)
        else:  # the work may be waiting for this task: a cancellation has to come out, and the release goes on
            await asyncio.wait({closing})
        return closing.result()

    def quit(self, heir: Heir | None = None) -> None:
        """See `Term.resign` and `Term.hand_over`."""
        self._refuse_elsewhere()
        if heir is not None:
            roles_of(self._store, "hand_over()")
        if self._line is None:
            raise unsupervised(self, "there is no work to stop; release() is yours")
        self._heir = heir or self._heir
        self._feed(hold.Quit(_clock.now()))

    def start_soon(self, function: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        """See `Term.start_soon`."""
        self._refuse_elsewhere()
        if self._line is None:
            raise unsupervised(self, "nobody would stop a child of it; hold it by 'async with' instead")
        if self._stopped or self._closing is not None:
            return
        child = spawn(self._run_child(function, args), f"child of {self.info.name}")
        self._children.add(child)
        child.add_done_callback(self._child_done)

    def _refuse_elsewhere(self) -> None:
        # Before anything is changed: what follows would fail half-way.
        if running_loop() is not self._loop:
            raise elsewhere(self)

    # -- the work

    def enter(self, bout: Bout) -> None:
        """A stretch of work begins; it will be stopped with the term."""
        self._bouts.add(bout)
        if self._stopped:
            bout.stop()

    def leave(self, bout: Bout) -> None:
        """A stretch of work has ended."""
        self._bouts.discard(bout)
        self._releasing = tuple(other for other in self._releasing if other is not bout)
        self._look_again()

    @property
    def lost(self) -> bool:
        """The claim ended otherwise than by its owner: by the clock, or by the store's word."""
        if isinstance(self.state, hold.Ended):
            return self.state.reason in (EndReason.EXPIRED, EndReason.TAKEN)
        return self.outcome is ReleaseOutcome.ALREADY_LOST

    async def finish(self) -> None:
        """The body has ended: stop and await the children, release, raise a cancellation. Call it sheltered."""
        cancelled: asyncio.CancelledError | None = None
        while (closing := self._closing) is None or not closing.done() or self._children:
            if closing is None or closing.done():
                self._releasing = ()  # who released and went on has to end with the body
                closing = self._begin_closing()
                if isinstance(self.state, hold.Held) and not (self._children or self._bouts or is_cancelled()):
                    cancelled = await self._close_here()
                    continue
                self._close_detached()  # after a loss too: an outer request of the same instant gets time to arrive
            try:
                await outlast(closing)
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled

    def _begin_closing(self) -> asyncio.Future[ReleaseOutcome]:
        self._give_up_at = None
        self._closing = self._loop.create_future()
        return self._closing

    def _close_detached(self) -> None:
        spawn(self._close_here(), f"release of {self.info.name}")

    async def _close_here(self) -> asyncio.CancelledError | None:
        """Close in this task, which saves turns of the loop; once interrupted, as by `asyncio.run`, go on detached."""
        try:
            await self._close()
        except BaseException as exc:
            if not isinstance(exc, Exception) and running_loop() is self._loop:
                if self._give_up_at is not None:
                    self.release_error = StoreUnavailable("its first answer was not waited for: the task was cancelled")
                self._close_detached()
            if isinstance(exc, asyncio.CancelledError):
                return exc
            raise
        return None

    async def _run_child(self, function: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        if self._stopped:
            return
        bout = Bout(current_task())
        try:
            with bout:
                self.enter(bout)
                await function(*args)
        except Exception as exc:  # noqa: BLE001 - it comes out where the term is held
            self.child_errors = (*self.child_errors, exc)
            self.quit()
        finally:
            self.leave(bout)

    def _child_done(self, child: asyncio.Task[None]) -> None:
        self._children.discard(child)
        self._look_again()

    def _look_again(self) -> None:
        if self._work_left is not None and not self._work_left.done():
            self._work_left.set_result(None)

    # -- decisions carried out

    def on_tick(self, now: float) -> None:
        """For the ticker."""
        self._feed(hold.Tick(now))

    def on_late(self, late: float) -> None:
        """For the ticker."""
        self._observers(LoopLag(late))

    def _feed(self, event: hold.Input) -> None:
        before = self.state
        self.state, actions = hold.step(before, event, self.timing)
        for action in actions:
            match action:
                case Action.RENEW if self._line is not None:
                    self._start_renewal(self.timing.response_limit)
                case Action.STOP:
                    self._stop()
                case _:
                    pass  # RELEASE and UNDO are done by whoever fed WorkOver or Granted
        if self._line is not None and self.state is not before:
            self._ticker.schedule(self, hold.wake_at(self.state), self.timing.tick)
        if self.state is not before and isinstance(before, hold.Held) and not isinstance(before, hold.Draining):
            for fact in facts_of(self, before, event, self._began):
                self._observers(fact)

    def _start_renewal(self, limit: float) -> asyncio.Task[StoreError | None]:
        renewal = spawn(self._renew_once(limit), f"renewal of {self.info.name}")
        self._renewals += (renewal,)
        renewal.add_done_callback(self._renewal_done)
        return renewal

    def _renewal_done(self, renewal: asyncio.Task[StoreError | None]) -> None:
        self._renewals = tuple(other for other in self._renewals if other is not renewal)

    async def _renew_once(self, limit: float) -> StoreError | None:
        sent_at = _clock.now()
        limit = min(limit, hold.life_left(self.state, sent_at))
        if limit <= 0:  # the process stood still since this was decided
            self._feed(hold.Tick(sent_at))
            return None
        try:
            answer = await self._store.renew(self._claim, limit=limit)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is no answer: the renew deadline decides
            error = as_store_error(exc)
            error.name = self.info.name
            self.cause = error
            self._observers(StoreFailed(self.info.name, "renew", reason_of(error)))
            self._feed(hold.Failed(_clock.now(), self.timing.retry_delay(random.random())))
            return error
        match answer:
            case Renewed(step_down=asked):
                self.cause = None
                self._feed(hold.Renewed(_clock.now(), sent_at))
                if asked is not None and self.when_asked is not None:
                    self.when_asked(asked)
            case Refused(holder=holder):
                self.cause, self.taken_by = None, holder
                self._feed(hold.Refused(_clock.now()))
        return None

    def _stop(self) -> None:
        self._stopped = True
        for bout in self._bouts.difference(self._releasing):
            bout.stop()
        if self._overrun_timer is None:
            self._overrun_timer = asyncio.get_running_loop().call_later(self.timing.drain, self._tell_overrun)

    def _tell_overrun(self) -> None:
        if self._bouts:
            self._observers(DrainOverrun(self.info, self.timing.drain))

    async def _close(self) -> None:
        """Stop the work, wait for it, then release. Who has asked for the release is not waited for."""
        if self._bouts or self._children:
            self._feed(hold.Quit(_clock.now()))
            self._stop()
            while self._bouts.difference(self._releasing) or self._children - {bout.task for bout in self._releasing}:
                self._work_left = self._loop.create_future()
                await self._work_left
        self._stopped = True
        if isinstance(self.state, hold.Held):
            self._feed(hold.WorkOver(_clock.now()))
        for renewal in self._renewals:
            renewal.cancel()  # an answer in flight would be ignored
        if self._overrun_timer is not None:
            self._overrun_timer.cancel()
        if isinstance(self.state, hold.Releasing) and self.outcome in (None, ReleaseOutcome.UNKNOWN):
            await self._give_up()
        if self.end_reason is None:
            self.end_reason = self.state.reason if isinstance(self.state, hold.Ended) else EndReason.RELEASED
            cause = None if self.release_error is None else str(self.release_error)
            self._observers(TermOver(self.info, self.end_reason, self.outcome, cause))
            if self._line is not None:
                self._line.let_go(self, self.told, self.taken_by)
            del self.term  # they refer to each other, and should be gone without the garbage collector
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(self.outcome or ReleaseOutcome.ALREADY_LOST)

    async def _give_up(self) -> None:
        if self._give_up_at is None:
            self._give_up_at = self._loop.time() + RELEASE_LIMIT
        at = self._began + self.timing.min_hold
        attempt = give_up(self._store, self._claim, self._give_up_at, self.release_error, heir=self._heir, at=at)
        self.outcome, self.told, self.release_error, self.taken_by = await attempt
        if self.release_error is not None:
            self._observers(StoreFailed(self.info.name, "release", reason_of(self.release_error)))
