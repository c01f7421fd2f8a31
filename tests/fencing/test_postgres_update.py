"""One row with a column for the token: the conditional write, and the trigger for programs that know nothing of it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy.exc

from aioelect import ConfigurationError, StaleToken
from aioelect.fencing import fence_trigger, stale_token
from fencing.conftest import KINDS, TOKEN, MakeWay, Way, article, stock
from support.postgres import execute

KEY = {"sku": "SKU-001"}


async def test_a_write_with_an_older_token_changes_0_rows_and_names_both_numbers(way: Way, stocked: str) -> None:
    guard = way.guard()
    assert await guard.update(TOKEN, "stock", KEY, {"qty": 120}) == 1, "a row without a token takes any"
    assert await guard.update(TOKEN + 1, "stock", KEY, {"qty": 95}) == 1
    assert await guard.update(TOKEN + 1, "stock", KEY, {"qty": 96}) == 1, "a term may write many times"
    with pytest.raises(StaleToken, match=f"stock sku='SKU-001': token {TOKEN} is older than {TOKEN + 1}") as caught:
        await guard.update(TOKEN, "stock", KEY, {"qty": 120})
    assert (caught.value.token, caught.value.newest) == (TOKEN, TOKEN + 1)
    assert await guard.update(TOKEN, "stock", {"sku": "none"}, {"qty": 1}) == 0, "no such row is no stale token"
    await way.commit()
    assert article(stocked) == (96, TOKEN + 1)


async def test_on_a_connection_of_ones_own_it_is_part_of_what_is_done_there(stocked: str, make_way: MakeWay) -> None:
    way = await make_way("asyncpg connection", stocked)
    with pytest.raises(KeyError):
        async with way.target.transaction():
            await way.guard().update(TOKEN, "stock", KEY, {"qty": 1})
            raise KeyError
    assert article(stocked) == (100, None)
    for kind in ("psycopg connection", "sqlalchemy session", "sqlalchemy connection"):
        way = await make_way(kind, stocked)
        await way.guard().update(TOKEN, "stock", KEY, {"qty": 1})
        await way.target.rollback()
        assert article(stocked) == (100, None)


@pytest.mark.parametrize("kind", ["asyncpg pool", "psycopg pool", "sqlalchemy engine on asyncpg"])
async def test_of_many_writers_at_once_no_older_one_is_accepted_after_a_newer_one(
    stocked: str, make_way: MakeWay, kind: str
) -> None:
    execute(stocked, "CREATE TABLE history (n SERIAL, token BIGINT)")
    execute(
        stocked,
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO history (token) VALUES (NEW.fence_token); RETURN NEW; END $$; "
        "CREATE TRIGGER note AFTER UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION note()",
    )
    way = await make_way(kind, stocked)
    refused = 0

    async def write(token: int) -> None:
        nonlocal refused
        await asyncio.sleep(random.random() * 0.03)
        try:
            assert await way.guard().update(token, "stock", KEY, {"qty": token % 1000}) == 1
        except StaleToken:
            refused += 1

    tokens = [TOKEN + number for number in range(20) for _ in range(3)]
    random.shuffle(tokens)
    await asyncio.gather(*map(write, tokens))
    written = [token for (token,) in execute(stocked, "SELECT token FROM history ORDER BY n")]
    assert written == sorted(written) and written[-1] == TOKEN + 19
    assert len(written) + refused == len(tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": "stock; DROP TABLE stock"}, "table="),
        ({"table": 'stock"'}, "table="),
        ({"where": {}}, "where={}"),
        ({"where": {"sku = 'x' OR 1=1 --": 1}}, "where="),
        ({"values": {"qty = 1, sku": 1}}, "values="),
        ({"column": "fence token"}, "column="),
        ({"term": -1}, "token=-1"),
    ],
)
async def test_p14_names_that_are_none_are_refused(pool: Way, change: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"term": TOKEN, "table": "stock", "where": KEY, "values": {"qty": 1}}
    with pytest.raises(ConfigurationError, match=message):
        await pool.guard().update(**(right | change))


async def test_a_trigger_refuses_older_tokens_whoever_writes(database: str, make_way: MakeWay) -> None:
    stock(database, trigger=True)
    set_token = "UPDATE stock SET qty = {}, fence_token = {}"
    execute(database, set_token.format(95, TOKEN + 1))
    with pytest.raises(psycopg.Error, match=f"stock: token {TOKEN} is older than {TOKEN + 1}") as caught:
        execute(database, set_token.format(120, TOKEN))
    assert caught.value.sqlstate == "ZF001"
    with pytest.raises(psycopg.Error, match="token 0 is older"):
        execute(database, set_token.format(120, "NULL"))
    execute(database, "UPDATE stock SET qty = 96")  # it carries no token: see the page
    execute(database, set_token.format(97, TOKEN + 1))
    assert article(database) == (97, TOKEN + 1)
    for kind in KINDS:
        way = await make_way(kind, database)
        with pytest.raises(StaleToken) as stale:
            async with way.guard().transaction(TOKEN, resource="stock", limit=30) as handle:
                await way.run(handle, set_token.format(120, TOKEN))
        assert (stale.value.token, stale.value.newest, stale.value.resource) == (TOKEN, TOKEN + 1, "stock")
        with pytest.raises((asyncpg.PostgresError, psycopg.Error, sqlalchemy.exc.DBAPIError)) as raw:
            async with way.guard().transaction(TOKEN, resource="a", limit=30) as handle:
                await way.run(handle, "SELECT 1/0")
        assert stale_token(raw.value) is None
    assert article(database) == (97, TOKEN + 1)


def test_the_trigger_takes_other_names_and_can_be_made_again(database: str) -> None:
    execute(database, 'CREATE SCHEMA "Shop"; CREATE TABLE "Shop"."Order" (id INTEGER, "Seen" BIGINT)')
    for _ in range(2):
        execute(database, fence_trigger("Shop.Order", "Seen"))
    execute(database, 'INSERT INTO "Shop"."Order" VALUES (1, 34)')
    with pytest.raises(psycopg.Error, match="Order: token 33 is older than 34"):
        execute(database, 'UPDATE "Shop"."Order" SET "Seen" = 33')
    execute(database, 'DROP SCHEMA "Shop" CASCADE')
