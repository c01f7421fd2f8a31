"""examples/critical_section.py: one payment, whoever comes, and whoever wakes up late."""

import os
import signal
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

from support.examples import Example
from support.servers import Server


def read(folder: Path, query: str) -> list[tuple[object, ...]]:
    """What the shop's database holds now."""
    with closing(sqlite3.connect(folder / "shop.db")) as db:
        return db.execute(query).fetchall()


async def test_of_several_that_pay_at_once_one_pays_and_the_others_find_it_paid(server: Server, tmp_path: Path) -> None:
    env = {"REDIS_URL": server.url}
    with ExitStack() as stack:
        ones = [
            stack.enter_context(Example(tmp_path, "critical_section.py", "17", "120", env=env)) for number in range(4)
        ]
        assert [await one.ended() for one in ones] == [0] * 4
    said = sorted(one.output for one in ones)
    assert said[0].startswith("paid 120 with token")
    assert said[1:] == ["was paid already\n"] * 3
    assert [one.errors for one in ones] == [""] * 4
    assert len(read(tmp_path, "SELECT * FROM charges")) == 1


async def test_p9_who_was_paused_after_the_last_check_is_refused_where_the_money_moves(
    server: Server, tmp_path: Path
) -> None:
    env = {"REDIS_URL": server.url}
    with Example(tmp_path, "critical_section.py", "17", "120", env=env | {"TTL": "2", "PAUSE": "6"}) as paused:
        await paused.says("pauses")
        paused.process.send_signal(signal.SIGSTOP)  # for as long as the rest takes
        with Example(tmp_path, "critical_section.py", "17", "95", env=env) as another:
            assert await another.ended() == 0
        paused.process.send_signal(signal.SIGCONT)
        assert await paused.ended() == 1
    assert another.output.startswith("paid 95 with token")
    assert "refused, nothing was charged" in paused.output
    warnings = paused.errors.splitlines()
    assert (
        len(warnings) == 2 and "to charge:17 was refused" in warnings[0] and "while its work went on" in warnings[1]
    ), warnings
    assert another.errors == ""
    assert [row[1] for row in read(tmp_path, "SELECT * FROM charges")] == [95]
    assert [row[1] for row in read(tmp_path, "SELECT * FROM orders")] == [95]


async def test_who_gives_up_waiting_says_so(server: Server, tmp_path: Path) -> None:
    env = {"REDIS_URL": server.url}
    with Example(tmp_path, "critical_section.py", env=env | {"TTL": "60", "PAUSE": "30"}) as slow:
        await slow.says("pauses")
        with Example(tmp_path, "critical_section.py", env=env | {"WAIT": "0.2"}) as hasty:
            assert await hasty.ended() == os.EX_TEMPFAIL
    assert hasty.output.startswith("gave up: 'example-order:17' is held by")
    assert hasty.errors == ""
