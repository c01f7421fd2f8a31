"""Who should hold which partition: each member decides for itself, and members that see the same decide alike.

There is no coordinator. Every member sees who takes part and what each of them holds. It gives up what is above its
quota, and takes what is free, in an order that all agree on. Nothing else is moved: a partition changes hands only if
its holder leaves, or holds more than its quota.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["MAX_PARTITIONS", "Member", "Moves", "decide", "quotas"]

MAX_PARTITIONS = 1024


@dataclass(frozen=True, slots=True)
class Member:
    """One that takes part, as it told of itself."""

    id: str  # of the membership; identities may repeat
    identity: str
    holds: frozenset[int]  # also what it is about to take, and what it lets go but its consumer has not left yet
    stays: bool  # False: it is leaving, and only finishes what it holds
    remaining: float  # seconds until it falls out unless it tells again; 0.0: it is gone


class Moves(NamedTuple):
    """What one member has to do."""

    let_go: tuple[int, ...]
    take: tuple[int, ...]


def quotas(count: int, members: Iterable[Member]) -> dict[str, int]:
    """How many of `count` partitions each member that stays should hold: all the same, or one more.

    The one more is for those that hold most already, so that nothing moves for its sake.
    """
    staying = sorted((member for member in members if member.stays), key=lambda m: (-len(m.holds), m.id))
    if not staying:
        return {}
    base, more = divmod(count, len(staying))
    return {member.id: base + (rank < more) for rank, member in enumerate(staying)}


def decide(
    count: int,
    me: str,
    members: Iterable[Member],
    stopping: frozenset[int] = frozenset(),
    *,
    settled: bool = True,
) -> Moves:
    """What member `me` does next; `stopping`: what it holds and lets go already.

    `settled`: the quotas have been the same for so long that all have told of themselves meanwhile. Before that nobody
    gives up the one more that some may hold: two members with old news of each other might both give up theirs, and
    take them back.
    """
    members = sorted(members, key=lambda member: member.id)
    quota = quotas(count, members)
    if me not in quota:
        return Moves((), ())
    base, more = divmod(count, len(quota))
    mine = next(sorted(member.holds - stopping) for member in members if member.id == me)
    keep = quota[me] if settled or not more else base + 1
    taken = frozenset[int]().union(*(member.holds for member in members))
    free = (number for number in range(count) if number not in taken)
    # First everybody gets what is due to all; whoever has more than that would have to give it back.
    has = {member.id: len(member.holds) for member in members if member.stays}
    turns = [who for who, held in has.items() for _ in range(base - held)]
    turns += [who for who, held in has.items() if held <= base < quota[who]]
    return Moves(tuple(mine[keep:]), tuple(number for number, who in zip(free, turns, strict=False) if who == me))
