"""Eight processes, one name, one row: each is stopped at random, again and again, for up to three times the ttl.

What is written without a guard goes astray; what is written with one never does. The order is the table's own: a
trigger notes every write while it has the row's lock. `make soak` runs this for a minute, and shows the figures.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from support.postgres import execute
from support.processes import Child
from support.servers import Server

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.soak]

SECONDS = float(os.environ.get("AIOELECT_SOAK", "10"))
LONGEST = max(60.0, 2 * SECONDS)
PROCESSES = 8
TTL = 0.3

TABLES = """
CREATE TABLE {name} (id INTEGER PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0, fence_token BIGINT NOT NULL DEFAULT 0);
INSERT INTO {name} (id) VALUES (1);
CREATE TABLE {name}_history (at BIGSERIAL PRIMARY KEY, token BIGINT NOT NULL);
CREATE FUNCTION note_{name}() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO {name}_history (token) VALUES (NEW.fence_token); RETURN NEW; END $$;
CREATE TRIGGER note AFTER UPDATE ON {name} FOR EACH ROW EXECUTE FUNCTION note_{name}();
"""
FORMS = ("plain", "updated", "in_transaction")

WRITER = """
import asyncio, random, time
import asyncpg, psycopg
from redis.asyncio import Redis
from aioelect import FencedLock, LeaseLost, StaleToken
from aioelect.fencing import PostgresGuard

redis_url, database, ttl = sys.argv[1], sys.argv[2], float(sys.argv[3])
SET = "UPDATE {} SET n = n + 1, fence_token = {} WHERE id = 1"

async def guarded(guard, token):
    # By the bare token, in a task of its own: nothing but the guard stands in the way of a late write.
    try:
        if random.random() < 0.5:
            await guard.update(token, "updated", {"id": 1}, {"n": random.randrange(1000)})
        else:
            async with guard.transaction(token, resource="counter", limit=ttl) as connection:
                await asyncio.sleep(random.random() * 0.01)
                await connection.execute(SET.format("in_transaction", token))
        emit(guarded="accepted")
    except StaleToken as stale:
        emit(guarded="refused" if stale.newest > token == stale.token else "wrong numbers")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        emit(guarded="thrown out")

async def work(term, guard, connection):
    while True:
        term.check()
        time.sleep(random.random() * 0.01)  # the moment in which it matters
        connection.execute(SET.format("plain", term.token))
        late = asyncio.create_task(guarded(guard, term.token))
        await asyncio.wait({late})
        await asyncio.sleep(0)

async def main():
    lock = FencedLock(Redis.from_url(redis_url), "counter", ttl=ttl)
    connection = psycopg.connect(database, autocommit=True)
    async with asyncpg.create_pool(database, min_size=1) as pool:
        emit(event="up")
        while True:
            try:
                async with lock as term:
                    emit(term=term.token)
                    await work(term, PostgresGuard(pool), connection)
            except LeaseLost:
                pass

asyncio.run(main())
"""


async def stop_and_go(child: Child, until: float) -> None:
    """Stop a process for 0 to 3 ttl, let it run for 0 to 2, and so on."""
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(0, 2) * TTL)
        child.pause()
        await asyncio.sleep(random.uniform(0, 3) * TTL)
        child.resume()


def history(url: str, form: str) -> list[int]:
    """The tokens in the order in which the row was written."""
    return [token for (token,) in execute(url, f"SELECT token FROM {form}_history ORDER BY at")]


def overlaps(tokens: list[int]) -> int:
    """How many writes carry a token below one that was written before."""
    highest, count = 0, 0
    for token in tokens:
        count += token < highest
        highest = max(highest, token)
    return count


@pytest.mark.timeout(LONGEST + 60)
async def test_8_processes_that_are_stopped_at_random_write_late_and_a_guard_refuses_every_one_of_these_writes(
    server: Server, stocked: str
) -> None:
    for form in FORMS:
        execute(stocked, TABLES.format(name=form))
    began = time.monotonic()
    with ExitStack() as stack:
        arguments = [server.url, stocked, str(TTL)]
        writers = [stack.enter_context(Child(WRITER, arguments)) for _ in range(PROCESSES)]
        await asyncio.gather(*(writer.expect(event="up", limit=60) for writer in writers))
        while True:
            await asyncio.gather(*(stop_and_go(writer, time.monotonic() + SECONDS / 2) for writer in writers))
            refused = sum(writer.find(guarded="refused") is not None for writer in writers)
            lasted = time.monotonic() - began
            if lasted >= LONGEST or (lasted >= SECONDS and refused and overlaps(history(stocked, "plain"))):
                break
        lines = [line.fields for writer in writers for line in writer.lines]
    terms = {line["term"] for line in lines if "term" in line}
    outcomes = Counter(line["guarded"] for line in lines if "guarded" in line)
    for form in FORMS:
        tokens = history(stocked, form)
        facts = f"{form:>14}: {len(tokens):5} writes, {overlaps(tokens):3} of them late"
        print(facts)
        assert len(set(tokens)) > 3, "nothing much happened"
        assert (overlaps(tokens) > 0) is (form == "plain"), facts
    print(f"{lasted:.0f} s, {PROCESSES} processes, {len(terms)} terms; under a guard: {dict(outcomes)}")
    assert outcomes["refused"] > 0 and not outcomes["wrong numbers"]
