"""OFFER: `AdvisoryLock`, a critical section by PostgreSQL's advisory locks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import ParamSpec, TypeVar

from aioelect._core.timing import Duration, optional_seconds
from aioelect._lease import Sections, Session, decorate
from aioelect._postgres.advisory import AdvisoryStore
from aioelect._postgres.source import Pool
from aioelect._term import Term
from aioelect._tokens import TokenSource
from aioelect.facts import Observer

__all__ = ["AdvisoryLock"]

P = ParamSpec("P")
R = TypeVar("R")


class AdvisoryLock:
    """One at a time through a critical section, by a session-level advisory lock of PostgreSQL.

    Nothing has to be created in the database. The lock lives by a connection of its own: when that is lost, so is the
    lock, at once, and the body is cancelled then. Weaker than `FencedLock` all the same: the server knows no ttl, so a
    paused process keeps the lock as long as its connection lasts; and `term.token` needs a `sequence` or `tokens`.

    Args:
        dsn_or_pool: `postgresql://user@host/database`, or an `asyncpg.Pool`, of which the settings are taken and no
            connection.
        name: what is contended for: 1 to 200 bytes, no braces, no control characters.
        ttl: how long the connection may be silent, 0.1 s to 24 h: it is asked every ttl/3, the body is stopped at
            0.8 ttl, and the server ends the session of a machine that vanished after about 1.5 ttl.
        wait: how long to wait for it: 0 is one try, None (the default) has no limit.
        sequence: name of a sequence that fencing tokens are drawn from; None: there are none.
        drain_limit, identity, observers, tokens: as for `FencedLock`.
        prefix: keeps the names of one application apart from those of another in the same database.

    All durations are seconds (int or float) or timedelta.

    Raises:
        ConfigurationError: an argument is refused, or asyncpg is not installed.

    Examples:
        >>> async with AdvisoryLock("postgresql://app@db/app", "nightly", wait=0) as term:  # doctest: +SKIP
        ...     term.check()
    """

    def __init__(
        self,
        dsn_or_pool: str | Pool,
        name: str,
        *,
        ttl: Duration = 15.0,
        wait: Duration | None = None,
        sequence: str | None = None,
        drain_limit: Duration | None = None,
        identity: str | None = None,
        prefix: str = "aioelect",
        observers: Iterable[Observer] | None = None,
        tokens: TokenSource | None = None,
    ) -> None:
        self._wait = optional_seconds("wait", wait)
        self._session = Session(
            AdvisoryStore(dsn_or_pool, sequence=sequence, prefix=prefix),
            name,
            ttl=ttl,
            renew_interval=None,
            renew_deadline=None,
            drain_limit=drain_limit,
            fence_retention=None,
            identity=identity,
            prefix=prefix,
            observers=observers,
            tokens=tokens,
            fenced=False,
        )
        self._sections = Sections(self._session)

    def __aenter__(self) -> Coroutine[object, object, Term]:
        """Wait for the lock, at most `wait` seconds. A cancelled call leaves no lock behind.

        Raises:
            NotAcquired: another holds it, and `wait` is 0.
            AcquireTimeout: others held it for the whole `wait`.
            StoreUnavailable: no usable answer in that time.
            StoreRejected: the database refuses to serve.
        """
        return self._sections.enter(self._wait)

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[object, object, bool | None]:
        """Stop and await the children, then unlock: at most 2 s; a cancellation comes out when that is done.

        Raises:
            LeaseLost: the connection was lost while the body ran, and the body raised nothing itself.
        """
        return self._sections.leave(exc_type, exc, traceback)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[None, None, R]]:
        """As a decorator: every call of `function` waits for the lock, runs, and unlocks."""
        return decorate(self, function)

    async def aclose(self) -> None:
        """Close the connections that are open for this database in the running event loop; that ends locks in use."""
        await self._session.store.aclose()

    def __repr__(self) -> str:
        wait = "None" if self._wait is None else f"{self._wait:g}"
        return f"<AdvisoryLock {self._session.name!r} ttl={self._session.timing.ttl:g} wait={wait}>"
