"""One master of a quorum: a store by itself, and what an election asks of it besides."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar

from aioelect._channel import Subscription
from aioelect._core.quorum import No, Yes
from aioelect._errors import StoreError, StoreUnavailable
from aioelect._store import Claim

from . import scripts, voting, wire
from .recipe import Recipe
from .runtime import runtime_of
from .store import RedisStore, explained

__all__ = ["Node"]

_log = logging.getLogger("aioelect")

T = TypeVar("T")

_ABSTAINS = "abstains"


class Node(RedisStore):
    """A master that votes, and knows nothing of the others."""

    def __init__(self, recipe: Recipe, prefix: str) -> None:
        super().__init__(recipe, (recipe.place, recipe.db), prefix)
        self.run = b""  # the server's run id, as far as it may be read
        self._register = voting.register_of(prefix)
        self._label = ":".join(map(str, recipe.place[1:])) if isinstance(recipe.place, tuple) else str(recipe.place)
        self._failures = 0  # in a row
        self._abstains = False

    def __str__(self) -> str:
        return self._label

    async def vote(self, claim: Claim, *, floor: int, turn: int, longest: float, limit: float) -> Yes | No:
        """Claim the name here if it is free; see `lua/vote.lua`."""
        keys = wire.keys_of(self._prefix, claim.name)
        floor = max(floor, self.floor(claim.name))
        with explained(claim.name, keys, claim.owner):
            reply = await self._evaluate(
                "vote", (*keys.record, self._register), voting.vote_args(claim, keys, floor, turn, longest), limit
            )
            vote, self.run = voting.vote_reply(reply, claim)
        self.saw(claim.name, vote.token)
        return vote

    async def record(self, claim: Claim, token: int, *, limit: float) -> bool:
        """Write the majority's token back; False: the claim is not ours here."""
        keys = wire.keys_of(self._prefix, claim.name)
        with explained(claim.name, keys, claim.owner):
            arguments = voting.record_args(claim, keys, token)
            return voting.done_reply(await self._evaluate("record", keys.record, arguments, limit))

    async def withdraw(self, claim: Claim, turn: int, *, limit: float) -> bool:
        """Take the claim of a round back, if a later one has not renewed it."""
        keys = wire.keys_of(self._prefix, claim.name)
        with explained(claim.name, keys, claim.owner):
            arguments = voting.withdraw_args(claim, keys, turn)
            return voting.done_reply(await self._evaluate("withdraw", keys.record, arguments, limit))

    async def commission(self, longest: float, *, limit: float) -> None:
        """Let the node vote at once; see `lua/commission.lua`."""
        await self._evaluate("commission", (self._register,), (wire.milliseconds(longest),), limit)

    def subscription(self, name: str) -> Subscription:
        """Listen to the notices of a name on this node."""
        return runtime_of(self._origin).notices.watch(wire.keys_of(self._prefix, name).channel)

    async def heard(self, question: Awaitable[T]) -> T | StoreError:
        """The answer, or why there is none."""
        try:
            answer = await question
        except Exception as exc:  # noqa: BLE001 - whatever happens to one node, the others decide
            error = exc if isinstance(exc, StoreError) else StoreUnavailable(f"the store failed: {type(exc).__name__}")
            if error.reason == _ABSTAINS:
                self._tell_answering()
                self._tell_abstaining(error)
            elif error.reason != "closed":
                self._tell_failing(error)
            return error
        self._tell_answering()
        if isinstance(answer, Yes):
            self._tell_voting()
        return answer

    # What a majority makes up for would go unnoticed until the next node falls out: the log has a line at the start of
    # it and one at the end.

    def _tell_failing(self, error: StoreError) -> None:
        self._failures += 1
        if self._failures == 2:  # one failure may be a stale connection
            _log.warning("a node of the quorum, %s, does not answer: %s", self, error)

    def _tell_answering(self) -> None:
        if self._failures >= 2:
            _log.warning("a node of the quorum, %s, answers again", self)
        self._failures = 0

    def _tell_abstaining(self, error: StoreError) -> None:
        if not self._abstains:
            _log.warning("a node of the quorum, %s, abstains: %s", self, error)
        self._abstains = True

    def _tell_voting(self) -> None:
        if self._abstains:
            _log.warning("a node of the quorum, %s, votes again", self)
        self._abstains = False

    async def _evaluate(self, name: str, keys: wire.Places, arguments: wire.Command, limit: float) -> object:
        runtime = runtime_of(self._origin)
        return await scripts.evaluate(runtime.route, name, keys, arguments, runtime.deadline_in(limit))
