"""What work under a claim may see and do. The claim itself stays with its supervisor (`_keeper.py`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVarTuple

import anyio

from aioelect import _clock
from aioelect._core import hold
from aioelect._core.names import check_identity
from aioelect._core.timing import MAX_TTL, Duration, Timing, seconds
from aioelect._errors import ConfigurationError, LeaseExpired, LeaseLost, LeaseTaken, NotHeld, StoreError
from aioelect._store import Heir, Holder
from aioelect.facts import ReleaseOutcome, TermInfo

__all__ = ["Supervisor", "Term", "check_function", "elsewhere", "ended", "loss", "unsupervised"]

Ts = TypeVarTuple("Ts")


class Supervisor(Protocol):
    """Who keeps the claim of a term: what a term asks of it."""

    info: TermInfo
    timing: Timing
    state: hold.State
    end_reason: hold.EndReason | None  # None while the term lasts
    cause: StoreError | None  # of the doubt, and then of the loss
    taken_by: Holder | None  # who holds the name now, where the store told

    async def renew(self) -> None:
        """See `Term.renew`."""

    async def release(self) -> ReleaseOutcome:
        """See `Term.release`."""

    def quit(self, heir: Heir | None = None) -> None:
        """See `Term.resign` and `Term.hand_over`."""

    def start_soon(self, function: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        """See `Term.start_soon`."""


def loss(supervisor: Supervisor) -> LeaseLost:
    """The error that tells how a claim was lost."""
    info, state, taken_by = supervisor.info, supervisor.state, supervisor.taken_by
    fence = f"token {info.token}, " if info.token else ""  # an advisory lock may have none
    ours = f"{info.name!r} ({fence}term {info.id}) is no longer held by {info.identity}"
    advice = f"stop the work and write nothing more{'; the next term has a higher token' if fence else ''}"
    error: LeaseLost
    if isinstance(state, hold.Releasing) or (isinstance(state, hold.Ended) and state.reason is hold.EndReason.TAKEN):
        if taken_by is None:
            now = "it is gone"
        elif taken_by.identity is None:
            now = "another holds it"
        else:
            now = f"{taken_by.identity} holds it (token {taken_by.token})"
        error = LeaseTaken(f"{ours}: the store says that {now}; {advice}", reason="taken", waited=0.0)
    else:
        why = "" if supervisor.cause is None else f" ({supervisor.cause})"
        error = LeaseExpired(f"{ours}: no renewal was confirmed in time{why}; {advice}", reason="expired")
        error.waited = supervisor.timing.renew_deadline
    error.name, error.token, error.term_id = info.name, info.token, info.id
    error.holder = None if taken_by is None else taken_by.identity
    error.__cause__ = supervisor.cause
    return error


def ended(supervisor: Supervisor) -> NotHeld | LeaseLost:
    """The error of an operation that needs a held claim, on one that is not."""
    if not isinstance(supervisor.state, hold.Releasing):
        return loss(supervisor)
    info = supervisor.info
    return NotHeld(
        f"{info.name!r} (token {info.token}, term {info.id}) has been released; acquire it again",
        name=info.name,
        token=info.token,
        term_id=info.id,
        reason="released",
    )


def unsupervised(supervisor: Supervisor, advice: str) -> NotHeld:
    """The error of asking for supervision where there is none."""
    info = supervisor.info
    return NotHeld(
        f"the term of {info.name!r} came from try_acquire() and is not supervised: {advice}",
        name=info.name,
        token=info.token,
        term_id=info.id,
        reason="unsupervised",
    )


def elsewhere(supervisor: Supervisor) -> ConfigurationError:
    """The error of a call from another thread or event loop."""
    name = supervisor.info.name
    return ConfigurationError(
        f"the term of {name!r} belongs to another event loop; from a thread use "
        "loop.call_soon_threadsafe(term.resign), or let the work poll term.is_valid",
        name=name,
        reason="thread",
    )


def check_function(what: str, function: object) -> None:
    """Refuse what can't be called where it is given, and not when the election is won hours later."""
    if asyncio.iscoroutine(function):
        function.close()
        raise ConfigurationError(f"{what} is a coroutine: pass the function itself, not its call", reason=what)
    if not callable(function):
        raise ConfigurationError(f"{what} is a {type(function).__name__}; expected an async function", reason=what)


