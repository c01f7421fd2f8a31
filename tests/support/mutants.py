"""Seeded mutants of the rules, and for each a short schedule in which it breaks a promise.

A mutant replaces a function of the core, or of the model server, by one with a plausible mistake in it. The schedules
are written down, so that each mutant is caught whatever the drawing of the day looks like; each reads as a story.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from aioelect._core import hold
from aioelect._core import timing as durations
from aioelect._core.hold import Action, EndReason
from aioelect._core.timing import Timing
from aioelect._store import Released, Renewed
from support.model_server import Answer, Server
from support.schedules import FASTEST, LOST, SLOWEST, Life, Message, Schedule

Patch = Callable[[pytest.MonkeyPatch], None]
Step = tuple[hold.State, tuple[Action, ...]]

_step = hold.step
_renewed = hold._renewed


@dataclass(frozen=True)
class Mutant:
    """A mistake, a schedule in which it shows, and the words in which it is noticed there."""

    mistake: str
    patch: Patch
    schedule: Schedule
    noticed: str


def _instead_of(place: object, name: str, mutant: Callable[..., object]) -> Patch:
    return lambda patch: patch.setattr(place, name, mutant)


def _from_the_reply(state: hold.State, event: hold.Input, timing: Timing) -> Step:
    if isinstance(event, hold.Granted | hold.Renewed):
        event = event._replace(sent_at=event.now)
    return _step(state, event, timing)


def _silence_is_a_yes(state: hold.State, event: hold.Input, timing: Timing) -> Step:
    if isinstance(event, hold.Failed):
        event = hold.Renewed(event.now, event.now)
    return _step(state, event, timing)


def _renews_after_release(state: hold.State, event: hold.Input, timing: Timing) -> Step:
    after, actions = _step(state, event, timing)
    return after, (*actions, Action.RENEW) if Action.RELEASE in actions else actions


def _releases_before_the_work_is_over(state: hold.State, event: hold.Input, timing: Timing) -> Step:
    after, actions = _step(state, event, timing)
    if isinstance(event, hold.Quit) and Action.STOP in actions and isinstance(after, hold.Draining):
        return hold.Releasing(after.token), (Action.STOP, Action.RELEASE)
    return after, actions


def _answer_before_time(state: hold.State, event: hold.Input, timing: Timing) -> Step:
    if isinstance(event, hold.Renewed) and isinstance(state, hold.Held):
        return _renewed(state, event.sent_at, timing), ()
    return _step(state, event, timing)


def _refusal_is_a_failure(state: hold.State, event: hold.Input, timing: Timing) -> Step:
    return _step(state, hold.Failed(event.now, 0.0) if isinstance(event, hold.Refused) else event, timing)


def _late_grant_accepted(event: hold.Granted, timing: Timing) -> Step:
    stop_at, deadline = event.sent_at + timing.renew_deadline, event.sent_at + timing.validity
    return hold.Held(event.token, event.sent_at, event.sent_at + timing.interval, stop_at, deadline), ()


def _backward(state: hold.Held, sent_at: float, timing: Timing) -> hold.State:
    return _renewed(replace(state, sent_at=sent_at), sent_at, timing)


def _timeless(state: hold.State, _: float) -> bool:
    return isinstance(state, hold.Held) or (isinstance(state, hold.Ended) and state.reason is EndReason.EXPIRED)


def _deletes_blindly(server: Server, _owner: str, _t: float) -> Answer:
    server._owner = None
    return Released(told=0)


def _overwrites(server: Server, owner: str, t: float, ttl: float) -> Answer:
    server._set(owner, t, ttl)
    return Renewed()


def _forgets_its_tokens(server: Server, _: float) -> int:
    server._token = 1
    return 1


def _no_drift(_: float) -> float:
    return 0.0


def _half_the_drift(ttl: float) -> float:
    return ttl / 200 + 0.003


OK = Message()
SILENT = (LOST,) * 20  # nothing gets through any more
LATER = Life(start=0.5, body=9.0)  # waits, and takes over as soon as it may

MUTANTS = (
    Mutant(
        "the deadline counts from the reply",
        _instead_of(hold, "step", _from_the_reply),
        Schedule((Life(drain=0.5, messages=(Message(back=0.1), *SILENT)), LATER)),
        "process 0 believes",
    ),
    Mutant(
        "release does not compare",
        _instead_of(Server, "release", _deletes_blindly),
        Schedule((Life(body=0.2, pauses=((0.1, 1.5),)), LATER)),
        "process 1 believes",
    ),
    Mutant(
        "a renewal is sent after the release",
        _instead_of(hold, "step", _renews_after_release),
        Schedule((Life(body=0.1), LATER)),
        "a renewal is sent in Releasing",
    ),
    Mutant(
        "silence is taken as a yes",
        _instead_of(hold, "step", _silence_is_a_yes),
        Schedule((Life(messages=(OK, *SILENT)), LATER)),
        "the deadline was moved by Failed",
    ),
    Mutant(
        "drift is forgotten",
        _instead_of(durations, "drift", _no_drift),
        Schedule((Life(rate=SLOWEST, drain=0.5, messages=(OK, *SILENT)), LATER), server_rate=FASTEST),
        "process 0 believes",
    ),
    Mutant(
        "clocks are trusted to half a percent",
        _instead_of(durations, "drift", _half_the_drift),
        Schedule((Life(rate=SLOWEST, drain=0.5, messages=(OK, *SILENT)), LATER), server_rate=FASTEST, ttl=15.0),
        "process 0 believes",
    ),
    Mutant(
        "validity ignores the time",
        _instead_of(hold, "is_valid", _timeless),
        Schedule((Life(pauses=((0.1, 1.5),)), LATER)),
        "process 0 believes",
    ),
    Mutant(
        "a late grant is accepted",
        _instead_of(hold, "_grant", _late_grant_accepted),
        Schedule((Life(messages=(Message(back=0.1, pause=0.9),)), LATER)),
        "work begins that may not go on",
    ),
    Mutant(
        "an answer counts before the time that has passed",
        _instead_of(hold, "step", _answer_before_time),
        Schedule((Life(messages=(OK, Message(back=0.1, pause=0.6))), LATER)),
        "leadership came back by Renewed",
    ),
    Mutant(
        "a refusal is taken for a failure",
        _instead_of(hold, "step", _refusal_is_a_failure),
        Schedule((Life(), LATER), seized_at=(0.1,)),
        "the server's word that the claim is gone was ignored",
    ),
    Mutant(
        "an older answer moves the deadline backward",
        _instead_of(hold, "_renewed", _backward),
        Schedule((Life(proofs=(0.34,), messages=(OK, Message(back=0.1), OK)), LATER)),
        "the deadline moved backward by Renewed",
    ),
    Mutant(
        "renewal does not compare",
        _instead_of(Server, "renew", _overwrites),
        Schedule((Life(messages=(OK, Message(there=1.2), *SILENT)), LATER)),
        "process 1 believes",
    ),
    Mutant(
        "the mint forgets its last token",
        _instead_of(Server, "mint", _forgets_its_tokens),
        Schedule((Life(body=0.1), LATER)),
        "token 1 after 1",
    ),
    Mutant(
        "the claim is released before the work is over",
        _instead_of(hold, "step", _releases_before_the_work_is_over),
        Schedule((Life(quit_at=0.1), LATER)),
        "a claim is given up while its work goes on",
    ),
)
