"""The commands. Each imports what it needs when it runs, so that `aioelect --help` stays quick."""

from __future__ import annotations

import signal
import sys

import click

from aioelect.cli.demo.verdict import Unable

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
    try:
        from rich.console import Console  # noqa: PLC0415

        from aioelect.cli.demo.story import perform  # noqa: PLC0415
        from aioelect.cli.demo.view import View  # noqa: PLC0415
        from aioelect.testing._shelter import Shelter  # noqa: PLC0415

        with Shelter("demo") as shelter:
            code = perform(View(Console(highlight=False)), shelter, url)
    except KeyboardInterrupt:
        click.echo("\nInterrupted. The demo's processes and its folder are gone.")
        code = INTERRUPTED
    except Unable as error:
        raise click.ClickException(str(error)) from None
    sys.exit(code)
