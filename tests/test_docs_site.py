"""The reference has every public name; `make site` builds it and checks the links of the whole site."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import aioelect
import pytest_aioelect

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
SHOWN = [name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


def _modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(aioelect.__path__, "aioelect.")]
    return ["aioelect", *(name for name in found if "._" not in name and not name.startswith("aioelect.cli"))]


def _resolved(name: str) -> object:
    module, _, item = name.rpartition(".")
    return getattr(importlib.import_module(module), item)


def test_the_public_modules_are_these() -> None:
    guards = {f"aioelect.fencing.{guard}" for guard in ("http", "postgres", "redis", "sqlite")}
    others = {f"aioelect.{module}" for module in ("facts", "fencing", "health", "metrics", "testing", "tracing")}
    assert set(_modules()) == {"aioelect"} | others | guards


@pytest.mark.parametrize("module", _modules())
def test_every_public_name_is_in_the_reference(module: str) -> None:
    shown = [_resolved(name) for name in SHOWN]
    public = importlib.import_module(module).__all__
    missing = [name for name in public if not any(_resolved(f"{module}.{name}") is item for item in shown)]
    assert public and not missing, f"not in docs/reference: {missing}"


def test_every_fixture_of_the_plugin_is_in_the_reference() -> None:
    fixtures = {name for name in vars(pytest_aioelect) if name.startswith("aioelect_")}
    assert fixtures == {name.removeprefix("pytest_aioelect.") for name in SHOWN if name.startswith("pytest_aioelect.")}


def test_the_reference_shows_nothing_twice_and_nothing_private() -> None:
    assert len(SHOWN) == len(set(SHOWN))
    assert not [name for name in SHOWN if "._" in name]


@pytest.mark.parametrize("name", SHOWN)
def test_examples_in_docstrings_are_marked_as_the_site_expects(name: str) -> None:
    item = _resolved(name)
    members = [member for key, member in vars(item).items() if not key.startswith("_")] if inspect.isclass(item) else []
    for one in (item, *members):
        text = inspect.getdoc(one) or ""
        assert "Example:" not in text, "the section is called Examples"
        assert ">>>" not in text or "Examples:\n" in text


def test_the_site_has_every_page() -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    nav = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(nav) == sorted(pages | {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"})
