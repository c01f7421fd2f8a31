"""One claim's life: states, inputs, transitions. The only place that compares a time with a deadline.

Rules of this file:

1. Everything about transitions lives here, in one pure function; nothing in here waits, reads a clock or talks.
2. Every input carries the instant `now` at which it is looked at. Time passes first: an answer that is looked at after
   the renew deadline finds the claim already ended. So a late renewal revives nothing; a late refusal still counts,
   and takes from an ended claim what could be proved up to `deadline`.
3. Every input is accepted in every state. What makes no sense any more is ignored, and that is in the table.
4. Only `Granted` sets the deadline and only `Renewed` moves it, only forward, and both count from the instant
   before the request was written, never from the reply.

Theory: a claim is provably ours from the send of the last confirmed request until `deadline` (ttl less drift). The work
is stopped earlier, at `stop_at` (the renew deadline). In between, renewals are due at `renew_at`. A failed renewal
makes the claim doubtful and changes nothing else. A claim ends by our clock (EXPIRED), by the server's word (TAKEN), by
its owner (RELEASING, once the work is over), or because the cancelled work takes too long (OVERRUN).

The table, and the documentation (`docs/architecture.md` draws its diagram from `TABLE`):
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from aioelect._core.timing import Timing

__all__ = [
    "TABLE",
    "Action",
    "Doubtful",
    "Draining",
    "EndReason",
    "Ended",
    "Failed",
    "Granted",
    "Held",
    "Idle",
    "Input",
    "Quit",
    "Refused",
    "Releasing",
    "Renewed",
    "State",
    "Tick",
    "WorkOver",
    "is_leader",
    "is_valid",
    "leads_for",
    "life_left",
    "remaining",
    "step",
    "wake_at",
]


class EndReason(enum.Enum):
    """Why a term ended."""

    RELEASED = "released"  # on purpose: the work was over, or was stopped first
    EXPIRED = "expired"  # lost by our clock: no renewal was confirmed in time
    TAKEN = "taken"  # lost by the server's word: gone, or another's
    OVERRUN = "overrun"  # stopped on purpose, but the work outlived the drain limit; left to the ttl
    LATE = "late"  # won after its own renew deadline: never started


class Action(enum.Enum):
    """What the caller has to do now."""

    RENEW = "renew"  # send a renewal
    STOP = "stop"  # cancel the work
    RELEASE = "release"  # the work is over: give the claim up
    UNDO = "undo"  # the claim was never used: give it up


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is claimed yet."""


@dataclass(frozen=True, slots=True)
class Held:
    """Ours; the work runs."""

    token: int
    sent_at: float  # just before the last confirmed request was written
    renew_at: float
    stop_at: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Doubtful(Held):
    """Ours as far as provable, but the last renewal failed; the work goes on."""

    since: float
    failures: int


@dataclass(frozen=True, slots=True)
class Draining(Held):
    """The work was told to stop and is winding down; renewals go on so that it may."""

    drain_until: float


class Releasing(NamedTuple):
    """The work is over and the claim is being given up; no renewal is sent any more."""

    token: int


class Ended(NamedTuple):
    """Over. An expired claim can still be proved up to `deadline`, for clean-up."""

    reason: EndReason
    token: int | None
    deadline: float


State = Idle | Held | Doubtful | Draining | Releasing | Ended


class Granted(NamedTuple):
    """The store said yes to an acquisition whose request was about to be written at `sent_at`."""

    now: float
    sent_at: float
    token: int


class Renewed(NamedTuple):
    """The store said yes to a renewal whose request was about to be written at `sent_at`."""

    now: float
    sent_at: float


class Refused(NamedTuple):
    """The store said: gone, or another's."""

    now: float


class Failed(NamedTuple):
    """A renewal brought no clear answer; the next try is due after `delay`."""

    now: float
    delay: float


class Tick(NamedTuple):
    """Time has passed."""

    now: float


class Quit(NamedTuple):
    """Somebody wants the term to end: stop the work first."""

    now: float


class WorkOver(NamedTuple):
    """The work has ended, by itself or because it was told to."""

    now: float


Input = Granted | Renewed | Refused | Failed | Tick | Quit | WorkOver

_Step = tuple[State, tuple[Action, ...]]

# (state, input) -> what happens. Anything not listed leaves the state as it is. A test holds this against step().
TABLE: tuple[tuple[str, str, str], ...] = (
    ("Idle", "Granted in time", "Held"),
    ("Idle", "Granted past its renew deadline / undo", "Ended (late)"),
    ("Held", "renew_at / renew", "Held"),
    ("Held", "Renewed", "Held"),
    ("Held", "Failed", "Doubtful"),
    ("Held", "Refused / stop", "Ended (taken)"),
    ("Held", "stop_at / stop", "Ended (expired)"),
    ("Held", "Quit / stop", "Draining"),
    ("Held", "WorkOver / release", "Releasing"),
    ("Doubtful", "renew_at / renew", "Doubtful"),
    ("Doubtful", "Renewed", "Held"),
    ("Doubtful", "Failed", "Doubtful"),
    ("Doubtful", "Refused / stop", "Ended (taken)"),
    ("Doubtful", "stop_at / stop", "Ended (expired)"),
    ("Doubtful", "Quit / stop", "Draining"),
    ("Doubtful", "WorkOver / release", "Releasing"),
    ("Draining", "renew_at / renew", "Draining"),
    ("Draining", "Renewed", "Draining"),
    ("Draining", "Failed", "Draining"),
    ("Draining", "Refused", "Ended (taken)"),
    ("Draining", "deadline", "Ended (expired)"),
    ("Draining", "drain_until", "Ended (overrun)"),
    ("Draining", "WorkOver / release", "Releasing"),
    ("Releasing", "any", "Releasing"),
    ("Ended", "any", "Ended"),
)


