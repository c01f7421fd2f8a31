"""The clock that deadlines are measured with: it counts the time that a machine spends suspended.

Linux: CLOCK_BOOTTIME. macOS: CLOCK_MONOTONIC_RAW, which goes on during sleep there, unlike `time.monotonic`.
Never the wall clock, which steps: that is for schedules only (`wall`). Event-loop timers stand still in suspend, so
whoever wakes up reads this again. Always called as `_clock.now()`, so that tests can put another clock in its place.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

if sys.platform == "linux":
    ID = time.CLOCK_BOOTTIME
elif sys.platform == "darwin":
    ID = time.CLOCK_MONOTONIC_RAW
else:
    ID = time.CLOCK_MONOTONIC


now: Callable[[], float] = partial(time.clock_gettime, ID)
"""Seconds since some fixed instant, suspended time included; any thread may ask, at about 60 ns."""


def wall() -> float:
    """The wall clock, seconds since 1970: what people mean by "at three in the morning"."""
    return time.time()
