"""The virtual loop does what the other tests of this ring rely on."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioelect import _clock
from support.checkpoints import Steps
from support.virtual_time import Deadlock, run, virtual_loop


async def test_an_hour_passes_at_once_and_timers_keep_their_order() -> None:
    began, order = time.monotonic(), []

    async def after(delay: float) -> None:
        await asyncio.sleep(delay)
        order.append(delay)

    start = _clock.now()
    await asyncio.gather(after(3600), after(1), after(60))
    assert order == [1, 60, 3600]
    assert _clock.now() - start == pytest.approx(3600, abs=0.01)
    assert time.monotonic() - began < 30


async def test_in_suspend_the_clock_moves_and_timers_do_not() -> None:
    loop = virtual_loop()
    clock, timers = _clock.now(), loop.time()
    loop.suspend(60)
    await asyncio.sleep(0.1)
    assert _clock.now() - clock == pytest.approx(60.1, abs=0.001)
    assert loop.time() - timers == pytest.approx(0.1, abs=0.001)


async def test_code_that_spins_makes_time_pass() -> None:
    start, turns = _clock.now(), 0
    while _clock.now() < start + 0.01:
        await asyncio.sleep(0)
        turns += 1
    assert 900 < turns < 1100


def test_a_deadlock_is_an_error_at_once() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run(main)


def test_the_clock_is_the_real_one_again_after_a_run() -> None:
    async def main() -> float:
        await asyncio.sleep(1e6)
        return _clock.now()

    real = _clock.now
    assert run(main) > 1e6
    assert _clock.now is real


@pytest.mark.parametrize("late", [False, True])
async def test_checkpoints_are_counted_and_each_can_be_acted_on(late: bool) -> None:
    async def three(done: list[int]) -> None:
        for step in (1, 2, 3):
            await asyncio.sleep(0.1 * (step != 2))
            done.append(step)

    for at in (1, 2, 3, 4):
        steps, done = Steps(), list[int]()
        task = asyncio.create_task(_through(steps, three(done), at, late))
        await asyncio.wait({task})
        assert task.cancelled() == steps.acted == (at < 4)
        assert done == list(range(1, at))


async def _through(steps: Steps, coroutine: object, at: int, late: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    await steps.through(coroutine, at=at, act=task.cancel, late=late)  # type: ignore[arg-type]
