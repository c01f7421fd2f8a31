"""What a candidate does next, for one try, a limited wait and a stand without an end (P4, P10, P11)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioelect._core.campaign import Campaign, GiveUp, Sleep
from aioelect._core.timing import Timing

TIMING = Timing.of(15.0)  # waits 1.75 s for an answer
START = 100.0
ONE_TRY = Campaign(TIMING, START, START)
LIMITED = Campaign(TIMING, START, START + 4.0)
ENDLESS = Campaign(TIMING, START, None)
CANDIDATE = Campaign(TIMING, START, None, candidate=True)

campaigns = pytest.mark.parametrize(
    "campaign", [ONE_TRY, LIMITED, ENDLESS, CANDIDATE], ids=["one", "4s", "ever", "role"]
)
chances = st.floats(0.0, 1.0, exclude_max=True)
delays = st.floats(0.0, 1e3)


# -- how long a try may take


@campaigns
def test_p4_the_first_try_gets_its_answer_time_also_if_it_may_not_wait(campaign: Campaign) -> None:
    assert campaign.time_for_try(START) == TIMING.response_limit


def test_p4_a_try_takes_no_longer_than_what_is_left_of_the_wait() -> None:
    assert LIMITED.time_for_try(START + 3.5) == 0.5
    assert LIMITED.time_for_try(START + 4.0) == 0.0
    assert LIMITED.time_for_try(START + 9.0) == 0.0


def test_p4_one_try_and_its_repetition_share_the_time_of_one() -> None:
    failed, _ = ONE_TRY.after_unavailable(START + 1.0, 0.5)
    for again in (failed, ONE_TRY.answered()):  # answered: won too late to be used
        assert again.time_for_try(START + 1.0) == pytest.approx(0.75)
        assert again.time_for_try(START + 2.0) == 0.0


def test_p4_one_try_is_made_however_long_the_loop_was_busy_before_it() -> None:
    assert ONE_TRY.time_for_try(START + 1e6) == TIMING.response_limit


@campaigns
@given(seconds=delays)
def test_p4_a_try_that_was_put_off_has_as_much_time_as_if_it_began_at_once(campaign: Campaign, seconds: float) -> None:
    later = campaign.put_off(seconds)
    assert later.time_for_try(START + seconds) == pytest.approx(campaign.time_for_try(START))
    assert later.time_for_try(START + seconds + 1.0) == pytest.approx(campaign.time_for_try(START + 1.0))


@pytest.mark.parametrize("campaign", [ENDLESS, CANDIDATE], ids=["ever", "role"])
def test_p4_without_a_limit_each_try_gets_the_same(campaign: Campaign) -> None:
    assert campaign.time_for_try(START + 1e6) == TIMING.response_limit


# -- another's


@given(chances, st.none() | st.floats(0.0, 20.0))
def test_p10_one_try_that_meets_a_holder_gives_up(chance: float, remaining: float | None) -> None:
    assert ONE_TRY.after_contended(START + 0.01, remaining, notices=True, chance=chance)[1] == GiveUp()


@given(chances, st.floats(0.0, 20.0), st.floats(0.0, 5.0))
def test_p10_a_limited_wait_never_sleeps_beyond_its_end(chance: float, remaining: float, elapsed: float) -> None:
    _, step = LIMITED.after_contended(START + elapsed, remaining, notices=True, chance=chance)
    if elapsed >= 4.0:
        assert step == GiveUp()
    else:
        assert isinstance(step, Sleep)
        assert 0.0 <= step.delay <= 4.0 - elapsed + 1e-9


@given(chances, st.floats(0.0, 14.0))
def test_p10_a_wait_without_limit_sleeps_until_just_after_the_holders_ttl(chance: float, remaining: float) -> None:
    _, step = ENDLESS.after_contended(START + 1e6, remaining, notices=True, chance=chance)
    assert isinstance(step, Sleep)
    assert remaining + 0.001 <= step.delay <= remaining + 0.002 + 1e-9


def test_p11_a_clear_answer_ends_an_outage() -> None:
    failing, _ = ENDLESS.after_unavailable(START, 0.5)
    failing, _ = failing.after_unavailable(START, 0.5)
    assert failing.failures == 2
    served, _ = failing.after_contended(START, 1.0, notices=True, chance=0.5)
    assert (served.failures, served.served) == (0, True)
    assert failing.answered() == served


# -- no answer


@campaigns
def test_p11_the_first_failure_is_repeated_at_once(campaign: Campaign) -> None:
    failed, step = campaign.after_unavailable(START + 0.01, 0.9)
    assert (failed.failures, step) == (1, Sleep(0.0))


def test_p11_one_try_gives_up_after_the_repetition_or_when_its_time_is_over() -> None:
    failed, _ = ONE_TRY.after_unavailable(START + 0.01, 0.5)
    assert failed.after_unavailable(START + 0.02, 0.5)[1] == GiveUp()
    assert ONE_TRY.after_unavailable(START + TIMING.response_limit, 0.5)[1] == GiveUp()


@given(st.lists(chances, min_size=2, max_size=40))
def test_p11_a_candidate_backs_off_up_to_its_cap_and_never_gives_up(drawn: list[float]) -> None:
    campaign, delays = CANDIDATE, []
    for chance in drawn:
        campaign, step = campaign.after_unavailable(START + 1e6, chance)
        assert isinstance(step, Sleep)
        delays.append(step.delay)
    assert delays[0] == 0.0
    assert all(0.0 < delay <= 5.0 for delay in delays[1:])
    assert campaign.failures == len(drawn)


# -- refused


@campaigns
def test_p11_a_lasting_refusal_of_the_first_try_is_the_result(campaign: Campaign) -> None:
    assert campaign.after_rejected(START, 0.5, passing=False)[1] == GiveUp()


def test_p11_a_candidate_that_was_served_before_outlasts_any_refusal() -> None:
    _, step = CANDIDATE.answered().after_rejected(START, 0.5, passing=False)
    assert isinstance(step, Sleep)
    assert step.delay > 0.0


def test_p11_a_waiter_that_is_no_candidate_does_not_outlast_a_lasting_refusal() -> None:
    assert ENDLESS.answered().after_rejected(START, 0.5, passing=False)[1] == GiveUp()


@pytest.mark.parametrize("campaign", [LIMITED, ENDLESS, CANDIDATE], ids=["4s", "ever", "role"])
def test_p11_a_passing_refusal_is_waited_out(campaign: Campaign) -> None:
    _, step = campaign.after_rejected(START + 1.0, 0.5, passing=True)
    assert isinstance(step, Sleep)
    assert 0.0 < step.delay <= 3.0


def test_p11_one_try_does_not_wait_out_a_refusal() -> None:
    assert ONE_TRY.after_rejected(START + 0.01, 0.5, passing=True)[1] == GiveUp()


# -- whatever happens

_events = st.lists(st.tuples(st.sampled_from(["contended", "unavailable", "passing", "lasting"]), chances), max_size=30)


@campaigns
@given(events=_events)
def test_p4_a_wait_with_a_limit_ends_by_it_and_never_asks_without_time(
    campaign: Campaign, events: list[tuple[str, float]]
) -> None:
    now = START
    for what, chance in events:
        limit = campaign.time_for_try(now)
        if limit <= 0.0:
            break
        assert limit <= TIMING.response_limit
        now += limit * chance
        if what == "contended":
            campaign, step = campaign.after_contended(now, 15.0, notices=True, chance=chance)
        elif what == "unavailable":
            campaign, step = campaign.after_unavailable(now, chance)
        else:
            campaign, step = campaign.after_rejected(now, chance, passing=what == "passing")
        if isinstance(step, GiveUp):
            break
        assert 0.0 <= step.delay < math.inf
        now += step.delay
    if campaign.until is not None:
        assert now <= max(campaign.until, START + TIMING.response_limit) + 1e-6
