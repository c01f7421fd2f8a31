"""examples/live.py: the page's stream follows three processes through a kill, a step-down, and the end."""

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.examples import Example
from support.servers import Server, free_port
from support.wait import until

State = dict[str, Any]


class Viewer:
    """Somebody who has opened the page."""

    def __init__(self, session: aiohttp.ClientSession, stream: aiohttp.ClientResponse) -> None:
        self._session, self._stream = session, stream

    async def sees(self, what: Callable[[State], bool], limit: float = 30.0) -> State:
        """The first state of the stream for which this holds."""
        state: State = {}
        give_up = time.monotonic() + limit
        async for line in self._stream.content:
            if line.startswith(b"data: "):
                state = json.loads(line.removeprefix(b"data: "))
                if what(state):
                    return state
            assert time.monotonic() < give_up, state
        raise AssertionError("the stream has ended")

    async def press(self, identity: str, button: str) -> int:
        """The status of the answer."""
        async with self._session.post(f"/{identity}/{button}") as answer:
            return answer.status

    async def rest(self) -> None:
        """Read to the end of the stream."""
        async for _ in self._stream.content:
            pass


@asynccontextmanager
async def viewer(port: int) -> AsyncIterator[Viewer]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def served() -> bool:
            try:
                async with session.get("/") as page:
                    return page.status == 200 and "EventSource" in await page.text()
            except aiohttp.ClientConnectionError:
                return False

        await until(served, 20)
        async with session.get("/events") as stream:
            assert stream.content_type == "text/event-stream"
            yield Viewer(session, stream)


def copies(state: State, condition: str) -> dict[str, State]:
    """Those of the three that are in this condition."""
    return {one["identity"]: one for one in state["copies"] if one["state"] == condition}


def all_well(state: State) -> bool:
    """One leads and is known to, the others stand."""
    return [*copies(state, "leads")] == [state["leader"]] and len(copies(state, "stands")) == 2


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_page_follows_a_kill_a_restart_and_a_step_down(server: Server, tmp_path: Path) -> None:
    port = free_port()
    with Example(tmp_path, "live.py", str(port), env={"REDIS_URL": server.url, "TTL": "3", "RESTART": "60"}) as box:
        async with viewer(port) as page:
            state = await page.sees(all_well)
            first = copies(state, "leads")[state["leader"]]
            assert int(first["token"]) > 10**15 and 0 < first["left"] <= 3

            async with viewer(port) as late:  # the present state comes first, also when nothing changes
                assert all_well(await late.sees(lambda _: True))

            assert await page.press(first["identity"], "kill") == 204
            state = await page.sees(lambda state: first["identity"] in copies(state, "dead"))
            assert not is_running(first["pid"])
            assert await page.press(first["identity"], "kill") == 409
            state = await page.sees(lambda state: bool(copies(state, "leads")))
            (second,) = copies(state, "leads").values()
            assert second["identity"] != first["identity"] and int(second["token"]) > int(first["token"])

            assert await page.press(first["identity"], "restart") == 204
            state = await page.sees(all_well)
            back = copies(state, "stands")[first["identity"]]
            assert back["pid"] != first["pid"]

            assert await page.press(first["identity"], "step-down") == 409  # it doesn't lead
            assert await page.press(second["identity"], "step-down") == 204
            state = await page.sees(lambda state: all_well(state) and state["leader"] != second["identity"])
            assert is_running(second["pid"])
            assert await page.press("delta", "kill") == 404

            pids = [one["pid"] for one in state["copies"]]
            box.process.terminate()  # while a page is open
            await page.rest()
            assert await box.ended() == 0
    assert not [pid for pid in pids if is_running(pid)]
    assert box.errors == ""
    assert box.tokens() == sorted(set(box.tokens())) and len(box.tokens()) >= 3
    assert server.call("EXISTS", "aioelect:{example-live}") == 0


async def test_a_killed_copy_comes_back_by_itself(server: Server, tmp_path: Path) -> None:
    port = free_port()
    with Example(tmp_path, "live.py", str(port), env={"REDIS_URL": server.url, "RESTART": "1"}) as box:
        async with viewer(port) as page:
            state = await page.sees(all_well)
            old = next(iter(copies(state, "stands").values()))
            await page.press(old["identity"], "kill")
            await page.sees(lambda state: old["identity"] in copies(state, "dead"))
            await page.sees(lambda state: old["identity"] in copies(state, "stands"))
        box.process.send_signal(signal.SIGINT)
        assert await box.ended() == 0
    assert box.errors == ""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
async def test_no_copy_outlives_the_box(how: signal.Signals, server: Server, tmp_path: Path) -> None:
    port = free_port()
    with Example(tmp_path, "live.py", str(port), env={"REDIS_URL": server.url}) as box:
        async with viewer(port) as page:
            state = await page.sees(all_well)
        pids = [one["pid"] for one in state["copies"]]
        box.process.send_signal(how)
        assert await box.ended() == (0 if how == signal.SIGINT else -9)
        await until(lambda: not any(map(is_running, pids)), 10)
    assert box.errors == ""
    assert server.call("EXISTS", "aioelect:{example-live}") == 0
