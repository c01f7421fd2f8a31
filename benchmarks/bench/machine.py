"""Where a run was made: machine, versions, server, settings."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import aioelect
from bench.rivals import RIVALS
from support.servers import Binary

__all__ = ["about"]

PACKAGES = ("aioelect", "redis", "hiredis", "anyio", "prometheus-client", "pottery", "coredis", "python-redis-lock")


def about(binary: Binary, *, quick: bool) -> dict[str, Any]:
    """The facts that a reader of the figures needs."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "load before": os.getloadavg()[0],
        },
        "python": f"{platform.python_version()} ({sys.implementation.name})",
        "server": binary.title,
        "aioelect from": "a checkout"
        if (Path(aioelect.__file__).parent.parent / "pyproject.toml").exists()
        else "a wheel",
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "settings": {rival.name: rival.settings for rival in RIVALS.values()},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
