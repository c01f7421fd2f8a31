"""Step 4: a pod is stopped between check and write, for longer than its ttl. First without a fence, then with one."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import closing
from secrets import token_hex

from aioelect.cli.demo.lines import PodSettings
from aioelect.cli.demo.stage import Line, Stage
from aioelect.cli.demo.stock import Stock
from aioelect.cli.demo.verdict import NotShown, Pause
from aioelect.cli.demo.view import View

__all__ = ["PAUSE", "TTL", "PauseStory"]

TTL = 0.3
PAUSE = 0.9
RETENTION = 60.0
THINKS = 0.4  # longer than the ttl: without renewal the lock would be gone before the check
QUANTITIES = (120, 95)  # of A and of B
ATTEMPTS = 3


class PauseStory:
    """Pod A, pod B and one row of stock."""

    def __init__(self, stage: Stage, view: View, url: str) -> None:
        self._stage = stage
        self._view = view
        self._url = url
        self._rounds = 0

    async def play(self, *, fenced: bool) -> Pause:
        """One round; again if a busy machine spoils it before the pause: 300 ms are little."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._play(fenced)
            except _Spoilt:
                self._view.note("A lost its lock before the pause: this machine is very busy. Once more.")
        return await self._play(fenced)

    async def _play(self, fenced: bool) -> Pause:
        stage, view = self._stage, self._view
        self._rounds += 1
        a, b = (f"{self._rounds} pod {name}" for name in "AB")
        database = str(stage.folder / f"stock-{self._rounds}.db")
        Stock.create(database)
        lock = f"demo-{token_hex(4)}"

        def settings(who: str, qty: int, *, paused: bool) -> PodSettings:
            thinks = THINKS if paused else 0.0
            return PodSettings(self._url, lock, who[-5:], TTL, RETENTION, database, qty, fenced, thinks, paused)

        pods = {who: await stage.enter(who, "pod") for who in (a, b)}
        for who in pods:
            await stage.hear("up", [who])
        pods[a].tell(settings(a, QUANTITIES[0], paused=True))
        held = await stage.hear("holds", [a])
        pods[b].tell(settings(b, QUANTITIES[1], paused=False))

        try:
            checked = await stage.hear("about to write", [a])
        except NotShown:
            raise _Spoilt(f"A did not get as far as its write within {ATTEMPTS} rounds") from None
        stopped = pods[a].send(signal.SIGSTOP)
        pods[a].nudge()  # from here on nothing but SIGSTOP keeps A from writing
        view.signal(stopped, f"SIGSTOP to A for {PAUSE * 1000:.0f} ms")
        taken = await stage.hear("holds", [b])
        theirs = await stage.hear("wrote", [b])
        await asyncio.sleep(stopped + PAUSE - time.monotonic())
        view.signal(time.monotonic(), "SIGCONT to A")
        pods[a].send(signal.SIGCONT)
        ours = await stage.hear("wrote", [a])
        for who in pods:
            await stage.hear("ended", [who])
        lost = next((line["error"] for line in stage.lines if line.who == a and line.event == "lost"), None)
        with closing(Stock(database)) as stock:
            quantity = stock.quantity()
        return Pause(
            fenced=fenced,
            ttl=TTL,
            at_check=checked["left"],
            paused=ours["paused"],
            order=(theirs.at, ours.at),
            tokens=(held["token"], taken["token"]),
            rows=(theirs["rows"], ours["rows"]),
            valid=ours["valid"],
            lost=lost,
            quantity=quantity,
            wanted=QUANTITIES,
        )

    def narrate(self, line: Line) -> None:
        """Show what a pod says."""
        view, who = self._view, line.who[-1]
        match line.event:
            case "holds":
                if who == "A":
                    view.zero(line.at)
                view.event(line.at, who, f"holds the lock, with token {line['token']}")
            case "about to write":
                more = f"check() passed ({line['left'] * 1000:.0f} ms left), about to write qty = {line['qty']}"
                view.event(line.at, who, more)
            case "wrote":
                refused = line["rows"] == 0
                view.event(
                    line.at,
                    who,
                    f"writes qty = {line['qty']}: {line['rows']} row{'s' if refused else ''} changed",
                    "bold" if who == "B" else "bold green" if refused else "bold red",
                )
            case "lost":
                view.event(line.at, who, f"{line['error']}: now it learns that it had lost the lock")


class _Spoilt(NotShown):
    """The round came to nothing before the pause."""
