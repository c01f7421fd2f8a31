"""The connections to one server: one that works, one warm spare, and those that are on their way.

A connection carries one statement at a time. What runs into its limit is dropped, since nobody knows when its answer
will come; the retry must not wait for a new handshake then: the spare has it behind it. A connection that is slow to
open is not thrown away with the call that waited for it.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Self, TypeVar

from aioelect._errors import StoreError, StoreRejected, StoreUnavailable

from .ending import sever, silence
from .refusals import is_answer, refusal_of, timed_out
from .source import Connection, Row

__all__ = ["Connections", "bounded", "say_goodbye", "statement"]

T = TypeVar("T")

_MOST = 2

# After so long, a new attempt to connect has better prospects than one that was never answered.
_FRESH = 1.0

# A program that does one thing and ends needs no spare; and one that can't be had is not worth a handshake every call.
_SPARE_DELAY = 0.1
_SPARE_PAUSE = 1.0

# The answer may lie unread in the socket when a timer is late because the loop was blocked.
_LATE = 0.01

_GOODBYE = 0.5


class Connections:
    """Own connections to one server, in one event loop."""

    def __init__(self, dial: Callable[[], Coroutine[object, object, Connection]]) -> None:
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self._idle: deque[Connection] = deque()  # used in turn, so that a dead one does not go unnoticed for long
        self._busy: set[Connection] = set()
        self._dials: dict[asyncio.Task[Connection], float] = {}  # since when; oldest first
        self._waiters: deque[asyncio.Future[Connection]] = deque()
        self._spare_due: float | None = None  # once the server has answered, a spare is worth while
        self._spare_timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(self, query: str, arguments: tuple[object, ...], deadline: float) -> Row:
        """Carry out one statement and return its row, until `deadline` of the loop's clock.

        Raises:
            StoreError: no answer, or a refusal.
        """
        connection = await self.take(deadline)
        try:
            row = await statement(connection, query, arguments, deadline)
        except StoreError:
            self.drop(connection) if connection.is_closed() else self.give(connection)
            raise
        except BaseException:
            self.drop(connection)
            raise
        self.give(connection)
        return row

    async def take(self, deadline: float) -> Connection:
        """A connection for oneself, to be given back, dropped or kept; opened if need be."""
        if self._closed:
            raise _closed()
        limit = deadline - self._loop.time()
        while self._idle:
            connection = self._idle.popleft()
            if not connection.is_closed():
                self._busy.add(connection)
                self._provide()
                return connection
        waiter: asyncio.Future[Connection] = self._loop.create_future()
        self._waiters.append(waiter)
        timer = self._loop.call_at(deadline, self._give_up, waiter, limit)
        self._provide()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give(waiter.result())
            raise
        finally:
            timer.cancel()

    def give(self, connection: Connection) -> None:
        """It has answered, and may do so again."""
        if self._spare_due is None:
            self._spare_due = self._loop.time() + _SPARE_DELAY
            self._spare_timer = self._loop.call_at(self._spare_due, self._provide)
        self._busy.discard(connection)
        self._hand_on(connection)
        self._provide()

    def drop(self, connection: Connection) -> None:
        """Close it now."""
        connection.terminate()
        self.keep(connection)

    def keep(self, connection: Connection) -> None:
        """It is the caller's own from now on."""
        self._busy.discard(connection)
        self._provide()

    def drop_idle(self) -> None:
        """Connect anew: the server is not what it was. Calls in flight keep their connection."""
        while self._idle:
            self._idle.pop().terminate()

    async def aclose(self) -> None:
        """Close all connections."""
        self._closed = True
        self._fail(_closed())
        if self._spare_timer is not None:
            self._spare_timer.cancel()
        for dial in self._dials:
            dial.cancel()
        for connection in self._busy:
            connection.terminate()
        closing = [self._loop.create_task(say_goodbye(connection)) for connection in self._idle]
        self._idle.clear()
        if waiting := {*self._dials, *closing}:
            await asyncio.wait(waiting)

    def abandon(self) -> None:
        """Let go of everything without a sound: the loop will never run again."""
        for connection in (*self._idle, *self._busy):
            sever(connection)
        for dial in self._dials:
            silence(dial)

    # -- who gets what

    def _provide(self) -> None:
        if self._closed:
            return
        now = self._loop.time()
        count = len(self._idle) + len(self._busy) + len(self._dials)
        spare = self._spare_due is not None and now >= self._spare_due
        # Two at most: one that may take its time, and one that is renewed: a lost SYN is repeated ever more rarely.
        stuck = len(self._dials) == 1 and now - next(iter(self._dials.values())) >= _FRESH
        if (count < _MOST and spare) or (self._waiters and (count == 0 or (stuck and count == 1))):
            dial = self._loop.create_task(self._dial(), name="aioelect-dial")
            self._dials[dial] = now
            dial.add_done_callback(self._on_dialled)

    def _on_dialled(self, dial: asyncio.Task[Connection]) -> None:
        del self._dials[dial]
        if dial.cancelled():
            return
        error = dial.exception()
        if error is None:
            connection = dial.result()
            connection.terminate() if self._closed else self._hand_on(connection)
            return
        if self._spare_due is not None:
            self._spare_due = self._loop.time() + _SPARE_PAUSE
        if isinstance(error, StoreRejected) or not (self._busy or self._dials):
            self._fail(error if isinstance(error, StoreError) else refusal_of(error))

    def _hand_on(self, connection: Connection) -> None:
        if connection.is_closed():
            return
        if self._closed or len(self._idle) >= _MOST:
            connection.terminate()
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._busy.add(connection)
                waiter.set_result(connection)
                return
        self._idle.append(connection)

    def _fail(self, error: StoreError) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(copy.copy(error))

    def _give_up(self, waiter: asyncio.Future[Connection], limit: float) -> None:
        if not waiter.done():
            waiter.set_exception(timed_out(limit, "no connection"))


class _Limit:
    """A statement's limit: past it, the connection is closed, which ends the statement."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self.passed = False
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_at(deadline, self._expire, deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def _expire(self, due: float | None) -> None:
        if due is not None and self._loop.time() - due > _LATE:
            # The loop was blocked, and timers come before the socket: let it read what has arrived, once.
            self._timer = self._loop.call_later(_LATE / 2, self._expire, None)
            return
        self.passed = True
        self._connection.terminate()


async def bounded(connection: Connection, asking: Awaitable[T], deadline: float) -> T:
    """Wait for what a connection was asked for; unless the server answered, the connection is closed afterwards.

    Raises:
        StoreError: no answer, or a refusal.
    """
    limit = deadline - asyncio.get_running_loop().time()
    with _Limit(connection, deadline) as bound:
        try:
            return await asking
        except Exception as error:  # noqa: BLE001 - the driver's classes stay out of here
            if not is_answer(error):
                connection.terminate()
            raise (timed_out(limit) if bound.passed else refusal_of(error)) from None


async def statement(connection: Connection, query: str, arguments: tuple[object, ...], deadline: float) -> Row:
    """Carry out one statement on a connection, and return its row; see `bounded`."""
    row = await bounded(connection, connection.fetchrow(query, *arguments), deadline)
    assert row is not None  # no query of ours asks for nothing
    return row


async def say_goodbye(connection: Connection) -> None:
    """Close in good order, or at once."""
    try:
        await connection.close(timeout=_GOODBYE)
    except Exception:  # noqa: BLE001 - it is closed all the same
        connection.terminate()


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the connections of this store were closed", reason="closed")
