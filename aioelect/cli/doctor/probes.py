"""Gather the facts by doing: over the library's own connections, under a name of our own, which is removed again.

Whatever a user may not ask becomes `Denied`, and the rest is asked all the same. Nothing outlives a few seconds even if
this process is killed: every key that is written has a ttl from its first instant.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import sys
from collections.abc import Mapping
from importlib.metadata import version

from redis.asyncio import Redis, RedisCluster

from aioelect import StoreError, _clock
from aioelect._redis import scripts, wire
from aioelect._redis.cluster import ClusterOrigin
from aioelect._redis.recipe import Recipe
from aioelect._redis.refusals import Fault, trouble_of
from aioelect._redis.runtime import runtime_of
from aioelect._redis.scripts import Route
from aioelect._redis.store import open_store, origin_of
from aioelect._store import Claim, Granted, NoticeKind, Released, Renewed, Store
from aioelect.cli.address import connected, masked
from aioelect.cli.asking import LIMIT, ask
from aioelect.cli.doctor import shapes
from aioelect.cli.doctor.facts import Channels, Client, Denied, Facts, Node, Scan, Slots

__all__ = ["examine"]

LIFE = 5.0  # of what is written for the examination, seconds, should nothing be able to remove it
_SAMPLES, _SAMPLING = 200, 2.0  # of round trips: so many, or so many seconds
_SCANNING = 5.0
_EXAMPLES = 5
_SETTINGS = ("maxmemory-policy", "save", "appendonly", "appendfsync", "min-replicas-to-write")
_TICK = 0.005


async def examine(url: str, *, prefix: str, ttl: float, pause: float | None) -> Facts:
    """Look at everything; a server that can't be reached is a fact, too. ConfigurationError: the URL or the prefix."""
    async with connected(url) as redis:
        store = open_store(redis, prefix)
        origin, _ = origin_of(redis)
        ticking = asyncio.create_task(_longest_pause())
        try:
            found = await _found(redis, store, prefix)
        except StoreError as error:
            found = {"trouble": str(error)}
        finally:
            ticking.cancel()
        seen = await asyncio.gather(ticking, return_exceptions=True)
        measured = next((lag for lag in seen if isinstance(lag, float)), 0.0)
        behind = "server"
        if isinstance(origin, ClusterOrigin):
            behind = "cluster"
        elif isinstance(origin, Recipe) and isinstance(origin.place, tuple) and origin.place[0] == "sentinel":
            behind = "sentinel"
        return Facts(
            masked(url),
            prefix,
            ttl,
            measured if pause is None else pause,
            pause is None,
            behind,
            _client(redis),
            **found,  # type: ignore[arg-type]
        )


async def _found(redis: Redis | RedisCluster, store: Store, prefix: str) -> dict[str, object]:
    origin, _ = origin_of(redis)
    route = runtime_of(origin).route
    probe = f"doctor-{secrets.token_hex(6)}"
    keys = wire.keys_of(prefix, probe)
    slots: Slots | Denied | None = None
    nodes: tuple[Node, ...]
    if isinstance(origin, ClusterOrigin):
        slots, masters = await _cluster(origin)
        looks = (_at(origin.at(host, port), f"{host}:{port}", prefix, keys) for host, port in masters)
        nodes = tuple(await asyncio.gather(*looks))
    else:
        (pong,) = await ask(route, keys.claim, (b"PING",))
        if isinstance(pong, Fault) and pong.code == "NOAUTH":  # every other question would get the same answer
            raise trouble_of(pong).error()
        nodes = (await _look(route, _place(origin), prefix, keys),)
    found: dict[str, object] = {"nodes": nodes, "slots": slots}
    try:
        found["rights"] = await _rights(route, keys)
        found["claim"], found["channels"] = await _claim(store, route, keys, probe)
    except StoreError as error:
        found["claim"] = Denied(str(error))
    return found


# -- one server --------------------------------------------------------------------------------------------------------


async def _at(recipe: Recipe, where: str, prefix: str, keys: wire.Keys) -> Node:
    links, _ = recipe.open()
    try:
        return await _look(links, where, prefix, keys)
    except StoreError as error:
        silent = Denied(str(error))
        return Node(where, (), silent, silent, {}, silent, silent, silent)
    finally:
        await links.aclose()


