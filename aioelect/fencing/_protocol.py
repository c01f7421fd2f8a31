"""What any place that is written to can be made into: a gate that lets newer tokens in and older ones not."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["Gate"]


@runtime_checkable
class Gate(Protocol):
    """Remembers the newest token of each resource."""

    async def admit(self, resource: str, token: int) -> None:
        """Let a token in and remember it, in one step; from then on older ones are refused.

        What is written after this is only safe against older tokens as far as the write can't come late itself: where
        it can, send the token with the write, or write inside the guard.

        Raises:
            StaleToken: a newer one has been let in before.
        """
