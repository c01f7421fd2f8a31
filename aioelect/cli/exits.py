"""The exit codes that are our own, and which error ends with which."""

from __future__ import annotations

import enum
import re

import click

from aioelect import AioelectError, ConfigurationError, LeaseLost, NotAcquired, StoreRejected, StoreUnavailable

__all__ = ["Exit", "ended_by", "exit_of", "failed"]


class Exit(enum.IntEnum):
    """Where there is a usual number (sysexits.h, the shells) it is that; none has two meanings."""

    USAGE = 64
    UNREACHABLE = 69
    NOT_ACQUIRED = 75
    LOST = 76
    REJECTED = 77
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127


_OF: tuple[tuple[type[AioelectError], Exit], ...] = (
    (ConfigurationError, Exit.USAGE),
    (NotAcquired, Exit.NOT_ACQUIRED),
    (LeaseLost, Exit.LOST),
    (StoreUnavailable, Exit.UNREACHABLE),
    (StoreRejected, Exit.REJECTED),
)


def exit_of(error: AioelectError) -> int:
    """The code that tells of an error."""
    return next((code for kind, code in _OF if isinstance(error, kind)), Exit.UNREACHABLE)


def failed(text: object, code: int) -> int:
    """Say on stderr what happened; our own codes never come without that."""
    click.echo(f"aioelect: {text}", err=True)
    return code


def ended_by(error: AioelectError) -> int:
    """Say what happened, and which right is lacking if it is that."""
    return failed(f"{error}{_lacking(error)}", exit_of(error))


def _lacking(error: AioelectError) -> str:
    if not isinstance(error, StoreRejected) or error.reason != "noperm":
        return ""
    said = str(error)
    if command := re.search(r"run the '([^' ]+)' command", said):
        return f"; the right that is lacking: +{command[1]}"
    if "channel" in said:
        return "; the right that is lacking: &PREFIX:* (channels)"
    if "key" in said:
        return "; the right that is lacking: ~PREFIX:* (keys)"
    return "; `aioelect doctor` tells which one"  # a script on an older server does not say
