"""The examples in processes of their own, started as their first lines say.

with Example(tmp_path, "scheduler.py", env={"REDIS_URL": server.url}) as one:
    await one.says("leads with token")
    one.process.terminate()
    assert await one.ended() == 0
"""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from support.processes import spawn
from support.wait import until

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
TROUBLE = re.compile(r"never awaited|never retrieved|Traceback|Exception ignored|was destroyed but|Unclosed")

_numbers = itertools.count(1)


class Example:
    """One example; what it writes goes to files, and it is killed at the end of the block if it still runs.

    `argv`: a script of examples/ and its arguments, or "-m" and a module with its own.
    """

    def __init__(self, folder: Path, *argv: str, env: Mapping[str, str]) -> None:
        number = next(_numbers)
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        what = argv if argv[0] == "-m" else (str(EXAMPLES / argv[0]), *argv[1:])
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = spawn(
                [sys.executable, "-P", "-W", "default", *what],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **env},
                cwd=folder,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what it has started itself, too
        self.process.wait()

    @property
    def output(self) -> str:
        """What it has written to stdout so far."""
        return self._out.read_text()

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        return self._err.read_text()

    def tokens(self) -> list[int]:
        """The tokens that it has spoken of, in order."""
        return [int(token) for token in re.findall(r"token (\d+)", self.output)]

    async def says(self, text: str, limit: float = 20.0) -> None:
        """Wait until it has written this to stdout."""
        with suppress(AssertionError):
            await until(lambda: text in self.output or self.process.poll() is not None, limit)
        assert text in self.output, self.output + self.errors

    async def ended(self, limit: float = 20.0) -> int:
        """Wait for its end; it must not have complained. Its exit code."""
        await until(lambda: self.process.poll() is not None, limit)
        assert not TROUBLE.search(self.errors), self.errors
        return self.process.wait()
