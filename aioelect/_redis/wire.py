"""The border to Redis: key names, milliseconds, the arguments of a command, the shapes of replies and notices.

Nothing here knows what a reply means for the caller; milliseconds and keys exist on this side only. Fields and reply
elements that are not known are ignored, so that two versions can run side by side.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from aioelect._store import (
    Claim,
    Contended,
    Granted,
    Heir,
    Holder,
    Notice,
    NoticeKind,
    Refused,
    Released,
    Renewed,
    Stand,
    StepDown,
)

__all__ = [
    "VERSION",
    "Abstains",
    "Command",
    "ForeignKey",
    "Keys",
    "Malformed",
    "Places",
    "TokensExhausted",
    "acquire_args",
    "acquire_reply",
    "holder_of",
    "keys_of",
    "milliseconds",
    "name_of",
    "number_of",
    "parse_notice",
    "refused_of",
    "release_args",
    "release_reply",
    "released_notice",
    "renew_args",
    "renew_reply",
    "request_of",
    "text_of",
    "token_of",
]

Command = tuple[bytes, ...]
Places = tuple[bytes, ...]
"""The keys that a script names; the claim first."""

VERSION = b"1"
_DIGITS = 19  # of a number of 64 bits
_NO_STAND = (b"", b"0", b"0", b"0")  # of who stands for no role
_NO_HEIR = (b"0", b"")
_RESYNC = Notice(NoticeKind.RESYNC)


class Malformed(Exception):
    """A reply of a shape that no script of ours sends; holds no part of it."""


class ForeignKey(Exception):
    """The claim's key has no ttl, so somebody else's program wrote it."""


class TokensExhausted(Exception):
    """No higher fencing token fits into 64 bits."""


class Abstains(Exception):
    """A node of a quorum may have forgotten claims, and does not vote for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Keys(NamedTuple):
    """Where one name lives. The braces are literal: they put all its keys into one hash slot."""

    claim: bytes
    fence: bytes
    channel: bytes
    candidates: bytes
    record: Places  # what a claim consists of
    all: Places  # and who stands for it
    runs: Places  # and what is finished in its name
    members: Places  # who takes part, where it is the name of a group


@functools.lru_cache(1024)
def keys_of(prefix: str, name: str) -> Keys:
    """The keys of a name under a prefix."""
    claim = f"{prefix}:{{{name}}}".encode()
    fence, candidates = claim + b":fence", claim + b":candidates"
    record = (claim, fence)
    return Keys(
        claim,
        fence,
        claim + b":events",
        candidates,
        record,
        all=(*record, candidates),
        runs=(*record, claim + b":periods"),
        members=(claim + b":members",),
    )


def acquire_args(claim: Claim, keys: Keys, floor: int) -> Command:
    """ARGV of acquire.lua."""
    return (
        claim.owner.encode(),
        milliseconds(claim.ttl),
        milliseconds(claim.retention),
        claim.id.encode(),
        text_of(claim.identity),
        b"%d" % floor,
        keys.channel,
        *(_NO_STAND if claim.stand is None else _stand(claim.stand)),
    )


def _stand(stand: Stand) -> Command:
    return stand.info.encode(), b"%d" % stand.weight, _duration(stand.listed), _duration(stand.deference)


def renew_args(claim: Claim) -> Command:
    """ARGV of renew.lua."""
    return claim.owner.encode(), milliseconds(claim.ttl), milliseconds(claim.retention)


def release_args(claim: Claim, keys: Keys, keep: float, heir: Heir | None) -> Command:
    """ARGV of release.lua."""
    return (
        claim.owner.encode(),
        _duration(keep),
        keys.channel,
        released_notice(claim),
        milliseconds(claim.retention),
        claim.id.encode(),
        *((_duration(heir.within), text_of(heir.identity)) if heir else _NO_HEIR),
    )


def released_notice(claim: Claim) -> bytes:
    """What a release tells the channel. The token is left out: a release does not read it."""
    return b"%b released - %b %b" % (VERSION, claim.id.encode(), text_of(claim.identity))


