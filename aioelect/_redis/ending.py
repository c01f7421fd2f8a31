"""How to let go: of a connection whose peer hangs, and of what a closed event loop has left behind.

`asyncio.run` cancels what is still running, and all ends by itself. A loop that is merely closed leaves tasks that can
never run again and sockets that nobody closes; when they are collected, asyncio and the client library complain about
each. That a library kept them open is no news to its user, so they are put away quietly. Names with an underscore are
asyncio's and redis-py's own: where they are missing, all that is lost is the quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

__all__ = ["cut", "ended", "sever", "silence", "transport_of"]


def transport_of(connection: object) -> asyncio.Transport:
    """The transport of an open connection of the client library; a connection class without one is of no use here."""
    writer = getattr(connection, "_writer", None)
    if not isinstance(writer, asyncio.StreamWriter):
        raise ConnectionError(f"{type(connection).__name__} is not open, or has no asyncio stream")
    return cast(asyncio.Transport, writer.transport)  # both ways; and uvloop's derives from no class of asyncio's


def ended(connection: object) -> bool:
    """Whether the peer has closed it already: whoever takes the transport over would not be told again."""
    reader = getattr(connection, "_reader", None)
    at_end = isinstance(reader, asyncio.StreamReader) and reader.at_eof()
    return at_end or transport_of(connection).is_closing()


def cut(connection: object) -> None:
    """Close a connection now, whatever is still to be sent: a flush to a peer that hangs takes minutes."""
    with contextlib.suppress(ConnectionError):
        transport_of(connection).abort()


def silence(task: asyncio.Task[None]) -> None:
    """End a task whose loop will never run again."""
    with contextlib.suppress(Exception):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        coroutine = task.get_coro()
        if coroutine is not None:
            coroutine.close()


def sever(connection: object, task: asyncio.Task[None]) -> None:
    """End the task of a connection and close its socket, without the loop."""
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
