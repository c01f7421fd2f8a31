"""aioelect beside redis-py's own Lock, on one server in one run, interleaved so that the machine's noise hits both.

    python benchmarks/compare.py --redis redis://localhost [--rounds 10] [--json FILE]

Two cases: acquire + release by one coroutine, and the hand-over from one process to another that waits. The ratios are
what counts; absolute times are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from pathlib import Path

from redis.asyncio import Redis
from rich.console import Console
from rich.progress import track
from rich.table import Table

import aioelect

Section = AbstractAsyncContextManager[object]

SECTIONS: dict[str, Callable[[Redis, str], Section]] = {
    "aioelect": lambda redis, name: aioelect.FencedLock(redis, name, observers=[]),
    "redis-py": lambda redis, name: redis.lock(f"redis-py:{name}", timeout=15),
}
PAIRS = 300  # in a row, each round
HAND_OVERS = 10  # each round


async def pairs(rival: str, redis: Redis) -> list[float]:
    """Seconds for each uncontended acquire + release."""
    section = SECTIONS[rival](redis, "pair")
    took = []
    for _ in range(PAIRS):
        start = time.perf_counter()
        async with section:
            pass
        took.append(time.perf_counter() - start)
    return took


async def hand_overs(rival: str, redis: Redis, url: str) -> list[float]:
    """Seconds from the end of a section in this process to its beginning in another one that waits."""
    section = SECTIONS[rival](redis, "hand-over")
    waiter = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--redis", url, "--wait", rival, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert waiter.stdin is not None
    assert waiter.stdout is not None
    took = []
    for number in range(HAND_OVERS):
        async with section:
            waiter.stdin.write(b"go\n")
            await waiter.stdout.readline()
            await asyncio.sleep(0.15 + 0.01 * number)  # until it waits; not in step with a poll every 0.1 s
            start = time.monotonic()
        took.append(float(await waiter.stdout.readline()) - start)
    await waiter.wait()
    return took


async def wait(rival: str, redis: Redis) -> None:
    """The other process of a hand-over."""
    section = SECTIONS[rival](redis, "hand-over")
    for _ in range(HAND_OVERS):
        await asyncio.to_thread(sys.stdin.readline)
        print("here", flush=True)
        async with section:
            print(time.monotonic(), flush=True)
    await aioelect.aclose(redis)


async def compare(url: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """All measurements: case -> rival -> seconds."""
    redis = Redis.from_url(url)
    took: dict[str, dict[str, list[float]]] = {
        case: {rival: [] for rival in SECTIONS} for case in ("pair", "hand-over")
    }
    for _ in track(range(rounds), description="measuring", console=Console(stderr=True)):
        for rival in SECTIONS:
            took["pair"][rival] += await pairs(rival, redis)
            took["hand-over"][rival] += await hand_overs(rival, redis, url)
    await aioelect.aclose(redis)
    await redis.aclose()
    return took


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100)[98]


def report(took: dict[str, dict[str, list[float]]]) -> dict[str, object]:
    """The table, and the same as data."""
    table = Table("case", "rival", "median", "p99", "median, ratio to redis-py")
    figures: dict[str, object] = {}
    for case, rivals in took.items():
        reference = statistics.median(rivals["redis-py"])
        for rival, values in rivals.items():
            median = statistics.median(values)
            table.add_row(
                case, rival, f"{median * 1e6:.0f} us", f"{p99(values) * 1e6:.0f} us", f"{median / reference:.3f}"
            )
            figures[f"{case} {rival}"] = {"median": median, "p99": p99(values), "ratio": median / reference}
    Console().print(table)
    return figures


async def about(url: str) -> dict[str, object]:
    """Where this was measured."""
    redis = Redis.from_url(url)
    server = await redis.info("server")
    await redis.aclose()
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "redis-py": version("redis"),
        "server": {key: server[key] for key in ("redis_version", "valkey_version") if key in server},
    }


def main() -> None:
    """Measure, print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redis", required=True, metavar="URL")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--wait", choices=SECTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.wait:
        asyncio.run(wait(options.wait, Redis.from_url(options.redis)))
        return
    figures = report(asyncio.run(compare(options.redis, options.rounds)))
    figures["about"] = asyncio.run(about(options.redis))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
