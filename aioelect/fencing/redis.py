"""A guard for what is written to Redis: the token is compared and the write is done in one script."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, cast

from aioelect._core.timing import Duration, seconds
from aioelect._errors import ConfigurationError, StoreRejected
from aioelect._term import Term

from ._offer import check_resource, check_token, refuse_stale

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = ["RedisGuard"]

Value = str | bytes | int | float
Reply = object

_SET = "return redis.call('SET', KEYS[1], unpack(ARGV))"
_NOTHING = "return 1"


class RedisGuard:
    """Lets only holders write that are not out of date, key by key.

    The newest token of each key lies beside it, in a key of its own in the same hash slot, which outlives the data.
    Tokens are compared per key: all writers of a key take their tokens from one name.

    Args:
        redis: the client of the place that is written to, a `redis.asyncio.Redis` or `RedisCluster`.
        prefix: of the keys that hold the tokens.
        retention: how long they outlive their data, seconds or timedelta; longer than any holder may be paused.

    Raises:
        ConfigurationError: an argument is refused.

    Examples:
        >>> async with FencedLock(redis, "SKU-001") as term:  # doctest: +SKIP
        ...     await RedisGuard(redis).set(term, "qty:SKU-001", 95)
    """

    def __init__(
        self, redis: Redis | RedisCluster, *, prefix: str = "aioelect:seen", retention: Duration = 7 * 24 * 3600.0
    ) -> None:
        self._redis = redis
        if not prefix or "{" in prefix or "}" in prefix:
            raise ConfigurationError(f"prefix={prefix!r}; expected some text without braces", reason="prefix")
        self._prefix = prefix
        self._retention = round(seconds("retention", retention, least=1.0) * 1000)

    async def set(self, term: Term | int, key: str, value: Value, *, ttl: Duration | None = None) -> None:
        """Set a key, unless a newer holder has written to it. Waits for one round trip.

        A cancelled call may or may not have written.

        Args:
            term: the term, or a token that came from elsewhere.
            key: what is written to.
            value: the value.
            ttl: the lifetime of the value, seconds or timedelta; default: for ever.

        Raises:
            StaleToken: a newer token has been seen for this key.
        """
        life: list[Value] = [] if ttl is None else ["PX", round(seconds("ttl", ttl, least=0.001) * 1000)]
        await self.run(term, _SET, [key], [value, *life])

    async def run(
        self,
        term: Term | int,
        script: str,
        keys: Sequence[str],
        args: Sequence[Value] = (),
    ) -> Reply:
        """Run a piece of Lua, unless a newer holder has written. Waits for one round trip.

        The piece sees `KEYS` and `ARGV` as given here. In a cluster all keys have to be in one hash slot. A cancelled
        call may or may not have run it, and a client that repeats commands by itself may run it twice.

        Args:
            term: the term, or a token that came from elsewhere.
            script: the Lua; a literal of your program, never put together from data.
            keys: what it touches; the token is that of the first.
            args: whatever else it needs.

        Returns:
            What the piece returned.

        Raises:
            StaleToken: a newer token has been seen for the first key; nothing was written.
        """
        if not keys:
            raise ConfigurationError("keys=[]; expected at least one, to keep the token beside", reason="keys")
        return await self._ask(keys[0], term.token if isinstance(term, Term) else term, script, keys, args)

    async def admit(self, resource: str, token: int) -> None:
        """Let a token in and remember it, without a write; see `Gate`. The resource is a key. Waits for one round trip.

        Raises:
            StaleToken: a newer one has been let in before.
        """
        await self._ask(resource, token, _NOTHING, [resource], [])

    async def _ask(self, resource: str, offered: int, script: str, keys: Sequence[str], args: Sequence[Value]) -> Reply:
        token, fence = check_token(offered), _beside(self._prefix, check_resource(resource))
        text = _template().replace("--BODY--", script)
        reply = cast(
            "object",
            await self._redis.eval(text, 1 + len(keys), fence, *keys, token, self._retention, *args),  # type: ignore[misc,unused-ignore]
        )
        if not isinstance(reply, list) or len(reply) < 2:
            raise StoreRejected("the server's answer has a shape that is not known here", reason="unknown answer")
        refuse_stale(resource, token, int(reply[1]))
        return reply[2] if len(reply) > 2 else None


def _beside(prefix: str, key: str) -> str:
    """The key for the token of `key`, in the same hash slot: what the slot is made from goes into braces."""
    opened, closed = key.find("{"), key.find("}", key.find("{") + 1)
    tagged = opened >= 0 and opened + 1 < closed
    tag = key[opened + 1 : closed] if tagged else key
    if "}" in tag:
        raise ConfigurationError(
            f"key={key!r} has a brace but no hash tag, so no other key can be put into its slot: choose another name",
            reason="key",
        )
    return f"{prefix}:{{{tag}}}:{key}" if tagged else f"{prefix}:{{{tag}}}"


@functools.cache
def _template() -> str:
    return resources.files(__package__).joinpath("lua", "guarded.lua").read_text(encoding="utf-8")
