"""The border to Redis for what goes beyond the claims: who leads, stands and takes part, requests, finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioelect._store import Candidate, Claim, Holder, Mark, Marked, Record, Refused, Released, StepDown

from .wire import (
    Command,
    Keys,
    Malformed,
    holder_of,
    milliseconds,
    name_of,
    number_of,
    refused_of,
    request_of,
    text_of,
    token_of,
)

if TYPE_CHECKING:
    from aioelect._core.shares import Member

__all__ = [
    "ask_args",
    "ask_reply",
    "attend_args",
    "attend_reply",
    "describe_reply",
    "evict_args",
    "evict_reply",
    "mark_args",
    "mark_reply",
]


def ask_args(request: StepDown, keys: Keys) -> Command:
    """ARGV of ask.lua."""
    return text_of(request.to or ""), keys.channel


def ask_reply(reply: object) -> Holder | None:
    """What ask.lua answered."""
    match reply:
        case [1, *described]:
            return holder_of(described)
        case [0, *_]:
            return None
    raise Malformed


def describe_reply(reply: object) -> Record:
    """What describe.lua answered."""
    match reply:
        case [int(pttl), int(now), list(fields), list(standing), *_]:
            token, identity, term, since, ttl, info, following, asked = (*fields, *[None] * 8)[:8]
            candidates = tuple(c for c in map(_candidate, standing) if c is not None)
            if pttl < 0:
                return Record(None, reserved_for=_heir(following, term, now), candidates=candidates)
            began, life = number_of(since), number_of(ttl)
            return Record(
                holder_of([pttl, token, identity, term]),
                since=None if began is None else began / 1e6,
                ttl=None if life is None else life / 1000,
                info=name_of(info) or "",
                asked_to_step_down=request_of(asked, name_of(term)) is not None,
                candidates=candidates,
            )
    raise Malformed


def evict_args(token: int, keys: Keys) -> Command:
    """ARGV of evict.lua."""
    return b"%d" % token, keys.channel


def evict_reply(reply: object) -> Released | Refused:
    """What evict.lua answered."""
    match reply:
        case [1, int(receivers), *_]:
            return Released(receivers)
        case [0, *_]:
            return Refused(None)
        case [-1, *described]:
            return Refused(holder_of(described))
    raise Malformed


def mark_args(claim: Claim, mark: Mark) -> Command:
    """ARGV of mark.lua."""
    first = b"1" if mark.first else b"0"
    return claim.owner.encode(), text_of(mark.schedule), b"%d" % mark.at, first, milliseconds(mark.keep)


def mark_reply(reply: object, claim: Claim) -> Marked | Refused:
    """What mark.lua answered."""
    match reply:
        case [1, instant, *_]:
            return Marked(token_of(instant))
    return refused_of(reply, claim)


def attend_args(member: Member, keys: Keys, *, tell: bool) -> Command:
    """ARGV of attend.lua."""
    held = sum(1 << number for number in member.holds)
    entry = b"%d %x %b" % (member.stays, held, text_of(member.identity))
    listed = milliseconds(member.remaining) if member.remaining > 0 else b"0"
    return member.id.encode(), entry, listed, b"1" if tell else b"0", keys.channel


def attend_reply(reply: object) -> tuple[Member, ...]:
    """What attend.lua answered."""
    match reply:
        case [int(now), list(entries), *_]:
            pairs = zip(entries[::2], entries[1::2], strict=False)
            return tuple(m for m in (_member(entry, until, now) for entry, until in pairs) if m is not None)
    raise Malformed


def _member(entry: object, until: object, now: int) -> Member | None:
    from aioelect._core.shares import MAX_PARTITIONS, Member  # noqa: PLC0415 - most take part in no group

    match entry.split(b" ", 3) if isinstance(entry, bytes) else ():
        case [who, stays, held, identity] if isinstance(until, bytes):
            try:
                bits, left = int(held, 16), float(until) - now
            except ValueError:
                return None
            holds = frozenset(number for number in range(MAX_PARTITIONS) if bits >> number & 1)
            return Member(name_of(who) or "", name_of(identity) or "", holds, stays == b"1", max(0.0, left / 1000))
    return None


def _heir(following: object, term: object, now: int) -> str | None:
    match following.split(b" ", 3) if isinstance(following, bytes) else ():
        case [before, until, _, heir] if before == term and (number_of(until) or 0) > now:
            return name_of(heir)
    return None


def _candidate(member: object) -> Candidate | None:
    match member.split(b" ", 2) if isinstance(member, bytes) else ():
        case [term, weight, identity] if (number := number_of(weight)) is not None:
            return Candidate(name_of(identity) or "", name_of(term) or "", number)
    return None
