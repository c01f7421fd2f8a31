"""One connection that many calls share: what is asked in one turn of the event loop goes out in few writes.

Replies are taken in order as they arrive, whoever still waits for them: a call that was cancelled or ran into its limit
leaves the connection in step, since its replies are read all the same and dropped. The client library opens the
connection and shakes hands; from then on its transport is ours, so that a reply reaches its caller in one turn of the
loop. A limit is a timer of the loop and a future, never `asyncio.wait_for`, which loses cancellations on Python 3.11.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

import hiredis

from .ending import cut, ended, sever, transport_of
from .refusals import LOST, Fault, Trouble, fault_of_reply, hung_up, timed_out, trouble_of
from .wire import Command

__all__ = ["Link", "RawConnection", "State"]

_HANDSHAKE = 5.0  # it may be slower than one call's limit; past this, it is given up
_GOODBYE = 0.5  # of a polite end

# Bounds of one write, so that a crowd of calls does not build one huge buffer.
_BATCH_CALLS = 256

# So many calls don't wait for the end of the loop's turn: in a crowd, that may be as far away as a call's limit.
_ENOUGH_CALLS = 64
_BATCH_BYTES = 64 * 1024

# The reply to a call may lie unread in the socket when its timer is late because the loop was blocked.
_LATE = 0.01
_LOOK = _LATE / 2

# A call that had less time than this says nothing about the connection.
_PATIENCE = 0.01

# Limits that pass within so short a time, and so much longer for each call that waits, are looked at together.
_GRAIN = 0.001
_GRAIN_PER_CALL = 1e-6

# Falling asleep and being woken takes a processor about 40 us. So a server that has answered within NEAR, a moment
# (BRISK) ago, is waited for awake, and for no longer than that; one that is farther away, or seldom asked, never is.
_NEAR, _BRISK = 0.0001, 0.0005

_CLOSED = Trouble("closed", "the connection was closed")

_MORE = object()  # what the parser returns when a reply is not complete yet


class RawConnection(Protocol):
    """What is used of the client library's connection."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


class State(enum.Enum):
    """A link's life, in this order; SUSPECT may be left out."""

    CONNECTING = "connecting"
    OPEN = "open"
    # A call ran into its limit, or the node is to be found anew: no new calls, closed once nobody waits. Not used again
    # when it speaks after all: that may be a master that was replaced while it hung.
    SUSPECT = "suspect"
    CLOSED = "closed"


class _Call:
    """Commands that wait for their replies, and the one who waits for all of them."""

    __slots__ = ("answer", "asked_at", "left", "payload", "replies", "until")

    def __init__(
        self, payload: bytes, commands: int, answer: asyncio.Future[list[object]], asked_at: float, until: float
    ) -> None:
        self.payload = payload
        self.left = commands
        self.answer = answer
        self.asked_at = asked_at
        self.until = until
        self.replies: list[object] = []


