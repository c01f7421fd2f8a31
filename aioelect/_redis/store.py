"""The store on Redis: asks the questions of `_store.Store`, and answers in its terms.

Making one touches no event loop and no network. Connections and the subscription belong to the running loop and are
shared by all stores with equal settings, until `aclose`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import redis as sync_redis
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline

from aioelect._core.names import check_prefix
from aioelect._errors import ConfigurationError, StoreError, StoreRejected, StoreUnavailable
from aioelect._floors import Floors
from aioelect._store import (
    Capabilities,
    Claim,
    Contended,
    Granted,
    Heir,
    Holder,
    Mark,
    Marked,
    Record,
    Refused,
    Released,
    Renewed,
    StepDown,
    Store,
    Watch,
)

from . import scripts, wire
from .recipe import recipe_of
from .runtime import Origin, close_runtime, runtime_of

if TYPE_CHECKING:
    from aioelect._core.shares import Member

__all__ = ["RedisStore", "explained", "open_store", "origin_of"]


_floors = Floors(65536)

_CAPABILITIES = Capabilities(roles=True, marks=True, members=True)


class RedisStore:
    """Claims in Redis: one server, a master behind sentinels, or a cluster."""

    def __init__(self, origin: Origin, place: Hashable, prefix: str) -> None:
        self._origin = origin
        self._prefix = prefix
        self._key = (place, prefix)

    def __repr__(self) -> str:
        return f"<RedisStore {self._key}>"

    @property
    def key(self) -> Hashable:
        """Server, database and prefix."""
        return self._key

    @property
    def capabilities(self) -> Capabilities:
        """All that a store can do."""
        return _CAPABILITIES

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Claim the name if it is free."""
        keys = wire.keys_of(self._prefix, claim.name)
        with explained(claim.name, keys, claim.owner):
            runtime = runtime_of(self._origin)
            deadline = runtime.deadline_in(limit)
            answer = await scripts.acquire(runtime.route, keys, claim, self.floor(claim.name), deadline)
        self.saw(claim.name, answer.token if isinstance(answer, Granted) else answer.holder.token)
        return answer

    async def renew(self, claim: Claim, *, limit: float) -> Renewed | Refused:
        """Prolong the claim if it is ours."""
        keys = wire.keys_of(self._prefix, claim.name)
        with explained(claim.name, keys, claim.owner):
            runtime = runtime_of(self._origin)
            return await scripts.renew(runtime.route, keys, claim, runtime.deadline_in(limit))

    async def release(
        self, claim: Claim, *, keep: float = 0.0, heir: Heir | None = None, limit: float
    ) -> Released | Refused:
        """Give the claim up if it is ours."""
        keys = wire.keys_of(self._prefix, claim.name)
        with explained(claim.name, keys, claim.owner):
            runtime = runtime_of(self._origin)
            own = int(runtime.notices.listening(keys.channel))
            deadline = runtime.deadline_in(limit)
            return await scripts.release(runtime.route, keys, claim, keep, deadline, own, heir)

    async def describe(self, name: str, *, limit: float) -> Record:
        """Who leads and who stands."""
        keys = wire.keys_of(self._prefix, name)
        with explained(name, keys):
            runtime = runtime_of(self._origin)
            return await scripts.describe(runtime.route, keys, runtime.deadline_in(limit))

    async def ask_to_step_down(self, name: str, request: StepDown, *, limit: float) -> Holder | None:
        """Leave a request for the present holder, and tell it at once."""
        keys = wire.keys_of(self._prefix, name)
        with explained(name, keys):
            runtime = runtime_of(self._origin)
            return await scripts.ask(runtime.route, keys, request, runtime.deadline_in(limit))

    async def evict(self, name: str, token: int, *, limit: float) -> Released | Refused:
        """Give a name up for its holder, if its token is this one."""
        keys = wire.keys_of(self._prefix, name)
        with explained(name, keys):
            runtime = runtime_of(self._origin)
            return await scripts.evict(runtime.route, keys, token, runtime.deadline_in(limit))

    async def names(self, *, limit: float) -> list[str]:
        """The names that are held."""
        from .listing import names_under  # noqa: PLC0415 - for people on call

        with explained("", wire.keys_of(self._prefix, "")):
            runtime = runtime_of(self._origin)
            return [n async for n in names_under(runtime.route, self._prefix, lambda: runtime.deadline_in(limit))]

    def floor(self, name: str) -> int:
        """The highest token of a name that this process has seen here; 0: none."""
        return _floors.get((self._key, name))

    def saw(self, name: str, token: int | None) -> None:
        """Remember a token that was seen here, or elsewhere for the same name."""
        _floors.saw((self._key, name), token)

    async def mark(self, claim: Claim, mark: Mark, *, limit: float) -> Marked | Refused:
        """Note a finished run in the holder's name."""
        keys = wire.keys_of(self._prefix, claim.name)
        with explained(claim.name, keys, claim.owner):
            runtime = runtime_of(self._origin)
            return await scripts.mark(runtime.route, keys, claim, mark, runtime.deadline_in(limit))

    async def attend(self, group: str, member: Member, *, tell: bool, limit: float) -> tuple[Member, ...]:
        """Take part in a group, or leave, and learn who does."""
        keys = wire.keys_of(self._prefix, group)
        with explained(group, keys):
            runtime = runtime_of(self._origin)
            return await scripts.attend(runtime.route, keys, member, runtime.deadline_in(limit), tell=tell)

    def watch(self, name: str) -> Watch:
        """Listen to the notices of a name."""
        return runtime_of(self._origin).notices.watch(wire.keys_of(self._prefix, name).channel)

    async def aclose(self) -> None:
        """Close what is open in the running loop, for all stores with the same settings."""
        await close_runtime(self._origin)


