"""The border to PostgreSQL: digests, channel names, the keys of advisory locks, the shapes of rows and notices."""

from __future__ import annotations

import hashlib
import json

from aioelect._store import Claim, Holder, Notice, NoticeKind

from .source import Row

__all__ = ["channel_of", "digest", "ears_of", "holder_of", "lock_key", "parse_notice", "released_notice"]

_RESYNC = Notice(NoticeKind.RESYNC)


def digest(claim: Claim) -> bytes:
    """What the table holds instead of the owner value, which never leaves this process."""
    return hashlib.sha256(claim.owner.encode()).digest()


def channel_of(space: str, name: str) -> bytes:
    """The channel on which a name's notices arrive; a digest, since an identifier has 63 bytes at most."""
    return b"aioelect_" + _hash(space, name, b"channel").hex().encode()


def ears_of(channel: bytes) -> int:
    """The key of the advisory lock that a channel's listeners hold together."""
    return _signed(_hash("", channel.decode(), b"ears"))


def lock_key(space: str, name: str) -> int:
    """The key of the advisory lock that a name's holder has."""
    return _signed(_hash(space, name, b"lock"))


def holder_of(row: Row, claim: Claim) -> Holder | None:
    """Whom a refusal describes; None if nobody."""
    token, identity, term, remaining = row["token"], row["identity"], row["id"], row["remaining"]
    if not isinstance(token, int):
        return None
    left = max(0.0, float(remaining)) if isinstance(remaining, int | float) else None
    if term == claim.id:
        return Holder(None, None, None, left)
    return Holder(str(identity), token, str(term), left)


def released_notice(claim: Claim) -> str:
    """What a release tells the channel."""
    return json.dumps({"kind": "released", "id": claim.id, "identity": claim.identity})


def parse_notice(payload: str) -> Notice:
    """A message of a channel; one that is not understood says only that something happened."""
    try:
        said: object = json.loads(payload)
    except ValueError:
        return _RESYNC
    match said:
        case {
            "kind": "acquired",
            "token": int(token),
            "id": str(term),
            "identity": str(who),
            "ttl": int() | float() as ttl,
        }:
            return Notice(NoticeKind.ACQUIRED, Holder(who, token, term, float(ttl)))
        case {"kind": "released", "id": str(term), "identity": str(who)}:
            return Notice(NoticeKind.RELEASED, Holder(who, None, term, None))
    return _RESYNC


def _hash(space: str, name: str, purpose: bytes) -> bytes:
    return hashlib.blake2b(f"{space}\0{name}".encode(), digest_size=8, person=purpose).digest()


def _signed(eight: bytes) -> int:
    return int.from_bytes(eight, "big", signed=True)
