"""The exception tree: what went wrong, whose word it is, and what to do.

Contended (`NotAcquired`), unreachable (`StoreUnavailable`), rejected (`StoreRejected`) and lost (`LeaseLost`) are
different answers and never share a class. Each error carries what a handler needs as attributes; a fact that is not
known is None. No message or attribute ever holds an owner value.
"""

from __future__ import annotations

__all__ = [
    "AcquireTimeout",
    "AioelectError",
    "ConfigurationError",
    "LeaseExpired",
    "LeaseLost",
    "LeaseTaken",
    "NotAcquired",
    "NotHeld",
    "StaleToken",
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "reason_of",
]


class AioelectError(Exception):
    """Base of everything that aioelect raises on purpose.

    Attributes:
        name: the contended name, where one is involved.
        holder: identity of who holds the name, as far as the store told.
        token: the fencing token concerned: the holder's for `NotAcquired`, the term's own for `LeaseLost`.
        term_id: the public id of the term concerned.
        reason: one short word or phrase for logs and metrics.
        waited: seconds that were spent before giving up; for a lost claim, without a confirmed renewal.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        holder: str | None = None,
        token: int | None = None,
        term_id: str | None = None,
        reason: str | None = None,
        waited: float | None = None,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.holder = holder
        self.token = token
        self.term_id = term_id
        self.reason = reason
        self.waited = waited

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),), self.__dict__)


class ConfigurationError(AioelectError, ValueError):
    """An argument is refused where it enters; the message names field, value and limit."""


class NotAcquired(AioelectError):
    """Somebody else holds the name: a clear answer, and no claim of ours is left behind."""


class AcquireTimeout(NotAcquired, TimeoutError):
    """The name stayed held by others for the whole `wait`."""


class LeaseLost(AioelectError):
    """The claim can no longer be proved to be ours; the work was told to stop."""


class LeaseExpired(LeaseLost):
    """No renewal was confirmed in time, by our own clock; the cause, where known, is chained."""


class LeaseTaken(LeaseLost):
    """The store said that the claim is gone or another's."""


class NotHeld(AioelectError):
    """The term has been released, or never had what was asked of it."""


class StaleToken(AioelectError):
    """The place that is written to has seen a newer fencing token than the one offered: stop, write nothing more.

    Attributes:
        token: the token that was offered.
        newest: the newer one that has been seen.
        resource: what was to be written to.
    """

    newest: int | None = None
    resource: str | None = None


class StoreError(AioelectError):
    """The store could not, or would not, answer the question asked."""


class StoreUnavailable(StoreError):
    """No usable answer: unreachable, too slow, loading, failing over. Trying again later may help."""


class StoreRejected(StoreError):
    """The store answered, and refused.

    Attributes:
        passing: True if the refusal can pass by itself (out of memory, too few replicas), so that waiting and
            standing again makes sense; False if somebody has to change something first (permission, wrong type).
        claimed: True if a claim was made before the refusal; it is undone, and never used.
    """

    passing: bool = False
    claimed: bool = False


def reason_of(error: BaseException | None) -> str:
    """One short word or phrase for logs and metrics; "other" where nobody gave one."""
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, str) and reason else "other"
