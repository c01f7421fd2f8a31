"""`aioelect run` and `aioelect elect`: a command under a lock, and a command under a leader."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial

import click

from aioelect import AioelectError, Elector, FencedLock, NotAcquired, Term
from aioelect._core.timing import Timing
from aioelect.cli.address import connected, redis_option
from aioelect.cli.exits import Exit, ended_by, failed
from aioelect.cli.job.job import Job, NotStarted
from aioelect.cli.job.plan import plan_of
from aioelect.cli.job.terminal import Terminal
from aioelect.cli.period import once_per, period_of

__all__ = ["elect", "run"]

_TTL = 15.0
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Desk:
    """Where signals arrive: they end the waiting, or are the command's."""

    def __init__(self, timing: Timing, command: Sequence[str], terminal: Terminal) -> None:
        self._timing = timing
        self._command = command
        self._terminal = terminal
        self._job: Job | None = None
        self._over = False
        self._interrupts = 0
        self.told_to_end: int | None = None
        """The last signal that means the end."""

    async def serve(self, work: Callable[[], Coroutine[None, None, int]]) -> int:
        """Do `work` with its signals here; what ended the waiting is its result."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.ensure_future(work())
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's "&": the command ignores it, too
                loop.add_signal_handler(number, self._came, number)
        loop.add_signal_handler(signal.SIGCONT, self._terminal.go_on)
        try:
            return await self._main
        except asyncio.CancelledError:
            if self.told_to_end is None:
                raise
            return 128 + self.told_to_end

    async def job(self, term: Term) -> int:
        """Run the command under a term."""
        self._interrupts = 0
        self._job = Job(self._command, self._timing, self._terminal)
        try:
            code = await self._job.run(term)
        finally:
            self._job = None
        self._over = self.told_to_end is not None
        return code

    async def last_job(self, term: Term) -> int:
        """The same, where the command's code is the result whatever comes after it."""
        try:
            return await self.job(term)
        finally:
            self._over = True

    def _came(self, number: int) -> None:
        if number in _ENDING:
            self.told_to_end = number
        if self._job is not None:
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                self._job.kill()
            else:
                self._job.signal(number)
        elif number in _ENDING and not self._over:
            self._main.cancel()


def _timings() -> str:
    plan = plan_of(Timing.of(_TTL))
    return (
        f"If the lock can't be kept (with the default ttl of {_TTL:g} s): SIGTERM {plan.term_at:.1f} s after the last "
        f"confirmed renewal was sent, SIGKILL {plan.kill_at:.1f} s after it; nobody else can get the lock before "
        f"{plan.deadline:.1f} s. All three scale with --ttl. Where the server says that the lock is gone or another's: "
        f"SIGTERM at once, SIGKILL {plan.grace:.1f} s later."
    )


_CODES = (
    "Exit code: the command's own, or 128+n if signal n ended it. Of our own, always with a line on stderr: "
    + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)
    + "."
)


def _common(function: Callable[..., None]) -> Callable[..., None]:
    for decorator in (
        click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD..."),
        click.argument("name"),
        click.option("-v", "--verbose", is_flag=True, help="Say on stderr what happens."),
        click.option("--prefix", default="aioelect", show_default=True, help="Of the keys in the store."),
        click.option("--identity", help="Who we are, for people. [default: host name and process id]"),
        click.option(
            "--ttl", type=float, default=_TTL, show_default=True, help="Seconds the claim lasts unless it is renewed."
        ),
        redis_option,
    ):
        function = decorator(function)
    return function


