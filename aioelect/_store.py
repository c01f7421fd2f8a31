"""What may be asked of a store, and what it may answer.

A store is a set of claims, each with a name, an unguessable owner value, a ttl and a fencing token. Every request is
bounded by `limit` seconds and never retried in here: one layer retries, the caller. Nothing but `Granted`, `Renewed`
and `Released` is a yes. Two kinds of exception come out: `StoreUnavailable` (no usable answer; the request may or may
not have been carried out, now or later) and `StoreRejected` (a clear refusal to serve). A cancelled request leaves the
same doubt as an unavailable one; the caller undoes it by `release`.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from aioelect._errors import ConfigurationError

if TYPE_CHECKING:
    from aioelect._core.shares import Member

__all__ = [
    "Candidate",
    "Capabilities",
    "Claim",
    "Contended",
    "Granted",
    "Heir",
    "Holder",
    "Mark",
    "MarkStore",
    "Marked",
    "MemberStore",
    "Notice",
    "NoticeKind",
    "OperatorStore",
    "Record",
    "Refused",
    "Released",
    "Renewed",
    "RoleStore",
    "Stand",
    "StepDown",
    "Store",
    "Watch",
    "Watchful",
    "members_of",
    "roles_of",
]


class Stand(NamedTuple):
    """What a candidate for a role says of itself with every try; a store without roles doesn't look at it."""

    weight: int = 0  # a free name is kept for listed candidates of a higher weight first
    info: str = ""  # described with the term, for whoever asks who leads
    listed: float = 0.0  # seconds for which a failed try lists the candidate
    deference: float = 0.0  # seconds for which a candidate of a higher weight goes first


@dataclass(frozen=True, slots=True)
class Claim:
    """One acquisition's claim on a name: the same owner value in every try of it, a new one for the next."""

    name: str
    owner: str = field(repr=False)  # proves the claim: never in a log, a message or a repr
    identity: str
    ttl: float
    retention: float  # how long the fence record outlives the last renewal, seconds
    stand: Stand | None = None  # of a candidate for a role

    id: str = field(init=False)  # a digest of the owner value that is safe to show

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hashlib.blake2s(self.owner.encode(), digest_size=8).hexdigest())


class Holder(NamedTuple):
    """Who holds a name, as far as the store could tell; None for what it could not."""

    identity: str | None
    token: int | None
    id: str | None
    remaining: float | None  # seconds of ttl left when the store answered


class Granted(NamedTuple):
    """The name is ours (also: was already ours, and its ttl is fresh)."""

    token: int


class Contended(NamedTuple):
    """The name is another's."""

    holder: Holder
    reserved: bool = False  # nobody holds it: it is kept for `holder.identity` for `holder.remaining` seconds


class StepDown(NamedTuple):
    """A request that the leader end its term."""

    to: str | None  # the identity of the candidate that is to lead next; None: whoever is first


class Heir(NamedTuple):
    """For whom the next term is reserved, and for how many seconds; anyone may have it after that."""

    identity: str
    within: float


# Not a named tuple, nor is `Refused`: of one shape they would be equal, a yes and a no.
@dataclass(frozen=True, slots=True)
class Renewed:
    """The claim was ours and has its full ttl again."""

    step_down: StepDown | None = None  # somebody has asked for the end of this term


class Released(NamedTuple):
    """The claim was ours and is gone (or shortened, where that was asked for)."""

    told: int  # how many other subscribers heard of it: a hint that somebody waits


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim is not ours: gone (holder None), or another's. Nothing was changed."""

    holder: Holder | None


class NoticeKind(enum.Enum):
    """What a notice hints at."""

    ACQUIRED = "acquired"
    RELEASED = "released"
    STEP_DOWN = "step down"  # somebody has asked the holder to: a renewal tells
    MEMBERS = "members"  # of a group: one came or went, or has let something go
    RESYNC = "resync"  # notices may have been missed: ask the store


class Notice(NamedTuple):
    """A hint from the store that a name changed hands; never a proof."""

    kind: NoticeKind
    holder: Holder | None = None  # with ACQUIRED: the new holder; with RELEASED: who let go


class Capabilities(NamedTuple):
    """What a store can do beyond the bare claim; what it can't is refused where it is asked for, not later."""

    expires: bool = True  # a claim that nobody renews ends by itself after its ttl
    keeps: bool = True  # `release(keep=...)` can leave a name taken for a while
    mints: bool = True  # it has a source of tokens of its own that rises with every term; without: every token is 0
    describes: bool = True  # it says of a holder who it is, with which token, and for how long
    longest_ttl: float | None = None  # no claim may ask for more, seconds; None: whatever is allowed at all
    tells: bool = False  # it is `Watchful`: it may learn by itself that a claim is gone
    roles: bool = False  # it is a `RoleStore`: it knows candidates, and passes requests on to the leader
    marks: bool = False  # it is a `MarkStore`: it remembers which runs of a schedule are finished
    members: bool = False  # it is a `MemberStore`: it knows who takes part in a group


class Candidate(NamedTuple):
    """Somebody who stands for a role: its last failed try is not long ago."""

    identity: str
    id: str  # of the candidacy, safe to show: identities may repeat
    weight: int


class Record(NamedTuple):
    """What a store knows of a role, without the owner value."""

    holder: Holder | None  # None: nobody
    since: float | None = None  # wall-clock instant at which the holder's term began, by the store's clock
    ttl: float | None = None
    info: str = ""
    reserved_for: str | None = None  # nobody holds it, and the next term is this one's
    asked_to_step_down: bool = False
    candidates: tuple[Candidate, ...] = ()


