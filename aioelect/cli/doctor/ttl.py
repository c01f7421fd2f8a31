"""The ttl that the pauses of a process and the round trips to its server ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aioelect import ConfigurationError
from aioelect._core.timing import MAX_RESPONSE, MIN_TTL, Timing, seconds

__all__ = ["Advice", "advise", "percentile"]

_SHARES = Timing.of(10)  # everything scales with the ttl; at 10 s no cap is in the way yet
_USUAL = 10.0  # what suits most, where pauses and round trips ask for less
_RESERVE = 2.0  # what was measured is not the worst there will be


@dataclass(frozen=True, slots=True)
class Advice:
    """Seconds of ttl."""

    least: float  # below it a pause or a slow answer as given costs the term
    advised: float


def advise(pause: float, round_trip: float) -> Advice:
    """The ttl that survives a pause of that length and answers that take so long, in seconds.

    `pause` is the longest one that must not cost a term, `round_trip` a high percentile. A renewal may have waited for
    its turn when the pause begins, so pause and answer together have to fit between the renew interval and the renew
    deadline, 0.47 ttl; and an answer must come within the response limit of one try, 0.12 ttl and 5 s at most.
    """
    pause, round_trip = seconds("pause", pause), seconds("round_trip", round_trip)
    if round_trip >= MAX_RESPONSE:
        raise ConfigurationError(
            f"round_trip={round_trip:g} s: no answer is waited for longer than {MAX_RESPONSE:g} s, whatever the ttl",
            reason="round_trip",
        )
    patience = (_SHARES.renew_deadline - _SHARES.interval) / _SHARES.ttl
    answer = _SHARES.response_limit / _SHARES.ttl
    least = max(MIN_TTL, (pause + round_trip) / patience, round_trip / answer)
    return Advice(least, max(_USUAL, float(math.ceil(_RESERVE * least))))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
