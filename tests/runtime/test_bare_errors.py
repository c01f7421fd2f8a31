"""Errors of the body come out as the same objects, whatever else goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from aioelect import (
    Elector,
    FencedLock,
    LeaseTaken,
    Term,
)
from aioelect.testing._memory import MemoryServer
from runtime.conftest import Heard
from runtime.forms import Form, every_form, groups, no_group
from runtime.world import NAME, TTL, turns
from support.process import Process


class Mine(Exception):
    """The body's own error."""


@every_form
@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
async def test_p8_the_bodys_error_comes_out_as_the_same_object(
    server: MemoryServer, ours: Process, heard: Heard, form: Form, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        async with form(ours, heard):
            await asyncio.sleep(0.01)
            raise error
    assert caught.value is error
    assert server.holder(NAME) is None


@every_form
@groups
async def test_p8_the_bodys_own_exception_group_is_unchanged(
    server: MemoryServer,
    ours: Process,
    heard: Heard,
    form: Form,
    group: Callable[[], contextlib.AbstractAsyncContextManager[object]],
) -> None:
    own = ExceptionGroup("mine", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])
    with pytest.raises(ExceptionGroup) as caught:
        async with form(ours, heard):
            raise own
    assert caught.value is own
    assert len(own.exceptions) == 2 and not hasattr(own, "__notes__")

    with pytest.raises(ExceptionGroup if group is not no_group else ValueError) as from_group:
        async with form(ours, heard), group():
            raise ValueError("in a group of the body's")
    if group is not no_group:
        assert isinstance(from_group.value, ExceptionGroup)
        assert [type(error) for error in from_group.value.exceptions] == [ValueError]


@every_form
async def test_p8_a_cancelled_error_that_the_body_raises_by_itself_comes_out(
    server: MemoryServer, ours: Process, heard: Heard, form: Form
) -> None:
    with pytest.raises(asyncio.CancelledError, match="my own"):
        async with form(ours, heard):
            raise asyncio.CancelledError("my own")
    assert server.holder(NAME) is None


@every_form
async def test_p8_a_body_that_turns_the_cancellation_of_a_loss_into_its_own_error_raises_that(
    server: MemoryServer, ours: Process, heard: Heard, form: Form
) -> None:
    with pytest.raises(Mine) as caught:
        async with form(ours, heard):
            server.seize(NAME)
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise Mine("instead") from None
    assert "intruder holds it" in "".join(caught.value.__notes__)


@every_form
async def test_p8_a_body_that_swallows_the_cancellation_of_a_loss_raises_lease_lost(
    server: MemoryServer, ours: Process, heard: Heard, form: Form
) -> None:
    with pytest.raises(LeaseTaken):
        async with form(ours, heard):
            server.seize(NAME)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
    await turns(2)


@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("x")], ids=repr)
async def test_p13_the_error_of_an_electors_work_comes_out_bare_and_the_next_leads_at_once(
    server: MemoryServer, ours: Process, other: Process, error: Exception
) -> None:
    async def work(term: Term) -> None:
        await asyncio.sleep(0.1)
        raise error

    with pytest.raises(type(error)) as caught:
        await Elector(ours, NAME, ttl=TTL, observers=()).run(work)
    assert caught.value is error
    assert server.holder(NAME) is None


async def test_p8_two_sections_in_one_another_keep_their_losses_apart(
    server: MemoryServer, ours: Process, heard: Heard
) -> None:
    outer = FencedLock(ours, "outer", ttl=TTL, observers=[heard])
    inner = FencedLock(ours, "inner", ttl=TTL, observers=[heard])
    async with outer as held:
        with pytest.raises(LeaseTaken) as caught:
            async with inner:
                server.seize("inner")
                await asyncio.sleep(10)
        assert caught.value.name == "inner"
        held.check()
        await asyncio.sleep(2 * TTL)
        assert held.is_leader
    with pytest.raises(LeaseTaken) as caught:
        async with outer, inner:
            server.seize("outer")
            await asyncio.sleep(10)
    assert caught.value.name == "outer"
    assert server.holder("inner") is None
