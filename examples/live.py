"""A page that follows leadership live: three copies of a service in a box, with a button that kills.

    pip install aiohttp
    python examples/live.py [port]        # and open http://localhost:8080

Three processes stand for one role. The page hears of every change by server-sent events: who leads, with which token,
for how long that can be proved. "kill -9" ends a copy without a word: its claim runs out, another leads after that, at
most one ttl later. "step down" asks the leader to: another leads a round trip later. A dead copy comes back by itself.

From the environment: REDIS_URL, TTL (3) and RESTART (8), both in seconds. A ttl of 3 s is for the eye: below 5 s a busy
machine makes leaders flap. Ctrl-C and SIGTERM end all of it, exit code 0.
"""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from redis.asyncio import Redis

from aioelect import AioelectError, Elector, Term, aclose, observe, step_down

NAME = "example-live"
TTL = float(os.environ.get("TTL", "3"))
RESTART = float(os.environ.get("RESTART", "8"))


def connect() -> Redis:
    """A client, as every part of this makes its own."""
    return Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))


# -- a copy of the service: a process that stands, and says ten times a second how it is -------------------------------


async def copy(identity: str) -> None:
    """Stand until SIGTERM, or until the process that started this one is gone."""
    redis, stop, done = connect(), asyncio.Event(), 0
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(0, stop.set)  # nothing is ever sent: only the end of the pipe can be read

    async def work(term: Term) -> None:
        nonlocal done
        async for _ in term.every(0.5):  # stands for your own work
            done += 1

    try:
        async with Elector(redis, NAME, ttl=TTL, identity=identity).running(work) as elector:
            while not stop.is_set():
                term = elector.term
                report = {
                    "leads": term is not None,
                    "token": term and str(term.token),  # a number of this size is not exact in a browser
                    "left": term.remaining() if term else 0.0,
                    "done": done,
                }
                os.write(1, json.dumps(report).encode() + b"\n")
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.1)
    finally:
        await aclose(redis)
        await redis.aclose()


# -- the box: starts the copies, follows the role, and serves the page -------------------------------------------------


class Copy:
    """One of the three, as the box sees it."""

    def __init__(self, identity: str, tell: Callable[[str], None]) -> None:
        self.identity = identity
        self.process: Process | None = None
        self.again = asyncio.Event()
        self._tell = tell
        self._report: dict[str, object] = {}
        self._claim_ends = self._back_at = 0.0

    async def keep(self) -> None:
        """Start it, and again some time after its end; stop it when this is cancelled."""
        while True:
            self.again.clear()
            self.process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "--copy", self.identity),
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,  # Ctrl-C is for the box, which stops its copies in order
            )
            try:
                assert process.stdout is not None
                async for line in process.stdout:
                    self._hear(json.loads(line))
                code = await process.wait()
            except asyncio.CancelledError:
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.communicate()
                raise
            self.process, self._back_at, self._report = None, time.monotonic() + RESTART, {}
            self._tell(f"{self.identity} was killed" if code == -signal.SIGKILL else f"{self.identity} ended: {code}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.again.wait(), RESTART)
            self._tell(f"{self.identity} is started again")

    def _hear(self, report: dict[str, object]) -> None:
        self._claim_ends = time.monotonic() + float(str(report["left"]))
        self._report = report

    def shown(self) -> dict[str, object]:
        """What its box on the page shows."""
        now = time.monotonic()
        leads = bool(self._report.get("leads"))
        state = "dead" if self.process is None else "leads" if leads else "stands" if self._report else "starts"
        return {
            "identity": self.identity,
            "state": state,
            "pid": self.process.pid if self.process else None,
            "token": self._report.get("token"),
            "done": self._report.get("done", 0),
            "left": max(0.0, self._claim_ends - now),  # a dead leader's claim goes on in Redis for so long
            "back": max(0.0, self._back_at - now) if state == "dead" else None,
        }


class Box:
    """The three copies and what is known of the role."""

    def __init__(self) -> None:
        self.copies = {identity: Copy(identity, self.tell) for identity in ("alpha", "beta", "gamma")}
        self.log: deque[str] = deque(maxlen=8)
        self.leader: str | None = None
        self.closing = False
        self.changed = asyncio.Event()

    def tell(self, what: str) -> None:
        """A line of the log, and a reason to look again."""
        self.log.appendleft(f"{time.strftime('%H:%M:%S')}  {what}")
        print(what, flush=True)
        self.look()

    def look(self) -> None:
        """Wake all who follow."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def follow(self, redis: Redis) -> None:
        """The role as everybody may follow it, without standing."""
        async for leader in observe(redis, NAME):
            self.leader = leader.identity if leader else None
            self.tell(f"{leader.identity} leads with token {leader.token}" if leader else "nobody leads")

    def shown(self) -> dict[str, object]:
        """All that the page shows."""
        copies = [one.shown() for one in self.copies.values()]
        return {"ttl": TTL, "leader": self.leader, "copies": copies, "log": list(self.log)}


BOX = web.AppKey("box", Box)
REDIS = web.AppKey("redis", Redis)
PAGE = Path(__file__).with_suffix(".html")


async def page(_: web.Request) -> web.FileResponse:
    """The page; all that moves on it comes by `/events`."""
    return web.FileResponse(PAGE)


async def events(request: web.Request) -> web.StreamResponse:
    """Server-sent events: the present state at once, and then whenever something changes, or a moment has passed."""
    box = request.app[BOX]
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await stream.prepare(request)
    with suppress(ConnectionResetError):  # the page was closed
        while not box.closing:
            changed = box.changed
            await stream.write(f"data: {json.dumps(box.shown())}\n\n".encode())
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), 0.25)  # the time left runs on between the changes
    return stream


async def act(request: web.Request) -> web.Response:
    """A button: kill a copy, start it again, or ask the leader to step down."""
    box, what = request.app[BOX], request.match_info["what"]
    one = box.copies.get(request.match_info["identity"])
    if one is None:
        raise web.HTTPNotFound(text="there is no such copy")
    if what == "kill" and one.process is not None:
        one.process.kill()
    elif what == "restart" and one.process is None:
        one.again.set()
    elif what == "step-down" and box.leader == one.identity:
        box.tell(f"{one.identity} is asked to step down")
        try:
            await step_down(request.app[REDIS], NAME)
        except AioelectError as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from error
    else:
        raise web.HTTPConflict(text=f"{what}: not now")
    return web.Response(status=204)


async def run_box(app: web.Application) -> AsyncIterator[None]:
    """Keep the copies and follow the role, from the start of the app to its end."""
    redis = app[REDIS] = connect()
    box = app[BOX] = Box()
    jobs: list[Awaitable[None]] = [box.follow(redis), *(one.keep() for one in box.copies.values())]
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await aclose(redis)
        await redis.aclose()


async def close_streams(app: web.Application) -> None:
    """Streams have no end of their own, and the server waits for its requests."""
    app[BOX].closing = True
    app[BOX].look()


def application() -> web.Application:
    """The page and its buttons."""
    app = web.Application()
    app.cleanup_ctx.append(run_box)
    app.on_shutdown.append(close_streams)
    app.add_routes([web.get("/", page), web.get("/events", events), web.post("/{identity}/{what}", act)])
    return app


if __name__ == "__main__":
    if "--copy" in sys.argv:
        asyncio.run(copy(sys.argv[-1]))
    else:
        port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
        print(f"http://localhost:{port}", flush=True)
        web.run_app(application(), host="127.0.0.1", port=port, print=None, shutdown_timeout=5)
