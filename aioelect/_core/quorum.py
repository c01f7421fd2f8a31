"""A vote among independent nodes: who has won, which token to record, when another round makes sense.

Theory. Any two majorities of the same nodes share one. So a claim on a majority excludes a second one, and a token that
is recorded on a majority is met by every later majority, whose own proposals are above it. Both hold as long as a node
keeps what it has answered; one that lost its data does not vote until every claim it may have forgotten has run out
(`lua/vote.lua`, where the node's own clock is at hand).

A vote is open (None) until no answer that is still to come could change it. Who stops waiting hands in `Void` for
the answers that are missing.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from aioelect._core.timing import drift
from aioelect._errors import ConfigurationError

__all__ = [
    "Held",
    "No",
    "Outcome",
    "Split",
    "Unable",
    "Verdict",
    "Void",
    "Vote",
    "Won",
    "Yes",
    "back_off",
    "check_size",
    "elect",
    "in_time",
    "majority",
    "settle",
]

_FEWEST = 3
_PAUSE = 0.002  # the shortest spread of rounds: below a round trip it would not separate anybody


@dataclass(frozen=True, slots=True)
class Yes:
    """The node is ours."""

    token: int  # what it proposes, or what is recorded for this very claim
    recorded: bool  # a majority's choice was written back to it for this claim


@dataclass(frozen=True, slots=True)
class No:
    """The node is another's; None for what it does not know."""

    id: str | None  # of the term
    identity: str | None
    token: int | None  # None also while that claim's vote is not over
    remaining: float | None  # seconds


@dataclass(frozen=True, slots=True)
class Void:
    """The node has not voted: no answer, an error, or it abstains."""


Vote = Yes | No | Void


@dataclass(frozen=True, slots=True)
class Won:
    """A majority is ours."""

    token: int
    recorded: bool  # on a majority already: an earlier try of this claim had come through, and its answer got lost


@dataclass(frozen=True, slots=True)
class Held:
    """A majority is another's, and it knows."""

    by: No
    free_in: float | None  # seconds until a majority could be ours, if nobody renews; None: not known


@dataclass(frozen=True, slots=True)
class Split:
    """A majority has voted, and nobody has won."""

    by: No
    free_in: float | None


@dataclass(frozen=True, slots=True)
class Unable:
    """Too few nodes vote."""


Outcome = Won | Held | Split | Unable


class Verdict(enum.Enum):
    """What a majority says."""

    YES = "yes"
    NO = "no"
    UNCLEAR = "unclear"  # neither, and no answer can come that would change it


def majority(nodes: int) -> int:
    """How many of them are one."""
    return nodes // 2 + 1


def check_size(nodes: int) -> None:
    """Refuse a number of nodes that makes no sense."""
    if nodes < _FEWEST:
        raise ConfigurationError(
            f"clients: {nodes} of them; a majority that survives the loss of a node takes at least {_FEWEST}",
            reason="clients",
        )
    if nodes % 2 == 0:
        raise ConfigurationError(
            f"clients: {nodes} of them; an even number survives no more losses than {nodes - 1} do, and splits more "
            f"votes: take {nodes - 1} or {nodes + 1}",
            reason="clients",
        )


def in_time(elapsed: float, ttl: float) -> bool:
    """Whether a claim that was asked for so long ago can still be on every node that granted it.

    The margin for the nodes' clocks (1 % and 2 ms each) lies within `drift`, which the keeper of the claim counts with.
    """
    return elapsed < ttl - drift(ttl)


def elect(votes: Sequence[Vote], nodes: int) -> Outcome | None:
    """What the votes so far decide; None while the ones to come matter."""
    need = majority(nodes)
    pending = nodes - len(votes)
    yes = [vote for vote in votes if isinstance(vote, Yes)]
    no = [vote for vote in votes if isinstance(vote, No)]
    if len(yes) >= need:
        return _won(yes, need, pending)
    rival, claims = _strongest(no)
    if rival is not None and claims >= need and rival.token is not None:
        return Held(rival, _free_in(len(yes) + pending, no, need))
    if len(yes) + len(no) + pending < need:
        return Unable()
    if pending:
        return None
    if rival is None:
        return Unable()
    return Split(rival, _free_in(len(yes), no, need))


def _won(yes: Sequence[Yes], need: int, pending: int) -> Won | None:
    for token, count in Counter(vote.token for vote in yes if vote.recorded).most_common(1):
        if count >= need:
            return Won(token, recorded=True)
        if count + pending >= need:
            return None
    # A token that only a minority has recorded may be older than a term that came and went in between.
    return Won(max(vote.token for vote in yes), recorded=False)


def _strongest(no: Sequence[No]) -> tuple[No | None, int]:
    """Who has most of the nodes, as the node that knows most tells it; and how many."""
    if not no:
        return None, 0
    term, claims = Counter(vote.id for vote in no).most_common(1)[0]
    theirs = [vote for vote in no if vote.id == term]
    return max(theirs, key=lambda vote: vote.token or 0), claims if term is not None else 0


def _free_in(free: int, no: Sequence[No], need: int) -> float | None:
    # A node that has not been heard may be free: asking too early costs a try, asking too late a turn.
    lacking = max(1, need - free)
    times = sorted(vote.remaining for vote in no if vote.remaining is not None)
    return times[lacking - 1] if lacking <= len(times) else None


def settle(yes: int, no: int, pending: int, nodes: int) -> Verdict | None:
    """What a majority says to a question that each node answers by itself; None while answers to come matter."""
    need = majority(nodes)
    if yes >= need:
        return Verdict.YES
    if no >= need:
        return Verdict.NO
    return None if max(yes, no) + pending >= need else Verdict.UNCLEAR


def back_off(rounds: int, took: float, chance: float) -> float:
    """How long to stand back after so many split rounds, of which the last took `took` seconds.

    Random, and doubling: sooner or later one candidate's whole round fits between those of the others.
    """
    return float((0.5 + chance) * max(_PAUSE, took) * 2 ** min(rounds, 10))
