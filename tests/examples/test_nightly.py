"""examples/nightly.py: the leader dies half-way, the next starts over, and nobody repeats a finished night."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support.examples import Example
from support.servers import Server
from support.wait import until

KINDS = ["sessions", "carts", "uploads", "orphans"]


def log(path: Path) -> list[tuple[int, str]]:
    """The steps that were done: by which token, and what."""
    with closing(sqlite3.connect(path)) as db:
        found: list[tuple[int, str]] = db.execute("SELECT token, what FROM log ORDER BY rowid").fetchall()
        return found


@asynccontextmanager
async def early(server: Server, folder: Path, **env: str) -> AsyncIterator[tuple[Example, dict[str, str]]]:
    """A leader that has begun to wait for a night which comes in a few seconds; and its environment."""
    for ahead in (4, 8, 16):  # a busy machine may take long to start a process
        at = datetime.now(UTC) + timedelta(seconds=ahead)
        settings = {"REDIS_URL": server.url, "AT": f"{at:%H:%M:%S}", **env}
        with Example(folder, "nightly.py", env=settings) as leader:
            await leader.says("leads with token")
            # Its first note says where the schedule begins.
            await until(lambda: server.call("EXISTS", "aioelect:{example-nightly}:periods"), 10)
            if datetime.now(UTC) < at - timedelta(seconds=1):
                yield leader, settings
                return
        server.call("FLUSHALL")
    raise AssertionError("no process came up within 16 s")


async def test_a_night_is_started_over_after_its_leader_died_and_repeated_by_nobody(
    server: Server, tmp_path: Path
) -> None:
    shop = tmp_path / "shop.db"
    async with early(server, tmp_path, TTL="2", STEP="0.3") as (first, env):
        with Example(tmp_path, "nightly.py", env=env) as second:
            await second.says("stands for election")
            with closing(sqlite3.connect(shop)) as db, db:
                db.executemany("INSERT INTO rubbish (kind) VALUES (?)", [(kind,) for kind in KINDS * 3])

            await first.says("carts: 3 removed")
            first.process.kill()
            assert await first.ended() == -9

            await second.says("finished")  # began with the first step again
            assert "sessions: 0 removed" in second.output
            assert "orphans: 3 removed" in second.output

            with Example(tmp_path, "nightly.py", env=env) as third:
                await third.says("stands for election")
                second.process.terminate()
                assert await second.ended() == 0
                await third.says("leads")
                await asyncio.sleep(1.5)  # it would have begun by now
                third.process.terminate()
                assert await third.ended() == 0
            assert "cleans up" not in third.output

    assert [one.errors for one in (first, second, third)] == ["", "", ""]
    old, new, last = (one.tokens()[0] for one in (first, second, third))
    assert old < new < last
    steps = log(shop)
    assert [what for token, what in steps if token == new] == KINDS
    assert [what for token, what in steps if token == old] == KINDS[: len(steps) - 4]
    assert server.call("EXISTS", "aioelect:{example-nightly}") == 0
