"""KEEP: fencing tokens that come from elsewhere than the store, for example from the database that is written to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from aioelect._background import spawn
from aioelect._errors import StoreError, StoreRejected, StoreUnavailable
from aioelect._floors import Floors

__all__ = ["MAX_TOKEN", "TokenSource", "mint"]

TokenSource = Callable[[str], Awaitable[int]]
"""Takes the name of a claim that has just been won; answers a number above every earlier one of that name."""

MAX_TOKEN = 2**63 - 1


_floors = Floors(65536)


async def mint(source: TokenSource, store: Hashable, name: str, limit: float) -> int:
    """The token for a claim that has just been won, within `limit` seconds.

    Raises:
        StoreUnavailable: the source failed, or was silent.
        StoreRejected: its answer can't be a token, or is not above the last one.
    """
    # A task of its own: whatever the source makes of a cancellation, the limit holds.
    asking = spawn(_ask(source, name), f"token for {name}")
    asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait for it any more
    try:
        await asyncio.wait({asking}, timeout=max(0.0, limit))
    finally:
        asking.cancel()
    if not asking.done():
        raise _error(StoreUnavailable, f"the token source did not answer within {limit:.3f} s", "token timeout")
    if asking.cancelled():
        raise _error(StoreUnavailable, "the token source was cancelled", "token source")
    failure = asking.exception()
    if failure is not None:
        raise _error(
            StoreUnavailable, f"the token source failed: {type(failure).__name__}", "token source"
        ) from failure
    return _checked(asking.result(), (store, name))


async def _ask(source: TokenSource, name: str) -> object:
    return await source(name)


def _checked(token: object, known: Hashable) -> int:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 < token <= MAX_TOKEN:
        raise _error(
            StoreRejected,
            f"the token source answered {token!r}; wanted: an int from 1 to 2^63 - 1",
            "token type",
        )
    if token <= (last := _floors.get(known)):
        raise _error(
            StoreRejected,
            f"the token source answered {token}, which is not above the last one, {last}: its tokens have to rise, so"
            " look for a sequence that was reset, that caches values, or that another name has overtaken",
            "token not rising",
        )
    _floors.saw(known, token)
    return token


def _error(kind: type[StoreError], message: str, reason: str) -> StoreError:
    return kind(f"{message}; the claim was given back", reason=reason)
