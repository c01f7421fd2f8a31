"""One connection that many calls share: what is asked in one turn of the event loop goes out in one write.

A reader of its own takes the replies in order, whoever still waits for them: a call that was cancelled or ran into its
limit leaves the connection in step, since its replies are read all the same and dropped. A limit is a timer of the
loop and a future, never `asyncio.wait_for`, which loses cancellations on Python 3.11.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from redis import exceptions as redis_errors

from .ending import cut, sever
from .refusals import Fault, Trouble, fault_of, is_reply, timed_out, trouble_of
from .wire import Command, pack

__all__ = ["Link", "RawConnection", "State"]

# A handshake may be slower than one call's limit; past this, it is given up.
_HANDSHAKE = 5.0

# How long a polite goodbye may take.
_GOODBYE = 0.5

# Bounds of one write, so that a crowd of calls neither builds one huge buffer nor starves the loop.
_BATCH_CALLS = 256
_BATCH_BYTES = 64 * 1024

# The reply to a call may lie unread in the socket when its timer is late because the loop was blocked.
_LATE = 0.01

# A call that had less time than this says nothing about the connection.
_PATIENCE = 0.01

_CLOSED = Trouble("closed", "the connection was closed")


class RawConnection(Protocol):
    """What is used of the client library's connection."""

    @property
    def is_connected(self) -> bool: ...

    async def connect(self) -> None: ...

    async def send_packed_command(self, command: Iterable[bytes], check_health: bool = True) -> None: ...

    async def read_response(self, disable_decoding: bool = False, *, disconnect_on_error: bool = True) -> object: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


class State(enum.Enum):
    """A link's life, in this order; SUSPECT may be left out."""

    CONNECTING = "connecting"
    OPEN = "open"
    SUSPECT = "suspect"  # a call ran into its limit: no new calls, closed once nobody waits
    CLOSED = "closed"


class _Call:
    """Commands that wait for their replies, and the one who waits for all of them."""

    __slots__ = ("answer", "left", "payload", "replies")

    def __init__(self, payload: bytes, commands: int, answer: asyncio.Future[list[object]]) -> None:
        self.payload = payload
        self.left = commands
        self.answer = answer
        self.replies: list[object] = []

    def take(self, reply: object) -> bool:
        """One more reply; True if it was the last."""
        self.replies.append(reply)
        self.left -= 1
        if self.left == 0 and not self.answer.done():
            self.answer.set_result(self.replies)
        return self.left == 0


