"""Claims on a majority of independent masters: no single one of them has to live, or to remember.

Who wins is decided in `_core/quorum.py`, a round of voting is in `ballot.py`, what a node does in `lua/vote.lua`.

The keeper of a claim counts its life from before `acquire` or `renew` was called (P1). That holds here: on each node of
the majority the ttl begins when the request arrives, which is later. Voting again after a split vote, and recording
the token, take from the life that is left and never add to it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from typing import TypeVar
from weakref import WeakSet

from redis.asyncio import Redis
from redis.asyncio.sentinel import SentinelConnectionPool

from aioelect import _clock
from aioelect._background import spawn
from aioelect._core.names import check_prefix
from aioelect._core.quorum import Held, Split, Unable, Verdict, Won, back_off, check_size, majority, settle
from aioelect._core.timing import MAX_TTL, MIN_TTL, RELEASE_LIMIT, Duration, drift, seconds
from aioelect._errors import ConfigurationError, StoreError, StoreRejected, StoreUnavailable
from aioelect._store import Capabilities, Claim, Contended, Granted, Holder, Refused, Released, Renewed, Watch

from .ballot import Ballot, Terms
from .hearing import Hearing
from .node import Node
from .recipe import recipe_of
from .refusals import Trouble, timed_out

__all__ = ["QuorumStore"]

_LATER = 0.1  # of the ttl: when to look again after a vote that stayed split

T = TypeVar("T")
Answer = Renewed | Released | Refused


class QuorumStore:
    """Claims on a majority of an odd number of independent Redis or Valkey masters; passed where a client is passed.

    A claim is held if a majority of the masters has granted it, and its token is recorded on a majority, in less than
    its ttl (less a margin for their clocks). So it survives the loss of a minority, whatever that minority does: be
    away, hang, refuse, or come back without its data. A master that was restarted or emptied does not vote until
    `longest_ttl` has passed. It does not replace the check of the token at the place that is written to.

    Making one waits for nothing and opens nothing. Whatever opens later is closed by `await aioelect.aclose(store)`.

    Args:
        clients: a `redis.asyncio.Redis` for each master: 3, 5 or another odd number, all different servers, without
            replicas that are promoted, and with `maxmemory-policy noeviction`.
        prefix: of the keys on the masters.
        longest_ttl: no claim has a longer ttl, seconds or timedelta, 0.1 s to 24 h; so long a master stands aside
            after it lost its data, or when it is used for the first time. The same in every process. Default: 30 s.

    Raises:
        ConfigurationError: the clients don't make a quorum; the message names the reason.

    Examples:
        >>> store = QuorumStore([Redis(host=host) for host in ("a", "b", "c")])  # doctest: +SKIP
        >>> async with FencedLock(store, "inventory", wait=5) as term:  # doctest: +SKIP
        ...     await write(term.token)
    """

    def __init__(self, clients: Sequence[Redis], *, prefix: str = "aioelect", longest_ttl: Duration = 30.0) -> None:
        check_prefix(prefix)
        self._longest = seconds("longest_ttl", longest_ttl, least=MIN_TTL, most=MAX_TTL)
        self._nodes = _nodes(clients, prefix)
        self._key = ("quorum", frozenset(node.key for node in self._nodes))
        self._ballots: dict[str, Ballot] = {}  # of claims that are held, while not every node has been counted
        self._tasks: WeakSet[asyncio.Task[object]] = WeakSet()

    def __repr__(self) -> str:
        return f"<QuorumStore {', '.join(map(str, self._nodes))}>"

    @property
    def key(self) -> Hashable:
        """The masters, their databases and the prefix."""
        return self._key

    @property
    def capabilities(self) -> Capabilities:
        """All that a store can do, for a ttl up to `longest_ttl`."""
        return Capabilities(longest_ttl=self._longest)

    async def commission(self, *, limit: float = 5.0) -> None:
        """Let new masters vote at once, instead of after `longest_ttl`: they have never held a claim.

        For the first start of a quorum, once, by whoever sets it up; never for one that is in use. Waits for all
        masters, up to `limit` seconds each. If it is cancelled, some of them may vote.

        Raises:
            StoreUnavailable, StoreRejected: a master gave no answer, or refused.
        """
        heard = await asyncio.gather(*(node.heard(node.commission(self._longest, limit=limit)) for node in self._nodes))
        for node, error in zip(self._nodes, heard, strict=True):
            if error is not None:
                error.args = (f"{node}: {error}",)
                raise error

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Claim the name on a majority. Of a try that has won nothing, nothing is left where it can be undone."""
        loop = asyncio.get_running_loop()
        since = _clock.now()
        until = loop.time() + min(limit, claim.ttl - drift(claim.ttl))
        for rounds in itertools.count():
            began = loop.time()
            ballot = self._vote(claim, (until - began) / 2)
            outcome = await ballot.result(since, until)
            match outcome:
                case Won(token=token):
                    return self._granted(claim, token, ballot)
                case Held(by=by, free_in=free_in):
                    return Contended(Holder(by.identity, by.token, by.id, free_in))
                case Unable():
                    raise self._unable(claim, ballot, _clock.now() - since)
                case Split(by=by, free_in=free_in):
                    now = loop.time()
                    pause = back_off(rounds, now - began, random.random())
                    if now + 2 * pause >= until:
                        # Not sooner than the others who split the vote can have made up their minds.
                        later = claim.ttl * _LATER * (0.5 + random.random())
                        later = later if free_in is None else min(later, free_in)
                        return Contended(Holder(by.identity, by.token, by.id, later))
                    await asyncio.sleep(pause)
        raise AssertionError

    async def renew(self, claim: Claim, *, limit: float) -> Renewed | Refused:
        """Prolong the claim where it is ours, if that is on a majority. Never creates it anywhere."""
        answers = await self._poll(
            claim, lambda node: node.renew(claim, limit=limit), limit, f"renewal of {claim.name}"
        )
        return Renewed() if isinstance(answers[0], Renewed) else _refused(answers)

    async def release(self, claim: Claim, *, keep: float = 0.0, limit: float) -> Released | Refused:
        """Give the claim up on all nodes; those that take longer than a majority go on in the background, up to 2 s."""
        if (ballot := self._ballots.pop(claim.owner, None)) is not None:
            ballot.give_up()
        patience = max(limit, RELEASE_LIMIT) if limit > 0 else limit

        def give_up(node: Node) -> Awaitable[Released | Refused]:
            return node.release(claim, keep=keep, limit=patience)

        answers = await self._poll(claim, give_up, limit, f"release of {claim.name}")
        told = [answer.told for answer in answers if isinstance(answer, Released)]
        return Released(max(told)) if isinstance(answers[0], Released) else _refused(answers)

    def watch(self, name: str) -> Watch:
        """Listen to the notices of a name on all nodes."""
        return Hearing([node.subscription(name) for node in self._nodes], majority(len(self._nodes)))

    async def aclose(self) -> None:
        """Close what is open in the running loop; what is still on its way gets 2 s."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + RELEASE_LIMIT
        while tasks := {task for task in self._tasks if task.get_loop() is loop and not task.done()}:
            if (left := give_up - loop.time()) <= 0:
                for task in tasks:
                    task.cancel()
            await asyncio.wait(tasks, timeout=max(0.0, left) or None)
        await asyncio.gather(*(node.aclose() for node in self._nodes))

    # -- one round --------------------------------------------------------------------------------------------------

    def _vote(self, claim: Claim, limit: float) -> Ballot:
        terms = Terms(
            claim,
            floor=max(node.floor(claim.name) for node in self._nodes),
            turn=int(_clock.now() * 1e6),
            longest=self._longest,
            limit=limit,
        )
        return Ballot(self._nodes, terms, self._spawn)

    def _granted(self, claim: Claim, token: int, ballot: Ballot) -> Granted:
        for node in self._nodes:
            node.saw(claim.name, token)
        self._ballots = {owner: open_ for owner, open_ in self._ballots.items() if not open_.counted}
        self._ballots[claim.owner] = ballot
        return Granted(token)

    def _unable(self, claim: Claim, ballot: Ballot, took: float) -> StoreError:
        troubles = ballot.troubles
        spare = len(self._nodes) - majority(len(self._nodes))
        rejected = [error for error in troubles.values() if isinstance(error, StoreRejected) and not error.passing]
        said = [f"{node}: {error}" for node, error in troubles.items()]
        said += [f"{node}: {timed_out(took).message}" for node in ballot.silent]
        message = f"no majority of {len(self._nodes)} nodes has granted {claim.name!r} in time ({'; '.join(said)})"
        if len(rejected) > spare:
            return StoreRejected(message, name=claim.name, reason=rejected[0].reason)
        return StoreUnavailable(message, name=claim.name, reason="no majority")

    # -- one question -----------------------------------------------------------------------------------------------

    async def _poll(
        self, claim: Claim, ask: Callable[[Node], Awaitable[Answer]], limit: float, what: str
    ) -> list[Answer]:
        """The answers of a majority that says the same (and of others, after them), or StoreUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        pending = {self._spawn(node.heard(ask(node)), what) for node in self._nodes}
        yes: list[Answer] = []
        no: list[Answer] = []
        errors: list[StoreError] = []
        while True:
            verdict = settle(len(yes), len(no), len(pending), len(self._nodes))
            if verdict is Verdict.YES:
                return yes + no
            if verdict is Verdict.NO:
                return no + yes
            left = deadline - loop.time()
            if verdict is Verdict.UNCLEAR or left <= 0:
                raise self._unclear(claim, len(yes), len(no), errors)
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                match _closed() if task.cancelled() else task.result():
                    case StoreError() as error:
                        errors.append(error)
                    case Refused() as answer:
                        no.append(answer)
                    case answer:
                        yes.append(answer)

    def _unclear(self, claim: Claim, yes: int, no: int, errors: Sequence[StoreError]) -> StoreUnavailable:
        said = "; ".join(sorted({str(error) for error in errors})) or "the others did not answer in time"
        counted = f"{yes} of {len(self._nodes)} nodes said that {claim.name!r} is ours, {no} that it is not"
        return StoreUnavailable(f"{counted}, so no majority ({said})", name=claim.name, reason="no majority")

    def _spawn(self, work: Coroutine[object, object, T], what: str) -> asyncio.Task[T]:
        task = spawn(work, what)
        self._tasks.add(task)
        return task


