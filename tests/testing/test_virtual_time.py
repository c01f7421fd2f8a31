"""The virtual loop does what the other tests rely on, ours and those of users."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from aioelect import Lease, _clock
from aioelect.testing import MemoryStore
from aioelect.testing._virtual import Deadlock, virtual_loop, virtual_time
from support.checkpoints import Steps


@virtual_time
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


@virtual_time
async def test_in_suspend_the_clock_moves_and_timers_do_not() -> None:
    loop = virtual_loop()
    clock, timers = _clock.now(), loop.time()
    loop.suspend(60)
    await asyncio.sleep(0.1)
    assert _clock.now() - clock == pytest.approx(60.1, abs=0.001)
    assert loop.time() - timers == pytest.approx(0.1, abs=0.001)


@virtual_time
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
        virtual_time(main)()


def test_the_clock_is_the_real_one_again_after_a_run() -> None:
    async def main() -> float:
        await asyncio.sleep(1e6)
        return _clock.now()

    real = _clock.now
    assert virtual_time(main)() > 1e6
    assert _clock.now is real


@virtual_time
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


# -- what is outside of the loop ---------------------------------------------------------------------------------------


@virtual_time
async def test_a_thread_works_and_takes_the_time_that_it_takes() -> None:
    term = await Lease(MemoryStore(), "report", ttl=0.5, observers=()).try_acquire()
    assert term is not None

    def work() -> int:
        polled = 0
        while term.is_valid:  # as a thread has to, since nobody can cancel it
            time.sleep(0.01)
            polled += 1
        return polled

    began = time.monotonic()
    assert await asyncio.to_thread(work) > 1
    assert time.monotonic() - began > 0.4
    began, start = time.monotonic(), _clock.now()
    await asyncio.sleep(3600)
    assert _clock.now() - start > 3599 and time.monotonic() - began < 60


@virtual_time
async def test_a_thread_that_was_given_up_holds_time_back_no_longer() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.to_thread(time.sleep, 0.2)
    await asyncio.sleep(3600)


@virtual_time
async def test_sockets_are_refused_with_the_reason() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        pytest.raises(RuntimeError, match="no sockets, pipes and processes in virtual time"),
    ):
        await asyncio.open_connection(*listening.getsockname())
    with pytest.raises(RuntimeError, match="in real time"):
        await asyncio.create_subprocess_exec("true")


# -- the decorator -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
@virtual_time
async def test_fixtures_and_parameters_reach_a_decorated_test(tmp_path: Path, number: int) -> None:
    assert tmp_path.exists() and number in (1, 2)
    virtual_loop()


def test_the_function_keeps_its_name_and_gives_its_result() -> None:
    @virtual_time
    async def add(a: int, *, b: int) -> int:
        """Sum."""
        await asyncio.sleep(3600)
        return a + b

    assert (add.__name__, add.__doc__, add(1, b=2)) == ("add", "Sum.", 3)


async def _through(steps: Steps, coroutine: object, at: int, late: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    await steps.through(coroutine, at=at, act=task.cancel, late=late)  # type: ignore[arg-type]
