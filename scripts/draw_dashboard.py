"""Draw the panels of deploy/grafana/aioelect.json from a Prometheus' answers to their queries, without Grafana.

    draw_dashboard.py URL START TARGET      from START (unix time) until now, into a PNG (needs matplotlib)

What a panel shows is exactly its queries' results; how it looks is matplotlib's way, not Grafana's.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

DASHBOARD = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "aioelect.json"
CELL = 0.72  # inches for one cell of the dashboard's grid, in width
COLOURS = ["#5794f2", "#73bf69", "#f2cc0c", "#ff780a", "#f2495c", "#b877d9", "#37872d", "#8ab8ff"]

Series = tuple[str, list[tuple[float, float]]]


def ask(url: str, expr: str, legend: str, start: float, end: float) -> list[Series]:
    """The series of one query, named as its legend says."""
    expr = expr.replace("$__rate_interval", "3s").replace("$__range", f"{int(end - start)}s").replace("$name", ".*")
    query = urllib.parse.urlencode({"query": expr, "start": start, "end": end, "step": 0.25})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=30) as answer:  # noqa: S310 - given by hand
        result = json.load(answer)["data"]["result"]
    found = []
    for series in result:
        label = legend
        for key in re.findall(r"\{\{(\w+)\}\}", legend):
            label = label.replace(f"{{{{{key}}}}}", series["metric"].get(key, ""))
        points = [(float(at) - start, float(value)) for at, value in series["values"] if value != "NaN"]
        found.append((label.strip(), points))
    return sorted(found)


def draw(axes: Axes, panel: dict[str, Any], found: list[Series]) -> None:
    """One panel."""
    axes.set_title(panel["title"], loc="left", fontsize=10, fontweight="bold")
    colours = {label: COLOURS[number % len(COLOURS)] for number, (label, _) in enumerate(found)}
    match panel["type"]:
        case "state-timeline":
            for row, (_, points) in enumerate(found):
                leads = [(at, 0.26) for at, value in points if value]
                axes.broken_barh([(points[0][0], points[-1][0] - points[0][0])], (row - 0.35, 0.7), color="#e8e8ec")
                axes.broken_barh(leads, (row - 0.35, 0.7), color="#73bf69")
            axes.set_yticks(range(len(found)), [label for label, _ in found], fontsize=8)
            axes.invert_yaxis()
            return
        case "stat":
            axes.axis("off")
            text = "\n".join(f"{label}: {points[-1][1]:g}" for label, points in found)
            axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=15, transform=axes.transAxes)
            return
    bars = panel["fieldConfig"]["defaults"]["custom"].get("drawStyle") == "bars"
    for label, points in found:
        if points:
            at, values = zip(*points, strict=True)
            if bars:
                axes.fill_between(at, values, step="mid", alpha=0.6, color=colours[label], label=label, linewidth=0)
            else:
                axes.plot(at, values, color=colours[label], label=label, linewidth=1.2)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if unit == "percentunit":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    elif unit == "s":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} s")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=6, loc="upper left", ncols=2, frameon=False)


def main(url: str, start: float, target: Path) -> None:
    """All panels, laid out as in the dashboard."""
    end = time.time()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(24 * CELL, rows * 0.42), layout="constrained")
    grid = figure.add_gridspec(rows, 24)
    for panel in panels:
        place = panel["gridPos"]
        axes = figure.add_subplot(grid[place["y"] : place["y"] + place["h"], place["x"] : place["x"] + place["w"]])
        found = [
            series
            for query in panel["targets"]
            for series in ask(url, query["expr"], query["legendFormat"], start, end)
        ]
        draw(axes, panel, found)
        axes.set_xlim(0, end - start)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("seconds since the start", fontsize=9)
    figure.savefig(target, dpi=80)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
