"""A folder and a process group that end with this process, however it ends: see `_janitor.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Shelter"]

_JANITOR = Path(__file__).with_name("_janitor.py")


class Shelter:
    """What is started goes into `process_group=shelter.group`; what is written, into `folder`.

    Used outside the event loop: a cancellation can't interrupt its beginning or its end half-way.
    """

    folder: Path
    group: int

    def __init__(self, what: str) -> None:
        self._prefix = f"aioelect-{what}-"

    def __enter__(self) -> Self:
        self._janitor = subprocess.Popen(  # noqa: S603  # our own script
            [sys.executable, "-I", "-S", str(_JANITOR), self._prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # of its own, so that the terminal's Ctrl-C doesn't reach it or the children
        )
        self.group = self._janitor.pid
        path = next(iter(self._janitor.stdout or ()), b"").rstrip(b"\n")
        if not path:
            raise OSError("no temporary folder can be made")
        self.folder = Path(os.fsdecode(path))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._janitor.communicate()  # closes its stdin; its stdout ends when all is gone
