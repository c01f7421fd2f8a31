"""What a case hands back: rows of figures, verdicts on targets, curves. Plain data, written and read as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import stats
from bench.stats import Spread

__all__ = ["Curve", "Outcome", "Row", "Run", "Verdict", "at_most_linear", "load", "save", "timing_row"]

US = "aioelect"


@dataclass(frozen=True)
class Row:
    """What was seen of one contestant."""

    who: str
    what: str
    unit: str = ""  # "s", "1/s", "x", "B", "%" or a noun
    median: float | None = None
    p99: float | None = None
    count: int = 0
    ratio: Spread | None = None  # aioelect's figure / this one's
    note: str = ""  # further facts, or why there are no figures


@dataclass(frozen=True)
class Verdict:
    """One target, and whether it was met."""

    target: str
    seen: float
    limit: float
    at_least: bool = False
    stretch: bool = False  # wished for, not demanded

    @property
    def met(self) -> bool:
        """Whether the figure is within the limit; the limit itself is."""
        return self.seen >= self.limit if self.at_least else self.seen <= self.limit

    @property
    def word(self) -> str:
        """The verdict itself."""
        return "met" if self.met else "not reached" if self.stretch else "MISSED"

    @property
    def title(self) -> str:
        """The target, for a table."""
        return f"{self.target} (stretch)" if self.stretch else self.target


@dataclass(frozen=True)
class Curve:
    """How a figure grows with a size."""

    figure: str
    size: str
    unit: str
    who: str
    sizes: list[float]
    values: list[float]

    @property
    def exponent(self) -> float:
        """The e of figure ~ size^e."""
        return stats.exponent(self.sizes, self.values)

    @property
    def steepest(self) -> float:
        """The largest such e over three neighbouring sizes."""
        return stats.steepest(self.sizes, self.values)

    @property
    def law(self) -> str:
        """The law that was seen: the exponent, its worst stretch, and a word."""
        return f"n^{self.exponent:.2f}, at its steepest n^{self.steepest:.2f}: {stats.law(self.exponent)}"


def at_most_linear(curves: Iterable[Curve]) -> list[Verdict]:
    """The target of every curve of growth."""
    what = "grows at most linearly (exponent at its steepest)"
    return [Verdict(f"{curve.figure} {what}", curve.steepest, stats.LINEAR) for curve in curves]


@dataclass(frozen=True)
class Outcome:
    """All that one case found."""

    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)  # how it was measured: sizes, ttl, rounds


@dataclass(frozen=True)
class Run:
    """A whole run: where, how, and each case's outcome or error."""

    about: dict[str, Any]
    outcomes: dict[str, Outcome]
    errors: dict[str, str]


def timing_row(who: str, what: str, seconds: Sequence[float], **more: Any) -> Row:
    """A row of durations."""
    return Row(who, what, "s", stats.median(seconds), stats.percentile(seconds, 0.99), len(seconds), **more)


def save(run: Run, path: Path) -> None:
    """Write a run as JSON, the derived facts included, for other programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = asdict(run)
    for name, outcome in run.outcomes.items():
        plain = data["outcomes"][name]
        for verdict, its in zip(outcome.verdicts, plain["verdicts"], strict=True):
            its["met"] = verdict.met
        for curve, its in zip(outcome.curves, plain["curves"], strict=True):
            its |= {"exponent": curve.exponent, "steepest": curve.steepest, "law": curve.law}
    path.write_text(json.dumps(data, indent=1) + "\n")


def load(path: Path) -> Run:
    """Read what `save` wrote."""
    data = json.loads(path.read_text())
    return Run(data["about"], {name: _outcome(plain) for name, plain in data["outcomes"].items()}, dict(data["errors"]))


def _outcome(plain: dict[str, Any]) -> Outcome:
    rows = [Row(**{**row, "ratio": row["ratio"] and Spread(**row["ratio"])}) for row in plain["rows"]]
    verdicts = [Verdict(**_without(verdict, "met")) for verdict in plain["verdicts"]]
    curves = [Curve(**_without(curve, "exponent", "steepest", "law")) for curve in plain["curves"]]
    return Outcome(rows, verdicts, curves, plain["settings"])


def _without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


def find(rows: Iterable[Row], who: str, what: str) -> Row | None:
    """The row of a contestant about something, if it has figures."""
    return next((row for row in rows if row.who == who and row.what == what and row.median is not None), None)
