"""How the demo looks: plain lines everywhere; colours and a moving table where the terminal allows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

__all__ = ["Row", "View"]

_COLOURS = {"A": "cyan", "B": "magenta", "C": "yellow"}
_REFRESH = 0.1  # seconds between two looks of the moving table


@dataclass
class Row:
    """One process in the table."""

    pid: int
    role: str = "stands"
    token: int | None = None  # of the leader
    valid_until: float = 0.0  # until then nobody else may lead

    @property
    def left(self) -> float:
        """Seconds until then."""
        return max(0.0, self.valid_until - time.monotonic())


class View:
    """Everything that is shown goes through here."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._zero = time.monotonic()
        self._rows: dict[str, Row] = {}
        self._live: Live | None = None
        self._refreshed = 0.0
        # Not under FORCE_COLOR alone: a file or a CI log may want colours, but nothing that moves.
        self._moves = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
        utf = console.encoding.lower().startswith("utf")
        self._good, self._bad = ("✓", "✗") if utf else ("ok:", "NOT SHOWN:")

    # -- text

    def say(self, text: str = "", style: str = "") -> None:
        """A line; never wrapped by us."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def headline(self, number: str, text: str) -> None:
        """Begin a step."""
        self.say()
        self._console.print(Text.assemble((f"{number}  ", "bold blue"), (text, "bold")), soft_wrap=True)

    def note(self, *lines: str) -> None:
        """What a step is about."""
        for line in lines:
            self.say(f"   {line}", "dim")

    def zero(self, at: float | None = None) -> None:
        """The times of events count from here."""
        self._zero = time.monotonic() if at is None else at

    def event(self, at: float, who: str, text: str, style: str = "") -> None:
        """Something happened."""
        colour = _COLOURS.get(who[-1:], "bold")
        moment = f"{max(0.0, at - self._zero):9.3f} s  "
        self._console.print(Text.assemble((moment, "dim"), (f"{who:<6}", colour), (text, style)), soft_wrap=True)

    def signal(self, at: float, text: str) -> None:
        """Something was done by the demo itself."""
        self.event(at, "", text, "bold red")

    def good(self, text: str) -> None:
        """The step showed this."""
        self.say(f" {self._good} {text}", "bold green")

    def bad(self, texts: Iterable[str]) -> None:
        """The step was to show this."""
        for text in texts:
            self.say(f" {self._bad} {text}", "bold red")

    def pairs(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Label, value, explanation."""
        for label, value, meaning in rows:
            text = Text.assemble(
                (f"   {label:<24}", "bold"), (f"{value:<12}" if value else "", "green"), (meaning, "dim")
            )
            text.rstrip()
            self._console.print(text, soft_wrap=True)

    # -- the table

    def row(self, who: str, row: Row) -> None:
        """Add a process, or replace what is known of it."""
        self._rows[who] = row
        if self._live is not None and time.monotonic() - self._refreshed >= _REFRESH:
            self._refreshed = time.monotonic()
            self._live.refresh()

    def killed(self, who: str) -> None:
        """It can do nothing any more, and its claim lasts nevertheless."""
        self.row(who, Row(self._rows[who].pid, "killed", None, self._rows[who].valid_until))

    def table(self) -> None:
        """Who leads, with which token, for how long at least."""
        self._console.print(self._table())

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Keep the table in sight below the text meanwhile, and up to date."""
        if not self._moves:
            yield
            return
        live = Live(
            get_renderable=self._table,
            console=self._console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def _table(self) -> Text:
        text = Text("\n", no_wrap=True, overflow="crop")
        text.append(f"   {'process':<9}{'pid':>8}  {'role':<8}{'token':<18}{'time left':>10}\n", "underline dim")
        for who, row in sorted(self._rows.items()):
            leads = row.token is not None
            style = "bold green" if leads else "" if row.role == "stands" else "dim"
            token = str(row.token) if leads else ""
            left = f"{row.left:.2f} s" if row.left else ""
            text.append(f"   {who:<9}", _COLOURS.get(who, ""))
            text.append(f"{row.pid:>8}  {row.role:<8}{token:<18}{left:>10}".rstrip() + "\n", style)
        return text
