"""The bench: what it makes of numbers, and that it runs. Its times are nobody's business here."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench.cases  # noqa: F401 - importing makes them known
from bench import page, stats
from bench.results import Curve, Outcome, Row, Run, Verdict, load, save
from bench.rivals import RIVALS
from bench.stage import Bench, Case, cases
from bench.stats import Spread

ROOT = Path(__file__).parent.parent
POSITIVE = st.floats(min_value=1e-6, max_value=1e6)


def _run_bench(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks", *args], capture_output=True, text=True, timeout=50, check=False
    )


def test_the_median_is_the_middle_and_p99_is_a_value_that_was_measured() -> None:
    assert stats.median([3, 1, 2]) == 2
    assert stats.percentile(range(1, 101), 0.99) == 99
    assert stats.percentile(range(1, 11), 0.99) == 10
    assert stats.percentile([7.0], 0.99) == 7.0


@given(st.lists(POSITIVE, min_size=1, max_size=50), st.floats(min_value=0.01, max_value=1))
def test_a_percentile_is_not_exceeded_by_its_share_of_the_values(values: list[float], share: float) -> None:
    bound = stats.percentile(values, share)
    assert bound in values
    assert sum(value <= bound for value in values) >= share * len(values)


def test_ratios_are_taken_slice_by_slice_so_that_noise_which_hits_both_falls_out() -> None:
    theirs = [1.0, 10.0, 100.0, 1000.0]
    assert stats.ratios([0.5 * value for value in theirs], theirs) == Spread(0.5, 0.5, 0.5)
    assert stats.ratios([1, 2, 3, 4, 5], [1, 1, 1, 1, 1]) == Spread(3, 2, 4)
    with pytest.raises(ValueError, match="zip"):
        stats.ratios([1.0], [1.0, 2.0])


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_jains_index_lies_between_one_nth_and_one(shares: list[float]) -> None:
    assert 1 / len(shares) - 1e-9 <= stats.jain(shares) <= 1 + 1e-9


def test_jains_index_is_one_for_equal_shares_and_one_nth_if_one_gets_all() -> None:
    assert stats.jain([5, 5, 5, 5]) == pytest.approx(1.0)
    assert stats.jain([8, 0, 0, 0]) == pytest.approx(0.25)
    assert stats.jain([0, 0]) == 0.0
    assert stats.max_over_min([10, 11]) == pytest.approx(1.1)
    assert stats.max_over_min([0, 11]) == math.inf


@pytest.mark.parametrize(
    ("power", "law"),
    [(-0.5, "falls"), (0.0, "constant"), (0.5, "slower than linear"), (1.0, "linear"), (2.0, "faster than linear")],
)
def test_the_law_of_growth_is_found_from_points_on_it(power: float, law: str) -> None:
    sizes = [1.0, 10.0, 100.0, 1000.0]
    curve = Curve("time", "names", "s", "aioelect", sizes, [3 * size**power for size in sizes])
    assert curve.exponent == pytest.approx(power, abs=1e-9)
    assert curve.law == f"n^{power:.2f}, at its steepest n^{power:.2f}: {law}"


def test_a_knee_at_the_end_of_a_curve_is_not_hidden_by_the_fit() -> None:
    curve = Curve("time", "names", "s", "aioelect", [1, 10, 100, 1000, 10_000], [1, 8, 60, 500, 50_000])
    assert curve.exponent < 1.15
    assert curve.steepest > 1.3


def test_a_verdict_is_met_at_its_limit_and_not_beyond() -> None:
    assert Verdict("", seen=0.9, limit=0.9).met
    assert not Verdict("", seen=0.91, limit=0.9).met
    assert Verdict("", seen=4.0, limit=4.0, at_least=True).met
    assert not Verdict("", seen=3.99, limit=4.0, at_least=True).met
    assert not Verdict("", seen=math.nan, limit=1.0).met


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    rows = [Row("aioelect", "pair", "s", 1e-4, 2e-4, 10, Spread(1, 1, 1), ""), Row("other", "pair", note="can't")]
    curve = Curve("rate", "names", "1/s", "aioelect", [1, 10], [5.0, 6.0])
    outcome = Outcome(rows, [Verdict("t", 1.0, 2.0)], [curve], {"rounds": 3})
    run = Run({"python": "3"}, {"pair": outcome}, {"broken": "why"})
    save(run, tmp_path / "deep" / "run.json")
    assert load(tmp_path / "deep" / "run.json") == run
    assert json.loads((tmp_path / "deep" / "run.json").read_text())["outcomes"]["pair"]["verdicts"][0]["met"] is True


def test_a_small_case_runs_and_says_what_it_saw(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    done = _run_bench("run", "--quick", "--json", str(file), "pair")
    assert done.returncode == 0, done.stderr
    run = load(file)
    (outcome,) = run.outcomes.values()
    seen = {row.who: row for row in outcome.rows}
    assert {"aioelect", "redis-py Lock", "bare pair"} <= seen.keys()
    for who, row in seen.items():
        assert row.median or row.note, f"{who} has no figure and no reason"
    assert {"server", "machine", "versions", "settings"} <= run.about.keys()
    assert "at most 0.9x redis-py Lock" in done.stdout
    shown = _run_bench("show", str(file))
    assert shown.stdout == done.stdout


def test_a_case_that_breaks_is_told_by_the_exit_code_and_the_others_go_on(tmp_path: Path) -> None:
    script = """
