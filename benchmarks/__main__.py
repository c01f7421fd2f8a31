"""aioelect beside its rivals, on one server in one run: `make bench`, or `python benchmarks --help`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import click
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
# Servers and child processes are the tests' own.
sys.path.insert(0, str(ROOT / "tests"))

import bench.cases  # noqa: E402, F401 - importing makes them known
from bench import report, results  # noqa: E402
from bench.running import run_cases  # noqa: E402
from bench.stage import cases  # noqa: E402

ANY_FILE = click.Path(dir_okay=False, path_type=Path)
A_RUN = click.Path(exists=True, dir_okay=False, path_type=Path)


def _wide() -> Console:
    """A console for tables; a file or pipe gets them unbroken."""
    console = Console()
    return console if console.is_terminal else Console(width=170)


@click.group()
def main() -> None:
    """Measure aioelect beside what a user would pick instead."""


@main.command()
@click.argument("names", metavar="[CASE]...", nargs=-1, type=click.Choice(list(cases())))
@click.option("--quick", is_flag=True, help="Small sizes, to see that all cases work: under 90 s. Says little.")
@click.option("--json", "file", type=ANY_FILE, default=ROOT / "build" / "bench.json", help="Where the figures go.")
def run(names: tuple[str, ...], quick: bool, file: Path) -> None:
    """Run all cases, or those that are named. The exit code tells whether they ran, not whether targets were met."""
    progress = Console(stderr=True)
    chosen = [case for name, case in cases().items() if not names or name in names]
    done = asyncio.run(run_cases(chosen, progress, quick=quick))
    results.save(done, file)
    report.show(done, _wide())
    progress.print(f"figures: {file}")
    if done.errors:
        raise SystemExit(1)


@main.command("list")
def list_() -> None:
    """Say which cases there are and what exactly they measure."""
    for case in cases().values():
        click.echo(f"{case.name}: {case.title}\n    {case.definition.strip()}\n")


@main.command()
@click.argument("file", type=A_RUN)
def show(file: Path) -> None:
    """Print the tables of an earlier run."""
    report.show(results.load(file), _wide())


@main.command()
@click.argument("file", type=A_RUN)
def publish(file: Path) -> None:
    """Make a whole run the one that the documents show: figures, picture, and the pages' generated parts."""
    published = results.load(file)
    if published.about["quick"] or published.errors or published.outcomes.keys() != cases().keys():
        raise click.ClickException(f"{file} is not a whole run: make bench")
    from bench.picture import draw  # noqa: PLC0415 - matplotlib is needed here only

    results.save(published, ROOT / "docs" / "performance.json")
    draw(published, ROOT / "docs" / "performance.svg")
    subprocess.run([sys.executable, ROOT / "scripts" / "make_docs.py"], check=True)


if __name__ == "__main__":
    main(prog_name="benchmarks")
