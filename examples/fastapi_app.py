"""A FastAPI service whose copies all answer requests, while one of them also does the leader's work.

    pip install fastapi uvicorn
    python examples/fastapi_app.py [redis://localhost] [port]

Start a second one on another port, and compare what they say at /leader.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from redis.asyncio import Redis

from aioelect import Elector, Term, aclose

REDIS = sys.argv[1] if len(sys.argv) > 1 and __name__ == "__main__" else "redis://localhost"


async def work(term: Term) -> None:
    """Runs beside the app while this copy leads."""
    async for _ in term.every(5):
        term.check()
        print(f"the leader's work, with token {term.token}", flush=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Stand from the start of the app to its end; the end stops the work, waits for it, and releases."""
    redis = Redis.from_url(REDIS)
    try:
        async with Elector(redis, "example-app", ttl=15).running(work) as app.state.elector:
            yield
    finally:
        await aclose(redis)
        await redis.aclose()


app = FastAPI(lifespan=lifespan)


@app.get("/leader")
async def leader() -> dict[str, object]:
    """Say who leads; no I/O, so it may be asked as often as you like."""
    elector: Elector = app.state.elector
    known = elector.leader
    return {"is_leader": elector.is_leader, "leader": known and known.identity, "token": known and known.token}


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
