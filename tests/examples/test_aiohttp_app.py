"""examples/aiohttp_app.py: both forms serve, stand, and hand over when they are told to end."""

import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.examples import Example
from support.servers import Server, free_port
from support.wait import until


async def ask(port: int, path: str) -> dict[str, Any] | None:
    """The answer to a GET, as soon as the copy serves."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
            assert response.status == 200
            found: dict[str, Any] = await response.json()
            return found
    except aiohttp.ClientConnectionError:
        return None


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
@pytest.mark.parametrize("form", [[], ["--runner"]], ids=["run_app", "AppRunner"])
async def test_p7_a_copy_that_is_told_to_end_hands_over(
    form: list[str], stop: signal.Signals, server: Server, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    env = {"REDIS_URL": server.url, "EVERY": "0.2"}
    with Example(tmp_path, "aiohttp_app.py", str(ports[0]), *form, env=env) as first:
        await first.says("the leader's work")
        with Example(tmp_path, "aiohttp_app.py", str(ports[1]), *form, env=env) as second:
            health = await until(lambda: ask(ports[1], "/health/live"), 20)
            assert health["live"] is True

            async def knows() -> dict[str, Any] | None:
                answer = await ask(ports[1], "/leader")
                return answer if answer and answer["token"] else None

            known = await until(knows, 20)
            assert (known["is_leader"], known["token"]) == (False, first.tokens()[0])

            first.process.send_signal(stop)
            sent = time.monotonic()
            await second.says("the leader's work")
            assert time.monotonic() - sent < 10, "the ttl is 15 s"
            assert await first.ended() == 0
            assert (await until(knows, 20))["is_leader"] is True
            second.process.send_signal(stop)
            assert await second.ended() == 0
    assert (first.errors, second.errors) == ("", "")
    assert first.tokens()[0] < second.tokens()[0]
    assert server.call("EXISTS", "aioelect:{example-aiohttp}") == 0
