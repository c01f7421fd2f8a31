"""The border to a node that votes: what the scripts of an election are asked, and what they answer."""

from __future__ import annotations

from aioelect._core.quorum import No, Yes
from aioelect._store import Claim

from . import wire

__all__ = ["done_reply", "record_args", "register_of", "vote_args", "vote_reply", "withdraw_args"]


def register_of(prefix: str) -> bytes:
    """Where a node of a quorum notes since when it has forgotten nothing; no name's key, since it has no braces."""
    return f"{prefix}:quorum".encode()


def vote_args(claim: Claim, keys: wire.Keys, floor: int, turn: int, longest: float) -> wire.Command:
    """ARGV of vote.lua."""
    owner, ttl, retention, term, identity, *_ = wire.acquire_args(claim, keys, floor)
    return owner, ttl, retention, term, identity, b"%d" % floor, b"%d" % turn, wire.milliseconds(longest)


def vote_reply(reply: object, claim: Claim) -> tuple[Yes | No, bytes]:
    """What vote.lua answered, and the server's run id."""
    match reply:
        case [1, bytes(run), token, int(recorded), *_]:
            return Yes(wire.token_of(token), bool(recorded)), run
        case [0, bytes(run), *described]:
            holder = wire.holder_of(described, claim.id)
            return No(holder.id, holder.identity, holder.token, holder.remaining), run
        case [-1, *_]:
            raise wire.ForeignKey
        case [-2, *_]:
            raise wire.TokensExhausted
        case [-3, _, int(left), *_]:
            raise wire.Abstains(left / 1000)
    raise wire.Malformed


def record_args(claim: Claim, keys: wire.Keys, token: int) -> wire.Command:
    """ARGV of record.lua."""
    notice = [
        wire.VERSION,
        b"acquired",
        b"%d" % token,
        claim.id.encode(),
        wire.milliseconds(claim.ttl),
        wire.text_of(claim.identity),
    ]
    return claim.owner.encode(), claim.id.encode(), b"%d" % token, keys.channel, b" ".join(notice)


def withdraw_args(claim: Claim, keys: wire.Keys, turn: int) -> wire.Command:
    """ARGV of withdraw.lua."""
    return claim.owner.encode(), b"%d" % turn, keys.channel, wire.released_notice(claim)


def done_reply(reply: object) -> bool:
    """What a script answered that says only whether it has done something."""
    match reply:
        case [int(done), *_]:
            return done == 1
    raise wire.Malformed
