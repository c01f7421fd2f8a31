"""DECIDE: whether a token is out of date. No I/O; the rule stands here once, and where a target has to apply it."""

from __future__ import annotations

from dataclasses import dataclass

from aioelect import _clock
from aioelect._core.timing import MAX_TTL, Duration, seconds
from aioelect._errors import ConfigurationError, StaleToken
from aioelect._events import refused
from aioelect._term import Term
from aioelect._tokens import MAX_TOKEN

__all__ = ["Offer", "check_resource", "check_token", "refuse_stale", "stale"]


def is_stale(token: int, newest: int) -> bool:
    """The rule: refused if a newer one has been seen. A term's own token again is fine, it may write many times."""
    return newest > token


def refuse_stale(resource: str, token: int, newest: int | None) -> None:
    """Raise StaleToken with both numbers if `newest` is above `token`; for gates of your own. Never waits.

    Args:
        resource: what was to be written to.
        token: what was offered.
        newest: the newest that has been seen, None if none was.

    Raises:
        StaleToken: a newer one has been seen.
    """
    if newest is not None and is_stale(token, newest):
        raise stale(resource, token, newest)


def stale(resource: str, token: int, newest: int) -> StaleToken:
    """The error that a stale token gets; and whoever follows its term is told."""
    error = StaleToken(
        f"{resource}: token {token} is older than {newest}, which has been seen there: a newer holder has written; "
        "stop the work and write nothing more",
        token=token,
        reason="stale",
    )
    error.resource, error.newest = resource, newest
    refused(resource, token, newest)
    return error


def check_token(token: object) -> int:
    """`token` as it may be sent, or ConfigurationError."""
    if isinstance(token, bool) or not isinstance(token, int) or not 0 < token <= MAX_TOKEN:
        raise ConfigurationError(f"token={token!r}; expected term.token, an int from 1 to 2^63 - 1", reason="token")
    return token


def check_resource(resource: object) -> str:
    """`resource` as it may be sent, or ConfigurationError."""
    if not isinstance(resource, str) or not resource or "\0" in resource:
        raise ConfigurationError(f"resource={resource!r}; expected some text without a NUL", reason="resource")
    return resource


@dataclass(frozen=True, slots=True)
class Offer:
    """A token, and for how long it may be used; of a term, or as it came from elsewhere."""

    resource: str
    token: int
    term: Term | None
    until: float  # by our clock

    @classmethod
    def of(cls, term: Term | int, resource: str | None, limit: Duration | None) -> Offer:
        """What a caller offers: the resource is the term's name unless given, the limit what the term has left."""
        most = None if limit is None else seconds("limit", limit, least=0.001, most=MAX_TTL)
        if isinstance(term, Term):
            term.check()
            left = term.remaining()
            until = _clock.now() + (left if most is None else min(left, most))
            return cls(
                check_resource(term.name if resource is None else resource), check_token(term.token), term, until
            )
        if resource is None:
            raise ConfigurationError("a bare token says nothing of what it is for: give resource=", reason="resource")
        if most is None:
            raise ConfigurationError("a bare token says nothing of how long it lasts: give limit=", reason="limit")
        return cls(check_resource(resource), check_token(term), None, _clock.now() + most)

    def life(self) -> float:
        """Seconds that are left."""
        return self.until - _clock.now()

    def check(self) -> None:
        """Raise LeaseLost or NotHeld if the term's claim can't be proved any more."""
        if self.term is not None:
            self.term.check()
