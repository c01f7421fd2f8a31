"""Masters and candidates in a few lines, for the pure ring: what the scripts of an election do, in a drawn order.

`play` lets an hour of misfortune happen: requests that arrive and answers that don't, rounds that stall half-way, nodes
that lose their data or come back with old data, clocks that disagree. After every step it looks for two claims that
could both be proved, and for a token that did not rise.
"""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass, field

from aioelect._core import quorum
from aioelect._core.quorum import No, Vote, Won, Yes
from aioelect._core.timing import drift

TTL = 10.0


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Node:
    """One master; the scripts `vote`, `record`, `withdraw`, by a clock of its own."""

    ahead: float  # its clock, seconds: only tokens are minted by it
    owner: int | None = None
    expires: float = -math.inf
    round: int = 0
    term: int | None = None
    token: int | None = None
    proposed: int = 0
    since: float | None = -math.inf
    guarded: bool = True

    def holder(self, now: float) -> int | None:
        return self.owner if now < self.expires else None

    def vote(self, who: int, turn: int, now: float) -> Vote | None:
        """None: it abstains."""
        if self.since is None:
            self.since = now
        holder = self.holder(now)
        if holder not in (None, who):
            return No(str(holder), None, self.token, self.expires - now)
        if self.guarded and now < self.since + TTL:
            return None
        if holder != who or self.term != who:
            self.proposed = max(self.proposed, self.token or 0, int((now + self.ahead) * 1e3)) + 1
            self.owner, self.term, self.token = who, who, None
        self.expires, self.round = now + TTL, turn
        return Yes(self.token or self.proposed, self.token is not None)

    def record(self, who: int, token: int, now: float) -> bool:
        if self.holder(now) != who or self.term != who:
            return False
        self.token, self.proposed = token, max(token, self.proposed)
        return True

    def withdraw(self, who: int, turn: int, now: float) -> None:
        if self.holder(now) == who and self.round <= turn:
            self.owner = None

    def renew(self, who: int, now: float) -> bool:
        if self.holder(now) != who:
            return False
        self.expires = now + TTL
        return True

    def wipe(self) -> None:
        """Its data is gone; the highest numbers live on in its clock, which is why tokens rise all the same."""
        self.owner, self.term, self.token, self.proposed, self.since = None, None, None, 0, None


@dataclass
class Candidate:
    """One process: rounds of votes, then a term, then another owner value."""

    who: int
    turn: int = 0
    since: float = 0.0
    votes: dict[int, Vote] = field(default_factory=dict)
    token: int | None = None
    recorded: dict[int, bool] = field(default_factory=dict)
    renewed: dict[int, bool] = field(default_factory=dict)
    deadline: float = -math.inf  # provable up to then
    stage: str = "idle"


