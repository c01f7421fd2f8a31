"""A TCP proxy between client and server that makes trouble at a chosen command.

    async with Proxy(server) as proxy:
        redis = proxy.client()
        rule = proxy.reply("EVALSHA", nth=2).hold()     # the second EVALSHA is carried out, its answer stays here
        ...
        await rule.reached()                            # the command came by
        rule.release()

Rules: `request(...)` acts before the server sees the command, `reply(...)` after it was carried out. What to match: a
command name, or a predicate over `Command`. `nth` counts from 1 among what matches; `times` says how many from there on
(None: all). `connection` ties a rule to one connection (`rule.hits[0].connection`). Actions: `delay(seconds)`, `hold()`
until `release()`, `trickle(seconds)` byte by byte, `drop()`, `cut(reset=False)`.

How frames are found: both directions are fed to a `hiredis.Reader` in pieces that end at a line feed. Every RESP frame
ends in one, so the piece that makes the reader give a value ends that frame, and the raw bytes fed since the last one
are the frame, byte for byte. Nothing is ever serialised anew.

How replies are tied to requests: each connection keeps the commands that it passed on and that have no answer yet,
first in, first out. Pub/sub messages and other pushes belong to no command: a rule sees them under the names MESSAGE,
PMESSAGE, SMESSAGE or PUSH in the reply direction. SUBSCRIBE and its kin have one answer per channel; rules act on each.

What TCP does, holds here: a frame that is held or delayed keeps back what comes behind it on the same connection and
direction. After `drop()` the connection is out of step: a client that goes on using it takes the next answer for the
one that was swallowed.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import hiredis
from redis.asyncio import Redis

from support.rules import Command, Direction, Match, Rule

_SUBSCRIPTIONS = {b"subscribe", b"unsubscribe", b"psubscribe", b"punsubscribe", b"ssubscribe", b"sunsubscribe"}
_MESSAGES = {b"message", b"pmessage", b"smessage"}


class Upstream(Protocol):
    """What a proxy stands before: a `Server`, or anything with a port on the loopback."""

    @property
    def port(self) -> int:
        """Where it listens."""


def _frames(reader: hiredis.Reader, rest: bytearray, data: bytes) -> Iterator[tuple[Any, bytes]]:
    """Feed `data` and yield each finished frame with its raw bytes; `rest` keeps an unfinished one between calls."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        reader.feed(data[start:end])
        rest += data[start:end]
        start = end
        value = reader.gets()
        if value is not ...:
            yield value, bytes(rest)
            rest.clear()


@dataclass
class _Waiting:
    """A command that was passed on and awaits its answers."""

    command: Command
    answers: int


