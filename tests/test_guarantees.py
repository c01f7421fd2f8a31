"""docs/guarantees.md is complete, and says nothing that no test shows: every mode under every fault, every cell."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from support.modes import MODES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
TITLES = dict(
    zip(
        (
            "one Redis",
            "replica",
            "WAIT",
            "Sentinel",
            "Cluster",
            "quorum of 3",
            "quorum of 5",
            "PostgreSQL row",
            "advisory lock",
        ),
        MODES,
        strict=True,
    )
)
FAULTS = (
    "The holder crashes",
    "The holder is paused",
    "The event loop is blocked",
    "Two processes with one identity",
    "Cut both ways",
    "Cut one way: answers don't arrive",
    "An answer is lost",
    "A restart that keeps the data",
    "A restart without the data",
    "A failover that lost the claim",
    "FLUSHALL",
    "Eviction",
    "The cache of scripts is lost",
    "The clock steps forward",
    "The clock runs fast",
)
TARGETS = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", PAGE.read_text(), re.MULTILINE))


@dataclass(frozen=True)
class Cell:
    """What the page says of some modes under one fault, with a guard or without."""

    fault: str
    modes: tuple[str, ...]
    guarded: bool
    text: str

    @property
    def links(self) -> list[tuple[str, str]]:
        """What is said, and the label of the test that shows it."""
        return re.findall(r"\[([^]]+)\]\[([\w-]+)\]", self.text)

    @property
    def tests(self) -> list[tuple[Path, str]]:
        """File and function."""
        return [_target(label) for _, label in self.links]


def _target(label: str) -> tuple[Path, str]:
    file, _, function = TARGETS[label].partition("#")
    return (PAGE.parent / file).resolve(), function


def _cells() -> list[Cell]:
    cells: list[Cell] = []
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        fault, _, rest = section.partition("\n")
        rest = re.split(r"^## ", rest, flags=re.MULTILINE)[0]
        rows = [line.strip("|").split("|") for line in rest.splitlines() if line.startswith("|")]
        if rows:
            assert [word.strip() for word in rows[0]] == ["mode", "on its own", "with a guard"], fault
        for row in rows[2:]:
            assert len(row) == 3, row
            modes = tuple(title.strip() for title in row[0].split(","))
            cells += [Cell(fault, modes, bool(column), row[column + 1].strip()) for column in (0, 1)]
    return cells


CELLS = _cells()
each_cell = pytest.mark.parametrize(
    "cell", CELLS, ids=lambda c: f"{c.fault}, {c.modes[0]}, {'with a guard' if c.guarded else 'on its own'}"
)


@cache
def _collected() -> frozenset[str]:
    """All tests that the page names, as pytest finds them: file, function, and the parameters in brackets."""
    files = sorted({str(_target(label)[0].relative_to(ROOT)) for label in TARGETS})
    found = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", "--no-header", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return frozenset(line for line in found.stdout.splitlines() if "::" in line)


def _runs(file: Path, function: str) -> list[str]:
    """The parameters with which a test is run; one empty string if there are none."""
    start = f"{file.relative_to(ROOT)}::{function}"
    return [
        node.removeprefix(start).strip("[]") for node in _collected() if node == start or node.startswith(f"{start}[")
    ]


def test_every_mode_is_there_once_under_every_fault() -> None:
    assert tuple(dict.fromkeys(cell.fault for cell in CELLS)) == FAULTS
    for fault in FAULTS:
        for guarded in (False, True):
            modes = [mode for cell in CELLS if (cell.fault, cell.guarded) == (fault, guarded) for mode in cell.modes]
            assert sorted(modes) == sorted(TITLES), fault


@pytest.mark.parametrize("label", TARGETS)
def test_every_link_leads_to_a_test_and_is_used(label: str) -> None:
    assert _runs(*_target(label)), f"there is no test {TARGETS[label]}"
    assert f"][{label}]" in PAGE.read_text(), f"nothing links to [{label}]"


@each_cell
def test_every_cell_is_shown_by_a_test_that_is_run_in_each_of_its_modes(cell: Cell) -> None:
    assert cell.links, "nothing is linked"
    assert all(label in TARGETS for _, label in cell.links)
    runs = [run for file, function in cell.tests for run in _runs(file, function)]
    shown = {word for run in runs for word in re.split(r"-(?!\d)| ", run)}
    assert {TITLES[title] for title in cell.modes} <= shown, "not run in each mode"


@each_cell
def test_every_cell_says_whether_two_may_hold_a_name_and_a_test_of_that_name_shows_it(cell: Cell) -> None:
    for said, label in cell.links:
        _, function = _target(label)
        pins = any(words in function for words in ("two_hold", "two_may_hold", "writes_late", "write_late"))
        if "may overlap" in said or "may hold" in said or "stale write refused" in said:
            assert pins, f"[{said}][{label}]: that test shows no overlap"
        if "at most one" in said:
            assert not pins, f"[{said}][{label}]: that test shows an overlap"
    if not cell.guarded:
        assert re.search(r"at most one\]|may overlap\]", cell.text), cell.text
        return
    (alone,) = [c for c in CELLS if (c.fault, c.modes, c.guarded) == (cell.fault, cell.modes, False)]
    overlaps = "may overlap]" in alone.text or "may hold" in alone.text
    assert ("stale write refused]" in cell.text) == overlaps, "a guard refuses where two may hold a name"
