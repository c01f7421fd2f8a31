"""What belongs to an event loop goes with it, and what loops in several threads share stands that."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from aioelect._events import Observers, _recent, remember
from aioelect._per_loop import LoopLocal


def test_one_of_a_kind_for_each_loop() -> None:
    kind = LoopLocal(lambda loop: [loop])

    async def here() -> list[asyncio.AbstractEventLoop]:
        assert kind() is kind()
        return kind()

    first, second = asyncio.run(here()), asyncio.run(here())
    assert first is not second
    assert list(kind._of) == second, "the one of a loop that was closed has been let go"


def test_p15_terms_are_remembered_from_loops_in_many_threads() -> None:
    observers = Observers([])

    def win(tokens: Iterable[int]) -> None:
        for token in tokens:
            remember(token, "name", observers)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            for end in [threads.submit(win, range(first, 80_000, 4)) for first in range(4)]:
                end.result()
        assert len(_recent) == 1024
    finally:
        sys.setswitchinterval(before)
        _recent.clear()
