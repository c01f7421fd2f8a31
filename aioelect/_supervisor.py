"""What a term asks of whoever keeps its claim, and the errors that tell how a claim stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aioelect._core import hold
from aioelect._core.timing import Timing
from aioelect._errors import ConfigurationError, LeaseExpired, LeaseLost, LeaseTaken, NotHeld, StoreError
from aioelect._store import Heir, Holder, Mark, Marked, Refused
from aioelect.facts import ReleaseOutcome, TermInfo

__all__ = ["Marker", "Supervisor", "elsewhere", "ended", "loss", "unsupervised"]


class Marker(Protocol):
    """Notes a finished run in the name of one claim."""

    async def __call__(self, mark: Mark, *, limit: float) -> Marked | Refused:
        """What is noted now, if the claim is ours."""


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

    def marker(self) -> Marker:
        """What notes finished runs; ConfigurationError if the store can't remember them."""


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
