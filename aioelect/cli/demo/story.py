"""The order of the steps, the summary, and the exit code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

import aioelect
from aioelect.cli.address import connected, masked
from aioelect.cli.demo import pod, server, stock, worker
from aioelect.cli.demo.election_story import TTL, ElectionStory
from aioelect.cli.demo.pause_story import PAUSE, PauseStory
from aioelect.cli.demo.pause_story import TTL as SHORT_TTL
from aioelect.cli.demo.stage import Line, Stage
from aioelect.cli.demo.verdict import Election, Facts, HandOver, NotShown, Pause, TakeOver, Unable, missing, ms
from aioelect.cli.demo.view import View
from aioelect.testing._shelter import Shelter

__all__ = ["perform"]

F = TypeVar("F", bound=Facts)


def perform(view: View, shelter: Shelter, url: str | None) -> Story:
    """Show everything; what was shown is in the story."""
    story = Story(view)
    asyncio.run(story.tell(shelter, url))
    return story


class Story:
    """One performance."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._teller: ElectionStory | PauseStory | None = None
        self._not_shown: list[str] = []
        self._facts: dict[str, Facts | None] = {}

    async def tell(self, shelter: Shelter, url: str | None) -> None:
        """All steps."""
        began, view = time.monotonic(), self._view
        view.say("aioelect demo: a real server, real processes, real signals", "bold")
        async with Stage(shelter, self._hear) as stage:
            if url is None:
                own, url = await server.start_server(stage)
                view.note(f"Its own Valkey: {url} (process {own.pid}), gone with the demo")
            else:
                await probe(url)
                view.note(f"On {masked(url)}; nothing stays there for more than a minute")
            elected, handed, taken = await self._elections(stage, url)
            plain, fenced = await self._pauses(stage, url)
        self._facts = {
            "election": elected,
            "hand_over": handed,
            "take_over": taken,
            "pause_without_fence": plain,
            "pause_with_fence": fenced,
        }
        self._summary(elected, handed, taken, plain, fenced, time.monotonic() - began)

    def as_dict(self) -> dict[str, object]:
        """What was measured, in seconds; null for a step that did not come to its end."""
        steps = {name: None if facts is None else asdict(facts) for name, facts in self._facts.items()}  # type: ignore[call-overload]
        return {"shown": not self._not_shown, "not_shown": self._not_shown, **steps}

    @property
    def exit_code(self) -> int:
        """0 only if everything was shown so far."""
        return 1 if self._not_shown else 0

    def _hear(self, line: Line) -> None:
        if self._teller is not None:
            self._teller.narrate(line)

    async def _elections(self, stage: Stage, url: str) -> tuple[Election | None, HandOver | None, TakeOver | None]:
        view, story = self._view, ElectionStory(stage, self._view, url)
        self._teller = story
        handed: HandOver | None = None
        taken: TakeOver | None = None

        view.headline("1", f"Three processes stand for one election (ttl {TTL:g} s)")
        view.note("Each runs: await Elector(redis, name, ttl=3).run(work)")
        elected = await self.step("1", story.elect, lambda _: "one of three leads, and only that one works")

        if elected is not None:
            view.headline("2", "SIGTERM to the leader, as in a rolling deploy")
            view.note("Elector.run is cancelled: stop the work, wait for it, then release.")
            handed = await self.step("2", story.hand_over, lambda facts: f"hand-over in {ms(facts.took)}")

        if handed is not None:
            view.headline("3", "kill -9 to the next leader")
            view.note("Nobody is left to release anything: the claim has to run out.")
            taken = await self.step(
                "3",
                story.take_over,
                lambda facts: f"take-over in {ms(facts.took)}; {ms(facts.left)} were left of the ttl",
            )
        self._teller = None
        try:
            await story.close()
        except NotShown as error:
            self._miss("1-3", [str(error)])
        return elected, handed, taken

    async def _pauses(self, stage: Stage, url: str) -> tuple[Pause | None, Pause | None]:
        view, story = self._view, PauseStory(stage, self._view, url)
        self._teller = story
        view.headline("4", f"A pause in the wrong place (ttl {SHORT_TTL * 1000:.0f} ms, pause {PAUSE * 1000:.0f} ms)")
        view.note(
            "Pod A sets qty = 120 in SQLite, under a FencedLock. It is stopped between its",
            "check and its write, as by a garbage collection or a moved VM. Meanwhile",
            "pod B gets the lock and sets qty = 95.",
        )
        view.headline("4a", "without a fence")
        view.note(stock.PLAIN)
        plain = await self.step(
            "4a",
            lambda: story.play(fenced=False),
            lambda facts: f"qty = {facts.quantity}: the stale write stands. Neither renewal nor check() could help.",
        )
        view.headline("4b", "with a fence")
        view.note(*stock.FENCED.splitlines())
        fenced = await self.step(
            "4b",
            lambda: story.play(fenced=True),
            lambda facts: f"qty = {facts.quantity}: the stale write was refused, by the place that it went to.",
        )
        return plain, fenced

    async def step(self, number: str, play: Callable[[], Awaitable[F]], shown: Callable[[F], str]) -> F | None:
        """Play one step and judge it; None if it did not come to its end."""
        try:
            facts = await play()
        except NotShown as error:
            self._miss(number, [str(error)])
            return None
        lacking = missing(facts)
        if lacking:
            self._miss(number, lacking)
        else:
            self._view.good(shown(facts))
        return facts

    def _miss(self, number: str, texts: list[str]) -> None:
        self._view.bad(texts)
        self._not_shown += [f"step {number}: {text}" for text in texts]

    def _summary(
        self,
        elected: Election | None,
        handed: HandOver | None,
        taken: TakeOver | None,
        plain: Pause | None,
        fenced: Pause | None,
        lasted: float,
    ) -> None:
        view = self._view
        view.headline("5", f"Summary, after {lasted:.1f} s")
        rows = []
        if elected is not None:
            rows.append(("first election", ms(elected.took), "after three began to stand"))
        if handed is not None:
            rows.append(("hand-over", ms(handed.took), "after SIGTERM"))
        if taken is not None:
            rows.append(("take-over", ms(taken.took), f"after kill -9, with {ms(taken.left)} of ttl left"))
        for title, pause in (("pause, without a fence", plain), ("pause, with a fence", fenced)):
            if pause is not None:
                wrote = "was refused" if pause.rows[1] == 0 else "wrote"
                stood = f"A stood still {pause.paused * 1000:.0f} ms, then {wrote}"
                rows.append((title, f"qty = {pause.quantity}", stood))
        view.pairs(rows)
        view.say()
        if self._not_shown:
            view.say("Not everything was shown:", "bold red")
            view.bad(self._not_shown)
            return
        view.say("How to go on", "bold")
        view.pairs(
            [
                ("a leader in your code", "", "async with Elector(redis, 'scheduler').running(work):"),
                ("a lock with a fence", "", "async with FencedLock(redis, 'stock') as term:"),
                ("the leader you just saw", "", where(worker)),
                ("the pods you just saw", "", where(pod)),
                ("on your own server", "", "aioelect demo --redis redis://localhost"),
            ]
        )


async def probe(url: str) -> None:
    """See that the server can be used, before three processes find out that it can't."""
    try:
        async with connected(url) as redis:
            term = await aioelect.Lease(redis, f"demo-{token_hex(4)}", ttl=5.0, fence_retention=5.0).try_acquire()
            if term is not None:
                await term.release()
    except aioelect.ConfigurationError as error:
        raise Unable(f"--redis: {error}") from None
    except aioelect.StoreError as error:
        raise Unable(f"The server can't be used: {error}") from None


def where(module: object) -> str:
    """Where the code is."""
    return str(Path(str(getattr(module, "__file__", ""))))
