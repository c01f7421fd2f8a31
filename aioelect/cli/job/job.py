"""One run of a command under a term."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from aioelect import Term, _clock
from aioelect._core.timing import Timing
from aioelect.cli.job.plan import kill_instant, plan_of
from aioelect.cli.job.terminal import Terminal

__all__ = ["Job", "NotStarted"]

_MINDER = Path(__file__).with_name("_minder.py")
_KILLED = 128 + signal.SIGKILL
_LOOK = 0.5  # at most so many seconds from one look at the claim to the next


class NotStarted(Exception):
    """The command could not be executed; the text says why."""


class Job:
    """A command, from its start until nothing of it is left. `signal()` and `kill()` may come at any time."""

    def __init__(self, command: Sequence[str], timing: Timing, terminal: Terminal) -> None:
        self._command = command
        self._plan = plan_of(timing)
        self._every = min(_LOOK, timing.interval / 4)
        self._terminal = terminal
        self._group = 0
        self._code: int | None = None
        self._failure: int | None = None
        self._input = b""
        self._until = math.inf
        self._stopped_at: float | None = None

    async def run(self, term: Term) -> int:
        """Run it; its exit code, or 128 + n for signal n. Cancelled: stop it in time, with all that it started."""
        self._start(term)
        try:
            try:
                await self._mind(term)
            except asyncio.CancelledError:
                self._stop(lost=term.remaining() <= 0)
                with anyio.CancelScope(shield=True):
                    await self._mind(term)
                raise
        finally:
            self._close()
        if self._failure is not None:
            raise NotStarted(os.strerror(self._failure))
        return _KILLED if self._code is None else self._code

    def signal(self, number: int) -> None:
        """Pass a signal on to the command's group."""
        self._tell(f"signal {number}")

    def kill(self) -> None:
        """Kill everything now."""
        self._tell("kill")

    def _start(self, term: Term) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(0)
        with theirs:
            handed = [fd for fd in (theirs.fileno(), self._terminal.fd) if fd >= 0]
            _inherit(handed, yes=True)
            minder = (sys.executable, "-I", "-S", str(_MINDER))
            self._minder = subprocess.Popen(  # noqa: S603  # our own script, and the user's command
                [*minder, str(theirs.fileno()), str(_clock.ID), str(self._terminal.fd), *self._command],
                env={
                    **os.environ,
                    "AIOELECT_NAME": term.name,
                    "AIOELECT_TOKEN": str(term.token),
                    "AIOELECT_DEADLINE": f"{time.time() + term.remaining():.3f}",
                },
                close_fds=False,  # what was handed to us is the command's
                process_group=0,
            )
            _inherit(handed, yes=False)
        self._over = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._control, self._read)

    async def _mind(self, term: Term) -> None:
        """Tell how long it may live as long as that moves on; until nothing is left."""
        while not self._over.is_set():
            now = _clock.now()
            until = kill_instant(self._plan, now, term.remaining(), self._until, self._stopped_at)
            if until != self._until:
                self._until = until
                self._tell(f"until {until!r}")
            if now >= until and self._group:  # in case that the one who should hangs
                with suppress(OSError):
                    os.killpg(self._group, signal.SIGKILL)
            try:
                async with asyncio.timeout(self._every):
                    await self._over.wait()
            except TimeoutError:
                pass

    def _stop(self, *, lost: bool) -> None:
        if lost or self._code is not None:
            self._stopped_at = _clock.now()
        self._tell("stop")

    def _tell(self, line: str) -> None:
        with suppress(OSError):
            self._control.send(line.encode() + b"\n")

    def _read(self) -> None:
        data = b""
        with suppress(OSError):
            data = self._control.recv(4096)
        if not data:  # it has ended, whether it was able to say so or not
            self._finish()
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            verb, _, number = line.decode().partition(" ")
            match verb:
                case "started":
                    self._group = int(number)
                    self._terminal.lend(self._group)
                case "failed":
                    self._failure = int(number)
                case "stopped":
                    self._terminal.stop_with_command()
                case "ended":
                    self._code = int(number)
                    self._stop(lost=False)  # whom it has left behind
                case _:
                    self._finish()

    def _finish(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        if self._code is None and self._group:
            with suppress(OSError):
                os.killpg(self._group, signal.SIGKILL)
        self._over.set()

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._minder.wait()
        self._terminal.take()


def _inherit(handed: Sequence[int], *, yes: bool) -> None:
    for fd in handed:
        os.set_inheritable(fd, yes)
