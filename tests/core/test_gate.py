"""The gate of one event loop: of a crowd few begin in one turn of the loop, whatever becomes of those before."""

from __future__ import annotations

import asyncio

import pytest

from aioelect._gate import _ABREAST, _LEAST, Gate, gate


class Crowd:
    """Tasks that go through a gate, and in what order they came in."""

    def __init__(self, gate: Gate) -> None:
        self.inside: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.gate = gate

    async def come(self, count: int) -> None:
        """So many more, all in one turn."""
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._enter(len(self.tasks))))
        await asyncio.sleep(0)

    async def _enter(self, number: int) -> None:
        if not self.gate.enter():
            await self.gate.turn()
        self.inside.append(number)

    async def settle(self) -> None:
        """Until nobody waits."""
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def crowd() -> Crowd:
    return Crowd(Gate(asyncio.get_running_loop()))


async def test_few_begin_at_once_and_they_do_not_wait(crowd: Crowd) -> None:
    await crowd.come(_ABREAST)
    assert crowd.inside == list(range(_ABREAST))


async def test_p4_of_more_some_begin_in_each_turn_in_their_order_though_nobody_leaves(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + 3 * _LEAST)
    turns = [len(crowd.inside)]
    while len(crowd.inside) < len(crowd.tasks):
        await asyncio.sleep(0)
        if len(crowd.inside) > turns[-1]:
            turns.append(len(crowd.inside))
    assert turns == [_ABREAST + count * _LEAST for count in range(4)]
    assert crowd.inside == list(range(len(crowd.tasks)))


async def test_as_many_begin_as_have_left(crowd: Crowd) -> None:
    await crowd.come(2 * _ABREAST)
    for _ in range(_ABREAST):
        crowd.gate.leave()
    await asyncio.sleep(0)  # they are called up,
    await asyncio.sleep(0)  # and notice
    assert crowd.inside == list(range(2 * _ABREAST))


async def test_whoever_comes_later_passes_nobody(crowd: Crowd) -> None:
    await crowd.come(2 * _ABREAST + 1)
    for _ in range(_ABREAST):
        crowd.gate.leave()  # there is room, and one waits all the same
    await crowd.come(1)
    await crowd.settle()
    assert crowd.inside == list(range(2 * _ABREAST + 2))


async def test_one_that_is_cancelled_while_it_waits_takes_no_place(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + 2)
    crowd.tasks[_ABREAST].cancel()
    await crowd.settle()
    assert crowd.inside == [*range(_ABREAST), _ABREAST + 1]
    assert crowd.gate._inside == _ABREAST + 1


async def test_one_that_is_called_up_and_cancelled_at_once_gives_its_place_back(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + 1)
    await asyncio.sleep(0)  # it is called up, and has not noticed yet
    crowd.tasks[_ABREAST].cancel()
    await crowd.settle()
    assert crowd.inside == list(range(_ABREAST))
    assert crowd.gate._inside == _ABREAST


async def test_when_all_are_through_the_loop_is_left_alone(crowd: Crowd) -> None:
    await crowd.come(_ABREAST + 1)
    await crowd.settle()
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    assert not getattr(loop, "_ready")  # noqa: B009 - a private name of asyncio's


async def test_p15_each_loop_has_its_own(crowd: Crowd) -> None:
    async def gate_of_another_loop() -> Gate:
        return gate()

    ours = gate()
    assert await asyncio.to_thread(lambda: asyncio.run(gate_of_another_loop())) is not ours
    assert gate() is ours


class Interrupted(asyncio.Future[None]):
    """A place whose call-up does not come to its end, as by Ctrl-C."""

    def set_result(self, _: None) -> None:
        """Raise instead."""
        raise InterruptedError


async def test_a_turn_that_is_interrupted_does_not_close_the_gate(crowd: Crowd) -> None:
    await crowd.come(2 * _ABREAST)
    loop, said = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: said.append(context["exception"]))
    crowd.gate._queue.appendleft(Interrupted())
    await crowd.settle()
    assert [type(exc) for exc in said] == [InterruptedError]
    assert crowd.inside == list(range(2 * _ABREAST))
    assert crowd.gate._inside == 2 * _ABREAST
