"""Steps 1 to 3: three processes, one leader; SIGTERM; kill -9."""

from __future__ import annotations

import signal
import time
from secrets import token_hex

from aioelect.cli.demo.lines import ElectionSettings
from aioelect.cli.demo.stage import Actor, Line, Stage
from aioelect.cli.demo.verdict import Election, HandOver, TakeOver
from aioelect.cli.demo.view import Row, View

__all__ = ["ElectionStory"]

TTL = 3.0
RETENTION = 60.0  # on a server of the user's nothing stays for longer
JOBS = 3  # so many are watched in each step


class ElectionStory:
    """The three processes through the three steps; each returns what was measured."""

    def __init__(self, stage: Stage, view: View, url: str) -> None:
        self._stage = stage
        self._view = view
        self._url = url
        self._election = f"demo-{token_hex(4)}"
        self._actors: dict[str, Actor] = {}
        self._leading: Line  # what the present leader said when it was elected

    async def elect(self) -> Election:
        """Three stand; one leads and works."""
        stage, view = self._stage, self._view
        for who in ("A", "B", "C"):
            self._actors[who] = await stage.enter(who, "worker")
            view.row(who, Row(self._actors[who].pid, "starts"))
        for who in self._actors:
            await stage.hear("up", [who])
        view.zero()
        began = time.monotonic()
        for who, actor in self._actors.items():
            actor.tell(ElectionSettings(self._url, self._election, who, TTL, RETENTION))
        with view.moving():
            for who in self._actors:
                await stage.hear("stands", [who])
            self._leading = await stage.hear("elected", self._actors)
            await self._watch(self._leading)
        view.table()
        seen = stage.lines
        return Election(
            stood=frozenset(line.who for line in seen if line.event == "stands"),
            led=frozenset(line.who for line in seen if line.event == "elected" or line.fields.get("leads")),
            worked=frozenset(line.who for line in seen if line.event == "work"),
            took=self._leading.at - began,
        )

    async def hand_over(self) -> HandOver:
        """SIGTERM to the leader."""
        stage, view, old = self._stage, self._view, self._leading
        with view.moving():
            left, sent = await self._strike(signal.SIGTERM)
            new = self._leading = await stage.hear("elected", self._others(old.who), since=sent)
            stopped = await stage.hear("stopped", [old.who], since=sent)
            ended = await stage.hear("ended", [old.who])
            await self._watch(new)
        view.table()
        return HandOver(
            took=new.at - sent,
            left=left,
            stopped=stopped.at - sent,
            exit_code=ended["code"],
            tokens=(old["token"], new["token"]),
        )

    async def take_over(self) -> TakeOver:
        """SIGKILL to the leader."""
        stage, view, old = self._stage, self._view, self._leading
        with view.moving():
            left, sent = await self._strike(signal.SIGKILL)
            view.event(sent, "", f"its claim lasts another {left:.2f} s; nobody may lead before")
            new = self._leading = await stage.hear("elected", self._others(old.who), since=sent, limit=TTL + 15)
            await self._watch(new)
        view.table()
        return TakeOver(took=new.at - sent, left=left, ttl=TTL, tokens=(old["token"], new["token"]))

    async def close(self) -> None:
        """The last one steps down in good order, too: nothing stays on the server but what expires soon."""
        for who, actor in self._actors.items():
            actor.send(signal.SIGTERM)
            await self._stage.hear("ended", [who])

    def narrate(self, line: Line) -> None:
        """Show what a process says."""
        view, who, actor = self._view, line.who, self._actors[line.who]
        match line.event:
            case "stands":
                view.row(who, Row(actor.pid))
                view.event(line.at, who, f"process {actor.pid} stands")
            case "elected":
                view.event(line.at, who, f"leads, with token {line['token']}", "bold")
            case "work":
                view.event(line.at, who, f"does job {line['job']}")
            case "stopped":
                view.event(line.at, who, "stopped its work, releases")
            case "status" if line["leads"]:
                view.row(who, Row(actor.pid, "LEADS", line["token"], line.at + line["left"]))
            case "status":
                view.row(who, Row(actor.pid))
            case "ended" if line["code"] == 0:
                view.row(who, Row(actor.pid, "ended"))
            case "ended":
                view.killed(who)

    async def _strike(self, number: signal.Signals) -> tuple[float, float]:
        """Send the leader a signal, right after it said how much time it has left: that, at the signal, and when."""
        who = self._leading.who
        report = await self._stage.hear("status", [who], since=time.monotonic(), leads=True)
        sent = self._actors[who].send(number)
        self._view.zero(sent)
        self._view.signal(sent, f"{'kill -9' if number is signal.SIGKILL else number.name} to {who}")
        return report["left"] - (sent - report.at), sent

    async def _watch(self, leading: Line) -> None:
        """See a leader work for a while."""
        await self._stage.hear("work", [leading.who], since=leading.at, job=JOBS)
        await self._stage.hear("status", [leading.who], since=leading.at, leads=True)

    def _others(self, who: str) -> list[str]:
        return [name for name in self._actors if name != who]
