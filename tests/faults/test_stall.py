"""A loop that is blocked by its own work: noticed from outside, and ended before another can lead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aioelect import ConfigurationError, Elector, EndReason, _stall
from aioelect.facts import TermBegan, TermInfo, TermOver
from support.candidate import candidate, now, reigns
from support.processes import Child
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

BLOCKED = """
    import asyncio, logging, sys, threading, time
    from prometheus_client import REGISTRY
    from redis.asyncio import Redis
    from aioelect import Elector, Term

    port, ttl, on_stall = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    blocked, hung = float(sys.argv[4]), sys.argv[5]
    now = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)

    class Telling(logging.Handler):
        def emit(self, record):
            emit(event="log", level=record.levelname, text=record.getMessage(), reason=record.reason)

    handler = Telling()
    logging.getLogger("aioelect").addHandler(handler)
    logging.getLogger("aioelect").setLevel("INFO")

    async def work(term: Term) -> None:
        await asyncio.sleep(0.1)
        emit(event="blocks", at=now(), token=term.token)
        if hung == "resigned":
            term.resign()
        if hung == "hung":
            handler.acquire()  # as a handler does that writes into a full pipe
        time.sleep(blocked)
        emit(event="goes on", at=now())
        await asyncio.sleep(0.1)
        names = ("leader_election_loop_stalls_total", {"name": "role"})
        emit(event="counted", stalls=REGISTRY.get_sample_value(*names), threads=threading.active_count())
        await asyncio.sleep(60)

    async def main():
        await Elector(Redis(port=port), "role", ttl=ttl, on_stall=on_stall).run(work)

    asyncio.run(main())
"""


@pytest.mark.parametrize("logging_hangs", ["", "hung"])
async def test_a_process_whose_loop_is_blocked_for_longer_than_ttl_is_gone_before_its_successor_leads(
    server: Server, logging_hangs: str
) -> None:
    ttl = 2.5
    with Child(BLOCKED, [str(server.port), str(ttl), "exit", str(3 * ttl), logging_hangs]) as stuck:
        blocks = await stuck.expect(event="blocks")
        with candidate(server, "role", ttl=ttl) as successor:
            code = await stuck.exited()
            gone = now()
            assert code == 70
            await successor.expect(event="leads")
            (reign,) = reigns([successor])
            assert gone < reign.began, "it was gone before anything could be written by the next one"
            assert reign.token > blocks["token"]
            assert gone - blocks["at"] >= 0.8 * ttl - 0.6, "not before its renew deadline"
        assert not stuck.find(event="goes on")
        if not logging_hangs:
            said = [line for line in stuck.lines if line.fields.get("event") == "log" and line["level"] == "CRITICAL"]
            assert len(said) == 1 and said[0]["reason"] == "stalled"
            assert "time.sleep(blocked)" in said[0]["text"] or "in work" in said[0]["text"]


async def test_a_stall_is_reported_once_with_the_stack_and_counted_and_the_work_goes_on(server: Server) -> None:
    ttl = 2.0
    with Child(BLOCKED, [str(server.port), str(ttl), "report", "1.2", ""]) as stuck:
        counted = await stuck.expect(event="counted")
        warnings = [line for line in stuck.lines if line.fields.get("level") == "WARNING"]
        assert len(warnings) == 1
        assert "has been blocked for" in warnings[0]["text"] and "in work" in warnings[0]["text"]
        assert counted["stalls"] == 1
        assert stuck.returncode is None


async def test_with_report_the_process_survives_a_stall_past_its_ttl(server: Server) -> None:
    with Child(BLOCKED, [str(server.port), "1", "report", "2.5", ""]) as stuck:
        await stuck.expect(event="goes on")
        await until(lambda: any("lost" in str(line.fields.get("text")) for line in stuck.lines))
        assert stuck.returncode is None


async def test_a_process_that_was_stopped_as_a_whole_is_not_taken_for_a_blocked_loop(server: Server) -> None:
    with Child(BLOCKED, [str(server.port), "1", "exit", "0", ""]) as stopped:
        await stopped.expect(event="goes on")
        stopped.pause()
        await asyncio.sleep(3)
        stopped.resume()
        await until(lambda: any("lost" in str(line.fields.get("text")) for line in stopped.lines))
        await asyncio.sleep(0.3)
        assert stopped.returncode is None


async def test_one_late_answer_is_no_stall_as_after_a_suspend_when_all_just_wake_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits: list[int] = []
    monkeypatch.setattr("os._exit", exits.append)
    loop = asyncio.get_running_loop()
    ask, asked = loop.call_soon_threadsafe, 0

    def late(answer: Callable[[], object]) -> None:
        nonlocal asked
        asked += 1
        ask(time.sleep, 0.3)  # the guard looks after 0.25 s, and again after 0.5 s
        ask(answer)

    monkeypatch.setattr(loop, "call_soon_threadsafe", late)
    guard = _stall.StallGuard("exit", lambda fact: None)
    term = TermInfo("role", "me", 1, "id", 15.0)
    guard(TermBegan(term, 0.0, None, lambda: 0.0))  # past its renew deadline
    await until(lambda: asked >= 3)
    guard(TermOver(term, EndReason.EXPIRED, None, None))
    assert exits == []


async def test_no_thread_is_left_when_the_term_is_over(redis: Redis) -> None:
    import threading

    before = threading.active_count()
    elector = Elector(redis, "role", ttl=1, on_stall="report", observers=[])
    async with elector.lead():
        await until(lambda: threading.active_count() == before + 1)
        await asyncio.sleep(1.2)
    await until(lambda: threading.active_count() == before)


def test_p14_an_unknown_action_is_refused(redis: Redis) -> None:
    with pytest.raises(ConfigurationError, match="on_stall='restart'; expected 'report', 'exit' or None"):
        Elector(redis, "role", on_stall="restart")  # type: ignore[arg-type]


async def test_a_process_whose_work_was_told_to_stop_survives_a_block(server: Server) -> None:
    ttl = 4.0
    with Child(BLOCKED, [str(server.port), str(ttl), "exit", str(ttl / 4), "resigned"]) as stuck:
        await stuck.expect(event="blocks")
        await stuck.expect(event="goes on")
        assert stuck.returncode is None
