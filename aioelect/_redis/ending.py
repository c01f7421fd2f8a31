"""How to let go: of a connection whose peer hangs, and of what a closed event loop has left behind.

`asyncio.run` cancels what is still running, and all ends by itself. A loop that is merely closed leaves tasks that can
never run again and sockets that nobody closes; when they are collected, asyncio and the client library complain about
each. That a library kept them open is no news to its user, so they are put away quietly. Names with an underscore are
asyncio's and redis-py's own: where they are missing, all that is lost is the quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

__all__ = ["cut", "sever", "silence"]


def cut(connection: object) -> None:
    """Close a connection now, whatever is still to be sent: a flush to a peer that hangs takes minutes."""
    writer = getattr(connection, "_writer", None)
    if isinstance(writer, asyncio.StreamWriter):
        writer.transport.abort()


def silence(task: asyncio.Task[None]) -> None:
    """End a task whose loop will never run again."""
    with contextlib.suppress(Exception):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        coroutine = task.get_coro()
        if coroutine is not None:
            coroutine.close()


def sever(connection: object, tasks: Iterable[asyncio.Task[None]]) -> None:
    """End the tasks of a connection and close its socket, without the loop."""
    for task in tasks:
        silence(task)
    writer = getattr(connection, "_writer", None)
    if not isinstance(writer, asyncio.StreamWriter):
        return
    with contextlib.suppress(Exception):
        connection._writer = connection._reader = None  # type: ignore[attr-defined]  # noqa: SLF001
        transport: object = writer.transport
        while transport is not None:
            sock = getattr(transport, "_sock", None)
            if sock is not None:
                sock.close()
                transport._sock = None  # type: ignore[attr-defined]  # noqa: SLF001
            transport._closed = transport._closing = True  # type: ignore[attr-defined]  # noqa: SLF001
            # Below TLS there is a transport of its own.
            transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