def step(state: State, event: Input, timing: Timing) -> _Step:
    """The next state and what has to be done; the one function that decides about a claim."""
    match state:
        case Idle():
            return _grant(event, timing) if isinstance(event, Granted) else (state, ())
        case Held():
            return _keep(state, event, timing)
        case Ended() if isinstance(event, Refused):
            return state._replace(deadline=float("-inf")), ()
        case Releasing() | Ended():
            return state, ()
        case _:
            assert_never(state)


def _keep(state: Held | Doubtful | Draining, event: Input, timing: Timing) -> _Step:
    if isinstance(event, WorkOver):
        # Also past the deadline: the release is tried once, and its answer tells whether the claim was ours throughout.
        return Releasing(state.token), (Action.RELEASE,)
    if (up := _time_is_up(state, event.now)) is not None:
        ended, actions = up
        return step(ended, event, timing)[0], actions
    match event:
        case Granted():  # a claim is granted once
            return state, ()
        case Renewed():
            return _renewed(state, event.sent_at, timing), ()
        case Refused():
            stop = () if isinstance(state, Draining) else (Action.STOP,)
            return Ended(EndReason.TAKEN, state.token, float("-inf")), stop
        case Failed():
            return _failed(state, event), ()
        case Tick():
            if event.now < state.renew_at - timing.grain:  # a little early, if others are due: it goes with them
                return state, ()
            # Due again only once this try has been answered or has failed.
            return replace(state, renew_at=float("inf")), (Action.RENEW,)
        case Quit():
            if isinstance(state, Draining):
                return state, ()
            draining = Draining(
                state.token, state.sent_at, state.renew_at, state.stop_at, state.deadline, event.now + timing.drain
            )
            return draining, (Action.STOP,)
        case _:
            assert_never(event)


def _grant(event: Granted, timing: Timing) -> _Step:
    stop_at = event.sent_at + timing.renew_deadline
    deadline = event.sent_at + timing.validity
    if event.now >= stop_at:
        return Ended(EndReason.LATE, event.token, float("-inf")), (Action.UNDO,)
    return Held(event.token, event.sent_at, timing.renewal_due(event.sent_at), stop_at, deadline), ()


def _time_is_up(state: Held | Doubtful | Draining, now: float) -> _Step | None:
    if isinstance(state, Draining):
        if now >= state.deadline:
            return Ended(EndReason.EXPIRED, state.token, state.deadline), ()
        if now >= state.drain_until:
            return Ended(EndReason.OVERRUN, state.token, state.deadline), ()
    elif now >= state.stop_at:
        return Ended(EndReason.EXPIRED, state.token, state.deadline), (Action.STOP,)
    return None


def _renewed(state: Held | Doubtful | Draining, sent_at: float, timing: Timing) -> State:
    sent_at = max(sent_at, state.sent_at)  # answers may come out of order: never backward
    renew_at = timing.renewal_due(sent_at)
    stop_at = sent_at + timing.renew_deadline
    deadline = sent_at + timing.validity
    if isinstance(state, Draining):
        return replace(state, sent_at=sent_at, renew_at=renew_at, stop_at=stop_at, deadline=deadline)
    return Held(state.token, sent_at, renew_at, stop_at, deadline)


def _failed(state: Held | Doubtful | Draining, event: Failed) -> State:
    retry_at = event.now + event.delay
    if isinstance(state, Draining):
        return replace(state, renew_at=retry_at)
    since, failures = (state.since, state.failures + 1) if isinstance(state, Doubtful) else (event.now, 1)
    return Doubtful(state.token, state.sent_at, retry_at, state.stop_at, state.deadline, since, failures)


def is_leader(state: State, now: float) -> bool:
    """True while the work may go on: held, not told to stop, and before the renew deadline."""
    return isinstance(state, Held) and not isinstance(state, Draining) and now < state.stop_at


def leads_for(state: State, now: float) -> float:
    """Seconds until the work is stopped unless a renewal is confirmed; 0.0 when it may not go on."""
    return max(0.0, state.stop_at - now) if isinstance(state, Held) and not isinstance(state, Draining) else 0.0


def remaining(state: State, now: float) -> float:
    """Seconds for which the claim is still provably ours; 0.0 when it is not."""
    match state:
        case Held() | Ended():
            return max(0.0, state.deadline - now)
        case Idle() | Releasing():
            return 0.0
        case _:
            assert_never(state)


def is_valid(state: State, now: float) -> bool:
    """True while the claim is provably ours, which outlasts `is_leader` so that clean-up can prove itself."""
    return remaining(state, now) > 0.0


def life_left(state: State, now: float) -> float:
    """How long a request about this claim may take at most: there is no use for an answer after that."""
    match state:
        case Draining():
            return max(0.0, min(state.deadline, state.drain_until) - now)
        case Held():
            return max(0.0, state.stop_at - now)
        case Idle() | Releasing() | Ended():
            return 0.0
        case _:
            assert_never(state)


def wake_at(state: State) -> float:
    """The next instant at which a Tick would change something; infinite if none will."""
    match state:
        case Draining():
            return min(state.renew_at, state.deadline, state.drain_until)
        case Held():
            return min(state.renew_at, state.stop_at)
        case Idle() | Releasing() | Ended():
            return float("inf")
        case _:
            assert_never(state)
