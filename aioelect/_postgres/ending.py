"""How to let go of what a closed event loop has left behind, without a sound.

Names with an underscore are asyncio's and asyncpg's own: where they are missing, all that is lost is the quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar

__all__ = ["sever", "silence"]

T = TypeVar("T")


def silence(task: asyncio.Task[T]) -> None:
    """End a task whose loop will never run again."""
    with contextlib.suppress(Exception):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        coroutine = task.get_coro()
        if coroutine is not None:
            coroutine.close()


def sever(connection: object) -> None:
    """Close a connection's socket, without the loop."""
    with contextlib.suppress(Exception):
        connection._aborted = True  # type: ignore[attr-defined]  # noqa: SLF001
        transport: object = connection._transport  # type: ignore[attr-defined]  # noqa: SLF001
        while transport is not None:
            sock = getattr(transport, "_sock", None)
            if sock is not None:
                sock.close()
                transport._sock = None  # type: ignore[attr-defined]  # noqa: SLF001
            transport._closed = transport._closing = True  # type: ignore[attr-defined]  # noqa: SLF001
            # Below TLS there is a transport of its own.
            transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
