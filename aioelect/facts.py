"""What observers hear: an observer is a callable that takes one of these facts. It must not block, and can't do harm.

Example:
    >>> def observer(fact: Fact) -> None:
    ...     if isinstance(fact, TermOver) and fact.outcome is ReleaseOutcome.ALREADY_LOST:
    ...         print("page somebody:", fact.term.name)
    >>> elector = Elector(redis, "scheduler", observers=[observer])  # doctest: +SKIP
"""

from aioelect._events import (
    CandidacyFailed,
    Declared,
    DrainOverrun,
    Fact,
    FitnessChanged,
    Observer,
    ReleaseOutcome,
    RenewalFailed,
    RenewalRecovered,
    StepDownAsked,
    StepDownHookFailed,
    StoreFailing,
    StoreRecovered,
    TermBegan,
    TermInfo,
    TermOver,
    TermStopped,
)

__all__ = [
    "CandidacyFailed",
    "Declared",
    "DrainOverrun",
    "Fact",
    "FitnessChanged",
    "Observer",
    "ReleaseOutcome",
    "RenewalFailed",
    "RenewalRecovered",
    "StepDownAsked",
    "StepDownHookFailed",
    "StoreFailing",
    "StoreRecovered",
    "TermBegan",
    "TermInfo",
    "TermOver",
    "TermStopped",
]
