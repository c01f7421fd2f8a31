"""Safety over drawn schedules: what must hold whatever fortune does, and that these tests notice when it does not.

`support.schedules` plays a schedule and looks for broken promises after everything that happens: at most one believer
at any instant of true time; no belief beyond the server's expiry; tokens that rise; no renewal after the end, nor once
release began; no release while work goes on or somebody believes; a deadline that only a positive answer moves, and
only forward; leadership that doesn't come back; no leader without proof; no tick that comes again for ever.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from aioelect._core import hold
from aioelect._core.hold import Action, EndReason
from aioelect._core.timing import Timing
from support.mutants import MUTANTS, Mutant
from support.schedules import Life, Schedule, Violation, play, schedules

TIMING = Timing.of(15.0)
by_mistake = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mistake.replace(" ", "-"))


# -- whole schedules


@settings(max_examples=500)
@given(schedules)
def test_p1_p9_nobody_believes_wrongly_whatever_happens(schedule: Schedule) -> None:
    play(schedule)


def test_p1_contenders_take_turns_when_nothing_goes_wrong() -> None:
    """Lest the properties hold because nothing happens."""
    calm = Schedule(tuple(Life(start=start, body=0.1) for start in (0.0, 0.05, 0.2)))
    assert play(calm).terms > 20


# -- single steps: each pair of state and input, at any time

_instants = st.floats(-10.0, 30.0)
_tokens = st.integers(1, 2**63)


def _states(timing: Timing) -> dict[str, st.SearchStrategy[hold.State]]:
    def held(token: int, sent_at: float, renew_at: float) -> hold.Held:
        return hold.Held(token, sent_at, renew_at, sent_at + timing.renew_deadline, sent_at + timing.validity)

    def doubtful(at: hold.Held, since: float) -> hold.Doubtful:
        return hold.Doubtful(at.token, at.sent_at, at.renew_at, at.stop_at, at.deadline, since, failures=1)

    def draining(at: hold.Held, until: float) -> hold.Draining:
        return hold.Draining(at.token, at.sent_at, at.renew_at, at.stop_at, at.deadline, until)

    helds = st.builds(held, _tokens, _instants, _instants | st.just(math.inf))
    return {
        "Idle": st.builds(hold.Idle),
        "Held": helds,
        "Doubtful": st.builds(doubtful, helds, _instants),
        "Draining": st.builds(draining, helds, _instants),
        "Releasing": st.builds(hold.Releasing, _tokens),
        "Ended": st.builds(hold.Ended, st.sampled_from(EndReason), _tokens, _instants),
    }


_inputs: dict[str, st.SearchStrategy[hold.Input]] = {
    "Granted": st.builds(hold.Granted, _instants, _instants, _tokens),
    "Renewed": st.builds(hold.Renewed, _instants, _instants),
    "Refused": st.builds(hold.Refused, _instants),
    "Failed": st.builds(hold.Failed, _instants, st.floats(0.0, 5.0)),
    "Tick": st.builds(hold.Tick, _instants),
    "Quit": st.builds(hold.Quit, _instants),
    "WorkOver": st.builds(hold.WorkOver, _instants),
}
_timings = st.sampled_from(
    [Timing.of(15.0), Timing.of(0.1), Timing.of(3.0, drain_limit=0.01), Timing.of(9).unattended()]
)


@pytest.mark.parametrize("state", _states(TIMING))
@pytest.mark.parametrize("event", _inputs)
@given(data=st.data(), timing=_timings)
def test_every_input_is_accepted_in_every_state(state: str, event: str, data: st.DataObject, timing: Timing) -> None:
    before, looked_at = data.draw(_states(timing)[state]), data.draw(_inputs[event])
    after, actions = hold.step(before, looked_at, timing)
    now = looked_at.now

    assert isinstance(after, hold.State)
    if Action.RENEW in actions:
        assert isinstance(after, hold.Held), "no renewal after the end, nor once release began"
    if isinstance(after, hold.Releasing) and not isinstance(before, hold.Releasing):
        assert isinstance(looked_at, hold.WorkOver) and actions == (Action.RELEASE,), "released by the end of the work"
    if isinstance(before, hold.Held) and hold.is_leader(before, now) and not hold.is_leader(after, now):
        assert actions in {(Action.STOP,), (Action.RELEASE,)}, "who no longer leads is told"
    if not isinstance(before, hold.Idle) and not hold.is_leader(before, now):
        assert not hold.is_leader(after, now), "leadership comes back only in a new term"
    if isinstance(looked_at, hold.Refused):
        assert isinstance(before, hold.Idle) or not hold.is_valid(after, now), "the server's word counts"
    if isinstance(looked_at, hold.Tick):
        assert hold.wake_at(after) > now, "time that has been looked at is not due again"
    assert hold.life_left(after, now) >= 0.0
    assert hold.is_valid(after, now) == (hold.remaining(after, now) > 0.0)
    if isinstance(before, hold.Releasing | hold.Ended):
        assert actions == ()
        assert hold.remaining(after, now) <= hold.remaining(before, now), "what has ended can't be proved for longer"


# -- one claim's life: answers come late, twice and out of order

_moments = st.tuples(
    st.sampled_from([hold.Renewed, hold.Renewed, hold.Granted, hold.Failed, hold.Tick, hold.Quit]),
    st.floats(0.0, 6.0),  # after the last one
    st.floats(0.0, 8.0),  # since the send of what is answered
)


def live(moments: list[tuple[type[hold.Input], float, float]]) -> None:
    """Let a claim go through this, and look for broken promises."""
    state, _ = hold.step(hold.Idle(), hold.Granted(0.0, 0.0, 7), TIMING)
    now = 0.0
    for kind, gap, back in moments:
        before, now = state, now + gap
        events: dict[type[hold.Input], hold.Input] = {
            hold.Renewed: hold.Renewed(now, now - back),
            hold.Granted: hold.Granted(now, now - back, 8),
            hold.Failed: hold.Failed(now, 0.1),
            hold.Tick: hold.Tick(now),
            hold.Quit: hold.Quit(now),
        }
        event = events[kind]
        state, _ = hold.step(before, event, TIMING)
        leads = hold.is_leader(state, now)
        assert hold.is_valid(state, now) or not leads, "a leader can prove it"
        assert hold.is_leader(before, now) or not leads, "leadership does not come back"
        if isinstance(before, hold.Held) and isinstance(state, hold.Held):
            assert state.token == before.token
            assert state.deadline >= before.deadline, "the deadline moves only forward"
            assert state.deadline == before.deadline or isinstance(event, hold.Renewed), "and only by a yes"
            assert state.stop_at < state.deadline


@given(st.lists(_moments, max_size=8))
def test_p1_p3_the_deadline_moves_forward_by_a_yes_and_leadership_does_not_come_back(
    moments: list[tuple[type[hold.Input], float, float]],
) -> None:
    live(moments)


# -- the mistakes that these tests are there to catch


@by_mistake
def test_a_mutant_is_caught_in_its_schedule(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    play(mutant.schedule)
    mutant.patch(monkeypatch)
    with pytest.raises(Violation, match=mutant.noticed):
        play(mutant.schedule)


@by_mistake
def test_a_mutant_is_caught_by_what_is_drawn(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The properties find it by themselves, without a hint."""

    @settings(
        max_examples=3000,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(schedules, st.lists(_moments, max_size=8))
    def promises_hold(schedule: Schedule, moments: list[tuple[type[hold.Input], float, float]]) -> None:
        live(moments)
        play(schedule)

    mutant.patch(monkeypatch)
    with pytest.raises(AssertionError):
        promises_hold()
