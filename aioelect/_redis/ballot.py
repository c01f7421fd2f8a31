"""One round of an election.

Every node is asked at once, and each goes its own way, from its vote to the record or to the withdrawal. So a node that
is slow, or hangs, is in nobody's way, and nothing is forgotten on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aioelect import _clock
from aioelect._core.quorum import No, Outcome, Unable, Verdict, Void, Vote, Won, Yes, elect, in_time, settle
from aioelect._core.timing import RELEASE_LIMIT
from aioelect._errors import StoreError, StoreRejected
from aioelect._store import Claim

from .node import Node

__all__ = ["Ballot", "Spawn"]

R = TypeVar("R")

Spawn = Callable[[Coroutine[object, object, object], str], object]
"""Start a detached task, by the name of what it does."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What every node is asked for."""

    claim: Claim
    floor: int
    turn: int
    longest: float
    limit: float  # seconds for each request to a node


class Ballot:
    """The votes of one round, and what became of them."""

    def __init__(self, nodes: Sequence[Node], terms: Terms, spawn: Spawn) -> None:
        self.troubles: dict[Node, StoreError] = {}  # why a node took no part, as far as it has been heard
        self._nodes = nodes
        self._terms = terms
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._votes: dict[Node, Vote] = {}
        self._recorded: dict[Node, bool] = {}
        self._token: int | None = None
        self._decided = asyncio.Event()
        self._over = asyncio.Event()
        self._won = False
        self._given_up = False
        self._news: asyncio.Future[None] | None = None
        self._standing = len(nodes)
        for node in nodes:
            spawn(self._stand(node), f"ballot on {terms.claim.name}")

    @property
    def counted(self) -> bool:
        """Every node has gone its way to the end."""
        return self._standing == 0

    async def result(self, since: float, until: float) -> Outcome:
        """Who has won; unless that is us, for certain and in time, nothing of this round will be left.

        `since`: the instant, by the clock of deadlines, from which the claim counts. `until`: by the loop's clock.
        """
        try:
            polls_close = min(until, self._loop.time() + self._terms.limit)
            outcome: Outcome = await self._until(self._elected, polls_close) or self._last_count()
            if isinstance(outcome, Won):
                self._refuse_twins()
                self._token = outcome.token
                self._decided.set()
                if not outcome.recorded and await self._until(self._kept, until) is not Verdict.YES:
                    return Unable()
                if not in_time(_clock.now() - since, self._terms.claim.ttl):
                    return Unable()
                self._won = True
            return outcome
        finally:
            self._decided.set()
            self._over.set()

    @property
    def silent(self) -> list[Node]:
        """Those who have not been heard yet."""
        return [node for node in self._nodes if node not in self._votes]

    def give_up(self) -> None:
        """The claim that was won is being released: where it has not been made yet, it is taken back."""
        self._given_up = True

    def _refuse_twins(self) -> None:
        known: dict[bytes, Node] = {}
        for node in self._nodes:
            if node.run and (twin := known.setdefault(node.run, node)) is not node:
                raise StoreRejected(
                    f"{twin} and {node} are one server (run id {node.run.decode()}), which would have two votes: give "
                    "the store different ones",
                    name=self._terms.claim.name,
                    reason="clients",
                )

    async def _stand(self, node: Node) -> None:
        terms = self._terms
        try:
            vote = await self._vote(node)
            late = self._over.is_set()
            self._votes[node] = vote
            self._tell()
            await self._decided.wait()
            await self._record(node, vote)
            await self._over.wait()
            if (not self._won or (late and self._given_up)) and not isinstance(vote, No):
                # Also where no answer came: the claim may have been made.
                withdrawal = node.heard(node.withdraw(terms.claim, terms.turn, limit=RELEASE_LIMIT))
                self._spawn(withdrawal, f"release of {terms.claim.name}")
        finally:
            self._standing -= 1

    async def _vote(self, node: Node) -> Vote:
        terms = self._terms
        question = node.vote(terms.claim, floor=terms.floor, turn=terms.turn, longest=terms.longest, limit=terms.limit)
        vote = await node.heard(question)
        if isinstance(vote, StoreError):
            self.troubles[node] = vote
            return Void()
        return vote

    async def _record(self, node: Node, vote: Vote) -> None:
        kept: bool | StoreError = False
        if self._token is not None and isinstance(vote, Yes):
            kept = await node.heard(node.record(self._terms.claim, self._token, limit=self._terms.limit))
            if isinstance(kept, StoreError):
                self.troubles[node] = kept
        self._recorded[node] = kept is True
        self._tell()

    def _elected(self) -> Outcome | None:
        return elect(list(self._votes.values()), len(self._nodes))

    def _last_count(self) -> Outcome:
        outcome = elect([*self._votes.values(), *(Void() for _ in self.silent)], len(self._nodes))
        assert outcome is not None
        return outcome

    def _kept(self) -> Verdict | None:
        yes = sum(self._recorded.values())
        no = len(self._recorded) - yes
        return settle(yes, no, len(self._nodes) - yes - no, len(self._nodes))

    async def _until(self, decide: Callable[[], R | None], deadline: float) -> R | None:
        """What is decided, or None at the deadline."""
        while (result := decide()) is None and (left := deadline - self._loop.time()) > 0:
            self._news = self._loop.create_future()
            await asyncio.wait([self._news], timeout=left)
        return result

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
