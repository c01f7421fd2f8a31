"""Questions of our own to a server, over the connections that claims go over."""

from __future__ import annotations

import asyncio

from aioelect._redis import wire
from aioelect._redis.scripts import Route

__all__ = ["LIMIT", "ask"]

LIMIT = 3.0  # seconds for one answer


async def ask(route: Route, key: bytes, *commands: wire.Command) -> list[object]:
    """The replies as they are; refusals among them are values. StoreUnavailable: none came within `LIMIT`."""
    deadline = asyncio.get_running_loop().time() + LIMIT
    return await route.exchange(key, lambda _: commands, deadline)
