"""An aiohttp service: copies on several ports, one of which leads. Two forms of the same application.

    pip install aiohttp
    python examples/aiohttp_app.py [port]             # web.run_app, which owns the process
    python examples/aiohttp_app.py [port] --runner    # AppRunner, for a program that does more than serve

    curl localhost:8080/leader

Start it on two ports. SIGTERM or Ctrl-C to the one that leads hands over at once: both forms end `cleanup_ctx`, and
with it the candidacy. Exit code 0.

From the environment: REDIS_URL, TTL (15) and EVERY (5), both in seconds.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

from aiohttp import web
from redis.asyncio import Redis

from aioelect import Elector, Term, aclose
from aioelect.health import health

ELECTOR = web.AppKey("elector", Elector)


async def work(term: Term) -> None:
    """Runs beside the app while this copy leads, and is stopped before another may lead."""
    async for _ in term.every(float(os.environ.get("EVERY", "5"))):
        print(f"the leader's work with token {term.token}", flush=True)


async def election(app: web.Application) -> AsyncIterator[None]:
    """Stand from the start of the app to its end: for `cleanup_ctx`."""
    redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    try:
        async with Elector(redis, "example-aiohttp", ttl=float(os.environ.get("TTL", "15"))).running(work) as elector:
            app[ELECTOR] = elector
            yield
    finally:
        await aclose(redis)
        await redis.aclose()


async def leader(request: web.Request) -> web.Response:
    """Who leads, as far as this copy has heard; no I/O."""
    elector = request.app[ELECTOR]
    known = elector.leader
    return web.json_response(
        {
            "is_leader": elector.is_leader,
            "leader": known.identity if known else None,
            "token": known.token if known else None,
        }
    )


async def live(request: web.Request) -> web.Response:
    """For a liveness probe: 503 only if nothing but a restart helps."""
    state = health(request.app[ELECTOR])
    return web.json_response(state.as_dict(), status=200 if state.live else 503)


def application() -> web.Application:
    """The application, whoever serves it."""
    app = web.Application()
    app.cleanup_ctx.append(election)
    app.add_routes([web.get("/leader", leader), web.get("/health/live", live)])
    return app


async def serve(port: int) -> None:
    """The AppRunner form: cleanup() stops listening, lets requests finish, and then ends the candidacy."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(application())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await stop.wait()  # here the program does whatever else it is for
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()] or [8080]
    if "--runner" in sys.argv:
        asyncio.run(serve(numbers[0]))
    else:
        web.run_app(application(), host="127.0.0.1", port=numbers[0], print=None)
