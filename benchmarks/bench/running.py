"""Run cases one after the other and show how far they are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.machine import about
from bench.results import Outcome, Run
from bench.stage import Bench, Case, Teller, quiet
from support import servers
from support.servers import Server

__all__ = ["run_cases"]


async def run_cases(chosen: Sequence[Case], console: Console, *, quick: bool) -> Run:
    """Measure; a case that breaks is noted and the rest goes on."""
    quiet()
    binary = servers.newest()
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, str] = {}
    with _progress(console, len(chosen)) as begin:
        for case in chosen:
            began = time.monotonic()
            with Server(binary) as server, begin(case) as tell:
                try:
                    outcomes[case.name] = await case.measure(Bench(server, quick, tell))
                except Exception as error:  # noqa: BLE001 - the other cases are worth having
                    errors[case.name] = _tail(f"{type(error).__name__}: {error}")
            outcomes.setdefault(case.name, Outcome()).settings["took s"] = round(time.monotonic() - began, 1)
    return Run(about(binary, quick=quick), {k: v for k, v in outcomes.items() if k not in errors}, errors)


def _tail(text: str, lines: int = 15) -> str:
    """The end of an error: a child process that died has left its whole traceback in it."""
    return "\n".join(text.splitlines()[-lines:])


class _Begin:
    def __init__(self, console: Console, bar: Progress, total: int) -> None:
        self._console, self._bar = console, bar
        self._all = bar.add_task("all cases", total=total, what="")

    @contextmanager
    def __call__(self, case: Case) -> Iterator[Teller]:
        task = self._bar.add_task(case.name, total=None, what=case.title)
        began = time.monotonic()

        def tell(done: int, total: int, what: str) -> None:
            self._bar.update(task, completed=done, total=total, what=what)
            if self._console.is_terminal:
                self._bar.refresh()

        tell(0, 1, case.title)
        yield tell
        self._bar.remove_task(task)
        self._bar.advance(self._all)
        self._console.print(f"{case.name}: {time.monotonic() - began:.0f} s", highlight=False)


@contextmanager
def _progress(console: Console, total: int) -> Iterator[_Begin]:
    """Drawn between slices only: a thread that redraws would be measured, too."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        yield _Begin(console, bar, total)
