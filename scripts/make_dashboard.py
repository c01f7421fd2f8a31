"""Write the Grafana dashboard, deploy/grafana/aioelect.json, from the panels below; --check: say if it is stale."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "aioelect.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF = 'name=~"$name"'  # the elections and locks that were chosen
UNTIL = f"leader_election_leads_until_timestamp_seconds{{{OF}}}"


@dataclass(frozen=True)
class Panel:
    """One panel; the queries by legend."""

    title: str
    says: str
    queries: dict[str, str]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 7
    custom: dict[str, Any] = field(default_factory=dict)


def _increase(counter: str, by: str = "name") -> str:
    return f"sum by ({by}) (increase(leader_election_{counter}_total{{{OF}}}[$__rate_interval]))"


def _count(counter: str) -> str:
    # Rare ones: increase() would miss the first, with which a series may begin.
    return f"sum by (name) (leader_election_{counter}_total{{{OF}}})"


def _quantile(share: float, histogram: str, window: str = "$__rate_interval") -> str:
    inside = f"rate(leader_election_{histogram}_bucket{{{OF}}}[{window}])"
    return f"histogram_quantile({share}, sum by (name, le) ({inside}))"


_STEPS = {"lineInterpolation": "stepAfter", "fillOpacity": 10}
_BARS = {"drawStyle": "bars", "fillOpacity": 60, "lineWidth": 0}

PANELS = (
    Panel(
        "Who leads",
        "Each instance (and worker) that leads, by its own clock at the time of the scrape.",
        {"{{name}} {{instance}} {{pid}}": f"{UNTIL} > bool timestamp({UNTIL})"},
        kind="state-timeline",
        width=16,
        height=9,
    ),
    Panel(
        "Leaders now",
        "1 for an election is well; 0 is nobody; more is split brain. A lock that nobody holds is 0.",
        {"{{name}}": f"sum by (name) ({UNTIL} > bool timestamp({UNTIL}))"},
        kind="stat",
        width=4,
        height=9,
    ),
    Panel(
        "Candidates",
        "Electors that stand or lead: with one alone nobody can take over.",
        {"{{name}}": f"sum by (name) (leader_election_candidates{{{OF}}})"},
        kind="stat",
        width=4,
        height=9,
    ),
    Panel(
        "Changes",
        "Terms that began. An election that changes several times a minute is flapping.",
        {"{{name}}": _increase("acquired")},
        custom=_BARS,
    ),
    Panel(
        "Terms ended, by reason",
        "released: on purpose; expired: no renewal confirmed in time; taken: the store said so; overrun: slow work.",
        {"{{name}} {{reason}}": _increase("terms_ended", "name, reason")},
        custom=_BARS,
    ),
    Panel(
        "Failover time",
        "From the last sign of life of a holder to the next one's win: about 0 for a hand-over, one ttl for a crash.",
        {
            "{{name}} median": _quantile(0.5, "failover_seconds", "$__range"),
            "{{name}} p99": _quantile(0.99, "failover_seconds", "$__range"),
        },
        unit="s",
        custom=_STEPS,
    ),
    Panel(
        "Renewal round trip",
        "From the send of a renewal to its confirmation. An answer gets 0.12 ttl before it counts as failed.",
        {
            "{{name}} median": _quantile(0.5, "renewal_round_trip_seconds"),
            "{{name}} p99": _quantile(0.99, "renewal_round_trip_seconds"),
        },
        unit="s",
    ),
    Panel(
        "Life left at renewal (5th percentile)",
        "Share of the ttl that was left before the work would be stopped. Healthy is 0.47; 0 is a lost term.",
        {"{{name}}": _quantile(0.05, "renewal_life_left_ratio")},
        unit="percentunit",
    ),
    Panel(
        "Renewal failures and doubtful terms",
        "A failed renewal is tried again; the first in a row makes the term doubtful.",
        {"{{name}} failed": _increase("renewal_failure"), "{{name}} doubtful": _increase("doubtful_terms")},
        custom=_BARS,
    ),
    Panel(
        "Refused writes, late releases, overruns (so far)",
        "Refused: a fence kept a superseded holder from writing. Late: a release answered 0. Overrun: the drain limit.",
        {
            "{{name}} refused": _count("fence_refusal"),
            "{{name}} released late": _count("release_already_lost"),
            "{{name}} overrun": _count("drain_overrun"),
        },
        custom=_STEPS,
    ),
    Panel(
        "Store errors, by class",
        "Requests without a usable answer.",
        {"{{name}} {{error}}": _increase("store_error", "name, error")},
        custom=_BARS,
    ),
    Panel(
        "Event loop lag (p99)",
        "How late loops served a timer while a term was held. Compare with the life left: 0.47 ttl.",
        {
            "{{instance}}": "histogram_quantile(0.99, sum by (instance, le) "
            "(rate(leader_election_loop_lag_seconds_bucket[$__rate_interval])))"
        },
        unit="s",
    ),
    Panel(
        "Wait for an acquisition",
        "From the first try to the win.",
        {
            "{{name}} median": _quantile(0.5, "acquisition_wait_seconds", "$__range"),
            "{{name}} p99": _quantile(0.99, "acquisition_wait_seconds", "$__range"),
        },
        unit="s",
        custom=_STEPS,
        width=12,
    ),
    Panel(
        "Held for",
        "From the win to the stop of the work, of the terms that have ended.",
        {
            "{{name}} median": _quantile(0.5, "hold_seconds", "$__range"),
            "{{name}} p99": _quantile(0.99, "hold_seconds", "$__range"),
        },
        unit="s",
        custom=_STEPS,
        width=12,
    ),
)


def _rendered(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": panel.custom}
    options: dict[str, Any] = {}
    match panel.kind:
        case "state-timeline":
            leads = {"1": {"text": "leads", "color": "green", "index": 0}, "0": {"text": " ", "color": "dark-gray"}}
            defaults["mappings"] = [{"type": "value", "options": leads}]
            defaults["custom"] = {"fillOpacity": 80}
            options = {"showValue": "never", "mergeValues": True, "rowHeight": 0.8}
        case "stat":
            options = {"colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}}
            steps = [{"value": None, "color": "red"}, {"value": 1, "color": "green"}]
            if panel.title == "Leaders now":
                steps.append({"value": 2, "color": "red"})
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.says,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [
            {"refId": chr(65 + index), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(panel.queries.items())
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def dashboard() -> dict[str, Any]:
    """The whole dashboard, as Grafana imports it."""
    panels, x, y = [], 0, 0
    for number, panel in enumerate(PANELS, 1):
        panels.append(_rendered(number, panel, x, y))
        x += panel.width
        if x == 24:
            x, y = 0, y + panel.height
    names = "label_values(leader_election_is_leader, name)"
    return {
        "uid": "aioelect",
        "title": "aioelect: locks and leader election",
        "tags": ["aioelect"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "name",
                    "label": "Name",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": {"query": names, "refId": "names"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                },
            ]
        },
        "panels": panels,
    }


def main() -> None:
    """Write it, or compare."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" in sys.argv:
        if TARGET.read_text() != text:
            sys.exit(f"{TARGET} is stale: make dashboard")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