# Objects for ten thousand names share one store.
_stores: WeakValueDictionary[tuple[Hashable, str], RedisStore] = WeakValueDictionary()


def open_store(redis: object, prefix: str) -> Store:
    """The store behind a client; what is a store already is passed through."""
    check_prefix(prefix)
    if not isinstance(redis, Redis | RedisCluster) and isinstance(redis, Store):  # the latter takes its time
        return redis
    origin, place = origin_of(redis)
    known = _stores.get((origin.key, prefix))
    if known is None:
        known = _stores[origin.key, prefix] = RedisStore(origin, place, prefix)
    return known


def origin_of(redis: object) -> tuple[Origin, Hashable]:
    """Where the claims of a client live, and what is equal for clients of the same servers."""
    if isinstance(redis, Redis) and not isinstance(redis, Pipeline):
        recipe = recipe_of(redis)
        return recipe, (recipe.place, recipe.db)
    if isinstance(redis, RedisCluster):
        from .cluster import ClusterOrigin  # noqa: PLC0415 - most have no cluster

        cluster = ClusterOrigin(redis)
        return cluster, cluster.place
    raise ConfigurationError(
        f"redis: {_what(redis)}; wanted: a redis.asyncio.Redis, a redis.asyncio.RedisCluster or a store"
    )


def _what(redis: object) -> str:
    kind = f"{type(redis).__module__}.{type(redis).__qualname__}"
    if isinstance(redis, sync_redis.Redis | sync_redis.RedisCluster):
        return f"{kind} blocks the event loop"
    return f"{kind} is not a client that is known here"


class explained:  # noqa: N801 - reads like the context manager that it is; a generator would cost a microsecond a call
    """Errors leave with the name they are about, and never with the owner value."""

    __slots__ = ("_keys", "_name", "_owner")

    def __init__(self, name: str, keys: wire.Keys, owner: str | None = None) -> None:
        self._name = name
        self._keys = keys
        self._owner = owner

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and (refusal := self._refusal(error)) is not None:
            refusal.name = self._name
            raise refusal from None

    def _refusal(self, error: BaseException) -> StoreError | None:
        match error:
            case StoreError():
                if self._owner is not None and self._owner in str(error):
                    error.args = (str(error).replace(self._owner, "(owner value)"),)
                return error
            case wire.ForeignKey():
                return StoreRejected(
                    f"the key {self._keys.claim.decode()} has no ttl, so another program wrote it: delete it, or choose"
                    " another name or prefix",
                    reason="foreign key",
                )
            case wire.TokensExhausted():
                return StoreRejected(
                    f"the token in {self._keys.fence.decode()} leaves no room for a higher one, so another program"
                    " wrote it: delete it and restart the processes that have seen it",
                    reason="tokens exhausted",
                )
            case wire.Abstains(seconds=seconds):
                return StoreUnavailable(
                    f"it restarted, lost its data or is new, so it may have forgotten claims: it votes in {seconds:.3f}"
                    " s",
                    reason="abstains",
                )
            case wire.Malformed():
                return StoreRejected("the server's answer has a shape that is not known here", reason="unknown answer")
        return None
