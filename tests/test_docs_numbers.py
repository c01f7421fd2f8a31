"""Durations that the pages tell are those that the library goes by."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from aioelect._core.timing import MAX_RESPONSE, RELEASE_LIMIT, Timing

ROOT = Path(__file__).resolve().parent.parent
DEPLOYS = (ROOT / "docs" / "deploys.md").read_text()
ROWS = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| \*\*(\d+)\*\* \|$", DEPLOYS, re.MULTILINE)
"""Service; ttl, preStop, requests, drain limit, release; the sum."""
UVICORN_PACE = 1


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def test_the_picture_in_the_readme_has_the_default_durations() -> None:
    (axis,) = re.findall(r"^ 0 s .*\d s$", (ROOT / "README.md").read_text(), re.MULTILINE)
    timing = Timing.of(15)
    tries = [timing.interval + number * timing.try_limit for number in range(3)]
    instants = [0.0, *tries, timing.renew_deadline, timing.validity, timing.ttl]
    assert _numbers(axis) == [round(instant, 1) for instant in instants]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_grace_period_is_the_sum_of_what_comes_before_its_end(row: tuple[str, ...]) -> None:
    service, (ttl, pre_stop, requests, drain, release, least) = row[0], (float(number) for number in row[1:])
    set_to = re.search(r"drain_limit=(\d+)", service)
    timing = Timing.of(ttl, drain_limit=float(set_to[1]) if set_to else None)
    assert (drain, release) == (timing.drain, RELEASE_LIMIT)
    assert least == pre_stop + requests + timing.drain + RELEASE_LIMIT
    if limit := re.search(r"`--graceful-timeout (\d+)`", service):
        assert float(limit[1]) == requests + timing.drain + RELEASE_LIMIT
    if limit := re.search(r"`shutdown_timeout=(\d+)`", service):
        assert requests == 2 * float(limit[1])
    if limit := re.search(r"`--timeout-graceful-shutdown (\d+)`", service):
        assert requests == float(limit[1]) + UVICORN_PACE


def test_the_manifest_gives_what_its_row_asks_for_and_no_default_would() -> None:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", DEPLOYS, re.DOTALL)
    (service, _, pre_stop, _, _, _, least) = ROWS[0]
    assert re.findall(r"sleep, \"(\d+)\"", manifest) == [pre_stop]
    assert re.findall(r"--timeout-graceful-shutdown, \"(\d+)\"", manifest) == re.findall(r"shutdown (\d+)", service)
    (period,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest)
    assert float(period) >= float(least) > 30, "the page says that Kubernetes' default is too short here"
    assert min(float(row[-1]) for row in ROWS) > 10, "the page says that Docker's default is too short for all"


def test_a_killed_leaders_claim_runs_out_after_as_long_as_the_page_says() -> None:
    timing = Timing.of(15)
    assert f"{timing.ttl - timing.interval:g} to {timing.ttl:g} s later" in DEPLOYS


def test_the_shares_of_a_ttl_on_the_page_about_running_it_are_right() -> None:
    text, ttl = (ROOT / "docs" / "operations.md").read_text(), Timing.of(10)
    survived, answer = (ttl.renew_deadline - ttl.interval) / 10, ttl.response_limit / 10
    assert f"survived for certain up to {survived:.2f} ttl" in text
    assert f"An answer is waited for {answer:.2f} ttl, and {MAX_RESPONSE:g} s at most" in text
    assert f"(pause + round trip) / {survived:.3f}, round trip / {answer:.3f}" in text


AIOHTTP = """
import asyncio, os, signal, sys, time
from aiohttp import ClientSession, web

LIMIT = 0.5
asked, began = asyncio.Event(), 0.0

async def endless(request):
    asked.set()
    await asyncio.sleep(60)

async def context(app):
    async def stop():
        global began
        async with ClientSession() as session:
            while not asked.is_set():  # the site is up after the contexts have begun
                asking = asyncio.create_task(session.get(f"http://127.0.0.1:{sys.argv[1]}/"))
                await asyncio.wait([asking], timeout=0.2)
            began = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
    stopping = asyncio.create_task(stop())
    yield
    print((time.monotonic() - began) / LIMIT)
    stopping.cancel()

app = web.Application()
app.router.add_get("/", endless)
app.cleanup_ctx.append(context)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), shutdown_timeout=LIMIT, print=None)
"""


def test_aiohttp_ends_its_contexts_only_after_twice_its_limit_for_requests() -> None:
    from support.servers import free_port

    done = subprocess.run(
        [sys.executable, "-c", AIOHTTP, str(free_port())], capture_output=True, text=True, timeout=30, check=False
    )
    limits = float(done.stdout)
    assert limits >= 1.9, "the page has to say once"
