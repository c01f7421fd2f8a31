"""Durations: what is refused where it enters (P14), and in what relation to each other the rest stands (P3, P10)."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioelect._core.timing import MAX_TTL, MIN_TTL, SLACK, TRIES, Timing, drift, optional_seconds, seconds
from aioelect._errors import ConfigurationError

FIELDS = {
    "ttl": "ttl",
    "renew_interval": "renew_interval",
    "renew_deadline": "renew_deadline",
    "drain_limit": "drain_limit",
    "retention": "fence_retention",
}


def timing_with(argument: str, value: object) -> Timing:
    """A timing of 15 s with one argument of any type."""
    arguments: dict[str, object] = {"ttl": 15.0, argument: value}
    return Timing.of(**arguments)  # type: ignore[arg-type]


# -- refused


@pytest.mark.parametrize(("argument", "field"), FIELDS.items(), ids=list(FIELDS))
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (True, "is a bool; expected seconds as int or float, or a timedelta"),
        ("5", "is a str; expected seconds"),
        (Decimal(5), "is a Decimal; expected seconds"),
        (b"5", "is a bytes; expected seconds"),
        (1j, "is a complex; expected seconds"),
        (math.inf, "is not a finite number"),
        (-math.inf, "is not a finite number"),
        (math.nan, "is not a finite number"),
        (10**400, "is not a finite number"),
        (-1, "is too short: at least"),
        (timedelta(seconds=-1), "is too short: at least"),
        (2**63, "at most"),
        (timedelta.max, "at most"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_p14_what_is_no_duration_is_refused_with_field_value_and_limit(
    argument: str, field: str, value: object, why: str
) -> None:
    shown = repr(value.total_seconds() if isinstance(value, timedelta) else value)
    with pytest.raises(ConfigurationError, match=re.escape(why)) as caught:
        timing_with(argument, value)
    message = str(caught.value)
    assert message.startswith(f"{field}=")
    assert shown in message or (field == "renew_deadline" and f"{float(shown):g}" in message)
    assert caught.value.reason == field


@pytest.mark.parametrize("value", [0, -1, 1e-9, 0.0999, timedelta(0), timedelta(milliseconds=99)])
def test_p14_a_ttl_below_a_tenth_of_a_second_is_refused(value: float | timedelta) -> None:
    with pytest.raises(ConfigurationError, match=r"ttl=.* is too short: at least 0\.1 s"):
        Timing.of(value)


@pytest.mark.parametrize("value", [86400.001, 2**63, timedelta(days=1, microseconds=1)])
def test_p14_a_ttl_above_a_day_is_refused(value: float | timedelta) -> None:
    with pytest.raises(ConfigurationError, match=r"ttl=.* is too long: at most 86400 s"):
        Timing.of(value)


def test_p14_a_ttl_is_not_optional() -> None:
    with pytest.raises(ConfigurationError, match=r"ttl=None is a NoneType; expected seconds"):
        timing_with("ttl", None)


@pytest.mark.parametrize("value", [0, 1e-9, 0.009])
def test_p14_a_renew_interval_that_would_flood_the_server_is_refused(value: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"renew_interval={value!r} is too short: at least 0\.01 s"):
        Timing.of(15, renew_interval=value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ttl": 10, "renew_interval": 10}, "renew_interval=10 s is not below ttl=10 s"),
        ({"ttl": 10, "renew_interval": 12.5}, "renew_interval=12.5 s is not below ttl=10 s"),
        ({"ttl": 10, "renew_interval": 8}, "renew_interval=8 s leaves no room for 3 tries before renew_deadline=8 s"),
        ({"ttl": 10, "renew_interval": 7.998}, "renew_interval=7.998 s leaves no room for 3 tries"),
        (
            {"ttl": 10, "renew_deadline": 2},
            "renew_interval=3.33333 s leaves no room for 3 tries before renew_deadline=2",
        ),
        ({"ttl": 10, "renew_deadline": 0}, "leaves no room for 3 tries before renew_deadline=0 s"),
        (
            {"ttl": 10, "renew_deadline": 10},
            "renew_deadline=10 s is too late for ttl=10 s: at most ttl - drift - 10 ms = 9.887",
        ),
        ({"ttl": 10, "renew_deadline": 9.888}, "renew_deadline=9.888 s is too late for ttl=10 s"),
        ({"ttl": 10, "retention": 9.9}, "fence_retention=9.9 is too short: at least 10 s"),
    ],
    ids=str,
)
def test_p14_impossible_combinations_are_refused_with_the_numbers(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Timing.of(**arguments)


def test_p14_a_refusal_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match=r"wait=-0\.5 is too short: at least 0 s"):
        optional_seconds("wait", -0.5)


# -- accepted


@pytest.mark.parametrize("value", [0.5, 1, 1.5, timedelta(seconds=2), timedelta(milliseconds=1), 3])
def test_p14_int_float_and_timedelta_are_durations(value: float | timedelta) -> None:
    result = seconds("field", value)
    assert type(result) is float
    assert result == (value.total_seconds() if isinstance(value, timedelta) else value)


def test_p14_none_means_no_limit_where_that_is_allowed() -> None:
    assert optional_seconds("wait", None) is None
    assert optional_seconds("wait", 0) == 0.0


@pytest.mark.parametrize(
    ("ttl", "interval", "renew_deadline", "one_try"), [(15, 5, 12, 2.333), (0.3, 0.1, 0.24, 0.0467)], ids=str
)
def test_p3_unset_values_scale_with_the_ttl(ttl: float, interval: float, renew_deadline: float, one_try: float) -> None:
    timing = Timing.of(ttl)
    assert timing.interval == pytest.approx(interval)
    assert timing.renew_deadline == pytest.approx(renew_deadline)
    assert timing.try_limit == pytest.approx(one_try, rel=1e-3)
    assert timing.drain == ttl
    assert timing.retention == 3600.0


@given(sent_at=st.floats(0.0, 1e9), ttl=st.floats(0.1, 24 * 3600.0))
def test_p3_a_renewal_is_due_at_its_time_or_up_to_one_percent_earlier(sent_at: float, ttl: float) -> None:
    timing = Timing.of(ttl)
    due = timing.renewal_due(sent_at)
    assert sent_at + 0.98 * timing.interval < due <= sent_at + timing.interval


def test_p3_claims_of_about_the_same_time_are_renewed_at_one_instant() -> None:
    timing = Timing.of(15.0)
    due = {timing.renewal_due(1000.0 + number / 10000) for number in range(10000)}
    assert len(due) <= 21


def test_p9_the_fence_record_outlives_a_long_ttl_twice() -> None:
    assert Timing.of(7200).retention == 14400.0


@given(st.floats(MIN_TTL, MAX_TTL))
def test_p3_for_each_ttl_three_tries_fit_and_the_stop_comes_before_the_deadline(ttl: float) -> None:
    for timing in (Timing.of(ttl), Timing.of(ttl).unattended()):
        assert 0 < timing.interval < timing.renew_deadline
        assert timing.interval + TRIES * timing.try_limit == pytest.approx(timing.renew_deadline)
        assert timing.renew_deadline <= timing.validity - SLACK + 1e-9
        assert timing.validity == pytest.approx(ttl - ttl / 100 - 0.003)
        assert drift(ttl) < ttl / 7
        assert timing.tick <= min(1.0, timing.interval)


@given(
    ttl=st.floats(MIN_TTL, MAX_TTL),
    interval=st.floats(0.0, 1.2),
    renew_deadline=st.floats(0.0, 1.2),
    drain=st.floats(0.01, 100.0),
)
def test_p14_what_is_accepted_fits_together_and_the_rest_is_refused(
    ttl: float, interval: float, renew_deadline: float, drain: float
) -> None:
    every, stop = interval * ttl, renew_deadline * ttl
    fits = 0.01 <= every < ttl and every <= stop - TRIES * 0.001 and stop <= ttl - drift(ttl) - SLACK
    if not fits:
        with pytest.raises(ConfigurationError, match=r"renew_interval|renew_deadline"):
            Timing.of(ttl, renew_interval=every, renew_deadline=stop, drain_limit=drain)
        return
    timing = Timing.of(ttl, renew_interval=every, renew_deadline=stop, drain_limit=drain)
    assert (timing.interval, timing.renew_deadline, timing.drain) == (every, stop, drain)
    assert timing.try_limit >= 0.001 - 1e-9


# -- jitter and back-off

TIMINGS = st.floats(MIN_TTL, MAX_TTL).map(Timing.of)
CHANCES = st.floats(0.0, 1.0, exclude_max=True)


@given(TIMINGS, CHANCES)
def test_p3_an_unanswered_try_and_its_back_off_take_no_more_than_one_share(timing: Timing, chance: float) -> None:
    assert timing.retry_delay(chance) > 0
    assert timing.response_limit + timing.retry_delay(chance) <= timing.try_limit * (1 + 1e-9)


@given(TIMINGS, CHANCES, st.integers(1, 10_000))
def test_p11_a_candidates_back_off_grows_up_to_its_cap(timing: Timing, chance: float, failures: int) -> None:
    delay = timing.outage_delay(failures, chance)
    assert 0 < delay <= min(timing.ttl, 5.0)
    assert timing.outage_delay(failures + 1, chance) >= delay


@given(TIMINGS, CHANCES, st.floats(0.0, MAX_TTL), st.booleans())
def test_p10_a_waiter_sleeps_until_just_after_the_holders_ttl_or_the_poll_limit(
    timing: Timing, chance: float, remaining: float, notices: bool
) -> None:
    delay = timing.waiting_delay(remaining, notices=notices, chance=chance)
    assert delay <= timing.poll_limit(notices) * 1.1
    assert delay <= remaining + 0.004
    assert delay >= min(remaining, timing.poll_limit(notices) * 0.9)


@given(TIMINGS, CHANCES)
def test_p10_without_a_known_ttl_a_waiter_polls(timing: Timing, chance: float) -> None:
    assert timing.waiting_delay(None, notices=True, chance=chance) == timing.poll_limit(notices=True)
    jittered = timing.waiting_delay(None, notices=False, chance=chance)
    assert jittered == pytest.approx(timing.poll_limit(notices=False), rel=0.11)


def test_p10_without_notices_a_waiter_asks_ten_times_a_ttl_and_at_most_four_times_a_second() -> None:
    assert Timing.of(15).poll_limit(notices=False) == 1.5
    assert Timing.of(0.5).poll_limit(notices=False) == 0.25
