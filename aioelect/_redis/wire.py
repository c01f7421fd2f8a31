"""The border to Redis: key names, milliseconds, the bytes of a command, the shapes of replies and notices.

Nothing here knows what a reply means for the caller; milliseconds and keys exist on this side only. Fields and reply
elements that are not known are ignored, so that two versions can run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aioelect._store import Claim, Contended, Granted, Holder, Notice, NoticeKind, Refused, Released, Renewed

__all__ = [
    "Command",
    "ForeignKey",
    "Keys",
    "Malformed",
    "TokensExhausted",
    "acquire_args",
    "acquire_reply",
    "keys_of",
    "pack",
    "parse_notice",
    "release_args",
    "release_reply",
    "released_notice",
    "renew_args",
    "renew_reply",
]

Command = Sequence[bytes]

_VERSION = b"1"
_DIGITS = 19  # of a number of 64 bits
_RESYNC = Notice(NoticeKind.RESYNC)


class Malformed(Exception):
    """A reply of a shape that no script of ours sends; holds no part of it."""


class ForeignKey(Exception):
    """The claim's key has no ttl, so somebody else's program wrote it."""


class TokensExhausted(Exception):
    """No higher fencing token fits into 64 bits."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Where one name lives. The braces are literal: they put all its keys into one hash slot."""

    claim: bytes
    fence: bytes
    channel: bytes


def keys_of(prefix: str, name: str) -> Keys:
    """The keys of a name under a prefix."""
    claim = f"{prefix}:{{{name}}}".encode()
    return Keys(claim, claim + b":fence", claim + b":events")


def pack(commands: Sequence[Command]) -> bytes:
    """The bytes that ask for the commands, in the protocol's request form."""
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        parts.extend(b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in command)
    return b"".join(parts)


def acquire_args(claim: Claim, keys: Keys, floor: int) -> list[bytes]:
    """ARGV of acquire.lua."""
    return [
        claim.owner.encode(),
        _milliseconds(claim.ttl),
        _milliseconds(claim.retention),
        claim.id.encode(),
        _text(claim.identity),
        b"%d" % floor,
        keys.channel,
    ]


def renew_args(claim: Claim) -> list[bytes]:
    """ARGV of renew.lua."""
    return [claim.owner.encode(), _milliseconds(claim.ttl), _milliseconds(claim.retention)]


def release_args(claim: Claim, keys: Keys, keep: float) -> list[bytes]:
    """ARGV of release.lua."""
    keep_ms = _milliseconds(keep) if keep > 0 else b"0"
    return [claim.owner.encode(), keep_ms, keys.channel, released_notice(claim)]


def released_notice(claim: Claim) -> bytes:
    """What a release tells the channel. The token is left out: a release does not read it."""
    return b" ".join([_VERSION, b"released", b"-", claim.id.encode(), _text(claim.identity)])


def acquire_reply(reply: object, claim: Claim) -> Granted | Contended:
    """What acquire.lua answered."""
    match reply:
        case [1, token, *_]:
            return Granted(_token(token))
        case [0, *described]:
            return Contended(_holder(described, claim))
        case [-1, *_]:
            raise ForeignKey
        case [-2, *_]:
            raise TokensExhausted
    raise Malformed


def renew_reply(reply: object, claim: Claim) -> Renewed | Refused:
    """What renew.lua answered."""
    match reply:
        case [1, *_]:
            return Renewed()
    return _refused(reply, claim)


def release_reply(reply: object, claim: Claim, own: int) -> Released | Refused:
    """What release.lua answered; `own` subscribers of the receivers are ourselves."""
    match reply:
        case [1, int(receivers), *_]:
            return Released(max(0, receivers - own))
    return _refused(reply, claim)


def parse_notice(payload: object) -> Notice:
    """A message of the events channel; one that is not understood says only that something happened."""
    match payload.split(b" ", 5) if isinstance(payload, bytes) else ():
        case [b"1", b"acquired", token, term, ttl, identity] if (remaining := _number(ttl)) is not None:
            holder = Holder(_name(identity), _number(token), _name(term), remaining / 1000)
            return Notice(NoticeKind.ACQUIRED, holder)
        case [b"1", b"released", token, term, *identity]:
            holder = Holder(_name(b" ".join(identity)) or None, _number(token), _name(term), None)
            return Notice(NoticeKind.RELEASED, holder)
    return _RESYNC


def _refused(reply: object, claim: Claim) -> Refused:
    match reply:
        case [0, *_]:
            return Refused(None)
        case [-1, *described]:
            return Refused(_holder(described, claim))
    raise Malformed


def _holder(described: Sequence[object], claim: Claim) -> Holder:
    match described:
        case [int(pttl), token, identity, term, *_]:
            remaining = pttl / 1000 if pttl >= 0 else None
            if _name(term) == claim.id:
                # The record still describes our own term, so it says nothing of who holds the name now.
                return Holder(None, None, None, remaining)
            return Holder(_name(identity), _number(token), _name(term), remaining)
    raise Malformed


def _token(value: object) -> int:
    number = _number(value)
    if number is None:
        raise Malformed
    return number


def _number(value: object) -> int | None:
    # What others wrote may be no number, or one of thousands of digits, which int() refuses.
    if not isinstance(value, bytes) or not value.isdigit() or len(value) > _DIGITS:
        return None
    number = int(value)
    return number if number < 2**63 else None


def _name(value: object) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else None


def _text(value: str) -> bytes:
    return value.encode(errors="replace")


def _milliseconds(seconds: float) -> bytes:
    # Up, so that the server never expires earlier than asked; rounded first, since 1.1 * 1000 is 1100.0000000000002.
    return b"%d" % max(1, math.ceil(round(seconds * 1000, 6)))
