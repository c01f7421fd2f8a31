"""docs/fencing.md is executed, and shows the DDL that is in the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from aioelect import fencing
from aioelect.fencing.http import headers
from fencing.conftest import article
from support.postgres import execute
from support.servers import Server

PAGE = (Path(__file__).parents[2] / "docs" / "fencing.md").read_text()
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SAY = {
    "async with guard.transaction": "written",
    "psycopg_pool": "written 1",
    "PostgresSequence": "led with token 1",
    "RedisGuard": "left: -5",
    "SqliteGuard": "rows: 1",
    "class Bucket": "33 is older than 34",
}


def _code(block: str, server: Server, database: str) -> str:
    code = block.replace("Redis()", f"Redis.from_url({server.url!r})")
    for scheme in ("postgresql", "postgresql+asyncpg"):
        code = code.replace(f"{scheme}://localhost/shop", database.replace("postgresql", scheme, 1))
    return code


def _block(having: str) -> str:
    (found,) = [block for block in BLOCKS if having in block and "FastAPI" not in block]
    return found


def test_every_block_of_the_page_is_run_by_a_test_below() -> None:
    assert len(BLOCKS) == len(SAY) + 1
    assert all(_block(mark) for mark in SAY)


@pytest.mark.leaves_keys("a stock that stays")
@pytest.mark.parametrize("mark", SAY)
def test_what_the_page_shows_does_what_it_says(mark: str, server: Server, stocked: str, tmp_path: Path) -> None:
    execute(stocked, "CREATE TABLE log (what TEXT)")
    execute(stocked, "DROP SEQUENCE aioelect_token")
    argv = [sys.executable, "-W", "error", "-c", _code(_block(mark), server, stocked)]
    ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip().splitlines()[-1].startswith(SAY[mark]), ran.stdout


async def test_the_service_on_the_page_refuses_an_older_token(server: Server, stocked: str) -> None:
    (block,) = [block for block in BLOCKS if "FastAPI" in block]
    space: dict[str, object] = {"__name__": "example"}
    exec(compile(_code(block, server, stocked), "page", "exec"), space)
    transport = httpx.ASGITransport(space["app"])  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for token, status in ((34, 200), (33, 409), (34, 200)):
            answer = await client.put(f"/stock/SKU-001?qty={token}", headers=headers(token))
            assert answer.status_code == status, answer.text
    assert article(stocked) == (34, 34)
    await space["engine"].dispose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["fence_table", "fence_trigger"])
def test_the_ddl_on_the_page_is_that_of_the_package(name: str) -> None:
    (shown,) = re.findall(rf"<!-- {name} -->\n```sql\n(.*?)```", PAGE, re.DOTALL)
    file = (Path(fencing.__file__).parent / "sql" / f"{name}.sql").read_text()
    assert shown == re.sub(r"\A(--.*\n)+", "", file)