async def _look(route: Route, where: str, prefix: str, keys: wire.Keys) -> Node:
    times = await _round_trips(route, keys.claim)
    info, hello, *settings = await ask(
        route, keys.claim, (b"INFO",), (b"HELLO",), *((b"CONFIG", b"GET", name.encode()) for name in _SETTINGS)
    )
    return Node(
        where,
        times,
        shapes.lines(info),
        shapes.settings(settings),
        {} if isinstance(hello, Fault) else shapes.pairs(hello),
        await _clock_difference(route, keys.claim),
        await _native(route, keys.claim),
        await _scan(route, prefix, keys.claim),
    )


async def _round_trips(route: Route, key: bytes) -> tuple[float, ...]:
    times: list[float] = []
    give_up = _clock.now() + _SAMPLING
    while len(times) < _SAMPLES and _clock.now() < give_up:
        start = _clock.now()
        await ask(route, key, (b"PING",))
        times.append(_clock.now() - start)
    return tuple(times)


async def _clock_difference(route: Route, key: bytes) -> float | Denied:
    readings: list[tuple[float, float]] = []
    for _ in range(5):
        start, wall = _clock.now(), _clock.wall()
        (reply,) = await ask(route, key, (b"TIME",))
        took = _clock.now() - start
        match reply:
            case [bytes(whole), bytes(micros)]:
                readings.append((took, int(whole) + int(micros) / 1e6 - (wall + took / 2)))
            case _:
                return shapes.denied(reply)
    return min(readings)[1]  # of the quickest answer, which leaves least room for error


async def _native(route: Route, key: bytes) -> str | Denied | None:
    forms = scripts.native_forms(key)
    for name, reply in zip(forms, await ask(route, key, *forms.values()), strict=True):
        if not isinstance(reply, Fault):
            return name
        if reply.code == "NOPERM":
            return shapes.denied(reply)
        if not reply.text.startswith("unknown command"):
            return name  # it is known: another node serves the key, or this one takes no writes
    return None


