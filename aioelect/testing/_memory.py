"""A store in memory: the same contract as the one on Redis, in virtual time or real time.

A `MemoryServer` is what all share; a `MemoryStore` is one process's way to it. Ttls follow `aioelect._clock.now()`.
There is no network in here: what can happen on one is in `_faults.py`, for this store as for any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from aioelect import _clock
from aioelect._channel import Channel, Subscription
from aioelect._core.shares import Member
from aioelect._errors import StoreUnavailable
from aioelect._follow import Leader
from aioelect._store import (
    Candidate,
    Capabilities,
    Claim,
    Contended,
    Granted,
    Heir,
    Holder,
    Mark,
    Marked,
    Notice,
    NoticeKind,
    Record,
    Refused,
    Released,
    Renewed,
    Stand,
    StepDown,
)

__all__ = ["MemoryServer", "MemoryStore"]


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
    finished: dict[str, int] = field(default_factory=dict)  # by schedule

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
    channels: dict[tuple[MemoryStore, str], Channel] = field(default_factory=dict)
    groups: dict[str, dict[str, tuple[float, Member]]] = field(default_factory=dict)  # by id: until when
    muted: bool = False

    def record(self, name: str) -> Entry:
        """What is known of a name."""
        return self.records.setdefault(name, Entry())

    def holder(self, name: str) -> Holder | None:
        """Who holds a name now."""
        record = self.record(name)
        return record.holder() if record.live() else None

    def mute(self) -> None:
        """Lose all subscriptions; none is confirmed from now on."""
        self.muted = True
        for channel in self.channels.values():
            channel.lose()

    def unmute(self) -> None:
        """Confirm subscriptions again."""
        self.muted = False
        for channel in self.channels.values():
            self.confirm(channel)

    def confirm(self, channel: Channel) -> None:
        """Take note of a subscription (unless muted)."""
        if not self.muted:
            channel.answer(asyncio.get_running_loop().time(), granted=True)

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

    def mark(self, claim: Claim, mark: Mark) -> Marked | Refused:
        """One step of the server."""
        if refused := self._refused(claim):
            return refused
        finished = self.record(claim.name).finished
        noted = finished.get(mark.schedule)
        if noted is None or (not mark.first and mark.at > noted):
            noted = finished[mark.schedule] = mark.at
        return Marked(noted)

    def attend(self, group: str, member: Member, *, tell: bool) -> tuple[Member, ...]:
        """One step of the server."""
        now, listed = _clock.now(), self.groups.setdefault(group, {})
        for who in [who for who, (until, _) in listed.items() if until <= now]:
            del listed[who]
        known = listed.pop(member.id, None) is not None
        if member.remaining > 0:
            listed[member.id] = (now + member.remaining, member)
        if tell or known == (member.remaining <= 0):
            self.tell(group, Notice(NoticeKind.MEMBERS, Holder(None, None, member.id, None)))
        return tuple(replace(other, remaining=until - now) for until, other in listed.values())

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
        reached = {store: channel for (store, of), channel in self.channels.items() if of == name and channel.live}
        for channel in reached.values():
            for watcher in tuple(channel.watchers):
                watcher.tell(notice)
        return set(reached)

    def forget(self, key: tuple[MemoryStore, str]) -> None:
        """Nobody of that process listens to that name any more."""
        self.channels.pop(key, None)

    def _refused(self, claim: Claim) -> Refused | None:
        record = self.record(claim.name)
        if not record.live():
            return Refused(None)
        return None if record.owner == claim.owner else Refused(record.holder())


class MemoryStore:
    """A store in memory, for tests: pass it where a Redis client is passed.

    It keeps the contract that the store on Redis keeps, in virtual time (`virtual_time`) or in real time, in any event
    loop. What uses one store is one process to aioelect, so that it stands in one line; wrap the store in a `Faults`
    for each copy of the service that takes part in a test.

    Examples:
        >>> store = MemoryStore()
        >>> async with Lease(store, "report", identity="pod-a"):  # doctest: +SKIP
        ...     assert store.holder("report").identity == "pod-a"
        >>> store.holder("report") is None
        True
    """

    def __init__(self, server: MemoryServer | None = None) -> None:
        self.server = MemoryServer() if server is None else server

    def holder(self, name: str) -> Leader | None:
        """Who holds a name now, by the store's word; None: nobody. Never waits."""
        holder = self.server.holder(name)
        return None if holder is None else Leader(holder.identity, holder.token, holder.id)

    @property
    def key(self) -> Hashable:
        """Whose line this is."""
        return ("memory", id(self.server))

    @property
    def capabilities(self) -> Capabilities:
        """All that a store can do."""
        return Capabilities(roles=True, marks=True, members=True)

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Claim the name if it is free."""
        _check(limit, claim.name)
        return self.server.acquire(claim)

    async def renew(self, claim: Claim, *, limit: float) -> Renewed | Refused:
        """Prolong the claim if it is ours."""
        _check(limit, claim.name)
        return self.server.renew(claim)

    async def release(
        self, claim: Claim, *, keep: float = 0.0, heir: Heir | None = None, limit: float
    ) -> Released | Refused:
        """Give the claim up if it is ours."""
        _check(limit, claim.name)
        return self.server.release(claim, keep, heir, self)

    async def describe(self, name: str, *, limit: float) -> Record:
        """Who leads and who stands."""
        _check(limit, name)
        return self.server.describe(name)

    async def ask_to_step_down(self, name: str, request: StepDown, *, limit: float) -> Holder | None:
        """Leave a request for the present holder, and tell it at once."""
        _check(limit, name)
        return self.server.ask(name, request)

    async def mark(self, claim: Claim, mark: Mark, *, limit: float) -> Marked | Refused:
        """Note a finished run in the holder's name."""
        _check(limit, claim.name)
        return self.server.mark(claim, mark)

    async def attend(self, group: str, member: Member, *, tell: bool, limit: float) -> tuple[Member, ...]:
        """Take part in a group, or leave, and learn who does."""
        _check(limit, group)
        return self.server.attend(group, member, tell=tell)

    def watch(self, name: str) -> Subscription:
        """Listen to the notices of a name."""
        channels, key = self.server.channels, (self, name)
        channel = channels.get(key)
        if channel is None:
            channel = channels[key] = Channel(name.encode(), lambda _: self.server.forget(key))
            asyncio.get_running_loop().call_soon(self.server.confirm, channel)
        subscription = Subscription(channel)
        channel.watchers.add(subscription)
        return subscription

    async def aclose(self) -> None:
        """End all watches of this process."""
        for channel in [channel for (store, _), channel in self.server.channels.items() if store is self]:
            for watcher in tuple(channel.watchers):
                channel.leave(watcher)
                watcher.wake()


def _check(limit: float, name: str) -> None:
    if limit <= 0:
        raise StoreUnavailable("no time is left to ask", name=name, reason="timeout")
