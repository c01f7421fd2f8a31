"""The examples of the page on PostgreSQL are run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "postgres.md"
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
PRINTS = {
    "FencedLock(store": "UPDATE 1\n",
    "AdvisoryLock(DSN": "alone, for 15 s",
    "AdvisoryStore(DSN": "leads with token 1",
}


@pytest.mark.parametrize("mark", PRINTS)
def test_an_example_does_what_it_says(mark: str, database: str) -> None:
    assert len(BLOCKS) == len(PRINTS)
    (code,) = [block for block in BLOCKS if mark in block]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "DSN": database},
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.startswith(PRINTS[mark])