class Link:
    """A connection, the task that runs it, and the calls that wait in it. Belongs to the running event loop."""

    def __init__(
        self,
        connection: RawConnection,
        changed: Callable[[Link], None],
        message: Callable[[bytes, object], None] | None = None,
    ) -> None:
        self.state = State.CONNECTING
        self.slow = False  # while connecting: somebody has waited for it in vain
        self.answered = False
        self.trouble: Trouble | None = None  # once closed: why, if not on purpose
        self.native: bytes | None = None  # the server's own compare-and-delete command, where it has one
        self.probed = False  # whether `native` has been asked for
        self._connection = connection
        self._changed = changed
        self._message = message  # told of what arrives on channels, which is nobody's reply
        self._loop = asyncio.get_running_loop()
        self.born = self._loop.time()
        self._queue: deque[_Call] = deque()  # not sent yet
        self._sent: deque[_Call] = deque()  # in the order of the replies to come
        self._waiting = 0
        self._wake = asyncio.Event()
        self._polite = False
        self._gone = False
        self._writer: asyncio.Task[None] | None = None
        self._runner = self._loop.create_task(self._run(), name="aioelect-link")

    async def call(self, commands: Sequence[Command], limit: float) -> list[object]:
        """Send the commands, wait up to `limit` seconds for all replies; an error reply is a `Fault`."""
        if self.state is State.CLOSED:
            raise (self.trouble or _CLOSED).error()
        answer: asyncio.Future[list[object]] = self._loop.create_future()
        self._queue.append(_Call(pack(commands), len(commands), answer))
        self._wake.set()
        timer = self._loop.call_later(limit, self._expire, answer, limit, self._loop.time() + limit)
        self._waiting += 1
        try:
            return await answer
        finally:
            timer.cancel()
            self._waiting -= 1
            self._settle()

    def retire(self) -> None:
        """No new calls; close once nobody waits."""
        if self.state is not State.CLOSED:
            self.state = State.SUSPECT
            self._settle()

    def close(self) -> None:
        """Close now; who still waits gets `StoreUnavailable`."""
        self._shut(_CLOSED)

    async def wait_closed(self) -> None:
        """Close politely and wait until the socket is gone."""
        self._polite = True
        self.close()
        await asyncio.wait([self._runner])

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        self._gone = True
        self.state = State.CLOSED
        sever(self._connection, [task for task in (self._runner, self._writer) if task is not None])

    def _expire(self, answer: asyncio.Future[list[object]], limit: float, due: float | None) -> None:
        if answer.done():
            return
        if due is not None and self._loop.time() - due > _LATE:
            # The loop was blocked, and timers come before the reader: let it read what has arrived, once.
            self._loop.call_later(_LATE / 2, self._expire, answer, limit, None)
            return
        answer.set_exception(timed_out(limit).error())
        if limit >= _PATIENCE:
            self.retire()

    def _settle(self) -> None:
        if self.state is State.SUSPECT and self._waiting == 0:
            self._shut(None)

    def _shut(self, trouble: Trouble | None) -> None:
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self.trouble = trouble
        for call in (*self._sent, *self._queue):
            if not call.answer.done():
                call.answer.set_exception((trouble or _CLOSED).error())
        self._sent.clear()
        self._queue.clear()
        if asyncio.current_task() is not self._runner:
            self._runner.cancel()
        self._changed(self)

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # an eager task factory would run this before the link is known to its owner
            async with asyncio.timeout(_HANDSHAKE):
                await self._connection.connect()
            if self.state is State.CONNECTING:
                self.state = State.OPEN
                self._changed(self)
            self._writer = self._loop.create_task(self._write(), name="aioelect-link-writer")
            await self._read()
        except Exception as error:  # noqa: BLE001 - whatever it was, the callers must learn that the link is gone
            self._shut(trouble_of(error))
        finally:
            if not self._gone:
                if self._writer is not None:
                    self._writer.cancel()
                self._shut(_CLOSED)
                await self._disconnect()

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while batch := self._batch():
                    if not self._connection.is_connected:
                        # The client library would open another connection behind our back.
                        raise redis_errors.ConnectionError("the connection was lost")
                    await self._connection.send_packed_command(batch, check_health=False)
        except Exception as error:  # noqa: BLE001 - whatever it was, the callers must learn that the link is gone
            self._shut(trouble_of(error))

    def _batch(self) -> list[bytes]:
        payloads: list[bytes] = []
        size = 0
        while self._queue and len(payloads) < _BATCH_CALLS and size < _BATCH_BYTES:
            call = self._queue.popleft()
            if not call.answer.done():  # else given up before it was sent: it never happened
                self._sent.append(call)
                payloads.append(call.payload)
                size += len(call.payload)
        return payloads

    async def _read(self) -> None:
        while True:
            reply: object
            try:
                reply = await self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
            except redis_errors.RedisError as error:
                if not is_reply(error):
                    raise
                reply = fault_of(error)
            if self._message is not None and isinstance(reply, list) and reply[:1] == [b"message"]:
                self._message(reply[1], reply[2])
                continue
            if not self._sent:
                raise redis_errors.ConnectionError("a reply that nobody asked for")
            if self._sent[0].take(reply):
                self._sent.popleft()
            if not self.answered and not isinstance(reply, Fault):
                self.answered = True
                self._changed(self)

    async def _disconnect(self) -> None:
        with contextlib.suppress(Exception):
            if self._polite:
                async with asyncio.timeout(_GOODBYE):
                    await self._connection.disconnect()
            else:
                cut(self._connection)
                await self._connection.disconnect(nowait=True)
