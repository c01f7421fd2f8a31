"""TELL: how a candidacy fares, kept up to date by what is heard; for health checks."""

from __future__ import annotations

from aioelect.facts import (
    CandidacyBegan,
    CandidacyFailed,
    CandidacyOver,
    DrainOverrun,
    Fact,
    FitnessChanged,
    RenewalFailed,
    RenewalRecovered,
    StoreFailing,
    StoreRecovered,
    TermBegan,
    TermOver,
    TermStopped,
)

__all__ = ["Vitals"]


class Vitals:
    """What an elector last heard of itself. Written in its event loop, read from anywhere: each field by itself."""

    standing: bool = False
    died: Exception | None = None  # what ended the candidacy
    unreachable: str | None = None  # why the store doesn't serve
    doubtful: str | None = None  # why the last renewal failed
    unfit: str | None = None
    overruns: frozenset[str] = frozenset()  # terms whose cancelled work doesn't end

    def __call__(self, fact: Fact, /) -> None:
        """Take note of one fact."""
        match fact:
            case CandidacyBegan():
                self.standing, self.died = True, None
            case CandidacyOver():
                self.standing, self.unreachable = False, None
            case CandidacyFailed(error=error):
                self.died = error
            case TermBegan():
                self.unreachable = self.doubtful = None
            case StoreFailing(cause=cause):
                self.unreachable = cause
            case StoreRecovered():
                self.unreachable = None
            case RenewalFailed(cause=cause):
                self.doubtful = cause
            case RenewalRecovered() | TermStopped():
                self.doubtful = None
            case FitnessChanged(fit=fit, cause=cause):
                self.unfit = None if fit else cause
            case DrainOverrun(term=term):
                self.overruns |= {term.id}
            case TermOver(term=term):
                self.overruns -= {term.id}
            case _:
                pass
