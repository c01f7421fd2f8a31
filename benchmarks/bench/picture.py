"""The curves of growth as a picture. The only place that draws; matplotlib is in the bench's environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench.results import US, Curve, Run

__all__ = ["draw"]

PANELS = (
    (("acquire rate",), "acquire + release", 1.0, "pairs/s", "names, one coroutine each"),
    (("p99 of a pair",), "acquire + release", 1e3, "p99 in ms", "names, one coroutine each"),
    (("hand-over",), "hand-over", 1e3, "median in ms", "waiting processes' worth of coroutines"),
    (("memory", "CPU"), "holding", 1.0, "", "claims held in one process"),
)
COLOURS = {US: "#1f6feb", "redis-py Lock": "#8b949e"}


def draw(run: Run, path: Path) -> None:
    """Write the picture; the format follows the file's name. The same run gives the same bytes."""
    mpl.use("Agg")
    mpl.rcParams.update(
        {"svg.hashsalt": "aioelect", "svg.fonttype": "none", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
    )
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend was chosen

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5))
    for panel, (names, title, factor, unit, size) in zip(axes.flat, PANELS, strict=True):
        for curve in _curves(run, names):
            values = [value * factor for value in curve.values]
            if curve.unit == "B":
                values = [value / 2**20 for value in values]
            panel.plot(curve.sizes, values, "o-", color=_colour(curve), label=_label(curve))
        panel.set(title=title, xscale="log", yscale="log", xlabel=size, ylabel=unit)
        if unit == "pairs/s":
            panel.set(yscale="linear")
            panel.set_ylim(bottom=0)
        if panel.lines:
            panel.legend()
    about = run.about
    figure.suptitle(
        f"{about['machine']['cpu']}, {about['machine']['cores']} cores, {about['server']}; "
        f"where both axes are logarithmic, a straight line of slope 1 is linear"
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _curves(run: Run, names: tuple[str, ...]) -> Iterator[Curve]:
    for outcome in run.outcomes.values():
        yield from (curve for curve in outcome.curves if curve.figure in names)


def _colour(curve: Curve) -> Any:
    return "#d29922" if curve.figure == "CPU" else COLOURS.get(curve.who)


def _label(curve: Curve) -> str:
    what = {"memory": "memory, MiB", "CPU": "CPU, % of a core"}.get(curve.figure, curve.who)
    return f"{what}: n^{curve.exponent:.2f}"
