"""How long a ttl pauses and round trips ask for, against the timing that the library itself keeps to."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioelect import ConfigurationError
from aioelect._core.timing import Timing
from aioelect.cli.doctor.facts import Client, Facts
from aioelect.cli.doctor.findings import diagnose
from aioelect.cli.doctor.severity import Severity
from aioelect.cli.doctor.ttl import advise, percentile

CLIENT = Client(python=(3, 12), redis=(5, 2, 1), hiredis=True, socket_timeout=True, retrying=False)


@given(pause=st.floats(0, 60), round_trip=st.floats(0, 4.9))
def test_with_the_least_ttl_a_pause_and_an_answer_fit_before_the_renew_deadline(
    pause: float, round_trip: float
) -> None:
    advice = advise(pause, round_trip)
    timing = Timing.of(advice.least)
    assert timing.interval + pause + round_trip <= timing.renew_deadline + 1e-6
    assert round_trip <= timing.response_limit + 1e-6
    assert advice.advised >= max(10, 2 * advice.least)


@given(pause=st.floats(0.5, 60), round_trip=st.floats(0, 4.9))
def test_with_less_one_of_the_two_does_not_fit(pause: float, round_trip: float) -> None:
    timing = Timing.of(advise(pause, round_trip).least * 0.99)
    fits = timing.interval + pause + round_trip <= timing.renew_deadline
    assert not (fits and round_trip <= timing.response_limit)


def test_round_trips_that_no_ttl_is_long_enough_for_and_figures_that_are_none_are_refused() -> None:
    for pause, round_trip in ((1, 5), (-1, 0), (float("nan"), 0)):
        with pytest.raises(ConfigurationError, match=r"pause|round_trip"):
            advise(pause, round_trip)


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile(range(1, 101), share) for share in (0.01, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert percentile([7], 0.5) == 7


@pytest.mark.parametrize(
    ("changes", "finding", "severity"),
    [
        ({}, "client", Severity.OK),
        ({"redis": (5, 0, 1)}, "client", Severity.ERROR),
        ({"redis": (9, 0, 0)}, "client", Severity.ERROR),
        ({"redis": (8, 1, 0)}, "client", Severity.NOTE),
        ({"retrying": True}, "client", Severity.WARNING),
        ({"hiredis": False}, "client", Severity.NOTE),
        ({}, "python", Severity.OK),
        ({"python": (3, 11)}, "python", Severity.WARNING),
        ({"python": (3, 11), "socket_timeout": False}, "python", Severity.NOTE),
    ],
)
def test_versions_and_settings_of_this_side(changes: dict[str, object], finding: str, severity: Severity) -> None:
    client = dataclasses.replace(CLIENT, **changes)  # type: ignore[arg-type]
    facts = Facts("redis://x", "aioelect", 15, 0, False, "server", client, trouble="refused")
    assert max(f.severity for f in diagnose(facts) if f.id == finding) is severity
