"""The demo's child processes and what they say, as one record in the order in which it was heard."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aioelect.cli.demo.verdict import NotShown
from aioelect.testing._shelter import Shelter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Actor", "Line", "Stage"]

PATIENCE = 15.0  # seconds for anything that takes less than one on an idle machine


@dataclasses.dataclass(frozen=True)
class Line:
    """What one process said, and when by its own (and everybody's) monotonic clock."""

    who: str
    event: str
    at: float
    fields: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]


class Actor:
    """One child process."""

    def __init__(self, who: str, process: asyncio.subprocess.Process) -> None:
        self.who = who
        self._process = process
        self.pid = process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    def tell(self, settings: DataclassInstance) -> None:
        """Send it its settings."""
        self._write(json.dumps(dataclasses.asdict(settings)))

    def nudge(self) -> None:
        """Send it an empty line."""
        self._write("")

    def _write(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line.encode() + b"\n")

    def send(self, number: signal.Signals) -> float:
        """Send a signal; returns the time just before."""
        at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return at


class Stage:
    """Starts processes, hears what they say, and ends them."""

    def __init__(self, shelter: Shelter, on_line: Callable[[Line], None]) -> None:
        self.folder = shelter.folder
        self.lines: list[Line] = []
        self._group = shelter.group
        self._on_line: Callable[[Line], None] | None = on_line
        self._heard = asyncio.Condition()
        self._processes: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Kill what is left: whatever had to end in good order has ended. Nobody is told what comes of that."""
        self._on_line = None
        # From here to the end of the demo it takes milliseconds; a second Ctrl-C would only make a mess of it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self._processes:
            await process.wait()
        for reader in self._readers:
            await reader

    def log(self, who: str) -> Path:
        """Where a process's stderr goes."""
        return self.folder / f"{who}.log"

    async def spawn(self, who: str, *argv: str, talks: bool = False) -> Actor:
        """Start a program; if it talks, its stdout is heard."""
        pipe = asyncio.subprocess.PIPE
        with self.log(who).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=pipe if talks else asyncio.subprocess.DEVNULL,
                stdout=pipe if talks else log,
                stderr=log,
                process_group=self._group,
            )
        self._processes.append(process)
        if process.stdout is not None:
            self._readers.append(asyncio.create_task(self._read(who, process, process.stdout)))
        return Actor(who, process)

    async def enter(self, who: str, module: str) -> Actor:
        """Start one of our own modules; it is up, and waits for its settings, when it says so."""
        # -P: what lies in the user's current folder is not imported by accident.
        return await self.spawn(who, sys.executable, "-P", "-m", f"aioelect.cli.demo.{module}", talks=True)

    async def hear(
        self, event: str, who: Collection[str], *, since: float = 0.0, limit: float = PATIENCE, **fields: object
    ) -> Line:
        """Wait until one of `who` says `event` (with these fields), not before `since`.

        Raises:
            NotShown: not within the limit, or all of them have ended.
        """
        try:
            async with asyncio.timeout(limit), self._heard:
                while (line := self._find(event, who, since, fields)) is None:
                    if all(self._find("ended", (one,), 0.0, {}) for one in who):
                        raise NotShown(f"{self._title(who)} ended without '{event}'{self._complaint(who)}")
                    await self._heard.wait()
                return line
        except TimeoutError:
            raise NotShown(
                f"{self._title(who)} did not say '{event}' within {limit:g} s{self._complaint(who)}"
            ) from None

    def _find(self, event: str, who: Collection[str], since: float, fields: Mapping[str, object]) -> Line | None:
        for line in self.lines:
            wanted = line.event == event and line.who in who and line.at >= since
            if wanted and all(line.fields.get(key) == value for key, value in fields.items()):
                return line
        return None

    def _title(self, who: Collection[str]) -> str:
        return " and ".join(sorted(who))

    def _complaint(self, who: Collection[str]) -> str:
        """The last line of what they wrote to stderr."""
        texts = [self.log(one).read_text(errors="replace").strip() for one in who if self.log(one).exists()]
        last = [text.splitlines()[-1] for text in texts if text]
        return f" ({'; '.join(last)})" if last else ""

    async def _read(self, who: str, process: asyncio.subprocess.Process, stdout: asyncio.StreamReader) -> None:
        async for raw in stdout:
            fields = json.loads(raw)
            await self._record(Line(who, fields.pop("event"), fields.pop("at"), fields))
        code = await process.wait()
        await self._record(Line(who, "ended", time.monotonic(), {"code": code}))

    async def _record(self, line: Line) -> None:
        async with self._heard:
            self.lines.append(line)
            if self._on_line is not None:
                self._on_line(line)
            self._heard.notify_all()
