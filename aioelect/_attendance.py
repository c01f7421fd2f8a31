"""KEEP: what an elector does beside the work of a term: obey a request to step down, and resign if it stays unfit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from aioelect import _clock
from aioelect._bout import Bout
from aioelect._core.timing import Timing
from aioelect._errors import AioelectError
from aioelect._events import Observers
from aioelect._keeper import Keeper
from aioelect._store import Heir, NoticeKind, StepDown, Store
from aioelect._term import Term
from aioelect.facts import StepDownAsked, StepDownHookFailed

__all__ = ["Fitness", "Ready", "StepDownHook", "obey"]

Ready = Callable[[], bool | Awaitable[bool]]
"""Says whether this candidate may lead."""

StepDownHook = Callable[[Term], Awaitable[object]]
"""Awaited before a leader that was asked to steps down."""


def obey(keeper: Keeper, store: Store, observers: Observers, hook: StepDownHook | None) -> None:
    """Step down when somebody asks for it: told by a renewal; a notice makes that the next moment's."""
    if not store.capabilities.roles:
        return
    asked: asyncio.Future[StepDown] = asyncio.get_running_loop().create_future()
    keeper.when_asked = lambda request: None if asked.done() else asked.set_result(request)
    keeper.start_soon(_listen, (keeper, store))
    keeper.start_soon(_step_down, (keeper, asked, observers, hook))


async def _listen(keeper: Keeper, store: Store) -> None:
    watch = store.watch(keeper.info.name)
    try:
        while (notice := await watch.next(None)) is not None:
            if notice.kind is NoticeKind.STEP_DOWN and notice.holder and notice.holder.id == keeper.info.id:
                with suppress(AioelectError):  # a notice is a hint; the store's word counts
                    await keeper.renew()
    finally:
        watch.close()


async def _step_down(
    keeper: Keeper, asked: asyncio.Future[StepDown], observers: Observers, hook: StepDownHook | None
) -> None:
    request = await asked
    observers(StepDownAsked(keeper.info, request.to))
    if hook is not None:
        limit = keeper.timing.drain
        try:
            with anyio.fail_after(limit):
                await hook(keeper.term)
        except TimeoutError:
            observers(StepDownHookFailed(keeper.info, f"it was cancelled after {limit:g} s"))
        except Exception as exc:  # noqa: BLE001 - whoever asked is not to wait for its repair
            observers(StepDownHookFailed(keeper.info, repr(exc)))
    keeper.quit(None if request.to is None else Heir(request.to, keeper.timing.resign_pause()))


class Fitness:
    """Whether a candidate may lead, as `ready` says. It is asked again and again, by whoever wants to know."""

    def __init__(self, ready: Ready, timing: Timing, tell: Callable[[bool, str], None]) -> None:
        self._ready = ready
        self._timing = timing
        self._tell = tell
        self._fit = True

    async def until_fit(self) -> None:
        """Wait as long as the candidate may not lead."""
        await self._until(lambda fit: fit)

    async def stop_when_unfit(self, bout: Bout) -> None:
        """Withdraw: cancel the standing."""
        await self._until(lambda fit: not fit)
        bout.stop()

    async def resign_when_unfit(self, keeper: Keeper) -> None:
        """Resign once the leader has been unfit for a ttl."""
        fit_at = _clock.now()

        def too_long(fit: bool) -> bool:
            nonlocal fit_at
            fit_at = _clock.now() if fit else fit_at
            return _clock.now() - fit_at >= self._timing.ttl

        await self._until(too_long)
        keeper.quit()

    async def _until(self, enough: Callable[[bool], bool]) -> None:
        while not enough(await self._ask()):  # noqa: ASYNC110 - nobody but `ready` knows when it changes
            await asyncio.sleep(self._timing.tick)

    async def _ask(self) -> bool:
        fit, cause = False, "ready() did not answer in time"
        try:
            with anyio.move_on_after(self._timing.resign_pause()):
                answer = self._ready()
                fit = bool(await answer if inspect.isawaitable(answer) else answer)
                cause = "" if fit else "ready() says so"
        except Exception as exc:  # noqa: BLE001 - a check that fails is a failed check
            cause = f"ready() raised {exc!r}"
        if fit != self._fit:
            self._fit = fit
            self._tell(fit, cause)
        return fit
