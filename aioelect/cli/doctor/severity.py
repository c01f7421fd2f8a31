"""What a finding consists of."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Finding", "Severity"]


class Severity(enum.IntEnum):
    """How bad it is; the worst one decides over the exit code."""

    OK = 0
    NOTE = 1  # worth knowing: a limit of the promises, or something that could not be looked at
    WARNING = 2  # works, and will hurt one day
    ERROR = 3  # does not work, or two may hold a name


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `id` is stable, the texts are for people."""

    id: str
    severity: Severity
    what: str
    why: str
    do: str = ""
    where: str = ""  # the server it is about, where there are several
