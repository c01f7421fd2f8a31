"""A server in a few lines, for the pure ring: what the scripts do, at instants that arrive as arguments."""

from __future__ import annotations

import math

from aioelect._store import Contended, Granted, Holder, Refused, Released, Renewed

Answer = Granted | Contended | Renewed | Refused | Released


class Server:
    """SET NX PX, compare-and-renew, compare-and-delete, and the mint; by whole milliseconds of a clock of its own."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._owner: str | None = None
        self._expires = 0  # ms
        self._token = 0
        self._minted_for: str | None = None

        self._seized: set[str | None] = set()

    def _ms(self, t: float) -> int:
        return math.floor(t * self._rate * 1000)

    def owner(self, t: float) -> str | None:
        """Whose claim it is at the instant `t`."""
        return self._owner if self._ms(t) < self._expires else None

    def ends(self) -> float:
        """True time at which the claim, as it stands, is gone."""
        return self._expires / 1000 / self._rate + 1e-9

    def _set(self, owner: str, t: float, ttl: float) -> None:
        self._owner, self._expires = owner, self._ms(t) + math.ceil(round(ttl * 1000, 6))

    def mint(self, t: float) -> int:
        """A token above every earlier one."""
        self._token = max(self._token, int(t * self._rate * 1e6)) + 1
        return self._token

    def acquire(self, owner: str, t: float, ttl: float) -> Answer:
        """Claim the name if it is free; what finds its own value has won before."""
        holder = self.owner(t)
        if holder not in (None, owner):
            return Contended(Holder(holder, self._token, None, (self._expires - self._ms(t)) / 1000))
        if holder is None or self._minted_for != owner:
            self.mint(t)
        self._minted_for = owner
        self._set(owner, t, ttl)
        return Granted(self._token)

    def renew(self, owner: str, t: float, ttl: float) -> Answer:
        """Prolong the claim if it is the owner's."""
        if self.owner(t) != owner:
            return Refused(None)
        self._set(owner, t, ttl)
        return Renewed()

    def release(self, owner: str, t: float) -> Answer:
        """Delete the claim if it is the owner's."""
        if self.owner(t) != owner:
            return Refused(None)
        self._owner = None
        return Released(told=0)

    def seize(self, t: float) -> None:
        """Delete the claim, whosever it is: until it hears of that, its owner goes on believing."""
        self._seized.add(self.owner(t))
        self._owner = None

    def has_seized(self, owner: str) -> bool:
        """True if this owner's claim was deleted by force."""
        return owner in self._seized
