"""The gate of one event loop: few tries at a time while answers come, all of them when none does."""

from __future__ import annotations

import asyncio

import pytest

from aioelect._gate import _ABREAST, _LOOK, _LOOKS, Gate, gate
from support.wait import until

MORE = 10


class Crowd:
    """Tasks that go through a gate, and in what order they came in."""

    def __init__(self, gate: Gate) -> None:
        self.inside: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._gate = gate

    async def come(self, count: int, patience: float | None = None) -> None:
        """So many more."""
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._enter(len(self.tasks), patience)))
        await asyncio.sleep(0)

    async def _enter(self, number: int, patience: float | None) -> None:
        if not self._gate.enter():
            await self._gate.turn(patience)
        self.inside.append(number)

    async def one_leaves(self) -> None:
        """Whoever is called up by that notices."""
        self._gate.leave()
        await asyncio.sleep(0)

    async def all_leave(self) -> None:
        """One after the other."""
        left = 0
        while left < len(self.inside):
            await self.one_leaves()
            left += 1


@pytest.fixture
async def crowd() -> Crowd:
    return Crowd(Gate(asyncio.get_running_loop()))


async def test_so_many_go_at_once_and_the_others_in_their_order_as_places_get_free(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + MORE)
    for count in range(MORE + 1):
        assert crowd.inside == list(range(_ABREAST + count))
        await crowd.one_leaves()
    assert crowd.inside == list(range(_ABREAST + MORE))


async def test_whoever_comes_later_passes_nobody(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + 1)
    crowd._gate.leave()  # the one that waits is called up, and has not noticed yet
    await crowd.come(1)
    assert crowd.inside == list(range(_ABREAST + 1))
    await crowd.one_leaves()
    assert crowd.inside == list(range(_ABREAST + 2))


async def test_one_that_is_cancelled_while_it_waits_takes_no_place(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + 2)
    crowd.tasks[_ABREAST].cancel()
    await asyncio.wait([crowd.tasks[_ABREAST]])
    await crowd.one_leaves()
    assert crowd.inside == [*range(_ABREAST), _ABREAST + 1]


async def test_one_that_is_called_up_and_cancelled_at_once_gives_its_place_to_the_next(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + 2)
    crowd._gate.leave()
    crowd.tasks[_ABREAST].cancel()
    await asyncio.wait([crowd.tasks[_ABREAST]])
    await until(lambda: crowd.inside == [*range(_ABREAST), _ABREAST + 1])
    await crowd.come(1)
    assert len(crowd.inside) == _ABREAST + 1  # all places are taken: none got lost, none was made


async def test_p4_if_nobody_leaves_all_go_ahead(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + MORE)
    started = asyncio.get_running_loop().time()
    await until(lambda: len(crowd.inside) == _ABREAST + MORE)
    assert asyncio.get_running_loop().time() >= started + _LOOK * (_LOOKS - 1)
    assert crowd.inside == list(range(_ABREAST + MORE))
    await crowd.come(1)  # and so does whoever comes then
    await until(lambda: len(crowd.inside) == _ABREAST + MORE + 1)


async def test_while_somebody_leaves_now_and_then_the_others_wait(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + 3 * MORE)
    for count in range(1, MORE):
        crowd._gate._look()
        crowd._gate._look()
        await crowd.one_leaves()
        assert len(crowd.inside) == _ABREAST + count
    crowd._gate._look()
    crowd._gate._look()
    crowd._gate._look()
    await asyncio.sleep(0)
    assert len(crowd.inside) == _ABREAST + 3 * MORE


async def test_p4_whoever_has_little_time_goes_ahead_when_half_of_it_is_over(crowd: Crowd) -> None:
    await crowd.come(_ABREAST)
    await crowd.come(1)
    await crowd.come(1, patience=0.0)
    crowd._gate._quiet = -1_000_000  # as if others left all the time
    await until(lambda: crowd.inside == [*range(_ABREAST), _ABREAST + 1])
    await crowd.one_leaves()
    assert len(crowd.inside) == _ABREAST + 1  # it counts as any other
    await crowd.one_leaves()
    assert crowd.inside[-1] == _ABREAST


async def test_when_all_have_left_it_is_as_new_and_looks_no_more(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + MORE)
    await crowd.all_leave()
    assert crowd._gate._inside == 0
    await until(lambda: crowd._gate._timer is None)
    await crowd.come(_ABREAST)
    assert len(crowd.inside) == 2 * _ABREAST + MORE


async def test_p15_each_event_loop_has_a_gate_of_its_own() -> None:
    async def its_gate() -> Gate:
        return gate()

    assert gate() is gate()
    assert await asyncio.to_thread(lambda: asyncio.run(its_gate())) is not gate()
