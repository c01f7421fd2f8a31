"""The examples, run as their first lines say."""

import importlib.util
import json
import re
import runpy
import subprocess
import sys
import types
import urllib.request
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from support.processes import spawn
from support.servers import Server, free_port
from support.wait import until

EXAMPLES = Path(__file__).parent.parent / "examples"


class Example:
    """One example in a process of its own, its output in a file."""

    def __init__(self, folder: Path, name: str, *args: str) -> None:
        self._file = folder / f"{name}-{len(list(folder.iterdir()))}"
        with self._file.open("wb") as out:
            self.process = spawn(
                [sys.executable, "-P", str(EXAMPLES / f"{name}.py"), *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._file.read_text()

    async def says(self, text: str, limit: float = 20.0) -> None:
        """Wait until it has written this."""
        with suppress(AssertionError):
            await until(lambda: text in self.output or self.process.poll() is not None, limit)
        assert text in self.output, self.output

    async def ended(self) -> int:
        """Wait for its end."""
        await until(lambda: self.process.poll() is not None, 20)
        return self.process.wait()


async def test_scheduler_p7_sigterm_stops_the_work_and_another_copy_goes_on(server: Server, tmp_path: Path) -> None:
    with Example(tmp_path, "scheduler", server.url) as first:
        await first.says("runs the jobs")
        with Example(tmp_path, "scheduler", server.url) as second:
            await second.says("stands for election")
            first.process.terminate()
            await second.says("runs the jobs", limit=8)  # its ttl, 15 s, has not been waited for
            assert await first.ended() == 0, first.output
            assert first.output.endswith("has stepped down\n")
            second.process.terminate()
            assert await second.ended() == 0, second.output
    tokens = [int(re.findall(r"token (\d+)", example.output)[0]) for example in (first, second)]
    assert tokens == sorted(set(tokens))
    assert server.call("EXISTS", "aioelect:{example-scheduler}") == 0


async def test_fenced_write_sqlite_p9_refuses_the_write_with_the_lower_token(server: Server, tmp_path: Path) -> None:
    database = tmp_path / "stock.db"
    for _ in range(2):  # also on a database that is there already
        with Example(tmp_path, "fenced_write_sqlite", server.url, str(database)) as example:
            assert await example.ended() == 0, example.output
        told = r"wrote 120 .*\nwrote 95 .*\n.*a newer holder has written\nrefused: .*\nqty = 95\n"  # and logged
        assert re.search(told, example.output), example.output


Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


class StandIn:
    """As much of FastAPI as the example asks for: the tests don't depend on it."""

    def __init__(self, lifespan: Lifespan) -> None:
        self.lifespan = lifespan
        self.state = types.SimpleNamespace()

    def get(self, path: str) -> Callable[[object], object]:
        """Take a route and leave the function as it is."""
        return lambda function: function


async def test_fastapi_app_p7_its_lifespan_campaigns_beside_the_app_and_releases(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", types.SimpleNamespace(FastAPI=StandIn))
    example = runpy.run_path(str(EXAMPLES / "fastapi_app.py"))
    app, leader = example["app"], example["leader"]
    leader.__globals__["REDIS"] = server.url
    async with app.lifespan(app):

        async def leads() -> dict[str, Any] | None:
            answer: dict[str, Any] = await leader()
            return answer if answer["is_leader"] else None

        answer = await until(leads)
        assert answer["leader"]
        assert answer["token"] > 0
        assert server.call("EXISTS", "aioelect:{example-app}") == 1
    assert not (await leader())["is_leader"]
    assert server.call("EXISTS", "aioelect:{example-app}") == 0


if importlib.util.find_spec("fastapi") and importlib.util.find_spec("uvicorn"):

    async def test_fastapi_app_runs_under_uvicorn_and_ends_in_good_order(server: Server, tmp_path: Path) -> None:
        port = free_port()
        with Example(tmp_path, "fastapi_app", server.url, str(port)) as example:
            await example.says("the leader's work")

            def answer() -> dict[str, Any] | None:
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/leader") as response:
                    result: dict[str, Any] = json.load(response)
                    return result
                return None

            assert (await until(answer))["is_leader"] is True
            example.process.terminate()
            await example.ended()
            assert "Traceback" not in example.output
        assert server.call("EXISTS", "aioelect:{example-app}") == 0