async def _scan(route: Route, prefix: str, key: bytes) -> Scan | Denied:
    pattern = "".join(f"\\{c}" if c in "*?[]^\\" else c for c in prefix).encode() + b":{*"
    cursor, count, looked_at = b"0", 0, 0
    examples: list[str] = []
    give_up = _clock.now() + _SCANNING
    while True:
        (reply,) = await ask(route, key, (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000"))
        match reply:
            case [bytes(cursor), list(keys)]:
                lives = await ask(route, key, *((b"PTTL", k) for k in keys)) if keys else []
            case _:
                return shapes.denied(reply)
        looked_at += len(keys)
        permanent = [k for k, life in zip(keys, lives, strict=True) if life == -1]
        count += len(permanent)
        examples += [k.decode(errors="replace") for k in permanent][: _EXAMPLES - len(examples)]
        if cursor == b"0" or _clock.now() > give_up:
            return Scan(tuple(examples), count, looked_at, cursor == b"0")


# -- a cluster ---------------------------------------------------------------------------------------------------------


async def _cluster(origin: ClusterOrigin) -> tuple[Slots | Denied, list[tuple[str, int]]]:
    """How the cluster is, and its masters, by the first node that says so."""
    said: StoreError | None = None
    for host, port in origin.seeds:
        links, _ = origin.at(host, port).open()
        try:
            state, ranges = await ask(links, b"", (b"CLUSTER", b"INFO"), (b"CLUSTER", b"SLOTS"))
        except StoreError as error:
            said = error
            continue
        finally:
            await links.aclose()
        if not isinstance(ranges, list):
            return shapes.denied(ranges), [(host, port)]
        masters: dict[tuple[str, int], int] = {}
        served = 0
        for part in ranges:
            match part:
                case [int(first), int(last), [name, int(at), *_], *others]:
                    address = (name.decode() if isinstance(name, bytes) and name not in (b"", b"?") else host, at)
                    masters[address] = max(masters.get(address, 0), len(others))
                    served += last - first + 1
        info = shapes.lines(state)
        alone = tuple(f"{name}:{at}" for (name, at), others in masters.items() if not others)
        known = "unknown" if isinstance(info, Denied) else info.get("cluster_state", "unknown")
        return Slots(known, served, alone), list(masters) or [(host, port)]
    raise said or StoreError("the URL names no node of a cluster")


# -- rights, claims, notices: by doing ---------------------------------------------------------------------------------


async def _rights(route: Route, keys: wire.Keys) -> Mapping[str, Denied | None]:
    """Try each command that the documented ACL line lists; any answer but NOPERM means that it is allowed.

    What would make a key of another type is tried on a string with a ttl: the refusal for the type comes after the one
    for the right, and nothing is written.
    """
    key = keys.claim
    (written,) = await ask(route, key, (b"SET", key, b"probe", b"PX", wire.milliseconds(LIFE)))
    tries: list[wire.Command] = [
        (b"GET", key),
        (b"PTTL", key),
        (b"HMGET", key, b"field"),
        (b"TIME",),
        (b"PING",),
        (b"PUBLISH", keys.channel, b""),
        (b"ZREM", key, b"member"),
        (b"ZRANGEBYSCORE", key, b"0", b"0"),
        (b"ZREMRANGEBYSCORE", key, b"0", b"0"),
        (b"ZREMRANGEBYRANK", key, b"0", b"0"),
        *scripts.idle_forms(),
    ]
    if not isinstance(written, Fault):
        tries += [(b"HSET", key, b"field", b"1"), (b"ZADD", key, b"1", b"member")]
    tries += [(b"PEXPIRE", key, wire.milliseconds(LIFE)), (b"DEL", key)]
    replies = [written, *await ask(route, key, *tries)]
    names = ["SET", *(command[0].decode() for command in tries)]
    return {
        name: shapes.denied(reply) if isinstance(reply, Fault) and reply.code == "NOPERM" else None
        for name, reply in zip(names, replies, strict=True)
    }


async def _claim(store: Store, route: Route, keys: wire.Keys, probe: str) -> tuple[Denied | None, Channels]:
    """Take a claim, renew it and release it as the library does, and listen to the notices of that."""
    claim = Claim(probe, secrets.token_hex(16), "aioelect doctor", LIFE, LIFE)
    watch = store.watch(probe)
    trouble: Denied | None = None
    heard = False
    try:
        listening = await watch.ready(LIMIT)
        try:
            answers = (
                await store.acquire(claim, limit=LIMIT),
                await store.renew(claim, limit=LIMIT),
                await store.release(claim, limit=LIMIT),
            )
            if tuple(map(type, answers)) != (Granted, Renewed, Released):
                trouble = Denied("a claim under a name that nobody else knows was refused")
        except StoreError as error:
            trouble = Denied(str(error))
        give_up = _clock.now() + 1.0
        while listening and not heard and (left := give_up - _clock.now()) > 0:
            notice = await watch.next(left)
            heard = notice is not None and notice.kind is NoticeKind.RELEASED
    finally:
        watch.close()
        await ask(route, keys.claim, (b"DEL", keys.claim, keys.fence))
    (told,) = await ask(route, keys.claim, (b"PUBLISH", keys.channel, b""))
    return trouble, Channels(shapes.denied(told) if isinstance(told, Fault) else None, listening, heard)


# -- this side ---------------------------------------------------------------------------------------------------------


async def _longest_pause() -> float:
    """How late the event loop has served a timer, at most; until cancelled."""
    worst = 0.0
    try:
        while True:
            start = _clock.now()
            await asyncio.sleep(_TICK)
            worst = max(worst, _clock.now() - start - _TICK)
    except asyncio.CancelledError:
        return worst


def _client(redis: Redis | RedisCluster) -> Client:
    settings = redis.connection_kwargs if isinstance(redis, RedisCluster) else redis.connection_pool.connection_kwargs
    major, minor, patch, *_ = (*(int(n) for n in version("redis").split(".") if n.isdigit()), 0, 0, 0)
    return Client(
        python=sys.version_info[:2],
        redis=(major, minor, patch),
        hiredis=importlib.util.find_spec("hiredis") is not None,
        socket_timeout=settings.get("socket_timeout") is not None,
        retrying=bool(settings.get("retry_on_timeout") or settings.get("retry_on_error")),
    )


def _place(origin: object) -> str:
    place = origin.place if isinstance(origin, Recipe) else ()
    return (
        ":".join(str(part) for part in place[1:] if not isinstance(part, frozenset)) if isinstance(place, tuple) else ""
    )