def acquire_reply(reply: object, claim: Claim) -> Granted | Contended:
    """What acquire.lua answered."""
    match reply:
        case [1, token, *_]:
            return Granted(token_of(token))
        case [0, *described]:
            return Contended(holder_of(described, claim.id))
        case [2, int(left), heir, *_]:
            return Contended(Holder(name_of(heir) or None, None, None, left / 1000), reserved=True)
        case [-1, *_]:
            raise ForeignKey
        case [-2, *_]:
            raise TokensExhausted
    raise Malformed


def renew_reply(reply: object, claim: Claim) -> Renewed | Refused:
    """What renew.lua answered."""
    match reply:
        case [1, asked, *_]:
            return Renewed(request_of(asked, claim.id))
        case [1]:
            return Renewed()
    return refused_of(reply, claim)


def release_reply(reply: object, claim: Claim, own: int) -> Released | Refused:
    """What release.lua answered; `own` subscribers of the receivers are ourselves."""
    match reply:
        case [1, int(receivers), *_]:
            return Released(max(0, receivers - own))
    return refused_of(reply, claim)


def parse_notice(payload: object) -> Notice:
    """A message of the events channel; one that is not understood says only that something happened."""
    match payload.split(b" ", 5) if isinstance(payload, bytes) else ():
        case [b"1", b"acquired", token, term, ttl, identity] if (remaining := number_of(ttl)) is not None:
            holder = Holder(name_of(identity), number_of(token), name_of(term), remaining / 1000)
            return Notice(NoticeKind.ACQUIRED, holder)
        case [b"1", b"released", token, term, *identity]:
            holder = Holder(name_of(b" ".join(identity)) or None, number_of(token), name_of(term), None)
            return Notice(NoticeKind.RELEASED, holder)
        case [b"1", b"asked", _, term, *_]:
            return Notice(NoticeKind.STEP_DOWN, Holder(None, None, name_of(term), None))
        case [b"1", b"members", who, *_]:
            return Notice(NoticeKind.MEMBERS, Holder(None, None, name_of(who), None))
    return _RESYNC


def refused_of(reply: object, claim: Claim) -> Refused:
    match reply:
        case [0, *_]:
            return Refused(None)
        case [-1, *described]:
            return Refused(holder_of(described, claim.id))
    raise Malformed


def request_of(asked: object, term: str | None) -> StepDown | None:
    match asked.split(b" ", 1) if isinstance(asked, bytes) else ():
        case [meant, heir] if term is not None and name_of(meant) == term:
            return StepDown(name_of(heir) or None)
    return None


def holder_of(described: Sequence[object], ours: str | None = None) -> Holder:
    """Who holds a name, as the scripts describe it; `ours`: the id of the term that the record may still tell of."""
    match described:
        case [int(pttl), token, identity, term, *_]:
            remaining = pttl / 1000 if pttl >= 0 else None
            if ours is not None and name_of(term) == ours:
                # The record still describes our own term, so it says nothing of who holds the name now.
                return Holder(None, None, None, remaining)
            return Holder(name_of(identity), number_of(token), name_of(term), remaining)
    raise Malformed


def token_of(value: object) -> int:
    """A fencing token."""
    number = number_of(value)
    if number is None:
        raise Malformed
    return number


def number_of(value: object) -> int | None:
    # What others wrote may be no number, or one of thousands of digits, which int() refuses.
    if not isinstance(value, bytes) or not value.isdigit() or len(value) > _DIGITS:
        return None
    number = int(value)
    return number if number < 2**63 else None


def name_of(value: object) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else None


def text_of(value: str) -> bytes:
    """A label for people."""
    return value.encode(errors="replace")


def _duration(seconds: float) -> bytes:
    return milliseconds(seconds) if seconds > 0 else b"0"


@functools.lru_cache(256)
def milliseconds(seconds: float) -> bytes:
    """A duration as the server wants it."""
    # Up, so that the server never expires earlier than asked; rounded first, since 1.1 * 1000 is 1100.0000000000002.
    return b"%d" % max(1, math.ceil(round(seconds * 1000, 6)))
