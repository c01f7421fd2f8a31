"""The commands. Each imports what it needs when it runs, so that `aioelect --help` stays quick."""

from __future__ import annotations

import signal
import sys

import click

__all__ = ["cli"]

INTERRUPTED = 130  # what shells report for Ctrl-C


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Locks and leader election for asyncio services on Redis."""


@cli.command()
@click.option("--redis", "url", metavar="URL", help="Use this server (redis://...) instead of starting an own one.")
def demo(url: str | None) -> None:
    """Watch an election, a hand-over, a take-over and a fence at work.

    Real processes and real signals, in about 15 seconds. Starts a server of its own unless --redis is given. The exit
    code is 0 only if each step showed what it must.
    """
    if not hasattr(signal, "SIGSTOP"):
        raise click.ClickException("The demo stops and continues processes by signals: it needs Linux or macOS.")
    from rich.console import Console  # noqa: PLC0415

    from aioelect.cli.demo.shelter import Shelter  # noqa: PLC0415
    from aioelect.cli.demo.story import Unable, perform  # noqa: PLC0415
    from aioelect.cli.demo.view import View  # noqa: PLC0415

    view = View(Console(highlight=False))
    try:
        with Shelter() as shelter:
            try:
                code = perform(view, shelter, url)
            finally:
                # The end takes milliseconds, and would not be one if it were interrupted.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
    except Unable as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        view.say("\nInterrupted. The demo's processes and its folder are gone.")
        code = INTERRUPTED
    sys.exit(code)
