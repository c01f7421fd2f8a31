"""Alerts and dashboard: sound by Prometheus' and Grafana's own rules, complete, and about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from aioelect.facts import Declared
from aioelect.metrics import Metrics
from support.prometheus import ROOT, RULES, promtool

TESTS = RULES.with_name("aioelect.rules.test.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "aioelect.json"
RUNBOOKS = ROOT / "docs" / "operations.md"


def _alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES.read_text())


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return panels


def _queries() -> Iterator[tuple[str, str]]:
    for panel in _panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def _exported() -> set[str]:
    registry = CollectorRegistry()
    Metrics(registry)(Declared("m", 15.0))
    return {sample.name for family in registry.collect() for sample in family.samples}


# -- alerts ------------------------------------------------------------------------------------------------------------


def test_promtool_accepts_the_alerts() -> None:
    assert f"{len(_alerts()) + 1} rules found" in promtool("check", "rules", str(RULES))


def test_promtool_sees_each_alert_fire_and_not_fire_where_it_must() -> None:
    promtool("test", "rules", TESTS.name, cwd=TESTS.parent)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = re.split(r"\n\s+- (?:\{ )?eval_time: ", TESTS.read_text())[1:]
    of_each: dict[str, set[bool]] = {alert: set() for alert in _alerts()}
    for case in cases:
        if name := re.search(r"alertname: (\w+)", case):
            of_each[name[1]].add("exp_alerts:" in case.split("\n\n")[0])
    assert of_each == {alert: {True, False} for alert in _alerts()}


BROKEN = {
    "AioelectNobodyLeads": ("> 2 * max", "> 20 * max"),
    "AioelectNobodyLedYet": ("for: 2m", "for: 30m"),
    "AioelectTwoLeaders": ("leaders:count > 1", "leaders:count > 2"),
    "AioelectTwoLeaders without patience": ("for: 1m", "for: 0s"),
    "AioelectClaimTaken": ('reason="taken"', 'reason="expired"'),
    "what starts at 1": ("unless", "and"),
    "AioelectFlapping": ("[10m])) > 10", "[10m])) > 100"),
    "AioelectReleaseAlreadyLost": ("release_already_lost_total[15m])) > 0", "release_already_lost_total[15m])) > 9"),
    "AioelectRenewalsFailing": ('le="0.2"', 'le="0.1"'),
    "AioelectDrainOverrun": ("drain_overrun_total[15m])) > 0", "drain_overrun_total[15m])) >= 0"),
    "who leads": ("> timestamp(leader_election_leads_until_timestamp_seconds)", "> 0"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_cases_notice_a_broken_alert(what: str, tmp_path: Path) -> None:
    right, wrong = BROKEN[what]
    text = RULES.read_text()
    assert right in text
    (tmp_path / RULES.name).write_text(text.replace(right, wrong))
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", TESTS.name, cwd=tmp_path)


def test_each_alert_leads_to_a_runbook_that_exists() -> None:
    anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in _headings()}
    pointers = re.findall(r"runbook: docs/operations.md#([\w-]+)", RULES.read_text())
    assert len(pointers) == len(_alerts())
    assert set(pointers) <= anchors


def _headings() -> list[str]:
    return re.findall(r"^#+ (.*)$", RUNBOOKS.read_text(), re.MULTILINE)


@pytest.mark.parametrize("file", [RULES, TESTS, DASHBOARD], ids=lambda file: file.name)
def test_only_metrics_that_exist_are_asked_for(file: Path) -> None:
    text = file.read_text().replace("name:leader_election_leaders:count", "").replace("aioelect.rules", "")
    asked = set(re.findall(r"leader_election_\w+", text))
    assert asked
    assert asked <= _exported()


# -- the dashboard -----------------------------------------------------------------------------------------------------


def test_the_dashboard_is_what_its_script_makes() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "make_dashboard.py", "--check"], check=True)


def test_the_dashboard_holds_nothing_that_grafanas_own_model_does_not_know() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="pip install grafana-foundation-sdk")
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    given = json.loads(DASHBOARD.read_text())
    understood = json.loads(JSONEncoder(sort_keys=True, indent=2).encode(Dashboard.from_json(given)))
    assert list(_differences(given, understood)) == []


def _differences(given: object, understood: object, path: str = "") -> Iterator[str]:
    if isinstance(given, dict) and isinstance(understood, dict):
        for key, value in given.items():
            yield from _differences(value, understood.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(understood, list) and len(given) == len(understood):
        for number, pair in enumerate(zip(given, understood, strict=True)):
            yield from _differences(*pair, f"{path}[{number}]")
    elif given != understood:
        yield f"{path}: {given!r} is read as {understood!r}"


def test_the_panels_lie_side_by_side_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in _panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24 and not cells & taken, panel["title"]
        taken |= cells
        assert panel["description"]
    assert len({panel["id"] for panel in _panels()}) == len(_panels())


def test_promtool_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": filled_in(expr)} for number, (_, expr) in enumerate(_queries())]
    for rule in rules:
        rule["record"] = rule["record"].replace(":", "_")
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(file))


def filled_in(expr: str, name: str = ".*", interval: str = "1m", range_: str = "1h") -> str:
    """A query with the dashboard's variables replaced, as Grafana does."""
    expr = expr.replace("$__rate_interval", interval).replace("$__range", range_).replace("$name", name)
    assert "$" not in expr
    return expr
