"""The documents are executed or checked: README blocks run, generated parts are up to date, links lead somewhere."""

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from support.servers import Server

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def _blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


BLOCKS = _blocks(ROOT / "README.md")
TYPED = [ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in ("fencing", "postgres", "stores"))]
"""Pages whose Python blocks are whole programs."""


def _run(code: str, server: Server) -> "subprocess.Popen[str]":
    # The examples say Redis(), as a user would who has one on the usual port.
    code = code.replace("Redis()", f"Redis.from_url({server.url!r})")
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A run in the background of a shell ignores Ctrl-C, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads are running
    )


def _block(having: str) -> str:
    (found,) = [block for block in BLOCKS if having in block]
    return found


def test_every_python_block_of_the_readme_is_run_by_a_test_below() -> None:
    known = ("looks for due jobs", "sqlite3", "FastAPI", "LeaderChanged")
    assert len(BLOCKS) == len(known)
    assert all(_block(mark) for mark in known)


def test_the_first_example_leads_and_hands_over_on_ctrl_c(server: Server) -> None:
    code = _block("looks for due jobs")
    assert len(code.strip().splitlines()) <= 20
    with _run(code, server) as process:
        assert process.stdout is not None
        assert "looks for due jobs, token 1" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=10)
        finally:
            process.kill()
    assert server.call("EXISTS", "aioelect:{scheduler}") == 0, "it left without releasing"


@pytest.mark.parametrize("mark", ["sqlite3", "LeaderChanged"])
def test_an_example_that_ends_by_itself_does_what_it_says(mark: str, server: Server) -> None:
    out, err = _run(_block(mark), server).communicate(timeout=30)
    assert err == ""
    assert ("written" if mark == "sqlite3" else "leader: ") in out


def test_what_the_example_writes_is_still_there_if_the_database_is_a_file(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    code = _block("sqlite3").replace('":memory:"', repr(str(path)))
    assert str(path) in code
    out, err = _run(code, server).communicate(timeout=30)
    assert (out, err) == ("written\n", "")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT qty FROM stock").fetchall() == [(95,)]


async def test_the_fastapi_example_leads_within_the_lifespan(server: Server) -> None:
    pytest.importorskip("fastapi")
    code = _block("FastAPI").replace("Redis()", f"Redis.from_url({server.url!r})")
    space: dict[str, object] = {"__name__": "example"}
    exec(compile(code, "README", "exec"), space)
    lifespan, app = space["lifespan"], space["app"]
    async with lifespan(app):  # type: ignore[operator]
        while server.call("EXISTS", "aioelect:{scheduler}") == 0:
            await asyncio.sleep(0.01)
    assert server.call("EXISTS", "aioelect:{scheduler}") == 0


def test_the_generated_parts_of_the_pages_are_up_to_date() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, ROOT / "scripts" / "make_docs.py", "--check"], check=True, env=environment)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_holds_a_placeholder(page: Path) -> None:
    assert not re.findall(r"\b(?:TODO|TBD|FIXME|MEASURED|XXX)\b", page.read_text())


def test_the_examples_of_the_pages_pass_the_type_checker(tmp_path: Path) -> None:
    for page in TYPED:
        for number, block in enumerate(_blocks(page)):
            (tmp_path / f"{page.stem.lower()}{number}.py").write_text(block)
    files = sorted(map(str, tmp_path.glob("*.py")))
    # Not every driver that the pages use has types.
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--cache-dir", tmp_path, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


LINK = re.compile(r"(?:\]\(|^\[[^\]]+\]: )(?!https?:)([^)#\s]*)#?([^)\s]*)", re.MULTILINE)
"""A link within the repository: the path, and the place in the file."""


def _prose(page: Path) -> str:
    return re.sub(r"^(`{3,}).*?^\1", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, on forges and on the site."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_of_the_pages_lead_somewhere(page: Path) -> None:
    for target, place in LINK.findall(_prose(page)):
        led_to = (page.parent / target).resolve() if target else page
        assert led_to.exists() and led_to.is_relative_to(ROOT), f"{page.name} links to {target}"
        if place and led_to.suffix == ".md":
            assert place in _anchors(led_to), f"{page.name} links to {target}#{place}"


def test_tests_named_on_the_architecture_page_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    source = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    missing = [name for name in sorted(named) if f"def {name}(" not in source]
    assert named and not missing, f"named on the page but not there: {missing}"