@click.command(
    epilog=f"{_timings()}\n\n{_CODES}",
)
@_common
@click.option("--wait", type=float, help="Seconds to wait for the lock; 0: one try. [default: as long as it takes]")
@click.option(
    "--min-hold", type=float, default=0.0, help="Nobody else gets the lock sooner than so many seconds after we did."
)
@click.option(
    "--once-per",
    "period",
    type=period_of,
    metavar="PERIOD",
    help="Do nothing, with exit code 0, if the command has succeeded in the present period: seconds, or 15m, 1h, 1d.",
)
@click.option(
    "--conflict-exit-code",
    type=click.IntRange(0, 255),
    default=int(Exit.NOT_ACQUIRED),
    show_default=True,
    help="The exit code if another has the lock.",
)
def run(
    name: str,
    command: tuple[str, ...],
    url: str,
    ttl: float,
    identity: str | None,
    prefix: str,
    verbose: bool,
    wait: float | None,
    min_hold: float,
    period: timedelta | None,
    conflict_exit_code: int,
) -> None:
    """Run a command under the lock NAME, one at a time in the whole cluster.

    The command runs in a process group of its own, with the terminal, stdin and all; AIOELECT_NAME, AIOELECT_TOKEN (the
    fencing token) and AIOELECT_DEADLINE (unix time up to which the lock lasts if it is never renewed) are in its
    environment. When it has ended, what it left behind is ended, too; then the lock is released.

    INT, TERM, HUP, QUIT, USR1 and USR2 are passed on to the command's group; a second INT kills it. While we wait for
    the lock, the first four end us at once.

    With --once-per several hosts may start it at the same time, and again: it succeeds once in each period. A command
    that fails, or whose host dies, is run again by whoever waits or comes next. Periods are counted in UTC.
    """

    async def locked(desk: Desk) -> int:
        try:
            async with connected(url) as redis:
                lock = FencedLock(
                    redis,
                    name,
                    ttl=ttl,
                    wait=wait,
                    min_hold=min_hold,
                    identity=identity,
                    prefix=prefix,
                    observers=[],
                )
                async with lock as term:
                    if period is None:
                        return await desk.last_job(term)
                    code = await once_per(period, term, desk.last_job)
                    if code is None:
                        logging.getLogger("aioelect").info("%r has succeeded in this period; nothing to do", name)
                    return code or 0
        except NotAcquired as error:
            return failed(error, conflict_exit_code)

    _perform(locked, command, ttl, verbose=verbose)


@click.command(
    epilog=f"{_timings()}\n\n{_CODES}",
)
@_common
def elect(
    name: str,
    command: tuple[str, ...],
    url: str,
    ttl: float,
    identity: str | None,
    prefix: str,
    verbose: bool,
) -> None:
    """Stand for leader of NAME for ever; run the command while we lead.

    When leadership is lost, or somebody asks for a step-down, the command is stopped, and we stand again. When it ends
    by itself we step down, pause so that another gets its turn, and stand again.

    Signals are passed on as by `run`; after INT, TERM, HUP or QUIT we end with the command, and with its exit code.
    """

    async def elected(desk: Desk) -> int:
        async with connected(url) as redis:
            elector = Elector(redis, name, ttl=ttl, identity=identity, prefix=prefix, observers=[])
            while True:
                code = await elector.run(desk.job)
                if desk.told_to_end is not None:
                    return code
                await asyncio.sleep(Timing.of(ttl).resign_pause())

    _perform(elected, command, ttl, verbose=verbose)


def _perform(work: Callable[[Desk], Awaitable[int]], command: Sequence[str], ttl: float, *, verbose: bool) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="aioelect: %(message)s")
    try:
        if not command or shutil.which(command[0]) is None:
            sys.exit(_not_there(command))
        with Terminal() as terminal:
            desk = Desk(Timing.of(ttl), command, terminal)
            code = asyncio.run(desk.serve(partial(_awaited, work, desk)))
    except NotStarted as error:
        code = failed(f"{command[0]}: {error}", Exit.NOT_EXECUTABLE)
    except AioelectError as error:
        code = ended_by(error)
    sys.exit(code)


async def _awaited(work: Callable[[Desk], Awaitable[int]], desk: Desk) -> int:
    return await work(desk)


def _not_there(command: Sequence[str]) -> int:
    if not command:
        return failed("which command? aioelect run NAME -- CMD...", Exit.USAGE)
    if os.sep in command[0] and os.path.exists(command[0]):  # noqa: PTH110
        return failed(f"{command[0]}: not executable", Exit.NOT_EXECUTABLE)
    return failed(f"{command[0]}: command not found", Exit.NOT_FOUND)
