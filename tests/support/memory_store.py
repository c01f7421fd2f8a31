"""A store in memory: the same contract as the one on Redis, in virtual time or real time, with trouble on demand.

    server = MemoryServer()
    one, two = MemoryStore(server), MemoryStore(server, key="another machine", latency=0.01)
    one.before = fail_nth(2, StoreUnavailable("down"))      # the second request never arrives
    one.after = fail_nth(1, Silence())                      # the first is carried out, its answer gets lost
    server.mute()                                           # notices are not to be had until `unmute`

A `MemoryServer` is what all share; a `MemoryStore` is one process's way to it. A request is on its way for `latency`
seconds and its answer for as long (or `back`); a call that was cancelled or ran into its limit does not call it back:
it may still be carried out, as on a network. Ttls follow `aioelect._clock.now()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from aioelect import _clock
from aioelect._errors import StoreUnavailable
from aioelect._store import (
    Candidate,
    Capabilities,
    Claim,
    Contended,
    Granted,
    Heir,
    Holder,
    Notice,
    NoticeKind,
    Record,
    Refused,
    Released,
    Renewed,
    Stand,
    StepDown,
)

T = TypeVar("T")
Hook = Callable[[str, Claim], None]
"""Called with "acquire", "renew", "release", "describe" or "ask" and the claim; what it raises becomes the answer."""


class Silence(Exception):
    """Raised by a hook: no answer at all, until the call's own limit."""


def fail_nth(nth: int, error: BaseException, *, verb: str | None = None, times: int = 1) -> Hook:
    """Make a hook that raises at the nth call (of one verb, if given) and at `times - 1` more."""
    seen = 0

    def hook(called: str, claim: Claim) -> None:
        nonlocal seen
        if verb in (None, called):
            seen += 1
            if nth <= seen < nth + times:
                raise error

    return hook


@dataclass
class Kept:
    """For whom a free name is kept: an identity, or whoever has that weight."""

    after: str | None  # the term before
    until: float
    identity: str = ""
    weight: float = float("inf")


@dataclass
class Entry:
    """What the server knows of one name."""

    owner: str | None = None
    expires: float = 0.0
    token: int = 0
    id: str | None = None
    identity: str | None = None
    since: float = 0.0
    ttl: float = 0.0
    info: str = ""
    kept: Kept | None = None
    asked: tuple[str | None, StepDown] | None = None  # of which term
    standing: dict[str, tuple[float, Candidate]] = field(default_factory=dict)  # until when

    def live(self) -> bool:
        """Whether somebody holds the name now."""
        return self.owner is not None and _clock.now() < self.expires

    def holder(self) -> Holder:
        """Who holds it."""
        return Holder(self.identity, self.token, self.id, max(0.0, self.expires - _clock.now()))


