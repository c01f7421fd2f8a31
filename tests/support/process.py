"""One process's way to a `MemoryServer`, with hooks for trouble that is finer than `Faults` makes it.

server = MemoryServer()
one, two = Process(server), Process(server, key="another machine", latency=0.01)
one.before = fail_nth(2, StoreUnavailable("down"))      # the second request never arrives
one.after = fail_nth(1, Silence())                      # the first is carried out, its answer gets lost
server.mute()                                           # notices are not to be had until `unmute`
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from aioelect._store import Claim
from aioelect.testing._faults import Faults, Request
from aioelect.testing._memory import MemoryServer, MemoryStore

A = TypeVar("A")

Hook = Callable[[Request, Claim], None]
"""Called with what is asked and the claim; what it raises becomes the call's answer."""


class Process(Faults):
    """Processes with equal keys share the local line."""

    def __init__(
        self, server: MemoryServer, *, key: Hashable = "ours", latency: float = 0.0, back: float | None = None
    ) -> None:
        super().__init__(MemoryStore(server), process=key)
        self.delay(latency, back)
        self.before: Hook = lambda request, claim: None
        self.after: Hook = lambda request, claim: None
        self.calls: list[tuple[str, Claim]] = []
        """Every request that was made, in order."""

    async def _ask(self, request: Request, claim: Claim, ask: Callable[[], Awaitable[A]], limit: float) -> A:
        if limit > 0:
            self.calls.append((request, claim))
        return await super()._ask(request, claim, ask, limit)

    def arriving(self, request: Request, claim: Claim) -> None:
        """What the test wants."""
        super().arriving(request, claim)
        self.before(request, claim)

    def answering(self, request: Request, claim: Claim) -> None:
        """What the test wants."""
        super().answering(request, claim)
        self.after(request, claim)


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
