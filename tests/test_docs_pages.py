"""The code in the pages of docs/ is run as it stands, and passes the type checker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import Server

DOCS = Path(__file__).resolve().parent.parent / "docs"
PRINTS = {
    "following.md": [
        ["leader: "],
        ["route to http://10.0.0.7:8000", "leads: pod-a since 2", "candidates: []"],
        ["asked: pod-a", "finishing the batch under token True", "stepped down: True"],
    ],
    "migrating.md": [["changing the stock\nchanging the stock"], ["looking for due jobs"]],
    "partitions.md": [["partition 3, token 1", "held here: [0, 1, 2, 3] of ('"]],
    "periodic.md": [
        ["three ticks"],
        ["cleaning up for", "token True", "done"],
        ["run at 0 us"],
        ["run at 0 us"],
        ["reporting\nsomebody else has it"],
    ],
}
"""What each block of a page says, in order."""


def blocks(page: str) -> list[str]:
    """The Python blocks of a page."""
    found: list[str] = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return found


def test_every_block_of_these_pages_is_run() -> None:
    assert {page: len(blocks(page)) for page in PRINTS} == {page: len(said) for page, said in PRINTS.items()}


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page, said in PRINTS.items() for number in range(len(said))]
)
def test_a_block_does_what_the_page_says(page: str, number: int, server: Server) -> None:
    code = blocks(page)[number].replace("Redis()", f"Redis.from_url({server.url!r})")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for said in PRINTS[page][number]:
        assert said in done.stdout


def test_the_blocks_pass_the_type_checker(tmp_path: Path) -> None:
    for page in PRINTS:
        for number, block in enumerate(blocks(page)):
            (tmp_path / f"{page.partition('.')[0]}_{number}.py").write_text(block)
    files = sorted(map(str, tmp_path.glob("*.py")))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
