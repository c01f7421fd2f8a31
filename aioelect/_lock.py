"""OFFER: `FencedLock`, one at a time through a critical section."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from aioelect._core.timing import Duration, optional_seconds
from aioelect._lease import Sections, Session, decorate
from aioelect._term import Term
from aioelect._tokens import TokenSource
from aioelect.facts import Observer

if TYPE_CHECKING:
    from aioelect._lease import Client

__all__ = ["FencedLock"]

P = ParamSpec("P")
R = TypeVar("R")


class FencedLock:
    """One at a time through a critical section, waiting in line, with a fencing token for the writes inside.

    The lock is renewed in the background while the body runs, and released when it has ended. One object may be used by
    many tasks and in successive event loops; it is not re-entrant. Waiters of one process are served first come first
    served; between processes it is nearly fair.

    Args:
        redis: a `redis.asyncio.Redis` (also from `Sentinel.master_for`), a `redis.asyncio.RedisCluster`, or a store.
        name: what is contended for: 1 to 200 bytes, no braces, no control characters.
        ttl: lifetime of the claim in the store, 0.1 s to 24 h; renewed in the background.
        wait: how long to wait for it: 0 is one try, None (the default) has no limit. In a crowd, the first in
            line for a name counts from its first try.
        renew_interval, renew_deadline, drain_limit, fence_retention, identity, prefix, observers, tokens: as for
            `Lease`.
        min_hold: nobody else gets the lock sooner than this after it was taken, at most ttl; so that short work that is
            started everywhere at about the same time, with wait=0, is done once.

    All durations are seconds (int or float) or timedelta.

    Raises:
        ConfigurationError: an argument is refused.

    Examples:
        >>> async with FencedLock(redis, "inventory:SKU-001", ttl=10, wait=5) as term:  # doctest: +SKIP
        ...     await conn.execute("UPDATE stock SET fence_token = $1 WHERE fence_token <= $1", term.token)
    """

    def __init__(
        self,
        redis: Client,
        name: str,
        *,
        ttl: Duration = 15.0,
        wait: Duration | None = None,
        renew_interval: Duration | None = None,
        renew_deadline: Duration | None = None,
        drain_limit: Duration | None = None,
        fence_retention: Duration | None = None,
        identity: str | None = None,
        prefix: str = "aioelect",
        observers: Iterable[Observer] | None = None,
        tokens: TokenSource | None = None,
        min_hold: Duration = 0.0,
    ) -> None:
        self._wait = optional_seconds("wait", wait)
        self._session = Session(
            redis,
            name,
            ttl=ttl,
            renew_interval=renew_interval,
            renew_deadline=renew_deadline,
            drain_limit=drain_limit,
            fence_retention=fence_retention,
            identity=identity,
            prefix=prefix,
            observers=observers,
            tokens=tokens,
            min_hold=min_hold,
        )
        self._sections = Sections(self._session)

    def __aenter__(self) -> Coroutine[object, object, Term]:
        """Wait in line for the lock, at most `wait` seconds. A cancelled call leaves no claim behind.

        Raises:
            NotAcquired: another holds it, and `wait` is 0.
            AcquireTimeout: others held it for the whole `wait`.
            StoreUnavailable: no usable answer in that time.
            StoreRejected: the store refuses to serve.
        """
        return self._sections.enter(self._wait)

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[object, object, bool | None]:
        """Stop and await the children, then release: at most 2 s; a cancellation comes out when that is done.

        Raises:
            LeaseLost: the claim was lost while the body ran, and the body raised nothing itself.
        """
        return self._sections.leave(exc_type, exc, traceback)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[None, None, R]]:
        """As a decorator: every call of `function` waits for the lock, runs, and releases it."""
        return decorate(self, function)

    def __repr__(self) -> str:
        wait = "None" if self._wait is None else f"{self._wait:g}"
        return f"<FencedLock {self._session.name!r} ttl={self._session.timing.ttl:g} wait={wait}>"
