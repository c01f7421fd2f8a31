"""Job control: the command has the terminal while it runs, and Ctrl-Z stops `aioelect` with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

__all__ = ["Terminal"]


class Terminal:
    """The controlling terminal, if we are in its foreground; `fd` is -1 if not."""

    def __init__(self) -> None:
        self.fd = -1
        self._group = 0  # of the command
        with suppress(OSError):
            fd = os.open("/dev/tty", os.O_RDWR)
            if os.tcgetpgrp(fd) == os.getpgrp():
                self.fd = fd
            else:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.take()
        if self.fd >= 0:
            os.close(self.fd)

    def take(self) -> None:
        """Take it back, if the command has it."""
        if self.fd >= 0:
            with _not_stopped(), suppress(OSError):
                if os.tcgetpgrp(self.fd) in (self._group, 0):
                    os.tcsetpgrp(self.fd, os.getpgrp())

    def lend(self, group: int) -> None:
        """The command has started, and taken it."""
        self._group = group

    def stop_with_command(self) -> None:
        """The command was stopped: stop, too, so that the shell takes over; and go on with the command.

        While we are stopped nothing is renewed: a claim that runs out meanwhile costs the command its life.
        """
        if self.fd < 0:
            return
        self.take()
        os.killpg(0, signal.SIGTSTP)
        self.go_on()

    def go_on(self) -> None:
        """Somebody lets us go on: the command, too, in the foreground if we are."""
        if self.fd < 0 or not self._group:
            return
        with _not_stopped(), suppress(OSError):
            if os.tcgetpgrp(self.fd) == os.getpgrp():
                os.tcsetpgrp(self.fd, self._group)
        with suppress(OSError):
            os.killpg(self._group, signal.SIGCONT)


@contextmanager
def _not_stopped() -> Iterator[None]:
    """Who is in the background may not change who is in the foreground, unless it ignores that signal."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTTOU, before)
