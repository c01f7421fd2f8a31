"""What the measured numbers say. Pure: no clock, no I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Spread", "exponent", "jain", "law", "max_over_min", "median", "percentile", "ratios", "spread", "steepest"]

LINEAR = 1.15
"""An exponent up to here counts as linear: a fit over a few noisy points is no sharper."""


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest measured value that at least `share` of all values do not exceed; never an invented one."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """The spread of ours / theirs, slice by slice: both of a pair ran within the same few moments."""
    return spread([our / their for our, their in zip(ours, theirs, strict=True)])


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all got the same, 1/n if one got everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def max_over_min(counts: Sequence[float]) -> float:
    """How many times as much the best served got as the worst served."""
    least = min(counts)
    return max(counts) / least if least else math.inf


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The e of values ~ sizes^e that fits best (least squares of the logarithms)."""
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(xs, ys).slope


def steepest(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The largest exponent over three neighbouring points: one fit over all hides a knee at the end."""
    starts = range(max(1, len(sizes) - 2))
    return max(exponent(sizes[start : start + 3], values[start : start + 3]) for start in starts)


def law(power: float) -> str:
    """An exponent in words."""
    if power < -0.15:
        return "falls"
    if power <= 0.15:
        return "constant"
    if power < 0.85:
        return "slower than linear"
    return "linear" if power <= LINEAR else "faster than linear"
