"""A candidate in a process of its own: stands for a role until SIGTERM, and tells what it does.

Lines: `leads` (at), `works` (at: an instant at which it provably led), `stops`, `cleaned` (after its clean-up), `over`;
each with the token; and `log` for every record from WARNING up. Instants are CLOCK_BOOTTIME, one clock for all
processes of the machine, read before the claim is looked at: a process that is stopped in between tells no lie.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

from support.processes import Child
from support.servers import Server

_SCRIPT = """
import asyncio, logging, signal, sys, time
from redis.asyncio import Redis
from aioelect import AdvisoryStore, Elector, PostgresStore, aclose

source, name, ttl, cleanup = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])

def connect():
    kind, _, url = source.rpartition("+")
    if kind == "advisory":
        return AdvisoryStore(url, sequence="fence")
    return PostgresStore(url) if url.startswith("postgresql:") else Redis.from_url(url)

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

class Telling(logging.Handler):
    def emit(self, record):
        emit(event="log", level=record.levelname, text=record.getMessage())

logging.getLogger("aioelect").addHandler(Telling(logging.WARNING))

async def work(term):
    at = now()
    emit(event="leads", token=term.token, at=at)
    try:
        while True:
            at = now()
            if term.is_leader:
                emit(event="works", token=term.token, at=at)
            await asyncio.sleep(0.02)
    finally:
        emit(event="stops", token=term.token, at=now(), valid=term.is_valid)
        with term.cleanup():
            await asyncio.sleep(cleanup)
            emit(event="cleaned", token=term.token, at=now(), valid=term.is_valid)

async def main():
    task = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    redis = connect()
    emit(event="stands")
    try:
        await Elector(redis, name, ttl=ttl).run(work)
    except asyncio.CancelledError:
        pass
    finally:
        await aclose(redis)
        await redis.aclose()
    emit(event="over", at=now())

asyncio.run(main())
"""


def now() -> float:
    """The clock that candidates tell instants of."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def candidate(server: Server | str, name: str, *, ttl: float, cleanup: float = 0.0) -> Child:
    """A candidate for `name`; its work needs `cleanup` seconds after it was told to stop.

    `server`: a Redis server, or a URL: `redis:`, `postgresql:`, or `advisory+postgresql:` with a sequence `fence`.
    """
    source = server if isinstance(server, str) else f"redis://127.0.0.1:{server.port}"
    return Child(_SCRIPT, [source, name, str(ttl), str(cleanup)])


@dataclass
class Reign:
    """One term, as its process told it."""

    token: int
    began: float
    last: float
    """The last instant at which it provably led, or cleaned up under a valid claim."""


def reigns(children: Iterable[Child]) -> list[Reign]:
    """All terms of all candidates in the order of their tokens."""
    found: dict[int, Reign] = {}
    for child in children:
        for line in list(child.lines):
            match line.fields:
                case {"event": "leads", "token": token, "at": at}:
                    assert token not in found, f"token {token} was given twice"
                    found[token] = Reign(token, at, at)
                case {"event": "works", "token": token, "at": at} | {
                    "event": "cleaned",
                    "token": token,
                    "at": at,
                    "valid": True,
                }:
                    found[token].last = at
    return [found[token] for token in sorted(found)]


def assert_one_at_a_time(children: Iterable[Child]) -> list[Reign]:
    """No two terms overlap, and tokens rise with time."""
    all_reigns = reigns(children)
    for earlier, later in itertools.pairwise(all_reigns):
        assert earlier.last < later.began, f"{earlier} and {later} overlap"
    return all_reigns
