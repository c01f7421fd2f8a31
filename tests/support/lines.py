"""Ways to servers of any kind that can be cut in both directions or in one: plain TCP, whatever is spoken over it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Literal, Self

Direction = Literal["requests", "answers"]
BOTH: tuple[Direction, ...] = ("requests", "answers")


class Line:
    """One way to one server, in the test's event loop: bytes pass on, unless their direction is stopped."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.port = 0
        self.kept: Counter[Direction] = Counter()
        """How often something came by in a direction that was stopped."""
        self._gates = {direction: asyncio.Event() for direction in BOTH}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        for gate in self._gates.values():
            gate.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        self.go()
        while self._tasks:
            self.cut()  # once more, for what was only just being opened
            await asyncio.wait(self._tasks, timeout=0.02)

    def stop(self, *directions: Direction) -> None:
        """Keep back what comes from now on; all connections stay, as after a packet filter was changed."""
        for direction in directions or BOTH:
            self._gates[direction].clear()

    def go(self) -> None:
        """Let all pass again, what was kept back first."""
        for gate in self._gates.values():
            gate.set()

    def cut(self) -> None:
        """Close all connections; what was kept back is lost."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            writer.transport.abort()
            return
        finally:
            self._writers.discard(writer)
        pair = {writer, back}
        self._writers |= pair
        pumps = [
            asyncio.create_task(pump)
            for pump in (self._pump("requests", reader, back), self._pump("answers", there, writer))
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers -= pair
            for each in pair:
                each.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gate = self._gates[direction]
        with suppress(OSError):
            while data := await reader.read(65536):
                if not gate.is_set():
                    self.kept[direction] += 1
                    await gate.wait()
                writer.write(data)
                await writer.drain()


class Network:
    """One participant's lines to all servers of a deployment: addresses of its own, so nothing is shared."""

    def __init__(self, ports: Iterable[int]) -> None:
        self.lines = {port: Line(port) for port in ports}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for line in self.lines.values():
            await self._stack.enter_async_context(line)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def port(self, upstream: int) -> int:
        """Where the line to a server begins."""
        return self.lines[upstream].port if upstream in self.lines else upstream

    def stop(self, *directions: Direction) -> None:
        """Stop directions on all lines."""
        for line in self.lines.values():
            line.stop(*directions)

    def go(self) -> None:
        """Let all pass again."""
        for line in self.lines.values():
            line.go()

    def cut(self) -> None:
        """Close all connections."""
        for line in self.lines.values():
            line.cut()

    def kept(self, direction: Direction) -> int:
        """How often something was kept back."""
        return sum(line.kept[direction] for line in self.lines.values())
