"""asyncio-native locks and leader election on Redis, with fencing tokens.

A pytest plugin comes with it, so that pytest would rewrite the asserts in here: PYTEST_DONT_REWRITE.
"""

import importlib
from typing import TYPE_CHECKING

from aioelect._core.hold import EndReason
from aioelect._elector import Elector
from aioelect._errors import (
    AcquireTimeout,
    AioelectError,
    ConfigurationError,
    LeaseExpired,
    LeaseLost,
    LeaseTaken,
    NotAcquired,
    NotHeld,
    StaleToken,
    StoreError,
    StoreRejected,
    StoreUnavailable,
)
from aioelect._follow import Leader, LeaderChanged, LeaderEvent, TermEnded, TermStarted
from aioelect._lease import Lease, aclose
from aioelect._lock import FencedLock
from aioelect._store import Candidate
from aioelect._term import Term
from aioelect.facts import ReleaseOutcome

if TYPE_CHECKING:
    from aioelect._advisory import AdvisoryLock
    from aioelect._core.cron import Cron
    from aioelect._core.schedule import Daily, Interval, Schedule
    from aioelect._observe import Leadership, info, observe, step_down
    from aioelect._partitions import Partition, Partitions
    from aioelect._postgres.advisory import AdvisoryStore
    from aioelect._postgres.store import PostgresStore
    from aioelect._redis.quorum import QuorumStore
    from aioelect._redis.replicated import ReplicatedStore

__all__ = [
    "AcquireTimeout",
    "AdvisoryLock",
    "AdvisoryStore",
    "AioelectError",
    "Candidate",
    "ConfigurationError",
    "Cron",
    "Daily",
    "Elector",
    "EndReason",
    "FencedLock",
    "Interval",
    "Leader",
    "LeaderChanged",
    "LeaderEvent",
    "Leadership",
    "Lease",
    "LeaseExpired",
    "LeaseLost",
    "LeaseTaken",
    "NotAcquired",
    "NotHeld",
    "Partition",
    "Partitions",
    "PostgresStore",
    "QuorumStore",
    "ReleaseOutcome",
    "ReplicatedStore",
    "Schedule",
    "StaleToken",
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "Term",
    "TermEnded",
    "TermStarted",
    "aclose",
    "info",
    "observe",
    "step_down",
]

# Imported when somebody asks for it: most services use one kind of store, and have no schedule.
_LATER = {
    "AdvisoryLock": "aioelect._advisory",
    "AdvisoryStore": "aioelect._postgres.advisory",
    "Cron": "aioelect._core.cron",
    "Daily": "aioelect._core.schedule",
    "Interval": "aioelect._core.schedule",
    "Leadership": "aioelect._observe",
    "Partition": "aioelect._partitions",
    "Partitions": "aioelect._partitions",
    "PostgresStore": "aioelect._postgres.store",
    "QuorumStore": "aioelect._redis.quorum",
    "ReplicatedStore": "aioelect._redis.replicated",
    "Schedule": "aioelect._core.schedule",
    "info": "aioelect._observe",
    "observe": "aioelect._observe",
    "step_down": "aioelect._observe",
}


if not TYPE_CHECKING:  # a type checker knows these names, and no others

    def __getattr__(name: str) -> object:
        if name in _LATER:
            return getattr(importlib.import_module(_LATER[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
