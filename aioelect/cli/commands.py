"""The commands. Each imports what it needs when it runs, so that `aioelect --help` stays quick."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import click

from aioelect.cli.address import given
from aioelect.cli.bench import bench
from aioelect.cli.demo.verdict import Unable
from aioelect.cli.doctor.command import doctor
from aioelect.cli.exits import Exit
from aioelect.cli.looking import ls, release, show, stepping_down, watch
from aioelect.cli.running import elect, run

__all__ = ["cli"]

INTERRUPTED = 130  # what shells report for Ctrl-C


class Group(click.Group):
    """Bad usage ends with a code that no command of the user's is likely to have."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run; the code of bad usage is 64."""
        click.UsageError.exit_code = Exit.USAGE
        return super().main(*args, **kwargs)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aioelect")
def cli() -> None:
    """Locks and leader election for asyncio services on Redis."""


for command in (run, elect, ls, show, watch, stepping_down, release, doctor, bench):
    cli.add_command(command)


@cli.command()
@click.option("--redis", "url", metavar="URL", help="Use this server (redis://...) instead of starting an own one.")
@click.option("--json", "as_json", is_flag=True, help="Print only what was measured, with fields that stay.")
def demo(url: str | None, as_json: bool) -> None:
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
            story = perform(View(Console(highlight=False, quiet=as_json)), shelter, url and given(url))
        if as_json:
            click.echo(json.dumps(story.as_dict(), default=sorted))
        code = story.exit_code
    except KeyboardInterrupt:
        click.echo("\nInterrupted. The demo's processes and its folder are gone.")
        code = INTERRUPTED
    except Unable as error:
        raise click.ClickException(str(error)) from None
    sys.exit(code)