@dataclass
class MemoryServer:
    """The shared side: names, who holds them, who listens. Each change is one step, as a script's is."""

    records: dict[str, Entry] = field(default_factory=dict)
    watches: list[MemoryWatch] = field(default_factory=list)
    muted: bool = False

    def record(self, name: str) -> Entry:
        """What is known of a name."""
        return self.records.setdefault(name, Entry())

    def holder(self, name: str) -> Holder | None:
        """Who holds a name now; for assertions."""
        record = self.record(name)
        return record.holder() if record.live() else None

    def mute(self) -> None:
        """Lose all subscriptions; none is confirmed from now on."""
        self.muted = True
        for watch in self.watches:
            watch.lose()

    def unmute(self) -> None:
        """Confirm subscriptions again."""
        self.muted = False
        for watch in tuple(self.watches):
            watch.confirm()

    def seize(self, name: str, *, ttl: float = 60.0, identity: str = "intruder") -> int:
        """Give a name to somebody else, whoever has it; returns the token."""
        record = self.record(name)
        record.owner, record.expires = f"seized-{record.token}", _clock.now() + ttl
        record.token, record.id, record.identity = record.token + 1, "seized", identity
        return record.token

    def erase(self, name: str) -> None:
        """Let a claim vanish, as an eviction or an operator would."""
        self.record(name).owner = None

    def acquire(self, claim: Claim) -> Granted | Contended:
        """One step of the server."""
        record, stand = self.record(claim.name), claim.stand or Stand()
        if record.live() and record.owner != claim.owner:
            self._list(record, claim)
            return Contended(record.holder())
        if not record.live():
            if kept := self._kept(record, claim.identity, stand):
                self._list(record, claim)
                return Contended(Holder(kept.identity or None, None, None, kept.until - _clock.now()), reserved=True)
            record.token += 1
            record.owner, record.id, record.identity = claim.owner, claim.id, claim.identity
            record.since, record.ttl, record.info = _clock.now(), claim.ttl, stand.info
            record.standing.pop(claim.id, None)
            self.tell(
                claim.name, Notice(NoticeKind.ACQUIRED, Holder(claim.identity, record.token, claim.id, claim.ttl))
            )
        record.expires = _clock.now() + claim.ttl
        return Granted(record.token)

    def renew(self, claim: Claim) -> Renewed | Refused:
        """One step of the server."""
        if refused := self._refused(claim):
            return refused
        record = self.record(claim.name)
        record.expires = _clock.now() + claim.ttl
        return Renewed(record.asked[1] if record.asked and record.asked[0] == claim.id else None)

    def release(self, claim: Claim, keep: float, heir: Heir | None, by: MemoryStore) -> Released | Refused:
        """One step of the server."""
        if refused := self._refused(claim):
            return refused
        record = self.record(claim.name)
        if heir is not None:
            record.kept = Kept(claim.id, _clock.now() + keep + heir.within, heir.identity)
        record.expires = min(record.expires, _clock.now() + keep)
        if keep <= 0:
            record.owner = None
        told = self.tell(claim.name, Notice(NoticeKind.RELEASED, Holder(claim.identity, None, claim.id, None)))
        return Released(len(told - {by}))

    def describe(self, name: str) -> Record:
        """One step of the server."""
        record, now = self.record(name), _clock.now()
        candidates = tuple(candidate for until, candidate in record.standing.values() if until > now)
        if not record.live():
            kept = record.kept
            heir = kept.identity if kept and kept.after == record.id and kept.until > now else None
            return Record(None, reserved_for=heir, candidates=candidates)
        asked = record.asked is not None and record.asked[0] == record.id
        return Record(record.holder(), record.since, record.ttl, record.info, None, asked, candidates)

    def ask(self, name: str, request: StepDown) -> Holder | None:
        """One step of the server."""
        record = self.record(name)
        if not record.live():
            return None
        record.asked = (record.id, request)
        self.tell(name, Notice(NoticeKind.STEP_DOWN, Holder(None, None, record.id, None)))
        return record.holder()

    def _kept(self, record: Entry, identity: str, stand: Stand) -> Kept | None:
        now, kept = _clock.now(), record.kept
        if kept is None or kept.after != record.id:
            highest = max((c.weight for until, c in record.standing.values() if until > now), default=0)
            if stand.deference <= 0 or highest <= stand.weight:
                return None
            kept = record.kept = Kept(record.id, now + stand.deference, weight=highest)
        ours = identity == kept.identity or stand.weight >= kept.weight
        return None if ours or kept.until <= now else kept

    def _list(self, record: Entry, claim: Claim) -> None:
        if claim.stand is not None and claim.stand.listed > 0:
            candidate = Candidate(claim.identity, claim.id, claim.stand.weight)
            record.standing[claim.id] = (_clock.now() + claim.stand.listed, candidate)

    def tell(self, name: str, notice: Notice) -> set[MemoryStore]:
        """Give a notice to all who listen; returns the processes that were reached."""
        reached = [watch for watch in tuple(self.watches) if watch.name == name and watch.live]
        for watch in reached:
            watch.tell(notice)
        return {watch.store for watch in reached}

    def _refused(self, claim: Claim) -> Refused | None:
        record = self.record(claim.name)
        if not record.live():
            return Refused(None)
        return None if record.owner == claim.owner else Refused(record.holder())


