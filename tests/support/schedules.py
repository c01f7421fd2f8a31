"""Whole schedules for the pure core: contenders, a model server, messages and pauses, played in true time.

    play(schedule)          # raises Violation where a promise is broken; returns what happened

A `Schedule` says everything that fortune decides. Everything else is decided by `aioelect._core`, called as the keeper
and the waiter call it: answers and ticks go in, actions come out. Each process and the server read clocks of their own,
which run at different rates, within the documented margin of 1 %. What is looked up as an attribute of a module
(`hold.step`, `Server.release`, ...) can be replaced for a while: that is how mutants are put in.

Durations of a schedule are fractions of the ttl, so that one schedule means the same for each ttl.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from aioelect._core import hold
from aioelect._core.campaign import Campaign, GiveUp, Sleep
from aioelect._core.hold import Action
from aioelect._core.timing import Timing
from aioelect._store import Contended, Granted, Renewed
from support.model_server import Answer, Server

SLOWEST, FASTEST = 0.995, 1.005
"""Rates against true time; the fastest against the slowest is the documented 1 %."""
_HORIZON = 6.0
_LATE_TIMER = 1e-6  # a timer is never early


class Fate(enum.Enum):
    """What becomes of a request."""

    DELIVERED = "delivered"
    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"


@dataclass(frozen=True)
class Message:
    """How one request and its reply travel, and for how long its sender looks at nothing once it is sent."""

    fate: Fate = Fate.DELIVERED
    there: float = 0.001
    back: float = 0.001
    pause: float = 0.0


LOST = Message(Fate.REQUEST_LOST)


@dataclass(frozen=True)
class Life:
    """One process: its clock, its work, its misfortunes."""

    rate: float = 1.0
    start: float = 0.0
    body: float = 3.0  # how long each term's work takes
    drain: float = 0.05  # how long it takes to stop
    quit_at: float | None = None  # so long into each term somebody asks for its end
    crash_at: float | None = None
    proofs: tuple[float, ...] = ()  # so long into each term the work asks for a renewal of its own
    pauses: tuple[tuple[float, float], ...] = ()  # (start, length): nothing is looked at meanwhile
    newest_first: bool = False  # the order in which things are looked at after a pause
    messages: tuple[Message, ...] = ()  # in the order of the requests; after that all goes well
    chance: float = 0.5


@dataclass(frozen=True)
class Schedule:
    """Everything that fortune decides."""

    lives: tuple[Life, ...]
    ttl: float = 1.0
    drain_limit: float = 1.0
    server_rate: float = 1.0
    seized_at: tuple[float, ...] = ()  # an operator deletes the claim


class Violation(AssertionError):
    """A promise was broken."""


class World:
    """True time, one server, some processes; looks for broken promises after everything that happens."""

    def __init__(self, schedule: Schedule) -> None:
        self.now = 0.0
        self.schedule = schedule
        self.timing = Timing.of(schedule.ttl, drain_limit=max(0.01, schedule.drain_limit * schedule.ttl))
        self.server = Server(schedule.server_rate)
        self.last_token = 0  # of the terms that began
        self.terms = 0
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._processes = [Process(self, number, life) for number, life in enumerate(schedule.lives)]

    def at(self, t: float, what: Callable[[], None], rank: float = 0.0) -> None:
        """Let something happen; of two things at one instant the lower rank comes first."""
        heapq.heappush(self._events, (t, rank, next(self._order), what))

    def play(self) -> World:
        """From the first start to the horizon."""
        for process in self._processes:
            process.begin()
        for share in self.schedule.seized_at:
            self.at(share * self.timing.ttl, lambda: self.server.seize(self.now))
        while self._events and self._events[0][0] < _HORIZON * self.timing.ttl:
            self.now, _, _, what = heapq.heappop(self._events)
            what()
            self._inspect()
        return self

    def look_again_when_the_claim_ends(self) -> None:
        """Between two events nobody begins to believe, so the end of the claim is the one instant to add."""
        if self.server.ends() > self.now:
            self.at(self.server.ends(), lambda: None)

    def _inspect(self) -> None:
        believers = [process for process in self._processes if process.believes()]
        believers = [process for process in believers if not self.server.has_seized(process.owner)]
        if len(believers) > 1:
            raise Violation(f"{len(believers)} believers at {self.now}")
        for process in believers:
            if self.server.owner(self.now) != process.owner:
                raise Violation(f"process {process.number} believes at {self.now}, and its claim is gone")


class Process:
    """One contender: what `_waiter.py` and `_keeper.py` do around the core, without I/O."""

    def __init__(self, world: World, number: int, life: Life) -> None:
        self.number = number
        self.owner = ""
        self._world = world
        self._life = life
        self._ttl = world.timing.ttl
        self._messages: Iterator[Message] = itertools.chain(life.messages, itertools.repeat(Message()))
        self._state: hold.State = hold.Idle()
        self._owners = itertools.count()
        self._campaign = Campaign(world.timing, 0.0, None)
        self._wake_at = math.inf
        self._working = False
        self._pauses = [(start * self._ttl, (start + length) * self._ttl) for start, length in life.pauses]

    # -- time

    def clock(self) -> float:
        """This process's own clock."""
        return self._world.now * self._life.rate + 1000.0 * self.number

    @property
    def _crashed(self) -> bool:
        return self._life.crash_at is not None and self._world.now >= self._life.crash_at * self._ttl

    def _when(self, t: float, what: Callable[[], None]) -> None:
        """At `t`, or as soon as this process looks at anything after that."""
        rank = -t if self._life.newest_first else t

        def fall_due() -> None:
            now = self._world.now
            until = max((until for start, until in self._pauses if start <= now < until), default=now)
            if until > now:
                self._world.at(until, fall_due, rank)
            elif not self._crashed:
                what()

        self._world.at(t, fall_due, rank)

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        """After so many seconds of the own clock."""
        self._when(self._world.now + seconds / self._life.rate + _LATE_TIMER, what)

    def _ask(
        self,
        request: Callable[[float], Answer],
        limit: float,
        answered: Callable[[Answer], None],
        silent: Callable[[], None],
    ) -> None:
        """Send a request; one of the two is called. What was sent may still arrive when nobody waits any more."""
        message = next(self._messages)
        waiting = [True]

        def arrive() -> None:
            answer = request(self._world.now)
            self._world.look_again_when_the_claim_ends()
            if message.fate is Fate.DELIVERED:
                self._when(self._world.now + message.back * self._ttl, lambda: settle(lambda: answered(answer)))

        def settle(outcome: Callable[[], None]) -> None:
            if waiting:
                waiting.clear()
                outcome()

        if message.fate is not Fate.REQUEST_LOST:
            self._world.at(self._world.now + message.there * self._ttl, arrive)
        self._after(limit, lambda: settle(silent))
        if message.pause:
            self._pauses.append((self._world.now, self._world.now + message.pause * self._ttl))

    # -- waiting for the name

    def begin(self) -> None:
        """Stand for the first time."""
        self._when(self._life.start * self._ttl, self._stand)

    def _stand(self) -> None:
        self.owner = f"{self.number}.{next(self._owners)}"
        self._state = hold.Idle()
        self._campaign = Campaign(self._world.timing, self.clock(), None, candidate=True)
        self._try()

    def _try(self) -> None:
        sent_at, owner = self.clock(), self.owner

        def answered(answer: Answer) -> None:
            if isinstance(answer, Granted):
                self._take(sent_at, answer.token)
            elif isinstance(answer, Contended):
                left, chance = answer.holder.remaining, self._life.chance
                self._next(*self._campaign.after_contended(self.clock(), left, notices=True, chance=chance))

        def silent() -> None:
            self._next(*self._campaign.after_unavailable(self.clock(), self._life.chance))

        server, ttl = self._world.server, self._world.timing.ttl
        self._ask(lambda t: server.acquire(owner, t, ttl), self._campaign.time_for_try(sent_at), answered, silent)

    def _next(self, campaign: Campaign, step: Sleep | GiveUp) -> None:
        self._campaign = campaign
        if isinstance(step, GiveUp):
            raise Violation("a candidate gave up")
        self._after(step.delay, self._try)

    # -- holding it

    def _take(self, sent_at: float, token: int) -> None:
        self._feed(hold.Granted(self.clock(), sent_at, token))
        if not isinstance(self._state, hold.Held):
            self._release(tries=3)  # an undo
            return
        if not hold.is_leader(self._state, self.clock()):
            raise Violation("work begins that may not go on")
        if token <= self._world.last_token:
            raise Violation(f"token {token} after {self._world.last_token}")
        self._world.last_token = token
        self._world.terms += 1
        self._working = True
        self._in_this_term(self._life.body, self._work_over)
        if self._life.quit_at is not None:
            self._in_this_term(self._life.quit_at, lambda: self._feed(hold.Quit(self.clock())))
        for proof in self._life.proofs:
            self._in_this_term(proof, self._prove)

    def _in_this_term(self, fraction: float, what: Callable[[], None]) -> None:
        owner = self.owner
        self._after(fraction * self._ttl, lambda: what() if self.owner == owner else None)

    def _prove(self) -> None:
        self._feed(hold.Tick(self.clock()))
        if isinstance(self._state, hold.Held):
            self._renew(self._world.timing.try_limit)

    def _feed(self, event: hold.Input) -> None:
        before = self._state
        self._state, actions = hold.step(before, event, self._world.timing)
        self._look_at_step(before, event)
        for action in actions:
            match action:
                case Action.RENEW:
                    self._renew(self._world.timing.response_limit)
                case Action.STOP:
                    self._in_this_term(self._life.drain, self._work_over)
                case Action.RELEASE:
                    self._release(tries=3)
                case Action.UNDO:
                    pass  # by whoever fed the grant
        if self._wake_at != (wake_at := hold.wake_at(self._state)):
            self._wake_at = wake_at
            if wake_at < math.inf:
                self._after(max(0.0, wake_at - self.clock()), lambda: self._tick(wake_at))

    def _tick(self, wished: float) -> None:
        if self._wake_at == wished:
            self._wake_at = math.inf
            self._feed(hold.Tick(self.clock()))

    def _renew(self, limit: float) -> None:
        if not isinstance(self._state, hold.Held):
            raise Violation(f"a renewal is sent in {self._state}")
        sent_at, owner = self.clock(), self.owner
        server, timing = self._world.server, self._world.timing

        def answered(answer: Answer) -> None:
            if self.owner == owner:
                now = self.clock()
                self._feed(hold.Renewed(now, sent_at) if isinstance(answer, Renewed) else hold.Refused(now))

        def silent() -> None:
            if self.owner == owner:
                self._feed(hold.Failed(self.clock(), timing.retry_delay(self._life.chance)))

        limit = min(limit, hold.life_left(self._state, sent_at))
        self._ask(lambda t: server.renew(owner, t, timing.ttl), limit, answered, silent)

    def _work_over(self) -> None:
        if not self._working:
            return
        self._working = False
        if isinstance(self._state, hold.Held):
            self._feed(hold.WorkOver(self.clock()))
        else:
            self._stand_again()

    def _release(self, tries: int) -> None:
        if hold.is_valid(self._state, self.clock()):
            raise Violation("a claim is given up that is believed in")
        if self._working:
            raise Violation("a claim is given up while its work goes on")
        server, owner, limit = self._world.server, self.owner, self._world.timing.try_limit
        again = self._stand_again if tries == 1 else lambda: self._release(tries - 1)
        self._ask(lambda t: server.release(owner, t), limit, lambda _: self._stand_again(), again)

    def _stand_again(self) -> None:
        self._after(0.05 * self._ttl, self._stand)

    # -- promises

    def believes(self) -> bool:
        """Somebody asks, from a thread perhaps, whether the claim is provably ours."""
        if self._crashed:
            return False
        valid = hold.is_valid(self._state, self.clock())
        if hold.is_leader(self._state, self.clock()) and not valid:
            raise Violation(f"a leader whose claim can't be proved: {self._state}")
        return valid

    def _look_at_step(self, before: hold.State, event: hold.Input) -> None:
        after = self._state
        if isinstance(before, hold.Held) and isinstance(after, hold.Held):
            if after.deadline < before.deadline:
                raise Violation(f"the deadline moved backward by {event}")
            if after.deadline > before.deadline and not isinstance(event, hold.Granted | hold.Renewed):
                raise Violation(f"the deadline was moved by {event}")
        if isinstance(before, hold.Held) and hold.is_leader(after, event.now) and not hold.is_leader(before, event.now):
            raise Violation(f"leadership came back by {event}")
        if isinstance(event, hold.Refused) and hold.is_valid(after, event.now):
            raise Violation("the server's word that the claim is gone was ignored")
        if isinstance(event, hold.Tick) and hold.wake_at(after) <= event.now:
            raise Violation(f"the same tick again for ever: {after}")