class Mark(NamedTuple):
    """The run of a schedule that is finished, and all before it with it."""

    schedule: str
    at: int  # microseconds since 1970
    first: bool  # only if nothing is noted of that schedule yet
    keep: float  # seconds for which it is remembered at least


class Marked(NamedTuple):
    """The claim is ours, and this is what is noted now: the latest run that was finished."""

    at: int


class Watch(Protocol):
    """One listener to the notices of one name. Sync to open (`Store.watch`), sync to close, any number at once."""

    @property
    def live(self) -> bool:
        """True while the subscription is confirmed: a change would be heard of now."""

    async def ready(self, limit: float) -> bool:
        """Wait up to `limit` seconds for the confirmation; False: notices are not to be had (yet). Never raises."""

    async def next(self, limit: float | None) -> Notice | None:
        """The next notice since the last call, waiting up to `limit` seconds (None: no limit); None: none came.

        Notices that pile up between two calls may be folded into the newest one. Never raises a store error.
        """

    def close(self) -> None:
        """Stop listening. Safe to call twice."""


@runtime_checkable
class Store(Protocol):
    """The questions. All times in seconds; `limit` bounds each whole call."""

    @property
    def key(self) -> Hashable:
        """Equal for two stores whose equal names contend: the local line is keyed by it."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""

    async def acquire(self, claim: Claim, *, limit: float) -> Granted | Contended:
        """Claim the name if it is free, mint a token above every earlier one, and describe the term.

        A try that finds its own owner value has won: fresh ttl, same token.
        """

    async def renew(self, claim: Claim, *, limit: float) -> Renewed | Refused:
        """Prolong the claim if it is ours; never create it."""

    async def release(self, claim: Claim, *, keep: float = 0.0, limit: float) -> Released | Refused:
        """Give the claim up if it is ours, at once or `keep` seconds from now (never later than its ttl)."""

    def watch(self, name: str) -> Watch:
        """Listen to the notices of a name, on the one subscription per server and event loop."""

    async def aclose(self) -> None:
        """Close what this store keeps open in the running event loop. It may be used again afterwards."""


@runtime_checkable
class Watchful(Protocol):
    """A store that may learn by itself that a claim is gone: whoever keeps the claim is told then, not at a renewal."""

    def on_loss(self, claim: Claim, tell: Callable[[], None]) -> None:
        """Call `tell` once, in the event loop, when the claim is found to be gone; at once if it is already."""


@runtime_checkable
class RoleStore(Store, Protocol):
    """What a store of roles can be asked beyond the claims (`Capabilities.roles`).

    It lists candidates by their failed tries, keeps a free name for an heir or a candidate of a higher weight, and
    gives a request to step down to the holder with its next renewal.
    """

    async def release(
        self, claim: Claim, *, keep: float = 0.0, heir: Heir | None = None, limit: float
    ) -> Released | Refused:
        """Give the claim up if it is ours; the next term is reserved for `heir`."""

    async def describe(self, name: str, *, limit: float) -> Record:
        """Who leads and who stands."""

    async def ask_to_step_down(self, name: str, request: StepDown, *, limit: float) -> Holder | None:
        """Leave a request for the present holder, and tell it at once; None: nobody holds the name."""


@runtime_checkable
class OperatorStore(RoleStore, Protocol):
    """What people on call may ask of a store beyond that: nobody who takes part ever does."""

    async def names(self, *, limit: float) -> list[str]:
        """The names that are held; `limit` bounds each of the steps that it takes."""

    async def evict(self, name: str, token: int, *, limit: float) -> Released | Refused:
        """Give a name up for its holder, if the holder's token is this one; nothing is changed otherwise."""


def roles_of(store: Store, what: str) -> RoleStore:
    """The store as one of roles, or ConfigurationError: `what` asks for more than it can do."""
    if store.capabilities.roles and isinstance(store, RoleStore):
        return store
    raise ConfigurationError(
        f"{what}: {type(store).__name__} knows claims, but neither candidates nor requests; use Redis for this name",
        reason="store",
    )


@runtime_checkable
class MarkStore(Store, Protocol):
    """What a store that remembers finished runs can be asked (`Capabilities.marks`)."""

    async def mark(self, claim: Claim, mark: Mark, *, limit: float) -> Marked | Refused:
        """Note a finished run in the holder's name; a mark never goes back. Only the holder of the claim may."""


def marks_of(store: Store, what: str) -> MarkStore:
    """The store as one of finished runs, or ConfigurationError: `what` asks for more than it can do."""
    if store.capabilities.marks and isinstance(store, MarkStore):
        return store
    raise ConfigurationError(
        f"{what}: {type(store).__name__} does not remember which runs are finished; use Redis for this name",
        reason="store",
    )


@runtime_checkable
class MemberStore(Store, Protocol):
    """What a store that knows the members of a group can be asked (`Capabilities.members`)."""

    async def attend(self, group: str, member: Member, *, tell: bool, limit: float) -> tuple[Member, ...]:
        """List a member for `member.remaining` seconds, 0.0: not any more; and learn who takes part now.

        Who listens to the group's name is told when a member comes or goes, and when this one says so (`tell`).
        """


def members_of(store: Store, what: str) -> MemberStore:
    """The store as one of groups, or ConfigurationError: `what` asks for more than it can do."""
    if store.capabilities.members and isinstance(store, MemberStore):
        return store
    raise ConfigurationError(
        f"{what}: {type(store).__name__} does not know who takes part; use Redis for this name", reason="store"
    )
