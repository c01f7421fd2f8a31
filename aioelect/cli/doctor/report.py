"""Findings for people and for programs."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aioelect.cli.doctor.facts import Facts
from aioelect.cli.doctor.findings import advice_of, worst
from aioelect.cli.doctor.severity import Finding, Severity
from aioelect.cli.doctor.ttl import percentile

__all__ = ["as_dict", "show"]

_STYLES = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def as_dict(facts: Facts, findings: list[Finding]) -> dict[str, object]:
    """The report with stable names; durations in seconds."""
    advice = advice_of(facts)
    return {
        "address": facts.address,
        "prefix": facts.prefix,
        "ttl": facts.ttl,
        "pause": facts.pause,
        "least_ttl": advice and advice.least,
        "advised_ttl": advice and advice.advised,
        "round_trips": {
            node.where: {f"p{share * 100:g}": percentile(node.round_trips, share) for share in (0.5, 0.95, 0.99)}
            for node in facts.nodes
            if node.round_trips
        },
        "worst": worst(findings).name.lower(),
        "findings": [
            {
                "id": finding.id,
                "severity": finding.severity.name.lower(),
                "where": finding.where,
                "what": finding.what,
                "why": finding.why,
                "do": finding.do,
            }
            for finding in findings
        ],
    }


def show(console: Console, facts: Facts, findings: list[Finding]) -> None:
    """Print the table, and one line of summary."""
    several = len(facts.nodes) > 1
    table = Table("", "finding", "what it is", "why it matters", "what to do", title=f"doctor: {facts.address}")
    for column in table.columns:
        column.overflow = "fold"  # what to do is often one long word, and no use cut off
    for finding in findings:
        style = _STYLES[finding.severity]
        where = f"{finding.where}: " if several and finding.where else ""
        # As plain text: a key's name or a server's answer is no markup.
        cells = (finding.id, where + finding.what, finding.why, finding.do)
        table.add_row(Text(finding.severity.name.lower(), style=style), *(Text(cell) for cell in cells))
    console.print(table)
    counts = [(name, sum(f.severity is name for f in findings)) for name in reversed(Severity)]
    console.print(Text(", ".join(f"{count} {name.name.lower()}" for name, count in counts if count)))