def play(schedule: Schedule) -> World:
    """Let a schedule happen; Violation where a promise is broken."""
    return World(schedule).play()


# -- drawing

_rates = st.sampled_from([SLOWEST, FASTEST]) | st.just(1.0)  # the margin is used up at its ends only
_shares = st.sampled_from([0.001, 0.1, 0.26, 0.34, 0.79, 0.85, 1.0]) | st.floats(0.0, 1.5)
_delays = st.just(0.001) | st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.5, 1.05]) | st.floats(0.0, 1.5)
_waits = st.just(0.0) | st.sampled_from([0.5, 0.85, 1.1]) | st.floats(0.0, 1.5)
_messages = st.builds(Message, st.sampled_from(Fate), _delays, _delays, _waits)
_pauses = st.tuples(st.floats(0.0, 3.0), st.sampled_from([0.1, 0.5, 0.9, 1.2, 2.0]) | st.floats(0.0, 2.0))
_lives = st.builds(
    Life,
    rate=_rates,
    start=st.floats(0.0, 1.5),
    body=_shares | st.just(9.0),
    drain=_shares | st.just(0.001),
    quit_at=st.none() | _shares,
    crash_at=st.none() | st.floats(0.0, 4.0),
    proofs=st.sampled_from([(), (0.34,), (0.34, 0.35)]) | st.lists(st.floats(0.0, 1.0), max_size=2).map(tuple),
    pauses=st.lists(_pauses, max_size=2).map(tuple),
    newest_first=st.booleans(),
    messages=st.lists(st.just(Message()) | _messages, max_size=12).map(tuple),
    chance=st.floats(0.0, 1.0, exclude_max=True),
)
schedules = st.builds(
    Schedule,
    lives=st.lists(_lives, min_size=2, max_size=3).map(tuple),
    ttl=st.sampled_from([0.1, 1.0, 15.0]),
    drain_limit=_shares,
    server_rate=_rates,
    seized_at=st.just(()) | st.lists(st.floats(0.0, 4.0), max_size=2).map(tuple),
)
"""Two or three contenders, and everything that can happen to them."""
