"""What the proxy does at which command: rules and what they match."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from support.wait import until, until_sync

Direction = Literal["request", "reply"]


@dataclass(frozen=True)
class Command:
    """A command that came by (or a message, in the reply direction): its words, connection number and time."""

    args: tuple[bytes, ...]
    connection: int
    at: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """Its first word in capitals."""
        return self.args[0].decode(errors="replace").upper()


Match = str | Callable[[Command], bool]


class Switchboard(Protocol):
    """What a rule needs of its proxy."""

    rules: "list[Rule]"

    def run(self, act: Callable[[], object]) -> None:
        """Call something in the proxy's own loop."""


class Rule:
    """What to do when a certain command comes by; made by `Proxy.request` and `Proxy.reply`."""

    def __init__(
        self,
        proxy: Switchboard,
        direction: Direction,
        match: Match,
        nth: int,
        times: int | None,
        connection: int | None,
    ):
        self._proxy, self._direction, self._match, self._connection = proxy, direction, match, connection
        self._first, self._last = nth, None if times is None else nth + times - 1
        self._matched = 0
        self._released = asyncio.Event()
        self.action: Literal["delay", "hold", "trickle", "drop", "cut"] = "hold"
        self.seconds = 0.0
        self.reset = False
        self.hits: list[Command] = []

    def delay(self, seconds: float) -> Self:
        """Let it through that many seconds later."""
        self.action, self.seconds = "delay", seconds
        return self._install()

    def hold(self) -> Self:
        """Keep it until `release()`."""
        self.action = "hold"
        return self._install()

    def trickle(self, seconds: float) -> Self:
        """Let it through byte by byte, with a pause after each."""
        self.action, self.seconds = "trickle", seconds
        return self._install()

    def drop(self) -> Self:
        """Swallow it; the connection stays."""
        self.action = "drop"
        return self._install()

    def cut(self, *, reset: bool = False) -> Self:
        """Close the connection instead of passing it on, by RST if `reset`."""
        self.action, self.reset = "cut", reset
        return self._install()

    def release(self) -> None:
        """Let held frames go, now and later."""
        self._proxy.run(self._released.set)

    def remove(self) -> None:
        """Stop matching; what is held goes on."""
        self.release()
        self._proxy.run(lambda: self._proxy.rules.remove(self) if self in self._proxy.rules else None)

    async def reached(self, times: int = 1, limit: float = 5.0) -> Command:
        """Wait until the rule has acted `times` times; return the command that it acted on last."""
        await until(lambda: len(self.hits) >= times, limit)
        return self.hits[times - 1]

    def reached_sync(self, times: int = 1, limit: float = 5.0) -> Command:
        """Do the same in a test without an event loop (only with `ThreadedProxy`)."""
        until_sync(lambda: len(self.hits) >= times, limit)
        return self.hits[times - 1]

    async def wait_released(self) -> None:
        """Block until `release()`; for the proxy."""
        await self._released.wait()

    def takes(self, direction: Direction, command: Command) -> bool:
        """Count the command if it matches, and say whether the rule acts on it; for the proxy."""
        if direction != self._direction or self._connection not in (None, command.connection):
            return False
        if not (command.name == self._match.upper() if isinstance(self._match, str) else self._match(command)):
            return False
        self._matched += 1
        if self._matched < self._first or (self._last is not None and self._matched > self._last):
            return False
        self.hits.append(command)
        return True

    def _install(self) -> Self:
        self._proxy.run(lambda: self._proxy.rules.append(self))
        return self
