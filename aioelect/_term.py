"""What work under a claim may see and do. The claim itself stays with its supervisor (`_keeper.py`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TypeVarTuple

import anyio

from aioelect import _clock
from aioelect._core import hold
from aioelect._core.names import check_identity, check_key
from aioelect._core.timing import MAX_TTL, Duration, seconds
from aioelect._errors import ConfigurationError, NotHeld
from aioelect._store import Heir
from aioelect._supervisor import Supervisor, ended
from aioelect.facts import ReleaseOutcome

if TYPE_CHECKING:
    from aioelect._core.schedule import Missed, Schedule

__all__ = ["Term", "check_function"]

Ts = TypeVarTuple("Ts")


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

    Examples:
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

        Examples:
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

    def every(
        self,
        interval: Duration,
        *,
        jitter: Duration = 0.0,
        immediately: bool = True,
        missed: Missed = "skip",
    ) -> AsyncIterator[None]:
        """Tick every `interval` seconds, only while we lead; ends with the term.

        Ticks stay on one grid that begins with the first step: neither late ticks nor jitter move those after them.
        Each step waits, and may be cancelled at no loss.

        Args:
            interval: seconds or timedelta, at least 1 ms.
            jitter: each tick comes up to so much later, by chance; at most `interval`.
            immediately: tick at once; else after the first interval.
            missed: what becomes of ticks that fell due while the body ran: "skip" leaves them out, "catch_up" brings
                them one after the other.

        Raises:
            ConfigurationError: an argument is refused.
        """
        # Most terms have no schedule.
        from aioelect._core.schedule import Beat  # noqa: PLC0415
        from aioelect._periodic import Ticks  # noqa: PLC0415

        return Ticks(self._supervisor, Beat.of(interval, jitter, missed), immediately=immediately)

    def once(
        self,
        schedule: Schedule | Duration,
        *,
        key: str | None = None,
        missed: Missed = "skip",
        begin: datetime | None = None,
        wait: bool = True,
    ) -> AsyncIterator[datetime]:
        """Runs of a schedule, each of them once for the whole cluster: its instant, when it is due and we lead.

        A run is finished when the loop asks for the next one. That is noted in the store, in this term's name: no
        later leader repeats it, whatever its clock says. A run that was not finished (its leader died, lost its claim,
        raised, or left the loop) is due again for the next leader. When nothing is noted yet, the schedule begins now.

        Each step waits, and may be cancelled at no loss; the note of a finished run is made all the same.

        Args:
            schedule: `Daily(...)`, `Interval(...)`, `Cron(...)`, anything with their methods, or the seconds of an
                interval.
            key: the name under which finished runs are noted; default: the schedule itself. Two jobs on equal schedules
                need a key each.
            missed: "skip": of several runs that fell due, only the latest; "catch_up": each of them, in order.
            begin: the instant, with a time zone, after which runs count when nothing is noted yet; default: now.
            wait: False: end when no run is due, rather than wait for the next one.

        Raises:
            ConfigurationError: an argument is refused, or the store can't remember runs.
            StoreRejected: the store refuses to (while iterating).

        Examples:
            >>> async for day in term.once(Daily("03:00", ZoneInfo("Europe/Berlin"))):  # doctest: +SKIP
            ...     await clean_up(day)
        """
        # As above.
        from aioelect._core.schedule import as_schedule, check_begin, check_missed, name_of  # noqa: PLC0415
        from aioelect._periodic import Runs  # noqa: PLC0415

        found = as_schedule(schedule)
        name = check_key(name_of(found) if key is None else key)
        missed, begin = check_missed(missed), check_begin(begin)
        return Runs(self._supervisor, self._supervisor.marker(), found, name, missed, begin, wait=wait)

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
