"""TELL: a blocked event loop, noticed from outside by a thread that lives as long as a term is held.

A blocked loop can't be told to stop: nothing in it runs, and its claim expires under the work. What can be done from
outside is to say where it is stuck, and to end the process before the claim does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Literal

from aioelect import _clock
from aioelect._errors import ConfigurationError
from aioelect.facts import Fact, LoopStalled, TermBegan, TermInfo, TermOver, TermStopped

__all__ = ["EXIT_CODE", "OnStall", "StallGuard", "check_on_stall"]

OnStall = Literal["report", "exit"]
EXIT_CODE = 70  # EX_SOFTWARE

_logger = logging.getLogger("aioelect")
_PERIODS = 40  # looks per ttl
_UNANSWERED = 2  # looks in a row: the first one after a suspend finds everybody just waking up


def check_on_stall(value: object) -> OnStall:
    """`value` as it may be, or ConfigurationError."""
    match value:
        case "report" | "exit":
            return value
        case _:
            raise ConfigurationError(f"on_stall={value!r}; expected 'report', 'exit' or None", reason="on_stall")


class StallGuard:
    """An observer that has each term of its elector watched by a thread.

    Args:
        on_stall: "report": log the stack of the loop's thread, once per stall, when the loop has been blocked for a
            third of the ttl, so that a renewal is overdue. "exit": that, and end the process (code 70) when the renew
            deadline passes under a blocked loop, which is before the claim expires.
        tell: the observers; they hear of it when the loop goes on.
    """

    def __init__(self, on_stall: OnStall, tell: Callable[[Fact], None]) -> None:
        self._on_stall = on_stall
        self._tell = tell
        self._watches: dict[str, _Watch] = {}

    def __call__(self, fact: Fact, /) -> None:
        """Begin and end watches."""
        match fact:
            case TermBegan(term=term):
                watch = self._watches[term.id] = _Watch(fact, self._on_stall, self._tell)
                watch.start()
            case TermStopped(term=term) if term.id in self._watches:
                self._watches[term.id].stopped = True
            case TermOver(term=term) if term.id in self._watches:
                self._watches.pop(term.id).over.set()
            case _:
                pass


class _Watch(threading.Thread):
    """Asks the loop for a sign of life, again and again."""

    def __init__(self, fact: TermBegan, on_stall: OnStall, tell: Callable[[Fact], None]) -> None:
        super().__init__(name=f"aioelect watch over {fact.term.name}", daemon=True)
        self.over = threading.Event()
        self.stopped = False  # the work was told to stop, so it may take its time
        self._term = fact.term
        self._leads_for = fact.leads_for
        self._exits = on_stall == "exit"
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def run(self) -> None:
        period = min(0.25, self._term.ttl / _PERIODS)
        while not self.over.wait(period):
            answered = threading.Event()
            asked, missed, reported = _clock.now(), 0, False
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop is closed, and the term with it
                return
            while not answered.wait(period):
                if self.over.is_set() or self._loop.is_closed():
                    return
                missed += 1
                blocked = _clock.now() - asked
                if missed < _UNANSWERED:
                    continue
                if self._exits and not self.stopped and self._leads_for() <= 0.0:
                    self._exit(blocked)
                if not reported and blocked >= self._term.ttl / 3:
                    reported = True
                    self._report(blocked)

    def _report(self, blocked: float) -> None:
        message = "%s: the event loop of %s, token %d (term %s), has been blocked for %.3f s; it is at\n%s"
        self._say(logging.WARNING, message, blocked)
        fact = LoopStalled(self._term, blocked, self._stack())
        self._loop.call_soon_threadsafe(self._tell, fact)  # heard in order, when the loop goes on

    def _exit(self, blocked: float) -> None:
        message = (
            "%s: the event loop of %s, token %d (term %s), has been blocked for %.3f s, past its renew deadline; this "
            "process ends before another can lead. It is at\n%s"
        )
        self._say(logging.CRITICAL, message, blocked)
        os._exit(EXIT_CODE)

    def _say(self, level: int, message: str, blocked: float) -> None:
        # The loop's thread may be stuck in a log handler, and hold its lock: whoever waits for that is not this thread.
        speaker = threading.Thread(target=self._log, args=(level, message, blocked, self._stack()), daemon=True)
        speaker.start()
        speaker.join(self._term.ttl / 20)

    def _log(self, level: int, message: str, blocked: float, stack: str) -> None:
        term = self._term
        fields = _fields(term)
        _logger.log(level, message, term.name, term.identity, term.token, term.id, blocked, stack, extra=fields)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - documented, there is no other name for it
        return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "(its thread is gone)"


def _fields(term: TermInfo) -> dict[str, object]:
    return {
        "lease_name": term.name,
        "identity": term.identity,
        "token": term.token,
        "term_id": term.id,
        "reason": "stalled",
    }
