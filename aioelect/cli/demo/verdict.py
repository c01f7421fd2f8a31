"""What each step must show. Measured facts go in; what was not shown comes out, as sentences for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Election", "Facts", "HandOver", "NotShown", "Pause", "TakeOver", "Unable", "missing"]

SLACK = 1.0  # seconds for a slow machine, where an upper limit is needed


class NotShown(Exception):
    """A step could not be gone through to its end."""


class Unable(Exception):
    """The demo can't start; the message says what to do."""


class Facts(Protocol):
    """What was measured in one step."""

    def missing(self) -> Iterator[str]:
        """What it was to show and didn't."""


def missing(facts: Facts) -> list[str]:
    """What a step was to show and didn't; empty if all was shown."""
    return list(facts.missing())


def ms(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


@dataclass(frozen=True)
class Election:
    """Three stand, one leads, and only that one works."""

    stood: frozenset[str]
    led: frozenset[str]
    worked: frozenset[str]
    took: float  # from the moment that the last was up

    def missing(self) -> Iterator[str]:
        """See `Facts`."""
        if len(self.stood) != 3:
            yield f"three processes were to stand, {len(self.stood)} did"
        if len(self.led) != 1:
            yield f"exactly one was to lead, and these did: {_names(self.led)}"
        if self.worked != self.led:
            yield f"only the leader was to work, and these did: {_names(self.worked)}"


@dataclass(frozen=True)
class HandOver:
    """SIGTERM: the old leader stops its work, then releases; the next leads long before the ttl is over."""

    took: float  # from SIGTERM to the next leader
    left: float  # of the ttl, at SIGTERM
    stopped: float  # from SIGTERM to the end of the old leader's work
    exit_code: int
    tokens: tuple[int, int]

    def missing(self) -> Iterator[str]:
        """See `Facts`."""
        if self.took > self.left / 2:
            yield f"the hand-over took {ms(self.took)}: not clearly shorter than the {ms(self.left)} left of the ttl"
        if self.stopped > self.took:
            yield f"the old leader worked until {ms(self.stopped)}, the next began at {ms(self.took)}: they overlapped"
        if self.exit_code != 0:
            yield f"the old leader was to end in good order, its exit code is {self.exit_code}"
        yield from _rise(self.tokens)


@dataclass(frozen=True)
class TakeOver:
    """kill -9: nobody releases anything; the next leads when the ttl is over, and not before."""

    took: float  # from the kill to the next leader
    left: float  # of the ttl, at the kill, by the leader's own clock
    ttl: float
    tokens: tuple[int, int]

    def missing(self) -> Iterator[str]:
        """See `Facts`."""
        if self.took < self.left:
            yield f"the next led after {ms(self.took)}, while the claim was good for another {ms(self.left)}"
        if self.took > self.ttl + SLACK:
            yield f"the take-over took {ms(self.took)}, with a ttl of {ms(self.ttl)}"
        yield from _rise(self.tokens)


@dataclass(frozen=True)
class Pause:
    """Pod A is stopped between check and write; B takes over and writes; A wakes up and writes."""

    fenced: bool
    ttl: float
    at_check: float  # what A had left when its check passed
    paused: float  # how long A stood still, by its own clock
    order: tuple[float, float]  # when B and when A had written
    tokens: tuple[int, int]
    rows: tuple[int, int]  # changed by B and by A
    valid: bool  # what A believed right after its write
    lost: str | None  # how A was told
    quantity: int  # what stands in the end
    wanted: tuple[int, int]  # what A and B wrote

    def missing(self) -> Iterator[str]:
        """See `Facts`."""
        ours, theirs = self.wanted
        if self.at_check <= 0:
            yield "A's check was to pass, but it had no time left"
        if self.paused <= self.ttl:
            yield f"A was to stand still for longer than the ttl of {ms(self.ttl)}, it was {ms(self.paused)}"
        if self.rows[0] != 1 or self.order[0] >= self.order[1]:
            yield "B was to write while A stood still"
        if self.valid or self.lost is None:
            yield "A was to learn afterwards that its lease had been lost"
        if self.fenced and (self.rows[1] != 0 or self.quantity != theirs):
            yield f"the fence was to refuse A's write: {self.rows[1]} rows changed, qty = {self.quantity}"
        if not self.fenced and (self.rows[1] != 1 or self.quantity != ours):
            yield f"without a fence A's stale write was to stand: {self.rows[1]} rows changed, qty = {self.quantity}"
        yield from _rise(self.tokens)


def _rise(tokens: tuple[int, int]) -> Iterator[str]:
    if tokens[0] >= tokens[1]:
        yield f"tokens were to rise, and went from {tokens[0]} to {tokens[1]}"


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
