"""The process between `aioelect run` and its command: it starts the command, and leaves nothing of it behind.

It lives when the command's parent has to: if `aioelect run` is killed, stopped or hangs, everything that descends from
the command is killed here, at the latest at the instant that was told last. On Linux it inherits orphans (a
"subreaper"), so that those who changed their process group are found, too. Run as a script that needs the standard
library only: it is small, and up at once.

    python -I -S _minder.py CONTROL CLOCK TERMINAL COMMAND...

CONTROL is a socket. Lines read: "until INSTANT" (kill at this instant of CLOCK), "signal N" (to the command's group),
"stop" (SIGTERM to all), "kill". Its end means that the other side is gone: kill. Lines written: "started PID",
"failed ERRNO", "stopped SIGNAL", "ended CODE", "empty" (nothing is left; then this process ends).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

LINUX = sys.platform == "linux"
TICK = 0.5  # seconds: timers stand still while the machine is suspended, the clock that is looked at does not
AGAIN = 0.005  # how soon to look again for what is being killed
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
STOPPING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def prctl(option: int, value: int) -> None:
    """Ask the kernel for something that concerns this process."""
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Minder:
    """One command and all that descends from it."""

    def __init__(self, control: int, clock: int, terminal: int) -> None:
        inheritable = False  # the command has no business with it
        self.control = socket.socket(fileno=control)
        os.set_inheritable(control, inheritable)
        if terminal >= 0:
            os.set_inheritable(terminal, inheritable)
        self.clock = clock
        self.terminal = terminal
        self.group = 0
        self.until = math.inf
        self.killing = False
        self.alone = False
        self.command_over = False
        self.input = b""
        blocking = False
        self.wake, theirs = os.pipe()
        for end in (self.wake, theirs):
            os.set_blocking(end, blocking)
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)

    def tell(self, *words: object) -> None:
        """Write one line; who is gone hears nothing."""
        with contextlib.suppress(OSError):
            self.control.sendall((" ".join(map(str, words)) + "\n").encode())

    def start(self, command: list[str]) -> bool:
        """Start the command in a group of its own, in the foreground if a terminal was given."""
        theirs = {number: signal.signal(number, signal.SIG_IGN) for number in (*IGNORED, *STOPPING)}
        signal.signal(signal.SIGCHLD, lambda *_: None)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        ours = os.getpid()
        failure, report = os.pipe()
        pid = os.fork()
        if pid == 0:
            become(command, ours, self.terminal, report, theirs)
        os.close(report)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        if trouble := os.read(failure, 16):
            os.waitpid(pid, 0)
            self.tell("failed", trouble.decode())
            return False
        self.group = pid
        self.tell("started", pid)
        return True

    def mind(self) -> None:
        """Do as told until nothing is left."""
        while not self.reap():
            if self.killing or self.now() >= self.until:
                self.kill()
            wait = AGAIN if self.killing or self.command_over else TICK
            listened: list[int | socket.socket] = [self.wake] if self.alone else [self.wake, self.control]
            ready, _, _ = select.select(listened, [], [], max(0.0, min(wait, self.until - self.now())))
            if self.wake in ready:
                os.read(self.wake, 4096)
            if self.control in ready:
                self.listen()
        self.tell("empty")

    def now(self) -> float:
        """The time by the clock of the claims."""
        return time.clock_gettime(self.clock)

    def listen(self) -> None:
        """Take what the other side says."""
        data = b""
        with contextlib.suppress(OSError):
            data = self.control.recv(4096)
        if not data:
            self.killing = self.alone = True
            return
        *lines, self.input = (self.input + data).split(b"\n")
        for line in lines:
            verb, _, argument = line.partition(b" ")
            if verb == b"until":
                self.until = float(argument)
            elif verb == b"signal":
                self.send(int(argument))
            elif verb == b"stop":
                self.send(signal.SIGTERM)
                self.send(signal.SIGCONT)  # who is stopped can't end
                for pid in strays(self.group):
                    self.send(signal.SIGTERM, pid)
                    self.send(signal.SIGCONT, pid)
            else:
                self.killing = True

    def kill(self) -> None:
        """Kill all that is there; who is forked meanwhile is found the next time."""
        self.killing = True
        self.until = math.inf
        self.send(signal.SIGKILL)
        for pid in strays(self.group):
            self.send(signal.SIGKILL, pid)

    def send(self, number: int, pid: int | None = None) -> None:
        """Send a signal to the command's group, or to one process."""
        with contextlib.suppress(OSError):
            if pid is None:
                os.killpg(self.group, number)
            else:
                os.kill(pid, number)

    def reap(self) -> bool:
        """Take leave of the dead; True when nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return LINUX or not self.group_lives()
            if pid == 0:
                return False
            if pid != self.group:
                continue
            if os.WIFSTOPPED(status):
                self.tell("stopped", os.WSTOPSIG(status))
            else:
                self.command_over = True
                code = os.waitstatus_to_exitcode(status)
                self.tell("ended", code if code >= 0 else 128 - code)

    def group_lives(self) -> bool:
        """Where orphans are not inherited: somebody is left in the command's group."""
        try:
            os.killpg(self.group, 0)
        except OSError:
            return False
        return True


def become(
    command: list[str], parent: int, terminal: int, report: int, theirs: Mapping[signal.Signals, object]
) -> NoReturn:
    """In the new process: turn into the command."""
    try:
        os.setpgid(0, 0)
        if terminal >= 0:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(terminal, os.getpid())
        for number, action in theirs.items():
            signal.signal(number, signal.SIG_IGN if action == signal.SIG_IGN else signal.SIG_DFL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):  # what an interpreter changes
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.execvp(command[0], command)  # noqa: S606  # no shell
    except OSError as error:
        os.write(report, str(error.errno).encode())
    os._exit(126)


def strays(group: int) -> list[int]:
    """Descendants of this process that are not in the group; none where they can't be found."""
    if not LINUX:
        return []
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                _, parent, own_group, *_ = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                parents[int(entry.name)] = (int(parent), int(own_group))
    found = {os.getpid()}
    while more := {pid for pid, (parent, _) in parents.items() if parent in found} - found:
        found |= more
    return [pid for pid in found - {os.getpid()} if parents[pid][1] != group]


def main() -> None:
    """Start, mind, end."""
    control, clock, terminal = map(int, sys.argv[1:4])
    minder = Minder(control, clock, terminal)
    if minder.start(sys.argv[4:]):
        minder.mind()


if __name__ == "__main__":
    main()
