"""A real Prometheus for the tests of metrics, alerts and dashboard; and promtool.

Both come from PATH or from where `make prometheus` puts them. A run without them skips those tests and says why; in CI
it is a failure on Linux.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from support.processes import spawn
from support.wait import until_sync

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "aioelect.rules.yml"


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test if there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aioelect" / "prometheus"
    found = shutil.which(name) or shutil.which(name, path=str(cache))
    if found is None:
        why = f"{name} is not on this machine: make prometheus (Debian), or put it into PATH"
        if os.environ.get("CI") == "true" and sys.platform == "linux":
            pytest.fail(why)
        pytest.skip(why)
    return found


def promtool(*args: str, cwd: Path | None = None) -> str:
    """What promtool says; a failure if it doesn't agree."""
    done = subprocess.run([program("promtool"), *args], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def hurried(rules: str, factor: int = 30) -> str:
    """The rules with every duration (`[10m]`, `for: 1m`, `offset 15m`) divided: 15 minutes become 30 seconds."""
    seconds = {"s": 1, "m": 60, "h": 3600}

    def shorter(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) * seconds[match[3]] * 1000 // factor}ms"

    return re.sub(r"(\[|for: |offset )(\d+)([smh])", shorter, rules)


class Prometheus:
    """One running Prometheus that scrapes and evaluates several times a second; a context manager."""

    def __init__(self, targets: Sequence[int], rules: str) -> None:
        self._targets = targets
        self._rules = rules

    def __enter__(self) -> Self:
        binary = program("prometheus")
        self._folder = tempfile.TemporaryDirectory(prefix="prometheus-")
        folder = Path(self._folder.name)
        (folder / "rules.yml").write_text(self._rules)
        targets = [f"127.0.0.1:{port}" for port in self._targets]
        config = {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "workers", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML as well
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = (folder / "log").open("wb")
        self._process = spawn(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        try:
            until_sync(self._ready, limit=20)
        except AssertionError:
            self._end()
            raise
        self.started = time.time()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The present result of an expression."""
        found: list[dict[str, Any]] = self._get("query", query=expr)["result"]
        return found

    def range(self, expr: str, step: float = 0.5) -> list[dict[str, Any]]:
        """The result over the whole time since the start."""
        answer = self._get("query_range", query=expr, start=self.started, end=time.time(), step=step)
        found: list[dict[str, Any]] = answer["result"]
        return found

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def ever_fired(self) -> set[str]:
        """The alerts that have fired since the start."""
        return {series["metric"]["alertname"] for series in self.range('ALERTS{alertstate="firing"}')}

    def _get(self, path: str, **parameters: object) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def _ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:  # noqa: S310 - our own address
                return bool(answer.status == 200)
        except OSError:
            return False

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()