class MemoryStore:
    """One process's way to a `MemoryServer`; handles with equal keys share the local line."""

    def __init__(
        self, server: MemoryServer, *, key: Hashable | None = None, latency: float = 0.0, back: float | None = None
    ) -> None:
        self.server = server
        self.latency = latency
        self.back = latency if back is None else back
        self.before: Hook = lambda verb, claim: None
        self.after: Hook = lambda verb, claim: None
        self.calls: list[tuple[str, Claim]] = []
        """Every request that was made, in order."""
        self._key = ("memory", id(server)) if key is None else key

    @property
    def key(self) -> Hashable:
        """Whose line this is."""
        return self._key

    @property
    def capabilities(self) -> Capabilities:
        """All that a store can do."""
        return Capabilities(roles=True)

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Claim the name if it is free."""
        answer = await self._ask("acquire", claim, lambda: self.server.acquire(claim), limit)
        assert isinstance(answer, Granted | Contended)
        return answer

    async def renew(self, claim: Claim, *, limit: float) -> Renewed | Refused:
        """Prolong the claim if it is ours."""
        answer = await self._ask("renew", claim, lambda: self.server.renew(claim), limit)
        assert isinstance(answer, Renewed | Refused)
        return answer

    async def release(
        self, claim: Claim, *, keep: float = 0.0, heir: Heir | None = None, limit: float
    ) -> Released | Refused:
        """Give the claim up if it is ours."""
        answer = await self._ask("release", claim, lambda: self.server.release(claim, keep, heir, self), limit)
        assert isinstance(answer, Released | Refused)
        return answer

    async def describe(self, name: str, *, limit: float) -> Record:
        """Who leads and who stands."""
        return await self._ask("describe", _about(name), lambda: self.server.describe(name), limit)

    async def ask_to_step_down(self, name: str, request: StepDown, *, limit: float) -> Holder | None:
        """Leave a request for the present holder, and tell it at once."""
        return await self._ask("ask", _about(name), lambda: self.server.ask(name, request), limit)

    def watch(self, name: str) -> MemoryWatch:
        """Listen to the notices of a name."""
        return MemoryWatch(self, name)

    async def aclose(self) -> None:
        """End all watches of this process."""
        for watch in [watch for watch in self.server.watches if watch.store is self]:
            watch.detach()

    async def _ask(self, verb: str, claim: Claim, step: Callable[[], T], limit: float) -> T:
        if limit <= 0:
            raise StoreUnavailable("no time is left to ask", name=claim.name, reason="timeout")
        self.calls.append((verb, claim))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def fail(error: BaseException) -> None:
            if not isinstance(error, Silence) and not answer.done():
                answer.set_exception(error)

        def arrive() -> None:
            try:
                self.before(verb, claim)
                result = step()
            except BaseException as error:
                loop.call_later(self.back, fail, error)
            else:
                loop.call_later(self.back, reply, result)

        def reply(result: T) -> None:
            try:
                self.after(verb, claim)
            except BaseException as error:
                fail(error)
            else:
                if not answer.done():
                    answer.set_result(result)

        def give_up() -> None:
            fail(StoreUnavailable(f"no answer within {limit:.3g} s", name=claim.name, reason="timeout"))

        loop.call_later(self.latency, arrive)
        timer = loop.call_later(limit, give_up)
        try:
            return await answer
        finally:
            timer.cancel()


def _about(name: str) -> Claim:
    return Claim(name, "", "nobody", 0.0, 0.0)


class MemoryWatch:
    """One listener; see `aioelect._store.Watch`."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.store, self.name = store, name
        self._server = store.server
        self._confirmed = False
        self._news: Notice | None = None
        self._gap = False
        self._closed = False
        self._changed = asyncio.Event()
        self._server.watches.append(self)
        asyncio.get_running_loop().call_later(store.latency + store.back, self.confirm)

    @property
    def live(self) -> bool:
        """True while notices arrive."""
        return self._confirmed and self in self._server.watches

    def confirm(self) -> None:
        """The server takes note of the subscription (unless it is muted)."""
        if self in self._server.watches and not self._server.muted:
            self._confirmed = True
            if self._gap:
                self._gap, self._news = False, Notice(NoticeKind.RESYNC)
            self._changed.set()

    def lose(self) -> None:
        """The subscription is gone; what happens until it is confirmed again is missed."""
        self._confirmed, self._gap = False, True

    def tell(self, notice: Notice) -> None:
        """A notice arrives."""
        self._news = notice
        self._changed.set()

    async def ready(self, limit: float) -> bool:
        """Wait for the confirmation."""
        await self._until(lambda: self.live or self._detached, limit)
        self._gap = self._gap or not self.live
        return self.live

    async def next(self, limit: float | None) -> Notice | None:
        """Wait for the newest notice since the last call; a subscription that ended lets the time pass all the same."""
        self._gap = self._gap or not self.live
        await self._until(lambda: self._news is not None or self._closed or (limit is None and self._detached), limit)
        news, self._news = self._news, None
        return news

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self.detach()

    def detach(self) -> None:
        """Hear nothing any more."""
        if not self._detached:
            self._server.watches.remove(self)
        self._changed.set()

    @property
    def _detached(self) -> bool:
        return self not in self._server.watches

    async def _until(self, true: Callable[[], bool], limit: float | None) -> None:
        try:
            async with asyncio.timeout(limit):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
