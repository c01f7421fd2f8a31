"""The highest fencing token that this process has seen of each name, whichever store it came from."""

from __future__ import annotations

import threading
from collections.abc import Hashable

__all__ = ["Floors"]


class Floors:
    """The highest token that this process has seen of each name: a lost counter must not make tokens fall."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tokens: dict[Hashable, int] = {}
        self._lock = threading.Lock()  # stores are used from loops in several threads

    def get(self, name: Hashable) -> int:
        """The highest token seen; 0: none."""
        return self._tokens.get(name, 0)

    def saw(self, name: Hashable, token: int | None) -> None:
        """Remember a token; the names that were not heard of for longest are forgotten first."""
        if token is None:
            return
        with self._lock:
            self._tokens[name] = max(token, self._tokens.pop(name, 0))
            if len(self._tokens) > self._capacity:
                del self._tokens[next(iter(self._tokens))]
