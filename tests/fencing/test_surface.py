"""The public surface of the guards, and what importing them does not do."""

import inspect
import subprocess
import sys

import pytest

from aioelect import StaleToken, fencing
from aioelect.fencing import http

EXPECTED = {
    "Gate",
    "PostgresGuard",
    "PostgresSequence",
    "RedisGuard",
    "SqliteGuard",
    "TokenSource",
    "fence_table",
    "fence_trigger",
    "refuse_stale",
    "stale_token",
    "token_sequence",
}


def test_the_exported_names_are_these() -> None:
    assert set(fencing.__all__) == EXPECTED
    assert set(http.__all__) == {"HEADER", "aiohttp_middleware", "fastapi_dependency", "headers"}


@pytest.mark.parametrize("name", sorted(EXPECTED - {"TokenSource"}))
def test_every_public_item_and_member_has_a_docstring(name: str) -> None:
    item = getattr(fencing, name)
    assert inspect.getdoc(item)
    if inspect.isclass(item):
        for member, value in vars(item).items():
            if not member.startswith("_") and callable(value):
                assert inspect.getdoc(value), f"{name}.{member} has no docstring"


def test_p15_importing_the_guards_imports_no_driver_and_no_framework() -> None:
    script = """
import sys
import aioelect.fencing, aioelect.fencing.http
foreign = {"asyncpg", "psycopg", "psycopg_pool", "sqlalchemy", "sqlite3", "aiohttp", "fastapi", "starlette"}
assert not foreign & set(sys.modules), foreign & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_a_stale_token_keeps_its_numbers_through_pickle() -> None:
    import pickle

    error = StaleToken("old", token=33)
    error.newest, error.resource = 34, "stock"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.token, copy.newest, copy.resource) == (33, 34, "stock")


def test_the_ddl_names_what_it_is_told_to_name() -> None:
    assert 'CREATE TABLE IF NOT EXISTS "shop"."fences"' in fencing.fence_table("shop.fences")
    assert "aioelect_fence" not in fencing.fence_table("fences")
    assert 'SEQUENCE IF NOT EXISTS "numbers"' in fencing.token_sequence("numbers")
    text = fencing.fence_trigger("stock", "seen")
    assert 'ON "stock"' in text and 'NEW."seen"' in text and "fence_token" not in text
