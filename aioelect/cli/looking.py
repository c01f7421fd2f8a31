"""`aioelect ls`, `show` and `watch` for who leads; `step-down` and `release` to change that."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import click

from aioelect import AioelectError, ConfigurationError, Leadership, StoreError, StoreRejected, info, step_down
from aioelect._redis.store import open_store
from aioelect._store import OperatorStore, Refused
from aioelect.cli.address import connected, redis_option
from aioelect.cli.exits import Exit, ended_by, failed

if TYPE_CHECKING:
    from rich.table import Table

    from aioelect.cli.address import AnyRedis

__all__ = ["ls", "release", "show", "stepping_down", "watch"]

_LIMIT = 5.0  # seconds for each answer
_AT_ONCE = 50  # questions that are under way together
_NOTHING_DONE = 1

_prefix = click.option("--prefix", default="aioelect", show_default=True, help="Of the keys in the store.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable, with fields that stay.")


@click.command()
@redis_option
@_prefix
@_as_json
def ls(url: str, prefix: str, as_json: bool) -> None:
    """List the names that are held, and by whom. Walks over the keys by SCAN: the server user needs +scan."""

    async def look(redis: AnyRedis) -> int:
        _print(await _held(redis, prefix), as_json=as_json)
        return 0

    _perform(url, look)


@click.command()
@click.argument("name")
@redis_option
@_prefix
@_as_json
def show(name: str, url: str, prefix: str, as_json: bool) -> None:
    """Show who holds NAME, since when, with which token, for how long; and who stands for it."""

    async def look(redis: AnyRedis) -> int:
        found = await info(redis, name, prefix=prefix)
        if as_json:
            click.echo(json.dumps(_fields(found)))
        else:
            for line in _lines(found):
                click.echo(line)
        return 0

    _perform(url, look)


@click.command()
@click.argument("name", required=False)
@redis_option
@_prefix
@click.option("--every", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between looks.")
@_as_json
def watch(name: str | None, url: str, prefix: str, every: float, as_json: bool) -> None:
    """Follow who holds NAME, or all names that are held, until Ctrl-C.

    A table that moves on a terminal; with --json one line for each name whose holder has changed. An outage of the
    server is told and waited out.
    """

    async def look(redis: AnyRedis) -> int:
        if name is None:
            return await _follow(lambda: _held(redis, prefix), every, as_json=as_json)
        return await _follow(lambda: _one(redis, name, prefix), every, as_json=as_json)

    _perform(url, look)


@click.command("step-down")
@click.argument("name")
@click.option("--to", metavar="IDENTITY", help="The candidate for which the next term is reserved for a while.")
@redis_option
@_prefix
@_as_json
def stepping_down(name: str, to: str | None, url: str, prefix: str, as_json: bool) -> None:
    """Ask the leader of NAME to step down: it ends its work first. Holders that are no electors take no notice."""

    async def ask(redis: AnyRedis) -> int:
        asked = await step_down(redis, name, to=to, prefix=prefix)
        if asked is None:
            return failed(f"nobody holds {name!r}", _NOTHING_DONE)
        _tell({"asked": asked.identity, "token": asked.token}, f"asked {asked.identity} to step down", as_json=as_json)
        return 0

    _perform(url, ask)


@click.command()
@click.argument("name")
@click.option("--token", type=click.IntRange(min=1), required=True, help="The holder's token, as `show` tells it.")
@redis_option
@_prefix
@_as_json
def release(name: str, token: int, url: str, prefix: str, as_json: bool) -> None:
    """Give NAME up in place of its holder, which is gone or doesn't let go.

    Refused if the holder's token is another: somebody else has it by now. A holder that lives loses the name: its work
    is stopped at its next renewal, and until then both may run. Use step-down where you can.
    """

    async def give_up(redis: AnyRedis) -> int:
        answer = await _operator(redis, prefix).evict(name, token, limit=_LIMIT)
        if isinstance(answer, Refused):
            if answer.holder is None:
                return failed(f"nobody holds {name!r}", _NOTHING_DONE)
            has = f"{answer.holder.identity} holds {name!r} with token {answer.holder.token}"
            return failed(f"refused: {has}, not with {token}", _NOTHING_DONE)
        _tell({"released": name, "token": token}, f"released {name!r}", as_json=as_json)
        return 0

    _perform(url, give_up)


def _perform(url: str, work: Callable[[AnyRedis], Awaitable[int]]) -> None:
    async def connect_and_work() -> int:
        async with connected(url) as redis:
            return await work(redis)

    try:
        code = asyncio.run(connect_and_work())
    except KeyboardInterrupt:
        code = 130
    except AioelectError as error:
        code = ended_by(error)
    sys.exit(code)


def _operator(redis: AnyRedis, prefix: str) -> OperatorStore:
    store = open_store(redis, prefix)
    if not isinstance(store, OperatorStore):
        raise ConfigurationError(f"{type(store).__name__} does not list or give up names")
    return store


async def _held(redis: AnyRedis, prefix: str) -> list[Leadership]:
    names = sorted(await _operator(redis, prefix).names(limit=_LIMIT))
    found: list[Leadership] = []
    for first in range(0, len(names), _AT_ONCE):
        part = names[first : first + _AT_ONCE]
        found += await asyncio.gather(*(info(redis, name, prefix=prefix) for name in part))
    return [role for role in found if role.leader is not None]  # some have ended meanwhile


async def _one(redis: AnyRedis, name: str, prefix: str) -> list[Leadership]:
    return [await info(redis, name, prefix=prefix)]


async def _follow(look: Callable[[], Awaitable[list[Leadership]]], every: float, *, as_json: bool) -> int:
    from rich.console import Console  # noqa: PLC0415 - takes a while
    from rich.live import Live  # noqa: PLC0415

    await look()  # who is not there from the start has the wrong address
    shown: dict[str, object] = {}
    console = Console()
    if as_json or not console.is_terminal:
        while True:
            now = {role.name: role for role in await _patient(look, every)}
            for name in sorted(now.keys() | shown.keys()):
                role = now.get(name)
                leader = role.leader if role else None
                if name not in shown or shown[name] != leader:
                    shown[name] = leader
                    click.echo(json.dumps(_fields(role) if role else _nobody(name)) if as_json else _line(name, role))
            await asyncio.sleep(every)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_table(await _patient(look, every)), refresh=True)
            await asyncio.sleep(every)


async def _patient(look: Callable[[], Awaitable[list[Leadership]]], every: float) -> list[Leadership]:
    """What is seen once the server serves: it may be restarted or fail over while somebody watches."""
    told = False
    while True:
        try:
            return await look()
        except StoreError as error:
            if isinstance(error, StoreRejected) and not error.passing:
                raise
            if not told:
                failed(error, Exit.UNREACHABLE)
                told = True
            await asyncio.sleep(every)


def _fields(role: Leadership) -> dict[str, object]:
    """What --json tells of a name: these fields stay, others may come."""
    leader = role.leader
    return {
        "name": role.name,
        "leader": None
        if leader is None
        else {
            "identity": leader.identity,
            "token": leader.token,
            "term": leader.id,
            "info": dict(leader.info or {}),
        },
        "since": None if role.since is None else role.since.isoformat(),
        "ttl": role.ttl,
        "remaining": role.remaining,
        "step_down_asked": role.step_down_asked,
        "reserved_for": role.reserved_for,
        "candidates": [{"identity": who.identity, "id": who.id, "weight": who.weight} for who in role.candidates],
    }


def _nobody(name: str) -> dict[str, object]:
    return _fields(Leadership(name, None, None, None, 0.0, step_down_asked=False, reserved_for=None, candidates=()))


def _lines(role: Leadership) -> Iterable[str]:
    yield _line(role.name, role)
    if role.leader is not None:
        if role.since is not None:
            yield f"  since       {role.since:%Y-%m-%d %H:%M:%S} UTC ({time.time() - role.since.timestamp():.0f} s)"
        yield f"  lasts for   {role.remaining:.1f} s unless renewed" + (f", ttl {role.ttl:g} s" if role.ttl else "")
        yield f"  term        {role.leader.id}"
        for key, text in (role.leader.info or {}).items():
            yield f"  info        {key}: {text}"
    if role.step_down_asked:
        yield "  asked to step down"
    if role.reserved_for is not None:
        yield f"  reserved for {role.reserved_for}"
    for who in role.candidates:
        yield f"  stands      {who.identity}" + (f" (weight {who.weight})" if who.weight else "")


def _line(name: str, role: Leadership | None) -> str:
    if role is None or role.leader is None:
        return f"{name}: nobody"
    return f"{name}: {role.leader.identity}, token {role.leader.token}"


def _print(roles: list[Leadership], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_fields(role) for role in roles]))
        return
    from rich.console import Console  # noqa: PLC0415 - takes a while

    Console().print(_table(roles))


def _table(roles: list[Leadership]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - takes a while
    from rich.text import Text  # noqa: PLC0415

    table = Table("name", "holder", "token", "lasts", "stand", box=None, pad_edge=False)
    for role in roles:
        who, token = ("nobody", "") if role.leader is None else (str(role.leader.identity), str(role.leader.token))
        # As text: what others have written must not be taken for markup.
        table.add_row(Text(role.name), Text(who), token, f"{role.remaining:.1f} s", str(len(role.candidates)))
    return table


def _tell(fields: dict[str, object], text: str, *, as_json: bool) -> None:
    click.echo(json.dumps(fields) if as_json else text)
