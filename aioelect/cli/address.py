"""Where the server is: a URL from `--redis` or AIOELECT_REDIS, and the client for it. Passwords are shown nowhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import click

from aioelect import ConfigurationError, aclose

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    AnyRedis = Redis | RedisCluster

__all__ = ["connected", "given", "hide_password", "masked", "redis_option"]

F = TypeVar("F", bound=Callable[..., object])

DEFAULT = "redis://localhost:6379"
HIDDEN = "***"
_HANDED = "_AIOELECT_REDIS_HANDED"  # from us to ourselves, across an exec
_PASSWORD = re.compile(r"(://[^/@\s]*?:)(.+)(@)", re.DOTALL)
_IN_QUERY = re.compile(r"([?&](?:sentinel_)?password=)[^&]*")
_FORMS = (
    "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://..., unix:///PATH, "
    "redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../SERVICE[/DB], redis+cluster://[[USER]:PASSWORD@]HOST[:PORT]"
)
_SENTINEL_PORT = 26379


def redis_option(function: F) -> F:
    """The option `--redis`, as every command has it."""
    return click.option(
        "--redis",
        "url",
        metavar="URL",
        envvar="AIOELECT_REDIS",
        default=DEFAULT,
        show_default=True,
        callback=lambda _context, _option, value: given(value),
        help="Where the server is; also from AIOELECT_REDIS. redis://, rediss://, unix://, redis+sentinel://, "
        "redis+cluster://. A password in it is hidden from the list of processes.",
    )(function)


def masked(url: str) -> str:
    """The URL as it may be shown."""
    return _IN_QUERY.sub(rf"\g<1>{HIDDEN}", _PASSWORD.sub(rf"\g<1>{HIDDEN}\3", url))


def hide_password(arguments: Sequence[str]) -> None:
    """Run this program again if its arguments, which all may read, hold a password; the process stays the same.

    The environment, in which it is handed over, can be read by its owner only; and it is taken out at once.
    """
    for place, word in enumerate(arguments):
        if word == "--":
            return
        url = word.partition("=")[2] if word.startswith("--redis=") else ""
        if word == "--redis" and place + 1 < len(arguments):
            place, url = place + 1, arguments[place + 1]  # noqa: PLW2901
        if url and masked(url) != url:
            at = len(sys.orig_argv) - len(arguments) + place
            shown = [*sys.orig_argv]
            shown[at] = shown[at].replace(url, masked(url))
            if shown == sys.orig_argv or os.environ.get(_HANDED):
                return
            os.execve(sys.executable, [sys.executable, *shown[1:]], {**os.environ, _HANDED: url})  # noqa: S606


def given(url: str) -> str:
    """The URL as it was given, where this program was run again to hide its password."""
    handed = os.environ.pop(_HANDED, "")  # no child of ours is to see it
    return handed if handed and masked(handed) == url else url


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AnyRedis]:
    """A client for the servers at `url`; nothing of it is left open."""
    redis = _client(url)
    try:
        yield redis
    finally:
        await aclose(redis)
        await redis.aclose()


def _client(url: str) -> AnyRedis:
    from redis.asyncio import Redis, RedisCluster  # noqa: PLC0415 - takes a while

    try:
        parts = urlsplit(url)
        scheme, _, kind = parts.scheme.partition("+")
        if scheme not in ("redis", "rediss", "unix") or kind not in ("", "sentinel", "cluster"):
            raise ValueError("scheme")
        if kind == "sentinel":
            return _behind_sentinels(parts, tls=scheme == "rediss")
        plain = url.replace(f"{parts.scheme}://", f"{scheme}://", 1)
        return RedisCluster.from_url(plain) if kind == "cluster" else Redis.from_url(plain)
    except ValueError:
        # Its text quotes parts of the URL, and may do so with a password that holds a slash.
        raise ConfigurationError(f"the URL {masked(url)} is not understood; known are {_FORMS}") from None


def _behind_sentinels(parts: SplitResult, *, tls: bool) -> Redis:
    from redis.asyncio.sentinel import Sentinel  # noqa: PLC0415

    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("service")
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    settings: dict[str, Any] = {"db": int(db or 0)}
    if login:
        settings |= {"username": unquote(user) or None, "password": unquote(password) or None}
    if tls:
        settings["ssl"] = True
    theirs = {key[len("sentinel_") :]: value for key, value in query.items() if key.startswith("sentinel_")}
    addresses = [_address(host) for host in hosts.split(",")]
    sentinel = Sentinel(addresses, sentinel_kwargs={**theirs, "ssl": tls}, **settings)  # type: ignore[no-untyped-call]
    return cast("Redis", sentinel.master_for(unquote(service)))


def _address(text: str) -> tuple[str, int]:
    host = urlsplit(f"//{text}")
    if not host.hostname:
        raise ValueError("host")
    return host.hostname, host.port or _SENTINEL_PORT
