"""examples/scheduler.py: three copies, killed and stopped; every job is run, each by one at a time."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from support.examples import Example
from support.servers import Server
from support.wait import until


def rows(path: Path, query: str) -> list[tuple[int, ...]]:
    """What the database holds now."""
    with closing(sqlite3.connect(path)) as db:
        found: list[tuple[int, ...]] = db.execute(query).fetchall()
        return found


def add(path: Path, number: int) -> None:
    """Jobs that are due now."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany("INSERT INTO jobs (due) VALUES (?)", [(time.time(),)] * number)


async def test_p7_each_job_is_done_once_though_one_leader_is_killed_and_the_next_is_stopped(
    server: Server, tmp_path: Path
) -> None:
    jobs = tmp_path / "jobs.db"
    env = {"REDIS_URL": server.url, "TTL": "4", "EVERY": "0.5"}

    def start() -> Example:
        return Example(tmp_path, "scheduler.py", str(jobs), env=env)

    with start() as first:
        await first.says("leads")
        with start() as second, start() as third:
            await second.says("stands for election")
            await third.says("stands for election")

            add(jobs, 20)
            await first.says("runs job")
            first.process.kill()
            assert await first.ended() == -9

            add(jobs, 20)  # so that there is work for each of them, however fast or slow they are
            leader = await until(lambda: next((one for one in (second, third) if "ran job" in one.output), None), 30)
            other = third if leader is second else second
            assert "leads" not in other.output
            leader.process.terminate()
            await other.says("leads")
            assert await leader.ended() == 0
            assert leader.output.endswith("has stepped down\n")

            add(jobs, 20)
            await other.says("ran job")
            await until(lambda: rows(jobs, "SELECT count(*) FROM jobs WHERE done IS NULL") == [(0,)], 30)
            other.process.terminate()
            assert await other.ended() == 0

    assert [one.errors for one in (first, leader, other)] == ["", "", ""]
    tokens = [one.tokens()[0] for one in (first, leader, other)]
    assert tokens == sorted(set(tokens))
    # Done once each; begun twice only where a leader went in the middle, and then by the next one.
    assert rows(jobs, "SELECT job, count(*) FROM log WHERE what = 'done' GROUP BY job") == [
        (n, 1) for n in range(1, 73)
    ]
    assert rows(jobs, "SELECT job, token FROM log WHERE what = 'begun' GROUP BY job, token HAVING count(*) > 1") == []
    again = [job for (job,) in rows(jobs, "SELECT job FROM log WHERE what = 'begun' GROUP BY job HAVING count(*) > 1")]
    assert len(again) <= 2, "only a job that was cut off is run again"
    if first.output.splitlines()[-1].startswith("runs"):
        assert int(first.output.split()[-1]) in again
    assert server.call("EXISTS", "aioelect:{example-scheduler}") == 0
