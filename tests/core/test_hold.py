"""The table in `hold.py` is what `step` does, row by row; and nothing else happens."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioelect._core import hold
from aioelect._core.hold import TABLE, Action, EndReason
from aioelect._core.timing import Timing

TIMING = Timing.of(15.0, drain_limit=6.0)  # renewed at 5, stopped at 12, provable up to 14.847

HELD = hold.Held(token=7, sent_at=100.0, renew_at=TIMING.renewal_due(100.0), stop_at=112.0, deadline=114.847)
DOUBTFUL = hold.Doubtful(7, 100.0, 107.0, 112.0, 114.847, since=106.0, failures=1)
DRAINING = hold.Draining(7, 100.0, HELD.renew_at, 112.0, 114.847, drain_until=110.0)
EXPIRED = hold.Ended(EndReason.EXPIRED, 7, 114.847)
STATES: tuple[hold.State, ...] = (hold.Idle(), HELD, DOUBTFUL, DRAINING, hold.Releasing(7), EXPIRED)

SENT_AT = 101.0
INPUTS: dict[str, Callable[[float], hold.Input]] = {
    "Granted": lambda now: hold.Granted(now, SENT_AT, token=8),
    "Renewed": lambda now: hold.Renewed(now, SENT_AT),
    "Refused": hold.Refused,
    "Failed": lambda now: hold.Failed(now, delay=0.5),
    "Tick": hold.Tick,
    "Quit": hold.Quit,
    "WorkOver": hold.WorkOver,
}
EARLY = 102.0  # before anything is due


def name_of(state: hold.State) -> str:
    """As the table names it."""
    return f"Ended ({state.reason.value})" if isinstance(state, hold.Ended) else type(state).__name__


def state_of(name: str) -> hold.State:
    """An example of the state."""
    return next(state for state in STATES if type(state).__name__ == name)


def input_of(state: hold.State, what: str) -> hold.Input:
    """An example of the input, which for an instant is the tick at that instant."""
    if what == "Granted in time":
        return hold.Granted(now=SENT_AT + TIMING.renew_deadline - 0.001, sent_at=SENT_AT, token=7)
    if what == "Granted past its renew deadline":
        return hold.Granted(now=SENT_AT + TIMING.renew_deadline, sent_at=SENT_AT, token=7)
    if what in INPUTS:
        return INPUTS[what](EARLY)
    if what == "deadline":  # of work that takes longer to stop than the claim can be proved
        return hold.Tick(HELD.deadline)
    return hold.Tick(getattr(state, what))


ROWS = [pytest.param(*row, id=f"{row[0]}: {row[1]}") for row in TABLE]


@pytest.mark.parametrize(("start", "what", "end"), [row for row in ROWS if row.values[1] != "any"])
def test_each_row_of_the_table_is_what_step_does(start: str, what: str, end: str) -> None:
    cause, _, action = what.partition(" / ")
    state = state_of(start)
    after, actions = hold.step(state, input_of(state, cause), TIMING)
    assert name_of(after) == end
    assert actions == ((Action(action),) if action else ())


@pytest.mark.parametrize(("start", "what", "end"), [row for row in ROWS if row.values[1] == "any"])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("now", [EARLY, 1000.0])
def test_where_any_input_is_listed_nothing_happens_any_more(
    start: str, what: str, end: str, kind: str, now: float
) -> None:
    after, actions = hold.step(state_of(start), INPUTS[kind](now), TIMING)
    assert type(after).__name__ == start == end
    assert actions == ()


LISTED = {(start, what.split()[0]) for start, what, _ in TABLE}
UNLISTED = [
    (state, kind)
    for state in STATES
    for kind in INPUTS
    if not {(type(state).__name__, kind), (type(state).__name__, "any")} & LISTED
]


@pytest.mark.parametrize(("state", "kind"), UNLISTED, ids=lambda value: str(value).partition("(")[0])
def test_what_is_not_in_the_table_leaves_the_state_as_it_is(state: hold.State, kind: str) -> None:
    assert hold.step(state, INPUTS[kind](EARLY), TIMING) == (state, ())


def test_the_table_has_each_pair_of_state_and_input_once() -> None:
    assert len({row[:2] for row in TABLE}) == len(TABLE)
    assert len(UNLISTED) == 6 + 3 * 2 + 1  # Idle; Granted and Tick in the three held ones; Quit in Draining


# -- details of single rows


def test_p1_a_grant_counts_from_its_send() -> None:
    state, _ = hold.step(hold.Idle(), hold.Granted(now=103.0, sent_at=100.0, token=7), TIMING)
    assert state == HELD


def test_p1_a_renewal_counts_from_its_send_and_ends_the_doubt() -> None:
    state, _ = hold.step(DOUBTFUL, hold.Renewed(now=110.0, sent_at=108.0), TIMING)
    assert state == hold.Held(7, 108.0, TIMING.renewal_due(108.0), 120.0, deadline=108.0 + TIMING.validity)


def test_p1_an_older_answer_that_comes_later_moves_nothing_backward() -> None:
    state, _ = hold.step(HELD, hold.Renewed(now=104.0, sent_at=90.0), TIMING)
    assert state == HELD


def test_p1_a_late_renewal_revives_nothing() -> None:
    state, actions = hold.step(HELD, hold.Renewed(now=112.0, sent_at=111.0), TIMING)
    assert (state, actions) == (EXPIRED, (Action.STOP,))
    assert hold.step(EXPIRED, hold.Renewed(now=112.0, sent_at=111.0), TIMING) == (EXPIRED, ())


@pytest.mark.parametrize("state", [HELD, DOUBTFUL, DRAINING, EXPIRED], ids=name_of)
@pytest.mark.parametrize("now", [104.0, 111.0, 113.0])
def test_p3_a_refusal_ends_what_could_be_proved_also_when_it_is_looked_at_late(state: hold.State, now: float) -> None:
    after, _ = hold.step(state, hold.Refused(now), TIMING)
    assert isinstance(after, hold.Ended)
    assert not hold.is_valid(after, now)


def test_p3_doubt_keeps_its_beginning_and_counts_its_failures() -> None:
    first, _ = hold.step(HELD, hold.Failed(106.0, delay=1.0), TIMING)
    assert first == DOUBTFUL
    second, _ = hold.step(first, hold.Failed(108.0, delay=1.0), TIMING)
    assert second == hold.Doubtful(7, 100.0, 109.0, 112.0, 114.847, since=106.0, failures=2)


def test_p3_one_renewal_is_asked_for_until_it_has_been_answered() -> None:
    state, actions = hold.step(HELD, hold.Tick(105.0), TIMING)
    assert actions == (Action.RENEW,)
    state, actions = hold.step(state, hold.Tick(106.0), TIMING)
    assert actions == ()
    assert hold.wake_at(state) == HELD.stop_at


def test_p3_clean_up_can_prove_the_claim_after_the_renew_deadline_up_to_the_deadline() -> None:
    state, _ = hold.step(HELD, hold.Tick(112.0), TIMING)
    assert not hold.is_leader(state, 112.0)
    assert hold.is_valid(state, 114.8)
    assert hold.remaining(state, 113.0) == pytest.approx(1.847)
    assert not hold.is_valid(state, 114.847)


def test_p6_work_that_is_over_after_the_deadline_is_released_all_the_same() -> None:
    assert hold.step(HELD, hold.WorkOver(200.0), TIMING) == (hold.Releasing(7), (Action.RELEASE,))


def test_p7_a_claim_is_renewed_while_its_work_winds_down_and_nobody_leads() -> None:
    state, actions = hold.step(HELD, hold.Quit(104.0), TIMING)
    assert (state, actions) == (DRAINING, (Action.STOP,))
    assert not hold.is_leader(state, 104.0)
    assert hold.is_valid(state, 104.0)
    state, actions = hold.step(state, hold.Tick(105.0), TIMING)
    assert actions == (Action.RENEW,)


def test_p7_a_drain_limit_beyond_the_deadline_ends_with_the_deadline() -> None:
    patient = hold.Draining(7, 100.0, math.inf, 112.0, 114.847, drain_until=130.0)
    assert hold.wake_at(patient) == 114.847
    assert hold.step(patient, hold.Tick(114.847), TIMING) == (EXPIRED, ())


@pytest.mark.parametrize("state", STATES, ids=name_of)
@given(now=st.floats(90.0, 130.0))
def test_p4_a_request_gets_as_much_time_as_its_answer_is_of_use(state: hold.State, now: float) -> None:
    left = hold.life_left(state, now)
    for instant, useful in ((now + left * 0.999, left > 0), (now + left + 1e-9, False)):
        after, _ = hold.step(state, hold.Renewed(instant, now), TIMING)
        assert isinstance(after, hold.Held) == useful


def test_p3_a_renewal_goes_along_with_others_a_hundredth_of_the_interval_early_and_no_more() -> None:
    early = HELD.renew_at - TIMING.interval / 100
    assert hold.step(HELD, hold.Tick(early - 1e-6), TIMING) == (HELD, ())
    assert hold.step(HELD, hold.Tick(early + 1e-6), TIMING)[1] == (Action.RENEW,)
