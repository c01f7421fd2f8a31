"""The command line: `aioelect`. Nothing else in the package imports click or rich, and nothing imports this.

The core install has neither, so they are imported when a command runs, and their absence is told in plain words.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line; the entry point of the console script."""
    try:
        from aioelect.cli.address import hide_password  # noqa: PLC0415  # see above
        from aioelect.cli.commands import cli  # noqa: PLC0415

        hide_password(sys.argv[1:])
        cli(prog_name="aioelect")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        sys.exit(
            f"The command line needs {missing}, which is not part of the core install.\n"
            "Install it with:  pip install 'aioelect[demo]'   (or aioelect[cli] without the demo's own server)"
        )
