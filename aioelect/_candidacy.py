"""KEEP: a campaign beside the application, in a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from aioelect._background import outlast, spawn
from aioelect._errors import AioelectError
from aioelect._follow import Standing
from aioelect._lease import Session
from aioelect.facts import CandidacyFailed

__all__ = ["Candidacy"]


class Candidacy:
    """A campaign in a task of its own, so that it may be entered in one task and left in another."""

    def __init__(self, session: Session, campaign: Callable[[Standing], Awaitable[object]]) -> None:
        self.loop = asyncio.get_running_loop()
        self.standing = Standing()
        self._session = session
        self._campaign = campaign
        # A plain scope: the work inside is sheltered from its repetitions by its own Guard, what is around it is not.
        self._scope = anyio.CancelScope()
        self._task = spawn(self._run(), f"candidacy for {session.name}")

    async def _run(self) -> None:
        failure: Exception | None = None
        name, identity = self._session.name, self._session.identity
        try:
            with self._scope:
                if not self._scope.cancel_called:
                    await self._campaign(self.standing)
        except Exception as exc:  # noqa: BLE001 - it comes out where the candidacy is followed or left
            failure = exc
        except asyncio.CancelledError:
            cause = "its work was cancelled, and not by aioelect"
            failure = AioelectError(f"the candidacy for {name!r} has ended: {cause}", name=name, reason="cancelled")
        if failure is not None and not self._task.cancelling():  # else the event loop is being closed: silently
            self._session.observers(CandidacyFailed(name, identity, failure))
        self.standing.end(failure)

    async def stop(self) -> None:
        """Stop the work, wait for it, release; a cancellation is raised when that is over."""
        if self.standing.term is not None:
            self.standing.term.resign()  # is_leader is false from here on, renewal goes on while the work drains
        self._scope.cancel()
        await outlast(self._task)