import sys, runpy
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../tests"]
import bench.cases
from bench.stage import case
@case("broken", "always")
async def broken(bench):
    raise RuntimeError("on purpose")
sys.argv[1:] = ["run", "--quick", "--json", sys.argv[2], "pair", "broken"]
runpy.run_path(bench.__path__[0] + "/../__main__.py", run_name="__main__")
"""
    file = tmp_path / "run.json"
    done = subprocess.run(
        [sys.executable, "-c", script, ROOT / "benchmarks", file],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    run = load(file)
    assert run.errors == {"broken": "RuntimeError: on purpose"}
    assert list(run.outcomes) == ["pair"]


def test_a_page_shows_every_target_and_every_rival_that_can_not_take_part() -> None:
    rows = [Row("aioelect", "time", "s", 1e-4, 2e-4, 10, Spread(1, 1, 1)), Row("other", "time", note="a|b")]
    outcome = Outcome(rows, [Verdict("fast", 1.0, 2.0), Verdict("slow", 3.0, 2.0)])
    run = Run({}, {"pair": outcome}, {})
    known = {"pair": Case("pair", "one pair", _nothing)}
    assert page.targets(run).splitlines()[2:] == ["| pair | fast | 1 | met |", "| pair | slow | 3 | MISSED |"]
    assert page.figures(run, known).splitlines()[4:] == [
        "| aioelect | time | 100 us | 200 us | 10 | 1x (1 to 1) |  |",
        "| other | time | can't |  |  |  | a\\|b |",
    ]


async def _nothing(_: Bench) -> Outcome:
    return Outcome()


@pytest.mark.parametrize("lacking", ["a case", "a case that ran", "size"])
def test_the_documents_are_made_of_a_whole_run_only(lacking: str, tmp_path: Path) -> None:
    outcomes = {name: Outcome() for name in cases()}
    if lacking == "a case":
        outcomes.popitem()
    errors = {"pair": "why"} if lacking == "a case that ran" else {}
    save(Run({"quick": lacking == "size"}, outcomes, errors), tmp_path / "run.json")
    published = _run_bench("publish", str(tmp_path / "run.json"))
    assert published.returncode == 1
    assert "not a whole run" in published.stderr


def test_every_case_has_a_definition_and_every_rival_that_is_left_out_a_reason() -> None:
    assert all(len(case.definition) > 100 for case in cases().values())
    for rival in RIVALS.values():
        assert all(itertools.chain(rival.cannot.values(), [rival.settings]))
