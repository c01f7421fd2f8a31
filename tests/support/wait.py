"""Wait for a condition, never for a length of time.

A test that sleeps and hopes is slow on a fast machine and red on a slow one. These helpers poll often, return as soon
as the condition holds, and fail with what was last seen.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

POLL = 0.002
"""Seconds between two looks: short beside any ttl in the tests, long enough to leave the loop alone."""


@overload
async def until(predicate: Callable[[], Awaitable[T | None]], limit: float = 5.0) -> T: ...
@overload
async def until(predicate: Callable[[], T | None], limit: float = 5.0) -> T: ...
async def until(predicate: Callable[[], Any], limit: float = 5.0) -> Any:
    """Return the first truthy result of `predicate` (plain or async); AssertionError after `limit` seconds."""
    give_up = time.monotonic() + limit
    while True:
        result = predicate()
        value = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() >= give_up:
            raise AssertionError(_failure(predicate, limit, value))
        await asyncio.sleep(POLL)


def until_sync(predicate: Callable[[], T | None], limit: float = 5.0) -> T:
    """Do the same without an event loop, for fixtures and for tests that block theirs."""
    give_up = time.monotonic() + limit
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= give_up:
            raise AssertionError(_failure(predicate, limit, value))
        time.sleep(POLL)


def _failure(predicate: Callable[[], object], limit: float, last: object) -> str:
    """Quote the condition's source: a lambda's name says nothing."""
    try:
        text = inspect.getsource(predicate).strip()
    except (OSError, TypeError):
        text = repr(predicate)
    return f"not true within {limit} s (last seen: {last!r}): {text}"
