"""KEEP: what the transitions of a held claim are to those who listen."""

from __future__ import annotations

from collections.abc import Iterator

from aioelect._core import hold
from aioelect._core.hold import EndReason
from aioelect._errors import reason_of
from aioelect._supervisor import Supervisor, loss
from aioelect.facts import Fact, RenewalConfirmed, RenewalFailed, RenewalRecovered, TermStopped

__all__ = ["facts_of"]


def facts_of(supervisor: Supervisor, before: hold.Held, event: hold.Input, began: float) -> Iterator[Fact]:
    """What happened when `event` has led a held claim from `before` to its present state."""
    info, after = supervisor.info, supervisor.state
    match after:
        case hold.Draining() | hold.Releasing() | hold.Ended():
            reason = after.reason if isinstance(after, hold.Ended) else EndReason.RELEASED
            why = str(loss(supervisor)) if isinstance(after, hold.Ended) else None
            yield TermStopped(info, reason, event.now - began, why)
        case hold.Doubtful() if isinstance(event, hold.Failed):
            cause = supervisor.cause
            yield RenewalFailed(info, after.failures, hold.life_left(after, event.now), str(cause), reason_of(cause))
        case hold.Held() if isinstance(event, hold.Renewed):
            yield RenewalConfirmed(info, event.now - event.sent_at, hold.life_left(before, event.now))
            if isinstance(before, hold.Doubtful):
                yield RenewalRecovered(info, before.failures, event.now - before.since)