class Term:
    """One unbroken tenure of a name, from acquire to end.

    Everything but `renew()` and `release()` is local: no I/O, never waits. `is_leader`, `is_valid`, `remaining()` and
    `check()` read a clock that counts suspended time, may be called from any thread, and are right also just after the
    event loop was blocked.

    Example:
        >>> async with FencedLock(redis, "stock") as term:  # doctest: +SKIP
        ...     await conn.execute("UPDATE stock SET fence_token = $1 WHERE fence_token <= $1", term.token)
        ...     term.check()
    """

    __slots__ = ("__weakref__", "_pid", "_supervisor")

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        """The contended name."""
        return self._supervisor.info.name

    @property
    def identity(self) -> str:
        """Who holds it, for people; may repeat."""
        return self._supervisor.info.identity

    @property
    def id(self) -> str:
        """The public id of this term, safe to show."""
        return self._supervisor.info.id

    @property
    def token(self) -> int:
        """The fencing token: higher than that of every earlier term of this name. Send it with every write.

        Raises:
            NotHeld: an `AdvisoryLock` without a sequence has none.
        """
        info = self._supervisor.info
        if not info.token:
            raise NotHeld(
                f"{info.name!r} is an advisory lock without fencing tokens: make it with a sequence",
                name=info.name,
                term_id=info.id,
                reason="tokens",
            )
        return info.token

    @property
    def is_leader(self) -> bool:
        """True while the work may go on; false from the renew deadline on, while draining, and after the end."""
        return self._pid == os.getpid() and hold.is_leader(self._supervisor.state, _clock.now())

    @property
    def is_valid(self) -> bool:
        """True while the claim is provably ours: it outlasts `is_leader`, so that clean-up can prove itself."""
        return self.remaining() > 0.0

    @property
    def end_reason(self) -> hold.EndReason | None:
        """Why the term ended; None until its work has ended and the claim is released, lost or left."""
        return self._supervisor.end_reason

    def remaining(self) -> float:
        """Seconds for which the claim is still provably ours; 0.0 when it is not (a forked child has nothing)."""
        return hold.remaining(self._supervisor.state, _clock.now()) if self._pid == os.getpid() else 0.0

    def check(self) -> None:
        """Prove by the clock that the claim is ours; call it before a side effect.

        Raises:
            LeaseExpired: no renewal was confirmed in time.
            LeaseTaken: the store said that the claim is gone or another's.
            NotHeld: the term was released.
        """
        if not self.is_valid:
            raise ended(self._supervisor)

    async def renew(self) -> None:
        """Prove to the store that the claim is ours, and prolong it.

        Waits for one round trip, at most one try. A cancellation leaves the claim as it was.

        Raises:
            LeaseLost: the store refused (the work is cancelled, too), or the claim had been lost before.
            StoreUnavailable: no answer for one try; the term stays doubtful and goes on being renewed.
            StoreRejected: the store refused to serve; the same.
            NotHeld: the term was released.
        """
        await self._supervisor.renew()

    async def release(self) -> ReleaseOutcome:
        """Give the claim up now; children are stopped and awaited first. Safe to repeat.

        Waits at most 2 s for the store's word, whatever it does. A cancellation comes out when that is done.

        Returns:
            What became of the claim. `ALREADY_LOST` means that it had run out while the work went on.
        """
        return await self._supervisor.release()

    def resign(self) -> None:
        """Ask for the end of this term: the work is cancelled and awaited, then the claim is released. Never waits.

        An elector stands again after a pause of a renew interval (5 s at most), so that another gets it.
        """
        self._supervisor.quit()

    def hand_over(self, to: str, *, within: Duration | None = None) -> None:
        """Resign in favour of a candidate: the next term is reserved for it for a while, anyone may have it after that.

        Never waits: the work is cancelled and awaited first, and the time counts from the release. Versions of this
        library that know no reservations don't honour them.

        Args:
            to: the identity of the candidate, as `info()` lists it.
            within: seconds for which the term is reserved; default: a renew interval, 5 s at most.

        Raises:
            ConfigurationError: an argument is refused, or the store can't reserve.

        Example:
            >>> term.hand_over("pod-b")  # doctest: +SKIP
        """
        pause = self._supervisor.timing.resign_pause()
        reserved = pause if within is None else seconds("within", within, least=0.001, most=MAX_TTL)
        self._supervisor.quit(Heir(check_identity(to), reserved))

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run `function(*args)` beside the work, as a child of the term. Never waits.

        Children are cancelled and awaited when the term ends. The first that raises ends the term, and its error comes
        out bare where the term is held. Once the term has ended nothing is started any more.
        """
        check_function("function", function)
        self._supervisor.start_soon(function, args)

    def every(self, interval: Duration) -> AsyncIterator[None]:
        """Tick now and then every `interval` seconds, only while we lead; ends with the term.

        A tick that overruns skips the ones it missed. Each step waits, and may be cancelled at no loss.
        """
        return _Ticks(self._supervisor, seconds("interval", interval, least=0.001))

    @contextmanager
    def cleanup(self) -> Iterator[None]:
        """Shield clean-up from the cancellation of the work as long as the claim is provably ours.

        Renewals go on while the work drains, and prolong it; past the drain limit it ends all the same.
        """
        loop = asyncio.get_running_loop()
        until = _clock.now() + self._supervisor.timing.drain
        scope = anyio.CancelScope(shield=True)
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            left = min(self.remaining(), until - _clock.now())
            if left > 0:
                timer = loop.call_later(left, look)
            else:
                scope.cancel()

        with scope:
            look()
            try:
                yield
            finally:
                if timer is not None:
                    timer.cancel()

    def __repr__(self) -> str:
        return (
            f"<Term {self.name!r} identity={self.identity!r} token={self._supervisor.info.token} id={self.id} "
            f"remaining={self.remaining():.3f}>"
        )


class _Ticks(AsyncIterator[None]):
    def __init__(self, supervisor: Supervisor, interval: float) -> None:
        self._supervisor = supervisor
        self._interval = interval
        self._due: float | None = None

    async def __anext__(self) -> None:
        now = _clock.now()
        if self._due is None:
            self._due = now
        await asyncio.sleep(0)  # a step always lets a cancellation in
        while hold.is_leader(self._supervisor.state, now):
            if now >= self._due:
                missed = (now - self._due) // self._interval
                self._due += (missed + 1) * self._interval
                return
            await asyncio.sleep(min(self._due - now, hold.life_left(self._supervisor.state, now)))
            now = _clock.now()
        raise StopAsyncIteration
