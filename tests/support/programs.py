"""`aioelect ...` as a real process, and what is left of it."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from click.testing import CliRunner

from aioelect.cli.commands import cli
from support.processes import spawn
from support.wait import until

# A test run in the background of a shell has SIGINT ignored, and hands that down.
PROGRAM = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if os.isatty(0):
    os.close(os.open(os.ttyname(0), os.O_RDWR))  # becomes the controlling terminal
from aioelect.cli import main
main()
"""
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="what is left of a program is looked for in /proc")
LIMIT = 30.0
"""Seconds for anything, on a machine that does other things, too."""


async def outcome(*args: str, url: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command that looks or acts and ends; in this process, which is quicker."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, [*args, "--redis", url], env={"COLUMNS": "120"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout, result.stderr


class Program:
    """One run of the command line; all that descends from it carries a mark in its environment."""

    def __init__(
        self, *args: str, env: Mapping[str, str] | None = None, stdin: int | None = None, terminal: bool = False
    ):
        self._args = args
        self._env = dict(env or {})
        self._stdin = stdin
        self._terminal = terminal
        self.mark = uuid.uuid4().hex
        self._output = {"out": bytearray(), "err": bytearray()}

    def __enter__(self) -> Self:
        environ = {key: value for key, value in os.environ.items() if key != "AIOELECT_REDIS"}
        environ |= {"MARK": self.mark, "COLUMNS": "120", **self._env}
        pipes = {"out": pty.openpty(), "err": os.pipe()} if self._terminal else {"out": os.pipe(), "err": os.pipe()}
        self.ours = pipes["out"][0]
        out, err = pipes["out"][1], pipes["err"][1]
        self.process = spawn(
            [sys.executable, "-P", "-c", PROGRAM, *self._args],
            stdin=out if self._terminal else subprocess.DEVNULL if self._stdin is None else self._stdin,
            stdout=out,
            stderr=err,
            env=environ,
        )
        os.close(out)
        os.close(err)
        self._fds = [pipe[0] for pipe in pipes.values()]
        self._readers = [
            threading.Thread(target=self._read, args=(pipe[0], self._output[name]), daemon=True)
            for name, pipe in pipes.items()
        ]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for reader in self._readers:
            reader.join(timeout=10)
        for fd in self._fds:
            os.close(fd)

    def _read(self, fd: int, into: bytearray) -> None:
        with suppress(OSError):  # how a terminal says that its other side is gone
            while data := os.read(fd, 65536):
                into += data

    @property
    def out(self) -> str:
        """What was written to stdout (or the terminal) so far."""
        return self._output["out"].decode(errors="replace")

    @property
    def err(self) -> str:
        """What was written to stderr so far."""
        return self._output["err"].decode(errors="replace")

    async def says(self, text: str) -> None:
        """Wait until it has written this to stdout."""
        with suppress(AssertionError):
            await until(lambda: text in self.out or self.process.poll() is not None, LIMIT)
        assert text in self.out, (self.out, self.err, self.process.poll())

    async def ended(self) -> int:
        """Wait for its end; the exit code, minus n if signal n ended it."""
        await until(lambda: self.process.poll() is not None, LIMIT)
        if not self.family():
            for reader in self._readers:
                reader.join(timeout=10)
        return self.process.wait()

    def family(self) -> dict[int, str]:
        """Everyone who carries the mark and lives, itself included."""
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdigit() and self.mark.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found
