"""Real child processes: they speak JSON lines, can be stopped, continued and killed, and never outlive the tests.

A child that runs `aioelect` code is a script given as text::

    with Child('''
        emit(event="up", pid=os.getpid())
        for command in commands():
            emit(echo=command)
    ''') as child:
        await child.expect(event="up")
        child.send(do="this")

`emit(**fields)` writes one line to the test, `commands()` iterates over what the test sends. The parent notes the
arrival time of every line in a thread of its own, so a blocked event loop doesn't falsify the times.

On Linux a child is tied to the *thread* that started it (PR_SET_PDEATHSIG): start children and servers from the main
thread, not from a pool's worker.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.wait import until, until_sync

# A launcher that execs, not a preexec_fn: Python 3.12+ warns about those as soon as there is a second thread.
# The parent check closes the gap in which the parent died before prctl; a change of user would undo the tie.
_TIE = """
import ctypes, os, sys
if user := int(sys.argv[2]):
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[3], sys.argv[3:])
"""

_PRELUDE = """
import json, os, sys
def emit(**fields):
    sys.stdout.write(json.dumps(fields) + "\\n")
    sys.stdout.flush()
def commands():
    for line in sys.stdin:
        yield json.loads(line)
"""


def spawn(argv: Sequence[str], *, user: int | None = None, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process that the kernel kills when this one dies, however it dies; the pid is the program's own.

    `user`: the id of the user and group that it becomes, for programs that refuse to run as root.
    """
    launcher = [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), str(user or 0)]
    return subprocess.Popen([*launcher, *argv], start_new_session=True, **options)


def in_environment(variables: Mapping[str, str] | None) -> list[str]:
    """Begin an argv with this: the variables are set for the program, not for what launches it."""
    return ["/usr/bin/env", *(f"{key}={value}" for key, value in variables.items())] if variables else []


@dataclass(frozen=True)
class Line:
    """One line that a child wrote: its fields and the monotonic time at which it arrived."""

    at: float
    fields: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def matches(self, wanted: Mapping[str, object]) -> bool:
        """Say whether every wanted field is there with that value."""
        return all(self.fields.get(key) == value for key, value in wanted.items())


@dataclass
class Child:
    """A Python script in a process of its own (see the module's words); use it as a context manager."""

    script: str = field(repr=False)
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    lines: list[Line] = field(default_factory=list, init=False, repr=False)

    def __enter__(self) -> Self:
        # -P keeps the current folder off sys.path: the child must import the installed package, as the tests do.
        self._process = spawn(
            [sys.executable, "-P", "-u", "-c", _PRELUDE + textwrap.dedent(self.script), *self.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.env},
            cwd=self.cwd,
        )
        self._errors: list[bytes] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_lines, self._read_errors)]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs, else its exit code (minus the signal that ended it)."""
        return self._process.poll()

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return b"".join(self._errors).decode(errors="replace")

    def find(self, after: int = 0, **wanted: object) -> Line | None:
        """Return the first line from index `after` on that has the wanted fields."""
        return next((line for line in self.lines[after:] if line.matches(wanted)), None)

    async def expect(self, limit: float = 10.0, after: int = 0, **wanted: object) -> Line:
        """Wait for a line with the wanted fields; the failure shows what the child said instead."""
        try:
            return await until(lambda: self._found_or_dead(after, wanted), limit)
        except AssertionError:
            raise AssertionError(self._report(wanted)) from None

    def expect_sync(self, limit: float = 10.0, after: int = 0, **wanted: object) -> Line:
        """Do the same without an event loop."""
        try:
            return until_sync(lambda: self._found_or_dead(after, wanted), limit)
        except AssertionError:
            raise AssertionError(self._report(wanted)) from None

    def send(self, **fields: object) -> None:
        """Send one command to the child's `commands()`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(fields).encode() + b"\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Stop it as a machine's pause would (SIGSTOP)."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self.signal(signal.SIGKILL)

    async def exited(self, limit: float = 10.0) -> int:
        """Wait for its end and return the exit code."""
        await until(lambda: self.returncode is not None, limit)
        return self._process.wait()

    def close(self) -> None:
        """Kill it if it still runs, and free what it held."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            now = time.monotonic()
            try:
                fields = json.loads(raw)
            except ValueError:
                fields = None
            # Stray prints are kept as well: they tell most when a child misbehaves.
            self.lines.append(Line(now, fields if isinstance(fields, dict) else {"text": raw.decode(errors="replace")}))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            self._errors.append(raw)

    def _found_or_dead(self, after: int, wanted: Mapping[str, object]) -> Line | None:
        alive = any(reader.is_alive() for reader in self._readers)
        line = self.find(after, **wanted)
        if line is None and not alive:
            raise AssertionError(self._report(wanted))
        return line

    def _report(self, wanted: Mapping[str, object]) -> str:
        said = "\n".join(f"  {dict(line.fields)}" for line in self.lines[-20:])
        return f"child said nothing like {dict(wanted)} (exit code {self.returncode}); it said:\n{said}\n{self.stderr}"