def _closed() -> StoreError:
    return Trouble("closed", "the connections of this store were closed").error()


def _refused(answers: Sequence[Answer]) -> Refused:
    """A majority's refusal, with the holder as the node that knows most tells it."""
    holders = [answer.holder for answer in answers if isinstance(answer, Refused) and answer.holder is not None]
    return Refused(max(holders, key=lambda holder: holder.token or 0, default=None))


def _nodes(clients: Iterable[object], prefix: str) -> list[Node]:
    clients = list(clients)
    nodes: dict[Hashable, Node] = {}
    for client in clients:
        if not isinstance(client, Redis):
            raise ConfigurationError(
                f"clients: a {type(client).__name__}; wanted: a redis.asyncio.Redis for each master",
                reason="clients",
            )
        if isinstance(client.connection_pool, SentinelConnectionPool):
            raise ConfigurationError(
                "clients: a master behind sentinels may be replaced by a replica that has not heard of a claim, and "
                "nobody would notice; wanted: independent masters",
                reason="clients",
            )
        recipe = recipe_of(client)
        if recipe.place in nodes:
            raise ConfigurationError(
                f"clients: {nodes[recipe.place]} is there twice; it would have two votes", reason="clients"
            )
        nodes[recipe.place] = Node(recipe, prefix)
    check_size(len(clients))
    return list(nodes.values())