class Link(asyncio.Protocol):
    """A connection, and the calls that wait in it. Belongs to the running event loop."""

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
        self._replies = hiredis.Reader(notEnoughData=_MORE, replyError=fault_of_reply)  # type: ignore[arg-type]
        self._transport: asyncio.Transport | None = None
        self._predecessor: asyncio.BaseProtocol | None = None
        self._queue: deque[_Call] = deque()  # not written yet
        self._sent: deque[_Call] = deque()  # in the order of the replies to come
        self._alarm: asyncio.TimerHandle | None = None  # one for all calls
        self._alarm_at = math.inf
        self._arrived = 0  # pieces of what the server has sent
        self._full = False  # the transport takes no more for now
        self._flush_due = False
        self._shared = False  # the last write that waited for company had some, as where many renewals fall due at once
        self._awake = False  # the loop is kept from falling asleep
        self._wrote_at = self._brisk_until = 0.0
        self._polite = False
        self._gone = False
        self._runner = self._loop.create_task(self._run(), name="aioelect-link")

    def call(self, commands: Sequence[Command], deadline: float) -> asyncio.Future[list[object]]:
        """Send the commands; what will be all replies, by `deadline` of the loop's clock. An error is a `Fault`."""
        if self.state is State.CLOSED:
            raise (self.trouble or _CLOSED).error()
        loop = self._loop
        answer: asyncio.Future[list[object]] = loop.create_future()
        payload = b"".join(map(hiredis.pack_command, commands))  # type: ignore[arg-type]
        self._queue.append(_Call(payload, len(commands), answer, loop.time(), deadline))
        if deadline < self._alarm_at:
            self._set_alarm(deadline)
        if len(self._queue) >= _ENOUGH_CALLS or not (self._sent or self._shared):
            self._flush()
        elif not self._flush_due:  # who else asks in this turn of the loop shares the write
            self._flush_due = True
            loop.call_soon(self._flush_shared)
        return answer

    def retire(self) -> None:
        """No new calls; close once nobody waits."""
        if self.state in (State.CONNECTING, State.OPEN):  # each caller of a crowd may say so
            self._suspect()

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
        sever(self._connection, self._runner)

    # -- limits

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = when
        self._alarm = self._loop.call_at(when, self._on_alarm)

    def _on_alarm(self) -> None:
        # If the loop was blocked, what has arrived meanwhile is still to be read, in pieces: timers come first.
        late = self._loop.time() - self._alarm_at
        self._expire_once_read(int(late / _LOOK) + 1 if late > _LATE else 0)

    def _expire_once_read(self, looks: int, had_arrived: int = -1) -> None:
        # No longer than the loop was blocked, or one that trickles would never be given up.
        if looks == 0 or had_arrived == self._arrived:
            self._expire()
        else:
            self._alarm = self._loop.call_later(_LOOK, self._expire_once_read, looks - 1, self._arrived)

    def _expire(self) -> None:
        """Fail the calls whose limit has passed, and wait for the next."""
        now = self._loop.time()
        self._alarm, self._alarm_at = None, math.inf
        next_at, suspect = math.inf, False
        for call in (*self._sent, *self._queue):
            if call.answer.done():
                continue
            if call.until > now:
                next_at = min(next_at, call.until)
                continue
            limit = call.until - call.asked_at
            call.answer.set_exception(timed_out(limit).error())
            suspect |= limit >= _PATIENCE and self.state is State.OPEN
        if next_at < math.inf:
            grain = _GRAIN + _GRAIN_PER_CALL * (len(self._sent) + len(self._queue))
            self._set_alarm(max(next_at, now + grain))
        if suspect:
            self._suspect()

    def _suspect(self) -> None:
        self.state = State.SUSPECT
        waiting = [call.answer for call in (*self._sent, *self._queue) if not call.answer.done()]
        self._left = len(waiting) + 1  # counted, not looked for: there may be thousands
        for answer in waiting:
            answer.add_done_callback(self._settle)  # answered, failed or cancelled
        self._settle()

    def _settle(self, _: object = None) -> None:
        self._left -= 1
        if not self._left:
            self._shut(None)

    # -- the connection

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
        if self._alarm is not None:
            self._alarm.cancel()
        if asyncio.current_task() is not self._runner:
            self._runner.cancel()
        self._changed(self)

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # an eager task factory would run this before the link is known to its owner
            async with asyncio.timeout(_HANDSHAKE):
                await self._connection.connect()
            if ended(self._connection):
                self._shut(LOST)
            elif self.state is State.CONNECTING:
                self._take_over(transport_of(self._connection))
                self.state = State.OPEN
                self._changed(self)
                self._flush()
            if self.state is not State.CLOSED:  # by its owner; or while connecting, and the cancellation was swallowed
                await self._loop.create_future()  # until it is closed
        except Exception as error:  # noqa: BLE001 - whatever it was, the callers must learn that the link is gone
            self._shut(trouble_of(error))
        finally:
            if not self._gone:
                self._shut(_CLOSED)
                await self._disconnect()

    def _take_over(self, transport: asyncio.Transport) -> None:
        self._predecessor = transport.get_protocol()
        transport.set_protocol(self)
        self._transport = transport

    def _flush_shared(self) -> None:
        self._flush_due = False
        self._shared = len(self._queue) > 1
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # not connected yet; or about to hear of the loss
        while self._queue and not self._full:
            payloads, size = list[bytes](), 0
            while self._queue and len(payloads) < _BATCH_CALLS and size < _BATCH_BYTES:
                call = self._queue.popleft()
                if not call.answer.done():  # else given up before it was sent: it never happened
                    self._sent.append(call)
                    payloads.append(call.payload)
                    size += len(call.payload)
            transport.write(b"".join(payloads))
            self._wrote_at = monotonic()  # uvloop's time() counts in milliseconds
            if self._wrote_at < self._brisk_until and not self._awake:
                self._stay_awake()

    def _stay_awake(self) -> None:
        # Between two turns the loop looks for answers, and while there is another turn to come it does not sleep.
        self._awake = bool(self._sent) and monotonic() < self._wrote_at + _NEAR
        if self._awake:
            self._loop.call_soon(self._stay_awake)

    def pause_writing(self) -> None:
        """For the transport: its buffer is full."""
        self._full = True

    def resume_writing(self) -> None:
        """For the transport: there is room again."""
        self._full = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        """For the transport: something has arrived."""
        self._arrived += 1
        now = monotonic()
        if now < self._wrote_at + _NEAR and len(self._sent) == 1:  # else it may answer an earlier write
            self._brisk_until = now + _BRISK
        try:
            self._replies.feed(data)
            while (reply := self._replies.gets()) is not _MORE and self.state is not State.CLOSED:
                self._take(reply)
        except hiredis.HiredisError as error:
            self._shut(trouble_of(error))

    def _take(self, reply: object) -> None:
        if self._message is not None and isinstance(reply, list) and reply[:1] == [b"message"]:
            self._message(reply[1], reply[2])
            return
        if isinstance(reply, Fault) and (end := hung_up(reply)):
            self._shut(end)
            return
        if not self._sent:
            self._shut(Trouble("connection", "a reply that nobody asked for"))
            return
        if not self.answered and not isinstance(reply, Fault):
            self.answered = True
            self._changed(self)
        call = self._sent[0]
        call.replies.append(reply)
        call.left -= 1
        if call.left == 0:
            self._sent.popleft()
            if not call.answer.done():
                call.answer.set_result(call.replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """For the transport: it is gone."""
        if self._predecessor is not None:
            # The client library waits for it when it closes; what was wrong, nobody would look at there.
            self._predecessor.connection_lost(None)
        self._shut(LOST if exc is None else trouble_of(exc))

    async def _disconnect(self) -> None:
        with contextlib.suppress(Exception):
            if self._polite:
                async with asyncio.timeout(_GOODBYE):
                    await self._connection.disconnect()
            else:
                cut(self._connection)
                await self._connection.disconnect(nowait=True)
