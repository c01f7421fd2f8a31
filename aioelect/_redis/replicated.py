"""Claims that are confirmed by replicas, or are on disk, before they count.

A master that fails takes with it what its replicas have not heard of. Waiting for them narrows that window; it does not
close it, since nobody obliges a failover to promote one that has heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from aioelect._core.names import check_prefix
from aioelect._errors import ConfigurationError, StoreRejected, StoreUnavailable
from aioelect._store import Claim, Contended, Granted, Renewed

from . import scripts, wire
from .pipeline import RawConnection
from .refusals import Trouble
from .runtime import Origin, close_runtime, runtime_of
from .scripts import Route
from .store import RedisStore, explained, origin_of
from .wire import Command

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = ["ReplicatedStore"]

_LAG = 0.12  # a server may take 0.1 s to notice that it has waited long enough


class ReplicatedStore(RedisStore):
    """Claims on one Redis or Valkey that count only once replicas, or the disk, have them; passed as a client is.

    After a claim was made, the server is asked to wait until so many replicas have confirmed it (WAIT; with `fsync`
    WAITAOF), within the limit of the try. If they don't, it is undone and counts as not acquired. Renewals and releases
    are not waited for. It makes a lock that is lost in a failover rarer, not impossible: a replica that has not heard
    of it may be the one that is promoted.

    Making one waits for nothing and opens nothing. Whatever opens later is closed by `await aioelect.aclose(store)`.

    Args:
        redis: a `redis.asyncio.Redis` (also from `Sentinel.master_for`) or a `redis.asyncio.RedisCluster`.
        min_replicas: so many replicas have to confirm a claim.
        fsync: it has to be on the disk of the server as well, and on those of the replicas that confirm it. All of them
            need `appendonly yes`; with `appendfsync everysec` that takes up to a second, so a ttl below 10 s is
            too short. Redis 7.2 and newer, Valkey.
        prefix: of the keys on the server.

    Raises:
        ConfigurationError: an argument is refused.

    When a claim is not confirmed, acquiring raises `StoreRejected` (its `reason` is "noreplicas") once there is no
    time left for another try.

    Examples:
        >>> async with Lease(ReplicatedStore(redis, min_replicas=1), "report") as term:  # doctest: +SKIP
        ...     await write(term.token)
    """

    def __init__(
        self, redis: Redis | RedisCluster, *, min_replicas: int = 1, fsync: bool = False, prefix: str = "aioelect"
    ) -> None:
        if isinstance(min_replicas, bool) or not isinstance(min_replicas, int):
            raise ConfigurationError(f"min_replicas={min_replicas!r}; expected an int", reason="min_replicas")
        if min_replicas < (0 if fsync else 1):
            raise ConfigurationError(
                f"min_replicas={min_replicas!r}: at least 1, or 0 with fsync=True; for neither, pass the client",
                reason="min_replicas",
            )
        super().__init__(*origin_of(redis), check_prefix(prefix))
        self._apart = _Apart(self._origin)
        self._replicas = min_replicas
        self._fsync = fsync

    def __repr__(self) -> str:
        return f"<ReplicatedStore {self._key} min_replicas={self._replicas} fsync={self._fsync}>"

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Claim the name if it is free, and wait until that is confirmed."""
        deadline = runtime_of(self._origin).deadline_in(limit)
        answer = await super().acquire(claim, limit=limit)
        if isinstance(answer, Granted):
            try:
                await self._confirm(claim, deadline)
            except StoreRejected as refusal:
                refusal.claimed = True
                raise
        return answer

    async def aclose(self) -> None:
        """Close what is open in the running loop, for all stores with the same settings."""
        await asyncio.gather(super().aclose(), close_runtime(self._apart))

    async def _confirm(self, claim: Claim, deadline: float) -> None:
        keys = wire.keys_of(self._prefix, claim.name)
        with explained(claim.name, keys, claim.owner):
            route = runtime_of(self._apart).route
            try:
                kept, confirmed = await scripts.replicate(route, keys, claim, self._command, deadline)
            except StoreUnavailable as silence:
                if silence.reason == "timeout":
                    raise self._unconfirmed(None) from None
                raise
            if not isinstance(kept, Renewed):
                raise Trouble("lost", "the claim was gone before it was confirmed").error()
            match confirmed:
                case int(replicas) if replicas >= self._replicas:
                    return
                case [int(local), int(replicas), *_] if local >= 1 and replicas >= self._replicas:
                    return
            raise self._unconfirmed(confirmed)

    def _command(self, left: float) -> Command:
        number = b"%d" % self._replicas
        patience = wire.milliseconds(max(left / 2, left - _LAG))  # never 0, which would be for ever
        return (b"WAITAOF", b"1", number, patience) if self._fsync else (b"WAIT", number, patience)

    def _unconfirmed(self, confirmed: object) -> StoreRejected:
        match confirmed:
            case [int(local), int(replicas), *_]:
                said = f"{replicas} replicas have it on disk, and the server itself has {'' if local else 'not'}"
            case int(replicas):
                said = f"{replicas} replicas have it"
            case _:
                said = "no answer"
        error = StoreRejected(
            f"the claim was made, but not confirmed in time, so it was undone: {said}; wanted: {self._replicas}; bring "
            "replicas back, or ask for fewer",
            reason="noreplicas",
        )
        error.passing = True
        return error


class _Apart:
    """The same servers over connections of their own, since a command that waits holds up all that come after it."""

    def __init__(self, origin: Origin) -> None:
        self.key: Hashable = ("apart", origin.key)
        self._origin = origin

    def open(self) -> tuple[Route, Callable[[], RawConnection]]:
        """Open nothing yet; return the way in."""
        return self._origin.open()
