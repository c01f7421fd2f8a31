"""The questions as Redis understands them; the only place that sends a script or a native form.

A script goes as EVALSHA, and once more with its body where the server does not know it: in the same call, never by
SCRIPT LOAD, which needs a permission of its own. A release uses the server's own compare-and-delete where there is
one. Which one is found out per connection by trying it with a value that is nobody's: versions lie, and a rolling
upgrade changes them; a new connection asks again.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from aioelect._store import (
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
)

from . import wire, wire_roles
from .pipeline import Link
from .refusals import Fault, trouble_of
from .wire import Command, Keys, Places

if TYPE_CHECKING:
    from aioelect._core.shares import Member

__all__ = [
    "Route",
    "acquire",
    "ask",
    "attend",
    "describe",
    "evaluate",
    "evict",
    "idle_forms",
    "mark",
    "native_forms",
    "release",
    "renew",
    "replicate",
]

# Compare-and-delete commands: Redis from 8.4, Valkey from 9.0.
_NATIVE: dict[bytes, Callable[[bytes, bytes], Command]] = {
    b"DELEX": lambda key, value: (b"DELEX", key, b"IFEQ", value),
    b"DELIFEQ": lambda key, value: (b"DELIFEQ", key, value),
}

# Never the value of a claim, so that trying a command with it does nothing.
_NOBODY = b"aioelect:nobody"


class Route(Protocol):
    """The way to the node that serves a key."""

    def exchange(
        self, key: bytes, commands: Callable[[Link], Sequence[Command]], deadline: float, /
    ) -> Awaitable[list[object]]:
        """Send commands to the node of a key; their replies, until `deadline` of the loop's clock."""

    def drop(self, key: bytes, /) -> None:
        """The node of a key is not what it was: find it anew."""

    async def aclose(self) -> None:
        """Close all connections."""

    def abandon(self) -> None:
        """Let go of all connections without a sound: the loop will never run again."""


def native_forms(key: bytes) -> dict[str, Command]:
    """The compare-and-delete commands, with a value that is nobody's: to see which one a server has."""
    return {name.decode(): form(key, _NOBODY) for name, form in _NATIVE.items()}


def idle_forms() -> tuple[Command, ...]:
    """The script commands with nothing to run, and nothing to remember: to see whether they are allowed."""
    return (b"EVALSHA", b"0" * 40, b"0"), (b"EVAL", b"return 1", b"-1")


async def acquire(route: Route, keys: Keys, claim: Claim, floor: int, deadline: float) -> Granted | Contended:
    """Claim a name, or learn who has it."""
    # Only a candidate names the third key: while a slot moves, a script is refused if one of its keys is not there.
    places = keys.all if claim.stand else keys.record
    reply = await evaluate(route, "acquire", places, wire.acquire_args(claim, keys, floor), deadline)
    return wire.acquire_reply(reply, claim)


async def renew(route: Route, keys: Keys, claim: Claim, deadline: float) -> Renewed | Refused:
    """Prolong a claim if it is ours."""
    return wire.renew_reply(await evaluate(route, "renew", keys.record, wire.renew_args(claim), deadline), claim)


async def replicate(
    route: Route, keys: Keys, claim: Claim, confirm: Callable[[float], Command], deadline: float
) -> tuple[Renewed | Refused, object]:
    """Prolong a claim, and what the server answers to the command that waits until others have it.

    Such a command waits for what its own connection has written, so both go over one, which nobody else may need.
    """
    loop = asyncio.get_running_loop()
    # With its body: were the script not known, the time would be waited away for nothing.
    prolong = _Evaluation("renew", keys.record, wire.renew_args(claim)).in_full

    def commands(_: Link) -> Sequence[Command]:
        return [prolong, confirm(deadline - loop.time())]

    reply, confirmed = await route.exchange(keys.claim, commands, deadline)
    for answer in (reply, confirmed):
        if isinstance(answer, Fault):
            raise trouble_of(answer).error()
    return wire.renew_reply(reply, claim), confirmed


