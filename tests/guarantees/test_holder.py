"""The process that holds a name dies, stands still, or has its loop blocked: after its last check, before a write."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from guarantees.conftest import Participant, on
from support import modes
from support.modes import MODES, Mode
from support.processes import Child

pytestmark = [pytest.mark.faults, pytest.mark.slow]

TTL = 0.7
ENDS = tuple(kind for kind in MODES if kind != "advisory")
"""Modes in which a claim ends by itself."""

HOLDER = """
import asyncio, sqlite3
from aioelect import FencedLock, LeaseLost, StaleToken
from aioelect.fencing import SqliteGuard
from support.modes import connected

kind, place, file, ttl = json.loads(sys.argv[1])

async def main():
    db = sqlite3.connect(file, isolation_level=None)
    guard = SqliteGuard(db)
    async with connected(kind, place, "holder") as store:
        emit(event="up")
        for command in commands():
            try:
                async with FencedLock(store, command["name"], ttl=ttl, wait=20) as term:
                    term.check()
                    emit(event="checked", token=term.token)
                    next(steps)  # the loop is blocked from here on: no library can step in
                    emit(event="leads", yes=term.is_leader)
                    db.execute("UPDATE stock SET qty = 120 WHERE sku = 'plain'")
                    try:
                        guard.update(term, "stock", {"sku": "guarded"}, {"qty": 120})
                    except StaleToken as stale:
                        emit(event="refused", token=stale.token, newest=stale.newest)
                    await asyncio.sleep(0)
                    await asyncio.sleep(60)
            except LeaseLost:
                emit(event="lost")

steps = commands()
asyncio.run(main())
"""


class Target:
    """A file that processes write to: a row that is guarded, and one that is not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("CREATE TABLE stock (sku TEXT, qty INT, fence_token INT)")
        self.db.execute("INSERT INTO stock VALUES ('plain', 0, NULL), ('guarded', 0, NULL)")

    def write(self, qty: int, token: int) -> None:
        """Write both, as a holder with that token."""
        self.db.execute("UPDATE stock SET qty = ? WHERE sku = 'plain'", (qty,))
        guarded = "UPDATE stock SET qty = ?, fence_token = ? WHERE sku = 'guarded' AND coalesce(fence_token, 0) <= ?"
        assert self.db.execute(guarded, (qty, token, token)).rowcount == 1

    @property
    def rows(self) -> dict[str, int]:
        """Quantities."""
        return dict(self.db.execute("SELECT sku, qty FROM stock").fetchall())


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """A place to write to."""
    target = Target(tmp_path / "stock")
    yield target
    target.db.close()


@pytest.fixture
async def holder(mode: Mode, pair: tuple[Participant, Participant], target: Target) -> AsyncIterator[Child]:
    """A process that takes a name when it is told to, and blocks its loop after its last check."""
    tests = str(Path(inspect.getfile(modes)).parents[1])
    path = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))
    arguments = json.dumps([mode.kind, mode.place, str(target.path), TTL])
    with Child(HOLDER, [arguments], env={"PYTHONPATH": path}) as child:
        await child.expect(event="up", limit=30)
        yield child


async def begun(holder: Child, name: str) -> int:
    """Let it take a name, and return its token."""
    since = len(holder.lines)
    holder.send(name=name)
    return int((await holder.expect(event="checked", after=since, limit=20))["token"])


@on(*ENDS)
async def test_when_a_holder_stands_still_past_its_ttl_two_hold_the_name_for_one_write_and_a_guard_refuses_it(
    mode: Mode, pair: tuple[Participant, Participant], holder: Child, target: Target
) -> None:
    for paused in (False, True):  # its loop is blocked in any case
        since, name = len(holder.lines), mode.name()
        token = await begun(holder, name)
        if paused:
            holder.pause()
        second = await pair[1].holds(name)
        assert second.token > token
        target.write(95, second.token)
        if paused:
            holder.resume()
        holder.send(go="on")
        await holder.expect(event="refused", token=token, newest=second.token)
        await holder.expect(event="lost", after=since, limit=5.0)  # at its next await
        assert holder.find(event="leads", after=since, yes=False), "who asks is told"
        assert second.is_leader
        assert target.rows == {"plain": 120, "guarded": 95}


@on("advisory")
async def test_a_session_is_kept_while_its_process_stands_still_so_nobody_else_gets_in(
    mode: Mode, pair: tuple[Participant, Participant], holder: Child
) -> None:
    for paused in (False, True):
        since, name = len(holder.lines), mode.name()
        token = await begun(holder, name)
        if paused:
            holder.pause()
        await asyncio.sleep(2.0 * TTL)
        assert await pair[1].takes(name) is None
        if paused:
            holder.resume()
        holder.send(go="on")
        await holder.expect(event="lost", after=since)
        assert (await pair[1].holds(name)).token > token


@on(*MODES)
async def test_a_holder_that_was_killed_is_followed_by_another_and_not_before_its_end(
    mode: Mode, pair: tuple[Participant, Participant], holder: Child
) -> None:
    name = mode.name()
    token = await begun(holder, name)
    assert await pair[1].takes(name) is None
    holder.kill()
    await holder.exited()
    assert (await pair[1].holds(name)).token > token
