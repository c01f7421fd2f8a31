"""Writes to SQLite under a guard."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aioelect import ConfigurationError, Lease, LeaseExpired, StaleToken, aclose
from aioelect.fencing import Gate, SqliteGuard
from fencing.conftest import TOKEN

KEY = {"sku": "SKU-001"}
MODES = [{}, {"isolation_level": None}, *([{"autocommit": True}] if sys.version_info >= (3, 12) else [])]


@pytest.fixture(params=MODES, ids=str)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A file with one article in it, in every mode that lets a transaction be begun."""
    connection = sqlite3.connect(tmp_path / "stock.db", **request.param)
    connection.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, qty INTEGER, fence_token INTEGER)")
    connection.execute("INSERT INTO stock VALUES ('SKU-001', 100, NULL)")
    connection.commit()
    yield connection
    connection.close()


def article(tmp_path: Path) -> object:
    """What another process would see."""
    other = sqlite3.connect(tmp_path / "stock.db")
    row = other.execute("SELECT qty, fence_token FROM stock").fetchone()
    other.close()
    return row


def test_a_write_with_an_older_token_changes_0_rows_and_names_both_numbers(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    guard = SqliteGuard(database)
    assert guard.update(TOKEN, "stock", KEY, {"qty": 120}) == 1
    assert guard.update(TOKEN + 1, "stock", KEY, {"qty": 95}) == 1
    with pytest.raises(StaleToken, match=f"stock sku='SKU-001': token {TOKEN} is older than {TOKEN + 1}") as caught:
        guard.update(TOKEN, "stock", KEY, {"qty": 120})
    assert (caught.value.token, caught.value.newest) == (TOKEN, TOKEN + 1)
    assert guard.update(TOKEN, "stock", {"sku": "none"}, {"qty": 1}) == 0
    assert article(tmp_path) == (95, TOKEN + 1)


def test_an_update_is_part_of_the_transaction_that_the_connection_is_in(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("BEGIN")
    SqliteGuard(database).update(TOKEN, "stock", KEY, {"qty": 1})
    database.execute("ROLLBACK")
    assert article(tmp_path) == (100, None)


async def test_a_transaction_is_refused_to_an_older_token_and_rolled_back_if_its_body_fails(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    guard = SqliteGuard(database)
    assert isinstance(guard, Gate)
    with guard.transaction(TOKEN + 1, resource="stock") as connection:
        connection.execute("UPDATE stock SET qty = 95")
    stale = pytest.raises(StaleToken, match=f"stock: token {TOKEN} is older than {TOKEN + 1}")
    with stale, guard.transaction(TOKEN, resource="stock"):
        pytest.fail("a stale holder got in")
    with pytest.raises(KeyError), guard.transaction(TOKEN + 2, resource="stock") as connection:
        connection.execute("UPDATE stock SET qty = 1")
        raise KeyError
    await guard.admit("stock", TOKEN + 1)
    with pytest.raises(StaleToken):
        await guard.admit("stock", TOKEN)
    assert article(tmp_path) == (95, None)
    database.execute("BEGIN")
    refused = pytest.raises(ConfigurationError, match="in a transaction already")
    with refused, guard.transaction(TOKEN + 2, resource="stock"):
        pytest.fail("it began")
    database.execute("ROLLBACK")


async def test_a_term_that_cannot_be_proved_any_more_commits_nothing(
    database: sqlite3.Connection, tmp_path: Path, redis: Redis
) -> None:
    term = await Lease(redis, "stock", ttl=1.0).try_acquire()
    assert term is not None
    guard = SqliteGuard(database)
    with guard.transaction(term) as connection:
        connection.execute("UPDATE stock SET qty = 95")
    with pytest.raises(LeaseExpired), guard.transaction(term) as connection:
        connection.execute("UPDATE stock SET qty = 1")
        while term.is_valid:
            pass
    with pytest.raises(LeaseExpired), guard.transaction(term):
        pytest.fail("it began")
    assert article(tmp_path) == (95, None)
    await aclose(redis)
