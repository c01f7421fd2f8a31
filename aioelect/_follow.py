"""Leadership as something to follow: three events, and an iterator that may miss whole terms, never half of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from aioelect._core.hold import EndReason
from aioelect._store import Holder
from aioelect._term import Term

__all__ = ["Following", "Leader", "LeaderChanged", "LeaderEvent", "Standing", "TermEnded", "TermStarted"]


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as far as the store told; None for what it did not.

    `info` is what the leader tells of itself (`Elector(info=...)`): known to who asks (`observe`, `info`, `current`),
    not told by an elector's events, and no part of who it is.
    """

    identity: str | None
    token: int | None
    id: str | None
    info: Mapping[str, str] | None = field(default=None, compare=False)


class TermStarted(NamedTuple):
    """We lead. Work belongs into `term.start_soon(...)`: only such children are stopped and awaited with the term."""

    term: Term


class TermEnded(NamedTuple):
    """We lead no more, and the work of that term has ended."""

    term: Term
    reason: EndReason


class LeaderChanged(NamedTuple):
    """Somebody else leads now, or we do, or nobody (None)."""

    leader: Leader | None


LeaderEvent = TermStarted | TermEnded | LeaderChanged


class Standing:
    """What a candidacy is at now. Every iterator compares it with what it has shown; nothing is queued anywhere."""

    def __init__(self) -> None:
        self.term: Term | None = None
        self.leader: Leader | None = None
        self.over = False
        self.failure: BaseException | None = None
        self._listening: set[asyncio.Event] = set()

    def began(self, term: Term) -> None:
        """We lead."""
        self.term = term
        self.leader = Leader(term.identity, term.token, term.id)
        self._tell()

    def ended(self, term: Term) -> None:
        """Our term has ended, and its work with it."""
        self.term = None
        if self.leader is not None and self.leader.id == term.id:
            self.leader = None
        self._tell()

    def saw(self, holder: Holder | None) -> None:
        """The store named the holder; None: it said that there is none."""
        leader = None if holder is None else Leader(holder.identity, holder.token, holder.id)
        if leader != self.leader:
            self.leader = leader
            self._tell()

    def end(self, failure: BaseException | None) -> None:
        """The candidacy is over."""
        self.over, self.failure = True, failure
        self._tell()

    def _tell(self) -> None:
        for event in self._listening:
            event.set()

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set at every change."""
        event = asyncio.Event()
        self._listening.add(event)
        try:
            yield event
        finally:
            self._listening.discard(event)


class Following(AsyncIterator[LeaderEvent]):
    """One consumer's view of a candidacy: the present state first, then every change that it was there for."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._term: Term | None = None  # shown as started
        self._leader: Leader | None = None  # shown last

    async def __anext__(self) -> LeaderEvent:
        await asyncio.sleep(0)  # a step always lets a cancellation in
        with self._standing.listening() as changed:
            while True:
                event = self._difference()
                if event is not None:
                    return event
                if self._standing.over:
                    if self._standing.failure is not None:
                        raise self._standing.failure
                    raise StopAsyncIteration
                changed.clear()
                await changed.wait()

    def _difference(self) -> LeaderEvent | None:
        standing = self._standing
        if self._term is not None:
            term, reason = self._term, self._term.end_reason
            if reason is not None and standing.term is not term:
                self._term = None
                return TermEnded(term, reason)
        elif standing.term is not None:
            self._term = standing.term
            return TermStarted(standing.term)
        if standing.leader != self._leader:
            self._leader = standing.leader
            return LeaderChanged(standing.leader)
        return None
