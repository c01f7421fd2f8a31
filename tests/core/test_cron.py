"""Cron expressions: what is refused, and the two bad nights a year."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioelect import ConfigurationError, Cron
from aioelect._core.schedule import as_schedule, due

BERLIN = ZoneInfo("Europe/Berlin")
FORWARD = datetime(2026, 3, 28, 12, tzinfo=UTC)  # at noon before the night in which 02:00 is 03:00
BACK = datetime(2026, 10, 24, 12, tzinfo=UTC)  # in which 03:00 is 02:00 again
EXPRESSIONS = [
    "30 2 * * *",
    "30 * * * *",
    "*/30 2 * * *",
    "0 2,3 * * *",
    "15,45 0-3 * * *",
    "0 */2 * * *",
    "7/9 * * * *",
]


def that_night(expression: str, noon: datetime) -> list[str]:
    """The local times of the runs between 01:00 and 05:00."""
    schedule, found = Cron(expression, tz=BERLIN), []
    run = schedule.after(noon)
    while run < noon + timedelta(hours=17):
        if 1 <= (local := run.astimezone(BERLIN)).hour < 5:
            found.append(f"{local:%H:%M}")
        run = schedule.after(run)
    return found


@pytest.mark.parametrize(
    ("expression", "forward", "back"),
    [
        ("30 2 * * *", ["03:00"], ["02:30"]),
        ("0,30 2 * * *", ["03:00"], ["02:00", "02:30"]),
        ("0 3 * * *", ["03:00"], ["03:00"]),
        ("30 * * * *", ["01:30", "03:30", "04:30"], ["01:30", "02:30", "02:30", "03:30", "04:30"]),
        ("*/30 2 * * *", [], ["02:00", "02:30", "02:00", "02:30"]),
        ("0 30 2 * * *", [], ["02:30", "02:30"]),
    ],
)
def test_on_the_nights_on_which_the_clocks_are_changed(expression: str, forward: list[str], back: list[str]) -> None:
    assert that_night(expression, FORWARD) == forward
    assert that_night(expression, BACK) == back


def test_in_the_second_of_two_equal_hours_the_first_one_is_not_offered_again() -> None:
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time
    assert Cron("30 2 * * *", tz=BERLIN).after(second) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(
        [UTC, BERLIN, ZoneInfo("America/New_York"), ZoneInfo("America/Havana"), ZoneInfo("Asia/Kathmandu")]
    ),
    st.sampled_from([FORWARD, BACK, datetime(2026, 3, 7, 12, tzinfo=UTC), datetime(2026, 10, 31, 12, tzinfo=UTC)]),
    st.integers(0, 48 * 3600),
    st.floats(0, 0.999),
)
def test_whoever_asks_between_two_runs_hears_of_the_same_next_one(
    expression: str, zone: ZoneInfo, noon: datetime, seconds: int, share: float
) -> None:
    schedule = Cron(expression, tz=zone)
    instant = noon + timedelta(seconds=seconds)
    run = schedule.after(instant)
    assert run > instant and run.tzinfo is UTC
    assert schedule.after(instant + (run - instant) * share) == run


def test_the_latest_run_is_found_or_the_first_one_that_was_missed() -> None:
    office = as_schedule(Cron("30 8 * * MON-FRI", tz=BERLIN))
    friday = datetime(2026, 12, 4, 7, 30, tzinfo=UTC)
    assert due(office, friday, friday + timedelta(days=2), "skip") is None
    assert due(office, friday, friday + timedelta(days=6), "skip") == friday + timedelta(days=6)
    assert due(office, friday, friday + timedelta(days=6), "catch_up") == friday + timedelta(days=3)


def test_equal_schedules_have_one_name_and_others_another() -> None:
    names = {
        str(Cron(expression, tz=zone))
        for expression in ("0 3 * * *", " 0  3 * *\t* ", "0 4 * * *")
        for zone in (UTC, BERLIN, timezone(timedelta(hours=2)))
    }
    assert len(names) == 6
    assert Cron("0 3 * * *") == Cron("0 3 * * *", tz=UTC)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cron("0 25 * * *"), r"expression='0 25 \* \* \*': hour '25'; expected 0 to 23"),
        (lambda: Cron("60 3 * * *"), r"minute '60'; expected 0 to 59"),
        (lambda: Cron("99 0 3 * * *"), r"second '99'; expected 0 to 59"),
        (lambda: Cron("0 3 0 * *"), r"day-of-month '0'; expected 1 to 31"),
        (lambda: Cron("0 3 30 2 *"), r"day-of-month '30'; expected .*a day that a month"),
        (lambda: Cron("0 3 * SMARCH *"), r"month 'SMARCH'; expected 1 to 12"),
        (lambda: Cron("0 3 * * 8"), r"day-of-week '8'; expected 0 to 7"),
        (lambda: Cron("0 3 * *"), r"'0 3 \* \*' has 4 fields; expected 5"),
        (lambda: Cron("@daily"), r"expression='@daily' has 1 fields; expected 5"),
        (lambda: Cron(""), r"expression='' has 0 fields"),
        (lambda: Cron("0 " + "1," * 100 + "1 * * *"), r"expression=.*at most 150"),
        (lambda: Cron(3), r"expression=3; expected"),  # type: ignore[arg-type]
        (lambda: Cron("0 3 * * *", tz="Europe/Berlin"), r"tz='Europe/Berlin'; expected a tzinfo"),  # type: ignore[arg-type]
    ],
)
def test_p14_a_bad_expression_is_refused_where_it_enters_by_field_and_value(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()


@given(st.lists(st.text("*/,-#L0123456789MONW", min_size=1, max_size=6), min_size=5, max_size=6))
@example(["0", "0", "*", "2", "MON#6"])
@example(["0", "0", "L/2", "*", "1L"])
def test_p14_nothing_but_a_configuration_error_comes_out_of_an_expression(values: list[str]) -> None:
    with suppress(ConfigurationError):
        Cron(" ".join(values), tz=BERLIN).after(BACK)


def test_without_the_extra_only_who_uses_it_hears_of_it_and_what_to_install() -> None:
    code = """
import sys, aioelect
assert "cronsim" not in sys.modules
sys.modules["cronsim"] = None
try:
    aioelect.Cron("0 3 * * *")
except aioelect.ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'aioelect[cron]'" in done.stdout
