"""What a copy hears of a name, through all that lies between it and its store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aioelect._store import Notice, NoticeKind, Watch

__all__ = ["Ear", "Way"]


@dataclass
class Way:
    """What lies between a copy and its store."""

    there: float = 0.0  # seconds that a request takes
    back: float = 0.0  # seconds that an answer takes, and a notice
    cut: bool = False


class Ear:
    """One listener of a copy; see `aioelect._store.Watch`. It has a task of its own only while somebody waits."""

    def __init__(self, name: str, watch: Watch, way: Way, siblings: set[Ear]) -> None:
        self.name = name
        self._watch = watch
        self._way = way
        self._siblings = siblings
        self._loop = asyncio.get_running_loop()
        self._confirmed = self._closed = False
        self._missed = False  # something may have been, and the way is open again
        self._turn: asyncio.Future[Notice | None] = self._loop.create_future()
        siblings.add(self)
        self._loop.call_later(way.there + way.back, self._confirm)

    @property
    def live(self) -> bool:
        """True while notices arrive."""
        return self._open and self._watch.live

    async def ready(self, limit: float) -> bool:
        """Wait for the confirmation."""
        until = self._loop.time() + limit
        while not (self._open or self._closed) and (left := until - self._loop.time()) > 0:
            await asyncio.wait({self._turn}, timeout=left)
        left = until - self._loop.time()
        return left > 0 and await self._watch.ready(left) and self.live

    async def next(self, limit: float | None) -> Notice | None:
        """Wait for the newest notice since the last call."""
        until = None if limit is None else self._loop.time() + limit
        while not self._missed:
            left = None if until is None else max(0.0, until - self._loop.time())
            heard = self._loop.create_task(self._watch.next(left))
            try:
                await asyncio.wait({heard, self._turn}, return_when=asyncio.FIRST_COMPLETED)
                if heard.done() and heard.result() is None:  # the time is up, or nothing will come any more
                    return None
                if heard.done() and self._open:
                    await asyncio.sleep(self._way.back)
                    return heard.result()
            except asyncio.CancelledError:
                self._missed = heard.done()
                raise
            finally:
                heard.cancel()
        self._missed = False
        return Notice(NoticeKind.RESYNC)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._siblings.discard(self)
        self._watch.close()
        self._look()

    def healed(self) -> None:
        """The way is open again, and who knows what was missed."""
        self._missed = True
        self._look()

    @property
    def _open(self) -> bool:
        return self._confirmed and not self._way.cut

    def _confirm(self) -> None:
        self._confirmed = True
        self._look()

    def _look(self) -> None:
        if not self._turn.done() and not self._loop.is_closed():
            self._turn.set_result(None)
        self._turn = self._loop.create_future()