async def release(
    route: Route, keys: Keys, claim: Claim, keep: float, deadline: float, own: int, heir: Heir | None = None
) -> Released | Refused:
    """Give a claim up if it is ours, and tell who waits; `own` of the receivers are ourselves."""
    arguments = wire.release_args(claim, keys, keep, heir)
    if keep > 0 or heir is not None:
        return wire.release_reply(await evaluate(route, "release", keys.record, arguments, deadline), claim, own)

    script = _Evaluation("release", keys.record, arguments)
    link: Link | None = None

    def commands(over: Link) -> Sequence[Command]:
        nonlocal link
        link = over
        if over.native is None:
            return script(over)
        owner, _, channel, notice, *_ = arguments
        return _NATIVE[over.native](keys.claim, owner), (b"PUBLISH", channel, notice)

    replies = await route.exchange(keys.claim, commands, deadline)
    if len(replies) == 2:  # the native form
        deleted, told = replies
        if deleted == 1:
            return Released(max(0, told - own) if isinstance(told, int) else 0)
        if isinstance(deleted, Fault) and link is not None:
            link.native = None  # a proxy has moved us to an older server
        # Not ours, or not known there: only the script can tell what it is.
        reply = await evaluate(route, "release", keys.record, arguments, deadline)
    else:
        reply = await script.settle(route, replies, deadline)
    return wire.release_reply(reply, claim, own)


async def describe(route: Route, keys: Keys, deadline: float) -> Record:
    """Learn who leads and who stands."""
    return wire_roles.describe_reply(await evaluate(route, "describe", keys.all, (), deadline))


async def ask(route: Route, keys: Keys, request: StepDown, deadline: float) -> Holder | None:
    """Leave a request for the present holder."""
    return wire_roles.ask_reply(await evaluate(route, "ask", keys.record, wire_roles.ask_args(request, keys), deadline))


async def mark(route: Route, keys: Keys, claim: Claim, mark: Mark, deadline: float) -> Marked | Refused:
    """Note a finished run in the holder's name."""
    return wire_roles.mark_reply(
        await evaluate(route, "mark", keys.runs, wire_roles.mark_args(claim, mark), deadline), claim
    )


async def evict(route: Route, keys: Keys, token: int, deadline: float) -> Released | Refused:
    """Give a claim up for its holder, if its token is this one."""
    return wire_roles.evict_reply(
        await evaluate(route, "evict", keys.record, wire_roles.evict_args(token, keys), deadline)
    )


async def attend(route: Route, keys: Keys, member: Member, deadline: float, *, tell: bool) -> tuple[Member, ...]:
    """Take part in a group, or leave, and learn who does."""
    arguments = wire_roles.attend_args(member, keys, tell=tell)
    return wire_roles.attend_reply(await evaluate(route, "attend", keys.members, arguments, deadline))


async def evaluate(route: Route, name: str, keys: Places, arguments: Command, deadline: float) -> object:
    """The reply of a script of `lua/`, from the node that serves the first key."""
    script = _Evaluation(name, keys, arguments)
    replies = await route.exchange(keys[0], script, deadline)
    if len(replies) > 1 or isinstance(replies[0], Fault):
        return await script.settle(route, replies, deadline)
    return replies[0]


class _Evaluation:
    """A script that is to be run; called with the link that it goes over, it is the commands to send."""

    __slots__ = ("_arguments", "_key", "_link", "_name")

    def __init__(self, name: str, keys: Places, arguments: Command) -> None:
        self._name = name
        self._key = keys[0]
        self._arguments = (b"%d" % len(keys), *keys, *arguments)
        self._link: Link | None = None  # that was not asked before for its native form

    def __call__(self, link: Link) -> Sequence[Command]:
        command = (b"EVALSHA", _script(self._name)[1], *self._arguments)
        if link.probed:
            return (command,)
        link.probed, self._link = True, link
        return (command, *(form(self._key, _NOBODY) for form in _NATIVE.values()))

    @property
    def in_full(self) -> Command:
        """The command with the script's body, for a server that may not know it."""
        return (b"EVAL", _script(self._name)[0], *self._arguments)

    async def settle(self, route: Route, replies: list[object], deadline: float) -> object:
        """The script's reply, sending its body if need be; an error reply is raised."""
        reply, *probes = replies
        if self._link is not None:
            for name, probe in zip(_NATIVE, probes, strict=False):
                if isinstance(probe, int):
                    self._link.native = name
        if isinstance(reply, Fault) and reply.code == "NOSCRIPT":
            reply, *_ = await route.exchange(self._key, lambda _: (self.in_full,), deadline)
        if isinstance(reply, Fault):
            trouble = trouble_of(reply)
            if trouble.reason == "readonly":
                route.drop(self._key)
            raise trouble.error()
        return reply


@functools.cache
def _script(name: str) -> tuple[bytes, bytes]:
    """A script's body and its SHA-1, read when it is first needed."""
    from importlib.resources import files  # noqa: PLC0415 - takes as long to import as half of this package

    body = files(__package__).joinpath("lua", f"{name}.lua").read_bytes()
    return body, hashlib.sha1(body, usedforsecurity=False).hexdigest().encode()