class _Connection:
    """One client connection and its counterpart to the server: two readers, two writers, a queue between each."""

    def __init__(self, proxy: "Proxy", number: int):
        self.proxy, self.number = proxy, number
        self.open = asyncio.Event()
        self.open.set()
        self._waiting: deque[_Waiting] = deque()
        self._channels: dict[bytes, set[bytes]] = {}
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, accepted: socket.socket) -> None:
        """Pass bytes on in both directions until one side closes or a rule cuts."""
        try:
            client = await _server_side(accepted, self.proxy.tls)
            self._writers.append(client[1])
            upstream = await self.proxy.dial()
            self._writers.append(upstream[1])
            queues: list[asyncio.Queue[tuple[float, Any, bytes] | None]] = [asyncio.Queue(), asyncio.Queue()]
            pumps = [
                asyncio.create_task(pump)
                for pump in (
                    self._read(client[0], queues[0]),
                    self._write("request", queues[0], upstream[1]),
                    self._read(upstream[0], queues[1]),
                    self._write("reply", queues[1], client[1]),
                )
            ]
            try:
                # A writer ends when its side has closed and all before that was passed on, or at a cut.
                await asyncio.wait((pumps[1], pumps[3]), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                for outcome in await asyncio.gather(*pumps, return_exceptions=True):
                    if isinstance(outcome, Exception) and not isinstance(outcome, OSError):
                        self.proxy.errors.append(outcome)
        except OSError:
            pass  # one side is gone, which is what proxies are for here
        finally:
            self.close()
            try:
                async with asyncio.timeout(1.0):
                    for writer in self._writers:
                        with contextlib.suppress(OSError):
                            await writer.wait_closed()
            except TimeoutError:
                pass  # a paused server reads nothing: what was to be flushed is lost
            finally:
                self.abort()

    def close(self, *, reset: bool = False) -> None:
        """Close both sides, after what was passed on has left; by RST if `reset`."""
        if reset:
            for writer in self._writers:
                with contextlib.suppress(OSError):
                    raw = writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.abort()
        for writer in self._writers:
            writer.close()

    def abort(self) -> None:
        """Close both sides now."""
        for writer in self._writers:
            writer.transport.abort()

    async def _read(
        self, reader: asyncio.StreamReader, queue: "asyncio.Queue[tuple[float, Any, bytes] | None]"
    ) -> None:
        """Take in all that comes, held or not: as a kernel's buffer would."""
        parser, rest = hiredis.Reader(notEnoughData=...), bytearray()
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                for value, raw in _frames(parser, rest, data):
                    queue.put_nowait((time.monotonic(), value, raw))
        queue.put_nowait(None)

    async def _write(
        self,
        direction: Direction,
        queue: "asyncio.Queue[tuple[float, Any, bytes] | None]",
        writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            frame = await queue.get()
            await self._pass()
            if frame is None:
                return
            arrived, value, raw = frame
            command = self._request(value) if direction == "request" else self._answered(value)
            pause = 0.0 if command is None else await self._apply(direction, command, arrived)
            if pause is None:
                continue
            await self._pass()
            if direction == "request" and command is not None:
                self._waiting.append(_Waiting(command, self._answers(command)))
            size = 1 if pause else len(raw)
            for start in range(0, len(raw), size):
                writer.write(raw[start : start + size])
                await writer.drain()
                await asyncio.sleep(pause)

    async def _pass(self) -> None:
        while not (self.open.is_set() and self.proxy.open.is_set()):
            await self.open.wait()
            await self.proxy.open.wait()

    async def _apply(self, direction: Direction, command: Command, arrived: float) -> float | None:
        """Do what the rules say; how long to pause after each byte, or None: don't pass it on."""
        pause = 0.0
        for rule in [rule for rule in self.proxy.rules if rule.takes(direction, command)]:
            match rule.action:
                case "delay":
                    await asyncio.sleep(arrived + rule.seconds - time.monotonic())
                case "hold":
                    await rule.wait_released()
                case "trickle":
                    pause = rule.seconds
                case "drop":
                    return None
                case "cut":
                    self.close(reset=rule.reset)
                    raise ConnectionAbortedError
        return pause

    def _request(self, value: Any) -> Command | None:
        if not (isinstance(value, list) and value and isinstance(value[0], bytes)):
            return None
        command = Command(tuple(value), self.number)
        self.proxy.commands.append(command)
        return command

    def _answers(self, command: Command) -> int:
        """How many frames will answer it."""
        kind = command.name.lower().encode()
        if kind not in _SUBSCRIPTIONS:
            return 1
        # Without arguments it is an UNSUBSCRIBE from all there is, answered once for each.
        return len(command.args) - 1 or max(1, len(self._channels.get(kind.replace(b"unsub", b"sub"), ())))

    def _answered(self, value: Any) -> Command | None:
        """Find the command that a frame answers; for a message or push, a command of that name."""
        kind = value[0] if isinstance(value, list) and value and isinstance(value[0], bytes) else b""
        confirms = kind in _SUBSCRIPTIONS and self._waiting and self._waiting[0].command.name.lower().encode() == kind
        if confirms:
            channels = self._channels.setdefault(kind.replace(b"unsub", b"sub"), set())
            (channels.discard if b"unsub" in kind else channels.add)(value[1])
        elif isinstance(value, hiredis.PushNotification) or (kind in _MESSAGES and self._channels):
            words = tuple(word for word in value if isinstance(word, bytes))
            return Command(words if kind in _MESSAGES else (b"push", *words), self.number)
        if not self._waiting:
            return None
        waiting = self._waiting[0]
        waiting.answers -= 1
        # A refused SUBSCRIBE is answered once, however many channels it names.
        if waiting.answers <= 0 or isinstance(value, hiredis.ReplyError):
            self._waiting.popleft()
        return waiting.command


async def _server_side(
    accepted: socket.socket, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class Proxy:
    """The proxy in the test's own event loop (see the module's words); `tls` makes it speak TLS to the client."""

    def __init__(self, upstream: Upstream | Path, *, tls: ssl.SSLContext | None = None):
        self.upstream, self.tls = upstream, tls
        self.commands: list[Command] = []
        """Every command seen, in order: for counting round trips."""
        self.rules: list[Rule] = []
        self.errors: list[Exception] = []
        self.accepted = 0
        """Connections accepted so far: the number of the next one."""
        self.port = 0
        self.open = asyncio.Event()
        self._connections: dict[int, tuple[_Connection, asyncio.Task[None]]] = {}
        self._listener: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()

    async def __aenter__(self) -> Self:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.open.set()
        self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._refuse()
        tasks = [task for _, task in self._connections.values()]
        self._cut(None, reset=False)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not self.errors, f"the proxy failed: {self.errors}"

    @property
    def url(self) -> str:
        """Its address as a URL."""
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}"

    @property
    def connections(self) -> list[int]:
        """Numbers of the connections that are open now."""
        return list(self._connections)

    def client(self, **options: Any) -> Redis:
        """Make a client to the server through this proxy, with redis-py's own defaults."""
        return Redis(host="127.0.0.1", port=self.port, **options)

    def names(self, *only: str) -> list[str]:
        """Names of the commands seen, all or only those given: for counting round trips."""
        return [command.name for command in list(self.commands) if not only or command.name in only]

    def request(self, match: Match, *, nth: int = 1, times: int | None = 1, connection: int | None = None) -> Rule:
        """Begin a rule for a command on its way to the server."""
        return Rule(self, "request", match, nth, times, connection)

    def reply(self, match: Match, *, nth: int = 1, times: int | None = 1, connection: int | None = None) -> Rule:
        """Begin a rule for the answer to a command (or for a message) on its way back."""
        return Rule(self, "reply", match, nth, times, connection)

    def black_hole(self, connection: int | None = None) -> None:
        """Stop passing anything on, both ways, without closing: one connection, or all, also new ones."""
        gate = self.open if connection is None else self._connections[connection][0].open
        self.run(gate.clear)

    def refuse(self) -> None:
        """Refuse new connections (ECONNREFUSED); those that are there stay."""
        self.run(self._refuse)

    def cut(self, connection: int | None = None, *, reset: bool = False) -> None:
        """Close one connection or all, at once."""
        self.run(lambda: self._cut(connection, reset=reset))

    def heal(self, *, deliver: bool = True) -> None:
        """Undo `black_hole` and `refuse`: what was kept back arrives late; deliver=False closes those connections."""
        self.run(lambda: self._heal(deliver=deliver))

    def clear(self) -> None:
        """Remove all rules and let go what they hold."""
        for rule in list(self.rules):
            rule.remove()

    def run(self, act: Callable[[], object]) -> None:
        """Call something in the proxy's own loop and wait for it, from whatever thread."""
        if threading.get_ident() == self._thread:
            act()
            return
        assert self._loop is not None

        async def call() -> None:
            act()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(5)

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the server; for the connections."""
        if isinstance(self.upstream, Path):
            return await asyncio.open_unix_connection(str(self.upstream))
        return await asyncio.open_connection("127.0.0.1", self.upstream.port)

    def _listen(self) -> None:
        assert self._loop is not None
        # A plain listening socket: asyncio's Server cannot be closed and opened again without waiting for its clients.
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        assert self._loop is not None
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError):
            accepted, _ = self._listener.accept()
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = self.accepted
            self.accepted += 1
            connection = _Connection(self, number)
            task = self._loop.create_task(connection.serve(accepted), name=f"proxy connection {number}")
            self._connections[number] = connection, task
            task.add_done_callback(lambda _: self._forget(number, accepted))

    def _forget(self, number: int, accepted: socket.socket) -> None:
        self._connections.pop(number, None)
        # A task that is cancelled before its first step never got to own the socket.
        accepted.close()

    def _refuse(self) -> None:
        if self._listener is not None:
            assert self._loop is not None
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _cut(self, number: int | None, *, reset: bool) -> None:
        for connection, task in [self._connections[number]] if number is not None else [*self._connections.values()]:
            connection.close(reset=reset)
            connection.abort()
            task.cancel()

    def _heal(self, *, deliver: bool) -> None:
        for number, (connection, _) in list(self._connections.items()):
            if not deliver and not (connection.open.is_set() and self.open.is_set()):
                self._cut(number, reset=True)
            connection.open.set()
        self.open.set()
        if self._listener is None:
            self._listen()


class ThreadedProxy:
    """The same proxy with a loop and thread of its own: for tests that block their loop, or have none."""

    def __init__(self, upstream: Upstream | Path, *, tls: ssl.SSLContext | None = None):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._proxy = Proxy(upstream, tls=tls)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._proxy.__aenter__(), self._loop).result(5)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._proxy.__aexit__(kind, error, at), self._loop).result(5)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
            self._loop.close()
