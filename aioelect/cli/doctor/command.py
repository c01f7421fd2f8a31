"""`aioelect doctor`, as it is called."""

from __future__ import annotations

import asyncio
import json
import sys

import click

from aioelect import ConfigurationError
from aioelect.cli.address import redis_option
from aioelect.cli.exits import exit_of, failed

__all__ = ["doctor"]


@click.command()
@redis_option
@click.option("--prefix", default="aioelect", show_default=True, help="Of the keys, as your program sets it.")
@click.option("--ttl", default=15.0, show_default=True, help="The ttl that you use or have in mind, seconds.")
@click.option("--pause", type=float, help="The longest pause of your processes, seconds; else what is seen meanwhile.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def doctor(url: str, prefix: str, ttl: float, pause: float | None, as_json: bool) -> None:
    """Examine server, rights, settings and this machine, and say what to change.

    Takes, renews and releases a claim under a name of its own, and leaves nothing behind. What it may not ask (CONFIG,
    INFO, SCAN) it names and goes on. The exit code is 0 if all is well or worth a note, 1 with a warning, 2 with an
    error.
    """
    from rich.console import Console  # noqa: PLC0415 - these take a while

    from aioelect._core.timing import Timing, seconds  # noqa: PLC0415
    from aioelect.cli.doctor.findings import diagnose, worst  # noqa: PLC0415
    from aioelect.cli.doctor.probes import examine  # noqa: PLC0415
    from aioelect.cli.doctor.report import as_dict, show  # noqa: PLC0415

    try:
        Timing.of(ttl)
        known = None if pause is None else seconds("pause", pause)
        facts = asyncio.run(examine(url, prefix=prefix, ttl=ttl, pause=known))
    except ConfigurationError as error:
        sys.exit(failed(error, exit_of(error)))
    findings = diagnose(facts)
    if as_json:
        click.echo(json.dumps(as_dict(facts, findings), indent=2))
    else:
        show(Console(highlight=False), facts, findings)
    sys.exit(max(0, worst(findings) - 1))
