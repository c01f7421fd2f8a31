"""A process that outlives its parent by some milliseconds, and takes everything away that it left.

It leads the process group that the parent's children join, makes a folder, writes its path to stdout, and reads stdin.
The other end of that pipe is held by the parent alone, so it is closed when the parent ends: by itself, by Ctrl-C,
with its terminal, by kill -9. Then the group is killed (stopped members, too) and the folder removed. This is a script
that needs the standard library only: it is up before anything can go wrong.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

PATIENCE = 5.0  # seconds for the folder to go


def main() -> None:
    """Wait for the parent's end, then clean up."""
    group = os.getpid()
    if os.getpgrp() != group:
        sys.exit("_janitor.py kills its process group, so it must be started as the leader of one of its own")
    # SIGHUP, too: the kernel sends it to a group with stopped members that loses its parent.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    folder = Path(tempfile.mkdtemp(prefix=sys.argv[1]))
    try:
        os.write(1, os.fsencode(folder) + b"\n")
    except BrokenPipeError:
        pass  # the parent has ended already: stdin says so, too
    while os.read(0, 4096):
        pass
    if os.fork() == 0:  # SIGKILL spares nobody in the group: who is to clean up leaves it first
        os.setpgid(0, 0)
        os.killpg(group, signal.SIGKILL)
        remove(folder)
        os._exit(0)
    signal.pause()


def remove(folder: Path) -> None:
    """Remove the folder, also from under a process that is just dying."""
    give_up = time.monotonic() + PATIENCE
    while folder.exists() and time.monotonic() < give_up:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
