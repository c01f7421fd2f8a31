"""Detached tasks with an owner, and waiting for them whatever cancellations arrive.

What lives beside the body of an `async with` may not hold a scope of the caller's task: it is left in another task in
pytest fixtures, aiohttp's AppRunner or arq. So it runs in tasks of its own, referenced from here until it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar
from weakref import WeakKeyDictionary

import anyio

__all__ = ["is_cancelled", "outlast", "running_loop", "settled", "spawn"]

T = TypeVar("T")

# Of a loop that was closed with tasks in it, they stay: collected, each would complain that it was never done.
_tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Task[object]]] = WeakKeyDictionary()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one is running."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def is_cancelled() -> bool:
    """The current task was asked to end: the next await raises, or has raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def spawn(work: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
    """Start a detached task and keep it alive until it is done."""
    loop = asyncio.get_running_loop()
    if (alive := _tasks.get(loop)) is None:
        alive = _tasks[loop] = set()
    # Not by the loop's task factory: an eager one would begin the work before its owner knows of the task.
    task = asyncio.Task(work, loop=loop, name=f"aioelect {name}")
    alive.add(task)
    task.add_done_callback(alive.discard)
    return task


async def outlast(task: asyncio.Future[T], limit: float | None = None) -> None:
    """Wait for `task`, at most `limit` seconds; a cancellation that arrives meanwhile is raised when that is over.

    The shield keeps anyio's repeated cancellations out, since absorbing those spins; a native one is noted.
    """
    cancelled: asyncio.CancelledError | None = None
    loop = asyncio.get_running_loop()
    until = None if limit is None else loop.time() + limit
    with anyio.CancelScope(shield=True):
        while not task.done():
            left = None if until is None else until - loop.time()
            if left is not None and left <= 0:
                break
            try:
                await asyncio.wait({task}, timeout=left)
            except asyncio.CancelledError as exc:
                cancelled = exc
    if cancelled is not None:
        raise cancelled


async def settled(limit: float) -> None:
    """Wait for the detached releases of this event loop, at most `limit` seconds."""
    alive = _tasks.get(asyncio.get_running_loop(), set())
    pending = {task for task in alive if task.get_name().startswith("aioelect release")}
    if pending:
        await asyncio.wait(pending, timeout=limit)
