"""A run as Markdown, for the documents. What is written around it there is people's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.report import figure, spread_text
from bench.results import US, Row, Run, find
from bench.stage import Case

__all__ = ["COMMAND", "definitions", "figures", "growth", "readme", "targets", "where"]

COMMAND = "make bench"
THEM = "redis-py Lock"
IN_SHORT = (  # case, what its row is about, in the README's words
    ("pair", "acquire + release", "acquire + release, one coroutine"),
    ("coroutines", "acquire + release", "acquire + release, 1,000 coroutines, distinct names"),
    ("one-name", "sections served", "20 coroutines, one name, 1 ms of work: sections"),
    ("hand-over", "release to start", "hand-over to another process that waits"),
    ("take-over", "end of the ttl to start", "take-over after `kill -9`, beyond the ttl"),
    ("idle", "commands per ttl and process", "commands in 15 s for a process that waits"),
)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def where(run: Run) -> str:
    """Where it was measured, in a sentence."""
    about = run.about
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = about["machine"]
    return (
        f"Measured by `{COMMAND}` on {machine['cpu']}, {machine['cores']} cores, {machine['system']}, "
        f"Python {about['python']}; server {about['server']} on the same machine; {versions}. "
        f"{about['at'][:10]}, load average before: {machine['load before']:.1f}."
    )


def targets(run: Run) -> str:
    """Every target and what was seen."""
    return _table(
        ("case", "target", "seen", ""),
        [
            (name, verdict.title, f"{verdict.seen:.3g}", verdict.word)
            for name, outcome in run.outcomes.items()
            for verdict in outcome.verdicts
        ],
    )


def figures(run: Run, cases: dict[str, Case]) -> str:
    """Every case's rows."""
    parts = []
    for name, outcome in run.outcomes.items():
        rows = [
            (
                row.who,
                row.what,
                figure(row.median, row.unit) or "can't",
                figure(row.p99, row.unit),
                f"{row.count:,}" if row.count else "",
                spread_text(row),
                row.note,
            )
            for row in outcome.rows
        ]
        head = ("who", "what", "median", "p99", "n", "aioelect is", "remarks")
        parts.append(f"### {name}: {cases[name].title}\n\n{_table(head, rows)}")
    return "\n\n".join(parts)


def growth(run: Run) -> str:
    """Which law each curve follows."""
    return _table(
        ("figure", "who", "seen", "grows like"),
        [
            (
                f"{curve.figure} over {curve.size}",
                curve.who,
                ", ".join(f"{s:,.0f}: {figure(v, curve.unit)}" for s, v in zip(curve.sizes, curve.values, strict=True)),
                curve.law,
            )
            for outcome in run.outcomes.values()
            for curve in outcome.curves
        ],
    )


def definitions(run: Run, cases: dict[str, Case]) -> str:
    """What exactly each case measures, and how each contestant is set up."""
    what = [f"- **{case.name}**: " + " ".join(case.definition.split()) for case in cases.values()]
    who = [f"- **{name}**: {settings}" for name, settings in run.about["settings"].items()]
    return "\n".join([*what, "", "Each as a user would set it up:", "", *who])


def readme(run: Run) -> str:
    """The few lines that the README shows."""
    rows = []
    for name, what, words in IN_SHORT:
        ours, theirs = (find(run.outcomes[name].rows, who, what) for who in (US, THEM))
        if ours is not None and theirs is not None:
            both = (figure(row.median, row.unit) for row in (ours, theirs))
            rows.append((words, *both, _times(ours, theirs)))
    return f"{where(run)} Medians:\n\n" + _table(("", US, "redis-py `Lock`", "ratio"), rows)


def _times(ours: Row, theirs: Row) -> str:
    if theirs.ratio is not None:
        return f"{theirs.ratio.median:.2g}"
    return f"{(ours.median or 0) / (theirs.median or 1):.2g}"
