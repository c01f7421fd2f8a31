"""The forms of a section that raises what its body raised, and the groups that a caller may put around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from aioelect import Elector, FencedLock, Lease, Term
from runtime.conftest import Heard
from runtime.world import NAME, TTL
from support.process import Process

Section = contextlib.AbstractAsyncContextManager[Term, bool | None]
Form = Callable[[Process, Heard], Section]


def as_lease(store: Process, heard: Heard) -> Section:
    return Lease(store, NAME, ttl=TTL, observers=[heard])


def as_lock(store: Process, heard: Heard) -> Section:
    return FencedLock(store, NAME, ttl=TTL, wait=1, observers=[heard])


def as_lead(store: Process, heard: Heard) -> Section:
    return Elector(store, NAME, ttl=TTL, observers=[heard]).lead()


every_form = pytest.mark.parametrize("form", [as_lease, as_lock, as_lead], ids=["lease", "lock", "lead"])


@contextlib.asynccontextmanager
async def no_group() -> AsyncIterator[None]:
    yield


groups = pytest.mark.parametrize(
    "group", [no_group, asyncio.TaskGroup, anyio.create_task_group], ids=["alone", "TaskGroup", "anyio group"]
)
