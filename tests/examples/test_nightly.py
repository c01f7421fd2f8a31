"""examples/nightly.py: the leader dies half-way, the next starts over, and nobody repeats a finished night."""

import asyncio
import sqlite3
from contextlib import closing
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


async def test_a_night_is_started_over_after_its_leader_died_and_repeated_by_nobody(
    server: Server, tmp_path: Path
) -> None:
    shop = tmp_path / "shop.db"
    noon = {"REDIS_URL": server.url, "TTL": "4", "AT": f"{datetime.now(UTC) + timedelta(hours=12):%H:%M:%S}"}
    with Example(tmp_path, "nightly.py", env=noon) as before:
        await before.says("leads with token")
        await until(lambda: server.call("EXISTS", "aioelect:{example-nightly}:periods"), 20)
        before.process.terminate()  # it has noted where the schedule begins
        assert await before.ended() == 0
    assert "cleans up" not in before.output and log(shop) == []

    with closing(sqlite3.connect(shop)) as db, db:
        db.executemany("INSERT INTO rubbish (kind) VALUES (?)", [(kind,) for kind in KINDS * 3])
    # Whoever leads begins at once, or within a second: the night is due however long a process takes to come up.
    env = noon | {"AT": f"{datetime.now(UTC) + timedelta(seconds=1):%H:%M:%S}", "STEP": "0.3"}
    with Example(tmp_path, "nightly.py", env=env | {"STEP": "4"}) as first:  # 12 s are left when it is killed
        await first.says("sessions: 3 removed", 60)
        with Example(tmp_path, "nightly.py", env=env) as second:
            await second.says("stands for election")
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

    assert [one.errors for one in (before, first, second, third)] == [""] * 4
    tokens = [one.tokens()[0] for one in (before, first, second, third)]
    assert tokens == sorted(set(tokens))
    _, old, new, _ = tokens
    steps = log(shop)
    assert [what for token, what in steps if token == new] == KINDS
    assert [what for token, what in steps if token == old] == KINDS[: len(steps) - 4]
    assert server.call("EXISTS", "aioelect:{example-nightly}") == 0
