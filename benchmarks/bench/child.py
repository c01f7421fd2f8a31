"""A part of a case that plays in a process of its own.

    with play(waiter, port=server.port, rival="aioelect") as child:     # a support.processes.Child
        await child.expect(event="ready")

`waiter` is a module-level coroutine function `async def waiter(stage: Side, **arguments)`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from bench.stage import quiet, settle
from support.processes import Child

__all__ = ["Side", "main", "play"]

_SCRIPT = """
sys.path[:0] = json.loads(sys.argv[1])
from bench.child import main
main(emit, sys.argv[2], json.loads(sys.argv[3]))
"""
_BENCHMARKS = Path(__file__).resolve().parent.parent


class Emit(Protocol):
    """Write one line to the parent."""

    def __call__(self, **fields: object) -> None: ...


class Side:
    """The child's end: what it says and hears."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    async def commands(self) -> AsyncIterator[dict[str, Any]]:
        """What the parent sends, without a thread that would disturb the measurement."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            yield json.loads(line)


def play(role: Callable[..., Awaitable[None]], **arguments: object) -> Child:
    """A child process that plays the role; use it as a context manager."""
    paths = [str(_BENCHMARKS), str(_BENCHMARKS.parent / "tests")]
    return Child(_SCRIPT, [json.dumps(paths), f"{role.__module__}:{role.__qualname__}", json.dumps(arguments)])


def main(emit: Emit, role: str, arguments: dict[str, Any]) -> None:
    """Play a role, in the child."""
    module, name = role.split(":")
    coroutine = getattr(importlib.import_module(module), name)
    quiet()
    settle()
    asyncio.run(coroutine(Side(emit), **arguments))
