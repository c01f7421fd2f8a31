"""What replies mean: raw answers of a server become facts."""

from __future__ import annotations

from collections.abc import Mapping

from aioelect._redis.refusals import Fault
from aioelect.cli.doctor.facts import Denied

__all__ = ["denied", "lines", "pairs", "settings"]


def denied(reply: object) -> Denied:
    """A refusal, in the server's words."""
    return Denied(f"{reply.code} {reply.text}" if isinstance(reply, Fault) else "an answer of an unknown shape")


def lines(reply: object) -> Mapping[str, str] | Denied:
    """What INFO and its like answer."""
    if not isinstance(reply, bytes):
        return denied(reply)
    return dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)


def pairs(reply: object) -> dict[str, str]:
    """A list of names and values in turn."""
    words = [str(word.decode(errors="replace") if isinstance(word, bytes) else word) for word in _list(reply)]
    return dict(zip(words[::2], words[1::2], strict=False))


def _list(reply: object) -> list[object]:
    return reply if isinstance(reply, list) else []


def settings(replies: list[object]) -> Mapping[str, str] | Denied:
    """What CONFIG GET answered, one reply for each setting."""
    if isinstance(replies[0], Fault):
        return denied(replies[0])
    return {name: value for reply in replies for name, value in pairs(reply).items()}
