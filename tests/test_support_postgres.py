"""The tests' own PostgreSQL does what it says."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import asyncpg
import psycopg
import pytest

from support.postgres import Postgres, empty, execute
from support.postgres import database as make_database
from support.processes import spawn
from support.wait import until_sync


def test_a_database_is_as_new_after_each_test(database: str) -> None:
    execute(database, "CREATE TABLE t (x INTEGER)")
    execute(
        database, f"ALTER DATABASE \"{database.rsplit('/', 1)[1]}\" SET default_transaction_isolation = 'serializable'"
    )
    left_open = psycopg.connect(database)
    left_open.execute("SELECT * FROM t")
    empty(database)
    assert execute(database, "SELECT count(*) FROM pg_tables WHERE tablename = 't'") == [(0,)]
    assert execute(database, "SHOW transaction_isolation") == [("read committed",)]
    with pytest.raises(psycopg.OperationalError):
        left_open.execute("SELECT 1")
    left_open.close()


async def test_a_database_of_another_name_is_another(database: str, shared_postgres: str) -> None:
    execute(database, "CREATE TABLE t (x INTEGER)")
    connection = await asyncpg.connect(database)
    await connection.execute("INSERT INTO t VALUES (1)")
    await connection.close()
    assert execute(database, "SELECT x FROM t") == [(1,)]
    with make_database(shared_postgres) as other, pytest.raises(psycopg.errors.UndefinedTable):
        execute(other, "SELECT x FROM t")


def test_a_database_goes_also_with_somebody_connected_to_it(shared_postgres: str) -> None:
    with make_database(shared_postgres) as url:
        left_open = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError):
        left_open.execute("SELECT 1")
    left_open.close()


def test_a_server_keeps_its_data_through_a_stop_and_a_crash(make_postgres: Callable[..., Postgres]) -> None:
    server = make_postgres(wal_level="minimal", max_wal_senders=0)
    execute(server.url, "CREATE TABLE t (x INTEGER)")
    for number, end in enumerate((server.stop, server.crash)):
        execute(server.url, "INSERT INTO t VALUES (%s)", number)
        end()
        with pytest.raises(psycopg.OperationalError):
            execute(server.url, "SELECT 1")
        server.start()
    assert execute(server.url, "SELECT x FROM t ORDER BY x") == [(0,), (1,)]
    assert execute(server.url, "SHOW wal_level") == [("minimal",)]


def test_a_server_ends_with_the_process_that_started_it(make_postgres: Callable[..., Postgres]) -> None:
    make_postgres()  # or the test is skipped
    script = "import sys; from support.postgres import Postgres; s = Postgres().__enter__(); print(s.url, s.folder)"
    script += "; sys.stdout.flush(); sys.stdin.read()"
    folder = str(Path(__file__).parent)
    parent = spawn([sys.executable, "-c", script], stdin=-1, stdout=-1, env={**os.environ, "PYTHONPATH": folder})
    assert parent.stdout is not None and parent.stdin is not None
    url, left_behind = parent.stdout.readline().decode().split()
    assert execute(url, "SELECT 1") == [(1,)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()

    def gone() -> bool:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return True
        return False

    until_sync(gone, 10)
    shutil.rmtree(left_behind)
