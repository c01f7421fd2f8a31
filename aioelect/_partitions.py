"""OFFER: `Partitions`, the parts of one job, spread over all who take part; each has one consumer at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioelect._core.names import check_name
from aioelect._core.shares import MAX_PARTITIONS
from aioelect._core.timing import Duration
from aioelect._errors import ConfigurationError
from aioelect._lease import Session
from aioelect._membership import Membership
from aioelect._redis.store import open_store
from aioelect._store import members_of
from aioelect._term import Term, check_function
from aioelect._tokens import TokenSource
from aioelect._vitals import Vitals
from aioelect.facts import Observer

if TYPE_CHECKING:
    from aioelect._lease import Client

__all__ = ["Partition", "Partitions"]


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition in the hands of one consumer: its number, from 0 on, and the term under which it is consumed.

    Examples:
        >>> async def consume(partition: Partition) -> None:
        ...     print(partition.number, partition.term.token)
    """

    number: int
    term: Term


class Partitions:
    """A job in `count` partitions, shared fairly by all processes that take part.

    Each partition has one consumer at a time, in a task of its own, under a claim of its own (named "orders:0",
    "orders:1" and so on) with its own term and token. A member that joins gets its share within a few moments, one that
    leaves hands over at once, and the partitions of one that crashed move after a ttl. Only what must move does: it is
    let go when its consumer has ended. Nobody holds more than count/members, rounded up, once that is done.

    Args:
        redis: a `redis.asyncio.Redis` (also from `Sentinel.master_for`), a `redis.asyncio.RedisCluster`, or a store.
        name: of the job: like a lock's, and a few bytes shorter.
        count: how many partitions, 1 to 1024; the same in every process.
        ttl, renew_interval, renew_deadline, drain_limit, fence_retention, identity, prefix, observers, tokens: as for
            `Lease`, for each partition. Members tell of themselves once in a renew interval.

    Raises:
        ConfigurationError: an argument is refused, or the store does not know who takes part (only one Redis does, or
            one with replicas or a cluster).

    Examples:
        >>> await Partitions(redis, "orders", count=64).run(consume)  # doctest: +SKIP
    """

    def __init__(
        self,
        redis: Client,
        name: str,
        *,
        count: int,
        ttl: Duration = 15.0,
        renew_interval: Duration | None = None,
        renew_deadline: Duration | None = None,
        drain_limit: Duration | None = None,
        fence_retention: Duration | None = None,
        identity: str | None = None,
        prefix: str = "aioelect",
        observers: Iterable[Observer] | None = None,
        tokens: TokenSource | None = None,
    ) -> None:
        if isinstance(count, bool) or not isinstance(count, int):
            raise ConfigurationError(f"count={count!r} is a {type(count).__name__}; expected an int", reason="count")
        if not 1 <= count <= MAX_PARTITIONS:
            raise ConfigurationError(f"count={count!r} is out of range: 1 to {MAX_PARTITIONS}", reason="count")
        self._name = check_name(name)
        check_name(f"{name}:{count - 1}")
        self._store = members_of(open_store(redis, prefix), "Partitions")
        first = Session(
            redis,
            f"{name}:0",
            ttl=ttl,
            renew_interval=renew_interval,
            renew_deadline=renew_deadline,
            drain_limit=drain_limit,
            fence_retention=fence_retention,
            identity=identity,
            prefix=prefix,
            observers=observers,
            tokens=tokens,
        )
        self._vitals = Vitals()
        first.observers.also(self._vitals)
        self._sessions = (first, *(first.named(f"{name}:{number}") for number in range(1, count)))
        self._membership: Membership | None = None

    @property
    def held(self) -> tuple[Partition, ...]:
        """The partitions that may be worked on here now, by the clock; never waits."""
        terms = {} if self._membership is None else self._membership.terms
        return tuple(Partition(number, term) for number, term in terms.items())

    @property
    def members(self) -> tuple[str, ...]:
        """The identities of all who take part, as last heard (once in a renew interval); empty: nothing heard yet."""
        members = () if self._membership is None else self._membership.members
        return tuple(sorted(member.identity for member in members))

    @property
    def is_taking_part(self) -> bool:
        """True while this member takes part; false once something has ended that, for a health check."""
        return self._membership is not None and not self._membership.task.done()

    async def run(self, consume: Callable[[Partition], Awaitable[object]]) -> None:
        """Take part for the whole life of the caller; `consume(partition)` runs for each partition that is held.

        Waits for ever. A cancellation stops all consumers, waits for them, releases, and then comes out.

        A consumer that raises ends its own term only: that is logged, told to the observers (`ConsumerFailed`) and the
        partition is taken again after a pause that grows (at most ttl or 5 s). One that returns, or resigns, is started
        again after a renew interval. To end everything, cancel `run()` or leave `running()`.

        Raises:
            StoreRejected: the store refuses to serve and has never done so.
        """
        async with self.running(consume):
            assert self._membership is not None
            await asyncio.wait([self._membership.task])

    @asynccontextmanager
    async def running(self, consume: Callable[[Partition], Awaitable[object]]) -> AsyncIterator[Partitions]:
        """An async context manager that takes part beside its body, as `run` does.

        Entering never waits. Leaving stops all consumers, waits for them and releases; the others hear of each
        partition as soon as it is free. Then it raises what had ended the taking part, if something did. Enter and
        leave in any tasks.
        """
        check_function("consume", consume)
        if self._membership is not None and not self._membership.loop.is_closed():
            raise ConfigurationError(
                f"this object takes part in {self._name!r} already: make another one", name=self._name
            )
        membership = self._membership = Membership(
            self._name, self._store, self._sessions, lambda number, term: consume(Partition(number, term)), self._vitals
        )
        try:
            yield self
        except BaseException as exc:
            await self._leave(membership)
            if membership.failure is not None:
                exc.add_note(f"the membership in {self._name!r} had ended, too: {membership.failure!r}")
            raise
        await self._leave(membership)
        if membership.failure is not None:
            raise membership.failure

    async def _leave(self, membership: Membership) -> None:
        try:
            await membership.leave()
        finally:
            self._membership = None

    def __repr__(self) -> str:
        return f"<Partitions {self._name!r} count={len(self._sessions)} held={len(self.held)}>"