class World:
    """Nodes, candidates, and one random source for all that happens."""

    def __init__(self, seed: int, *, nodes: int = 3, guarded: bool = True) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.nodes = [Node(self.random.uniform(-0.5, 0.5), guarded=guarded) for _ in range(nodes)]
        self.old: dict[int, Node] = {}
        self.people = [Candidate(who) for who in range(3)]
        self.values = len(self.people)
        self.issued = 0
        self.terms = 0
        self.late: list[tuple[int, int, int]] = []  # withdrawals under way: node, who, turn

    def step(self) -> None:
        """Let one thing happen."""
        deeds = [(self.act, 40), (self.pass_time, 6), (self.deliver, 6), (self.lose_data, 1), (self.remember, 1)]
        deed = self.random.choices([deed for deed, _ in deeds], [weight for _, weight in deeds])[0]
        deed()
        provable = [one.who for one in self.people if self.now < one.deadline]
        if len(provable) > 1:
            raise Violation(f"{provable} both hold it")

    def pass_time(self) -> None:
        self.now += self.random.choice([0.1, 1.0, TTL / 2, TTL])

    def deliver(self) -> None:
        if self.late:
            node, who, turn = self.late.pop(self.random.randrange(len(self.late)))
            self.nodes[node].withdraw(who, turn, self.now)

    def lose_data(self) -> None:
        at = self.random.randrange(len(self.nodes))
        if (old := self.old.get(at)) is not None and self.random.random() < 0.5:
            # A restart with an old snapshot: its clock goes on, what expired stays expired.
            self.nodes[at] = copy.copy(old)
            self.nodes[at].since = self.now
        else:
            self.nodes[at].wipe()

    def remember(self) -> None:
        at = self.random.randrange(len(self.nodes))
        self.old[at] = copy.copy(self.nodes[at])

    def act(self) -> None:
        one = self.random.choice(self.people)
        match one.stage:
            case "idle":
                one.stage, one.since, one.turn = "voting", self.now, one.turn + 1
                one.votes, one.recorded, one.token = {}, {}, None
            case "voting":
                self.ask(one)
            case "recording":
                self.write_back(one)
            case "holding":
                self.hold(one)

    def ask(self, one: Candidate) -> None:
        if left := [at for at in range(len(self.nodes)) if at not in one.votes]:
            at = self.random.choice(left)
            vote = self.nodes[at].vote(one.who, one.turn, self.now)
            if self.random.random() < 0.9:  # else the answer gets lost
                one.votes[at] = quorum.Void() if vote is None else vote
        final = self.random.random() < 0.1  # the polls close
        missing = [quorum.Void()] * (len(self.nodes) - len(one.votes)) if final else []
        match quorum.elect([*one.votes.values(), *missing], len(self.nodes)):
            case Won(token=token, recorded=recorded):
                one.token, one.stage = token, "recording"
                if recorded:
                    self.begin(one)
            case None:
                pass
            case _:
                self.give_up(one)

    def write_back(self, one: Candidate) -> None:
        assert one.token is not None
        if left := [at for at in range(len(self.nodes)) if at not in one.recorded]:
            at = self.random.choice(left)
            mine = isinstance(one.votes.get(at), Yes) and self.nodes[at].record(one.who, one.token, self.now)
            one.recorded[at] = mine and self.random.random() < 0.9
        yes = sum(one.recorded.values())
        no = len(one.recorded) - yes
        match quorum.settle(yes, no, len(self.nodes) - yes - no, len(self.nodes)):
            case quorum.Verdict.YES:
                self.begin(one)
            case quorum.Verdict.NO | quorum.Verdict.UNCLEAR:
                self.give_up(one)

    def begin(self, one: Candidate) -> None:
        assert one.token is not None
        if not quorum.in_time(self.now - one.since, TTL):
            self.give_up(one)
            return
        if self.now >= one.since + TTL - drift(TTL):
            raise Violation("a term began that can't be proved")
        if one.token <= self.issued:
            raise Violation(f"token {one.token} after {self.issued}")
        self.issued, self.terms = one.token, self.terms + 1
        one.deadline, one.stage = one.since + TTL - drift(TTL), "holding"

    def give_up(self, one: Candidate) -> None:
        # The owner value stays: that is what makes a withdrawal that arrives late dangerous.
        self.late += [(at, one.who, one.turn) for at in range(len(self.nodes))]
        one.stage = "idle"

    def hold(self, one: Candidate) -> None:
        if self.random.random() < 0.4:
            sent = self.now
            yes = sum(node.renew(one.who, self.now) for node in self.nodes if self.random.random() < 0.8)
            if sent < one.deadline and yes >= quorum.majority(len(self.nodes)):
                one.deadline = sent + TTL - drift(TTL)
            return
        for node in self.nodes:
            if self.random.random() < 0.8:
                node.withdraw(one.who, one.turn, self.now)
        one.deadline, one.stage = -math.inf, "idle"
        self.values += 1
        one.who, one.turn = self.values, 0  # the next acquisition has a value of its own


def play(seed: int, *, steps: int = 400, nodes: int = 3, guarded: bool = True) -> World:
    """Play one drawn story; Violation if a promise is broken in it."""
    world = World(seed, nodes=nodes, guarded=guarded)
    for _ in range(steps):
        world.step()
    return world
