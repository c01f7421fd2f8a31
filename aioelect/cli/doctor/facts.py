"""What the probes found: plain values, from which the findings are made without asking anybody again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Channels", "Client", "Denied", "Facts", "Node", "Scan", "Slots"]


@dataclass(frozen=True, slots=True)
class Denied:
    """A question that was not answered, and what was said instead."""

    said: str


@dataclass(frozen=True, slots=True)
class Client:
    """The program's own side: versions, and what the URL sets."""

    python: tuple[int, int]
    redis: tuple[int, int, int]
    hiredis: bool
    socket_timeout: bool  # the URL sets one
    retrying: bool  # the URL asks for it


@dataclass(frozen=True, slots=True)
class Scan:
    """Keys under the prefix that have no ttl."""

    examples: tuple[str, ...]
    count: int
    looked_at: int
    whole: bool  # all keys were looked at in the time that there was


@dataclass(frozen=True, slots=True)
class Node:
    """One server that claims may live on."""

    where: str
    round_trips: tuple[float, ...]
    info: Mapping[str, str] | Denied
    config: Mapping[str, str] | Denied
    hello: Mapping[str, str]
    clock: float | Denied  # how far the server's wall clock is ahead of ours, seconds
    native: str | Denied | None  # the server's own compare-and-delete; None: it has none
    scan: Scan | Denied


@dataclass(frozen=True, slots=True)
class Slots:
    """A cluster, as one of its nodes sees it."""

    state: str
    served: int
    alone: tuple[str, ...]  # masters without a replica


@dataclass(frozen=True, slots=True)
class Channels:
    """Notices: may one publish, may one listen, does one hear."""

    publish: Denied | None
    listening: bool
    heard: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that one examination found."""

    address: str  # without a password
    prefix: str
    ttl: float
    pause: float  # the longest one of this process that is known or was measured, seconds
    measured: bool  # the pause was measured here, and not given
    behind: str  # what the URL names: "server", "sentinel", "cluster"
    client: Client
    trouble: str | None = None  # why nothing more is known
    nodes: tuple[Node, ...] = ()
    slots: Slots | Denied | None = None  # None: no cluster
    rights: Mapping[str, Denied | None] = field(default_factory=dict)  # by command; None: allowed
    claim: Denied | None = None  # a claim was taken, renewed and released, or what was said
    channels: Channels | None = None
