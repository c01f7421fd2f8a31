"""A run as tables for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from bench.results import Curve, Row, Run
from bench.stage import cases

__all__ = ["figure", "show", "spread_text"]


def figure(value: float | None, unit: str) -> str:
    """A number as people read it."""
    if value is None:
        return ""
    if unit == "s":
        for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
            if abs(value) >= size or name == "us":
                return f"{value / size:.3g} {name}" if abs(value) < 999.5 * size else f"{value / size:.0f} {name}"
    if unit == "B":
        return f"{value / 1024:.1f} KiB"
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}".strip() if unit != "1/s" else f"{digits}/s"


def spread_text(row: Row) -> str:
    """Aioelect's ratio to a row, with its quartiles."""
    if row.ratio is None:
        return ""
    return f"{row.ratio.median:.3g}x ({row.ratio.low:.3g} to {row.ratio.high:.3g})"


def show(run: Run, console: Console) -> None:
    """Print the three tables: figures, growth, targets."""
    about = run.about
    console.print(f"{about['machine']['cpu']}, {about['machine']['cores']} cores, Python {about['python']}")
    console.print(f"server: {about['server']}; " + ", ".join(f"{k} {v}" for k, v in about["versions"].items()))
    for name, outcome in run.outcomes.items():
        if outcome.rows:
            console.print(_figures(f"{name}: {cases()[name].title}", outcome.rows))
    if any(outcome.curves for outcome in run.outcomes.values()):
        console.print(_growth(curve for outcome in run.outcomes.values() for curve in outcome.curves))
    console.print(_targets(run))
    for name, error in run.errors.items():
        console.print(f"[red]{name} did not run:[/] {error}", highlight=False)


def _figures(title: str, rows: Iterable[Row]) -> Table:
    table = Table("who", "what", "median", "p99", "n", "aioelect is", "remarks", title=title, title_justify="left")
    for row in rows:
        table.add_row(
            row.who,
            row.what,
            figure(row.median, row.unit) or "can't",
            figure(row.p99, row.unit),
            f"{row.count:,}" if row.count else "",
            spread_text(row),
            row.note,
        )
    return table


def _growth(curves: Iterable[Curve]) -> Table:
    table = Table("figure", "who", "over", "seen", "grows like", title="growth", title_justify="left")
    for curve in curves:
        points = ", ".join(f"{s:g}: {figure(v, curve.unit)}" for s, v in zip(curve.sizes, curve.values, strict=True))
        table.add_row(curve.figure, curve.who, curve.size, points, curve.law)
    return table


def _targets(run: Run) -> Table:
    table = Table("case", "target", "seen", "verdict", title="targets", title_justify="left")
    for name, outcome in run.outcomes.items():
        for verdict in outcome.verdicts:
            colour = "green" if verdict.met else ("yellow" if verdict.stretch else "red")
            word = f"[{colour}]{verdict.word}[/]"
            table.add_row(name, verdict.title, f"{verdict.seen:.3g}", word)
    return table
