"""How the demo's processes talk to it: a line of JSON with settings comes in, lines of JSON with events go out.

Settings come by stdin, since the URL may hold a password and arguments can be read by everybody on the machine.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TypeVar

__all__ = ["ElectionSettings", "PodSettings", "emit", "receive"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ElectionSettings:
    """For `worker.py`."""

    redis: str
    election: str
    identity: str
    ttl: float
    retention: float


@dataclasses.dataclass(frozen=True)
class PodSettings:
    """For `pod.py`."""

    redis: str
    lock: str
    identity: str
    ttl: float
    retention: float
    database: str
    qty: int
    fenced: bool
    thinks: float  # seconds between getting the lock and writing
    hesitates: bool  # waits between check and write, for the pause to come


def emit(event: str, **fields: object) -> None:
    """Say what happened, and when: `time.monotonic()` is one clock for all processes of a machine."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


def receive(kind: type[T]) -> T:
    """Wait for the settings."""
    return kind(**json.loads(sys.stdin.readline()))
