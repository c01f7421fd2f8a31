"""Alerts and dashboard on a real Prometheus, which scrapes three real processes through all that can happen to them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import pytest

from support.processes import Child
from support.prometheus import ROOT, RULES, Prometheus, hurried
from support.servers import Server
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(180)]

TTL = 1.0
WORKER = """
    import asyncio, sqlite3, sys, threading, time
    from prometheus_client import REGISTRY, start_http_server
    from redis.asyncio import Redis
    from aioelect import Elector, FencedLock, LeaseLost, StaleToken
    from aioelect.fencing.sqlite import SqliteGuard

    port, db, ttl = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    server, _ = start_http_server(0, addr="127.0.0.1")
    orders = asyncio.Queue()
    deaf_until = 0.0

    async def work(term):
        global deaf_until
        emit(event="leads", token=term.token)
        while True:
            try:
                order = await orders.get()
                match order["do"]:
                    case "hand over":
                        return
                    case "overrun":
                        deaf_until = time.monotonic() + order["seconds"]
                        term.resign()
            except asyncio.CancelledError:
                while time.monotonic() < deaf_until:
                    try:
                        await asyncio.sleep(0.05)
                    except asyncio.CancelledError:
                        pass
                raise

    async def lose(redis):
        # A section whose claim is deleted behind its back: its release is answered 0.
        try:
            async with FencedLock(redis, "section", ttl=5) as term:
                guard = SqliteGuard(sqlite3.connect(":memory:"))
                await guard.admit("stock", term.token + 1)  # somebody newer has written
                try:
                    await guard.admit("stock", term.token)
                except StaleToken:
                    pass
                await redis.delete("aioelect:{section}")
        except LeaseLost:
            pass
        emit(event="lost")

    async def main():
        redis = Redis(port=port, db=db)
        elector = Elector(redis, "role", ttl=ttl, drain_limit=ttl / 2)

        def obey():
            for command in commands():
                if command["do"] == "lose":
                    asyncio.run_coroutine_threadsafe(lose(redis), loop)
                else:
                    loop.call_soon_threadsafe(orders.put_nowait, command)

        loop = asyncio.get_running_loop()
        threading.Thread(target=obey, daemon=True).start()
        emit(event="stands", port=server.server_port)
        while True:
            await elector.run(work)
            emit(event="handed over")
            await asyncio.sleep(ttl / 5)

    asyncio.run(main())
"""


@dataclass
class Fleet:
    """The processes, by the port that Prometheus scrapes."""

    server: Server
    stack: ExitStack
    members: dict[int, Child] = field(default_factory=dict)

    def start(self, db: int = 0) -> Child:
        """Start one more; on another database it is somebody who was set up wrong."""
        child = self.stack.enter_context(Child(WORKER, [str(self.server.port), str(db), str(TTL)]))
        self.members[child.expect_sync(event="stands")["port"]] = child
        return child

    def kill(self, child: Child) -> None:
        """End one as a crash would."""
        child.kill()
        self.members = {port: member for port, member in self.members.items() if member is not child}


@pytest.fixture
def fleet(make_server: Callable[..., Server]) -> Iterator[Fleet]:
    """Three processes that stand for one role, on a server of their own."""
    with ExitStack() as stack:
        fleet = Fleet(make_server(), stack)
        for _ in range(3):
            fleet.start()
        yield fleet


async def test_the_alerts_fire_that_should_and_every_panel_of_the_dashboard_shows_data(fleet: Fleet) -> None:
    stranger = fleet.start(db=1)
    with Prometheus(list(fleet.members), hurried(RULES.read_text())) as prometheus:
        # A role on another database is another role; its metrics are not looked at before it stands in for a mistake.
        ours = [port for port, child in fleet.members.items() if child is not stranger]

        async def leader() -> Child:
            def found() -> Child | None:
                leads = prometheus.query(
                    "leader_election_leads_until_timestamp_seconds{name='role'} > "
                    "timestamp(leader_election_leads_until_timestamp_seconds)"
                )
                ports = {int(series["metric"]["instance"].split(":")[1]) for series in leads}
                one = [port for port in ports if port in ours and fleet.members.get(port)]
                return fleet.members[one[0]] if len(one) == 1 else None

            return await until(found, 20)

        async def fires(alert: str) -> None:
            await until(lambda: alert in prometheus.firing(), 30)

        # The stranger leads on its own database: two leaders of one name, until it is gone.
        await fires("AioelectTwoLeaders")
        fleet.kill(stranger)
        await until(lambda: "AioelectTwoLeaders" not in prometheus.firing(), 20)

        # A hand-over, a kill, a pause: somebody else leads, and nobody is called for that.
        quiet = {"AioelectNobodyLeads", "AioelectNobodyLedYet", "AioelectRenewalsFailing", "AioelectDrainOverrun"}
        for deed in ("hand over", "kill", "pause"):
            before = await leader()
            match deed:
                case "hand over":
                    before.send(do="hand over")
                case "kill":
                    fleet.kill(before)
                case _:
                    before.pause()
            await until(partial(_other_leads, fleet, before), 20)
            if deed == "pause":
                before.resume()
        assert not quiet & prometheus.ever_fired()

        # What must not happen.
        (await leader()).send(do="overrun", seconds=1.5 * TTL)
        await fires("AioelectDrainOverrun")
        next(iter(fleet.members.values())).send(do="lose")
        await fires("AioelectReleaseAlreadyLost")
        await leader()
        fleet.server.call("SET", "aioelect:{role}", "another's", "PX", int(TTL * 1000))
        await fires("AioelectClaimTaken")
        for _ in range(12):
            (await leader()).send(do="hand over")
            await asyncio.sleep(TTL / 4)
        await fires("AioelectFlapping")
        await leader()
        fleet.server.pause()
        await fires("AioelectRenewalsFailing")
        await fires("AioelectNobodyLeads")
        fleet.server.resume()
        await leader()
        await until(lambda: "AioelectNobodyLeads" not in prometheus.firing(), 20)
        fleet.start()

        _assert_every_panel_has_data(prometheus)
        if target := os.environ.get("AIOELECT_PICTURE"):
            script = ROOT / "scripts" / "draw_dashboard.py"
            subprocess.run([sys.executable, script, prometheus.url, str(prometheus.started), target], check=True)


def _other_leads(fleet: Fleet, before: Child) -> bool:
    tokens = {child.pid: max([line["token"] for line in child.lines if line.fields.get("event") == "leads"], default=0)
              for child in (*fleet.members.values(), before)}  # fmt: skip
    return max(tokens, key=lambda pid: tokens[pid]) != before.pid


def _assert_every_panel_has_data(prometheus: Prometheus) -> None:
    for panel in json.loads((ROOT / "deploy" / "grafana" / "aioelect.json").read_text())["panels"]:
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "3s").replace("$__range", "2m").replace("$name", ".*")
            values = [value for series in prometheus.range(expr) for _, value in series["values"] if value != "NaN"]
            assert values, f"{panel['title']}: no data for {expr}"
            assert panel["title"] == "Store errors, by class" or any(float(value) > 0 for value in values), (
                f"{panel['title']}: nothing but 0 for {expr}"
            )
