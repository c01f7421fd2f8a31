"""What happened, as frozen facts. The core emits them and goes on; logs, metrics, traces and you may listen.

An observer is a callable that takes one fact. It must not block, and can't do harm: one that raises is reported and
never asked again.

Examples:
    >>> def observer(fact: Fact) -> None:
    ...     if isinstance(fact, TermOver) and fact.outcome is ReleaseOutcome.ALREADY_LOST:
    ...         print("page somebody:", fact.term.name)
    >>> elector = Elector(redis, "scheduler", observers=[observer])  # doctest: +SKIP
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from aioelect._core.hold import EndReason

__all__ = [
    "AcquisitionFailed",
    "CandidacyBegan",
    "CandidacyFailed",
    "CandidacyOver",
    "ConsumerFailed",
    "Declared",
    "DrainOverrun",
    "Fact",
    "FitnessChanged",
    "LoopLag",
    "LoopStalled",
    "Observer",
    "ReleaseOutcome",
    "RenewalConfirmed",
    "RenewalFailed",
    "RenewalRecovered",
    "StepDownAsked",
    "StepDownHookFailed",
    "StoreFailed",
    "StoreFailing",
    "StoreRecovered",
    "TermBegan",
    "TermInfo",
    "TermOver",
    "TermStopped",
    "WriteRefused",
]


class ReleaseOutcome(enum.Enum):
    """What became of a claim that was given up."""

    RELEASED = "released"  # the store confirmed it
    UNCONFIRMED = "unconfirmed"  # answered "gone" after a try without an answer: most likely that try did it
    ALREADY_LOST = "already lost"  # the claim had run out, or been taken, while its work went on
    UNKNOWN = "unknown"  # no answer in time: the claim ends with its ttl


class TermInfo(NamedTuple):
    """Which term a fact is about; all of it safe to show."""

    name: str
    identity: str
    token: int
    id: str
    ttl: float


class Declared(NamedTuple):
    """An object for this name was made: it may be contended for from here on."""

    name: str
    ttl: float


class CandidacyBegan(NamedTuple):
    """An elector stands for a role, until `CandidacyOver`: also while it leads."""

    name: str
    identity: str


class CandidacyOver(NamedTuple):
    """An elector stands no more, whatever the reason."""

    name: str
    identity: str


@dataclass(frozen=True, slots=True)
class TermBegan:
    """A claim was won and its work may start."""

    term: TermInfo
    waited: float
    failover: float | None  # seconds since the last sign of life of another holder; None: none was seen while waiting
    leads_for: Callable[[], float] = field(repr=False, compare=False)
    """Seconds until the work is stopped unless a renewal is confirmed, 0.0 from the stop on; any thread may call."""


class AcquisitionFailed(NamedTuple):
    """An acquisition has ended without a claim; nothing of ours is left behind."""

    name: str
    identity: str
    waited: float
    reason: str  # "held", "reserved", "late" (no time was left), "cancelled", or as for `StoreFailed`


class RenewalConfirmed(NamedTuple):
    """A renewal was confirmed."""

    term: TermInfo
    round_trip: float
    life_left: float  # seconds until the work would have been stopped without it


class RenewalFailed(NamedTuple):
    """A renewal brought no clear answer; the work goes on."""

    term: TermInfo
    failures: int  # in a row: 1 is the start of an outage
    life_left: float  # seconds until the work is stopped
    cause: str
    reason: str  # as for `StoreFailed`


class RenewalRecovered(NamedTuple):
    """A renewal was confirmed after failed ones."""

    term: TermInfo
    failures: int
    lasted: float


class TermStopped(NamedTuple):
    """The work was told to stop, or ended by itself: `is_leader` is false from here on."""

    term: TermInfo
    reason: EndReason
    held: float
    cause: str | None


class DrainOverrun(NamedTuple):
    """Cancelled work takes longer than the drain limit; nothing is released, and this process stands back."""

    term: TermInfo
    limit: float


class TermOver(NamedTuple):
    """The work has ended, and so has the claim as far as this process is concerned."""

    term: TermInfo
    reason: EndReason
    outcome: ReleaseOutcome | None  # None: nothing was released
    cause: str | None  # what was in the way of the release


class LoopStalled(NamedTuple):
    """The event loop was blocked so long that a renewal is overdue; told when it goes on (`on_stall=`)."""

    term: TermInfo
    seconds: float  # when it was noticed
    stack: str  # where its thread was


class StepDownAsked(NamedTuple):
    """Somebody has asked the leader to step down; it will, after its hook."""

    term: TermInfo
    to: str | None  # for whom the next term will be reserved


class StepDownHookFailed(NamedTuple):
    """The hook before a step-down raised, or took longer than the drain limit; the leader steps down all the same."""

    term: TermInfo
    cause: str


class FitnessChanged(NamedTuple):
    """A candidate is not fit to lead, or fit again, as its `ready` says."""

    name: str
    identity: str
    fit: bool
    cause: str


class StoreFailed(NamedTuple):
    """One request brought no usable answer."""

    name: str
    request: Literal["acquire", "renew", "release", "attend"]
    reason: str  # one short word or phrase out of few: "timeout", "connection", "readonly"


class StoreFailing(NamedTuple):
    """Somebody who waits gets no usable answer, and goes on trying."""

    name: str
    identity: str
    candidate: bool  # stands for a role, and so goes on for ever
    cause: str
    reason: str  # as for `StoreFailed`


class StoreRecovered(NamedTuple):
    """Somebody who waits gets answers again."""

    name: str
    identity: str
    candidate: bool
    lasted: float


class CandidacyFailed(NamedTuple):
    """A candidacy in the background has ended for good; the error comes out where it is left or followed."""

    name: str
    identity: str
    error: Exception


class ConsumerFailed(NamedTuple):
    """A consumer of a partition has raised, or could not be started; it is started again after a while."""

    name: str  # of the partition
    identity: str
    error: Exception
    again_in: float


class WriteRefused(NamedTuple):
    """A write target has seen a newer token: a superseded term of this process was kept from writing.

    Told where the guard was called, which may be another thread.
    """

    name: str
    resource: str  # what was to be written to
    token: int
    newest: int


class LoopLag(NamedTuple):
    """How late the event loop served a timer; looked at once a second at most, while a term is held."""

    seconds: float


Fact = (
    Declared
    | CandidacyBegan
    | CandidacyOver
    | CandidacyFailed
    | ConsumerFailed
    | AcquisitionFailed
    | TermBegan
    | RenewalConfirmed
    | RenewalFailed
    | RenewalRecovered
    | TermStopped
    | DrainOverrun
    | TermOver
    | StepDownAsked
    | StepDownHookFailed
    | FitnessChanged
    | StoreFailed
    | StoreFailing
    | StoreRecovered
    | WriteRefused
    | LoopLag
    | LoopStalled
)


class Observer(Protocol):
    """Whoever wants to hear facts. Called in the event loop, in order; it must not block."""

    def __call__(self, fact: Fact, /) -> None:
        """Take note of one fact."""
