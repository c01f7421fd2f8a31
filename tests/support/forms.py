"""Every form in which the library is used, as a function that runs a body under a claim.

For promises that hold whichever form one takes: `await form.use(redis, name, body, ttl=1.0)` ends with the body, or
with whatever kept it from running.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from redis.asyncio import Redis

from aioelect import Elector, FencedLock, Lease, NotAcquired, Term

Body = Callable[[Term], Awaitable[None]]


class Use(Protocol):
    """Run the body under a claim."""

    async def __call__(self, redis: Redis, name: str, body: Body, **options: Any) -> None: ...


@dataclass(frozen=True)
class Form:
    """One form of use."""

    name: str
    use: Use
    stands: bool
    """True if it goes on until it gets in; False if it gives up after at most `PATIENCE`."""


PATIENCE = 0.5
"""What the forms with a limited wait wait."""


async def _lease(redis: Redis, name: str, body: Body, **options: Any) -> None:
    async with Lease(redis, name, **options) as term:
        await body(term)


async def _lease_decorator(redis: Redis, name: str, body: Body, **options: Any) -> None:
    @Lease(redis, name, **options)
    async def section() -> None:
        await body(_Unnamed())  # type: ignore[arg-type]  # a decorated function doesn't see its term

    await section()


async def _try_acquire(redis: Redis, name: str, body: Body, **options: Any) -> None:
    term = await Lease(redis, name, **options).try_acquire()
    if term is None:
        raise NotAcquired("held")
    try:
        await body(term)
    finally:
        await term.release()


async def _lock(redis: Redis, name: str, body: Body, **options: Any) -> None:
    async with FencedLock(redis, name, **options) as term:
        await body(term)


async def _lock_with_limit(redis: Redis, name: str, body: Body, **options: Any) -> None:
    await _lock(redis, name, body, wait=PATIENCE, **options)


async def _lock_decorator(redis: Redis, name: str, body: Body, **options: Any) -> None:
    @FencedLock(redis, name, wait=PATIENCE, **options)
    async def section() -> None:
        await body(_Unnamed())  # type: ignore[arg-type]

    await section()


async def _run(redis: Redis, name: str, body: Body, **options: Any) -> None:
    await Elector(redis, name, **options).run(body)


async def _running(redis: Redis, name: str, body: Body, **options: Any) -> None:
    over = asyncio.Event()

    async def work(term: Term) -> None:
        try:
            await body(term)
        finally:
            over.set()

    async with Elector(redis, name, **options).running(work) as elector:
        await elector.wait_elected()
        await over.wait()


async def _lead(redis: Redis, name: str, body: Body, **options: Any) -> None:
    async with Elector(redis, name, **options).lead() as term:
        await body(term)


async def _candidacy(redis: Redis, name: str, body: Body, **options: Any) -> None:
    async with Elector(redis, name, **options) as elector:
        await body(await elector.wait_elected())


class _Unnamed:
    """Stands for the term where the form doesn't hand it out."""


FORMS = (
    Form("lease", _lease, stands=False),
    Form("lease decorator", _lease_decorator, stands=False),
    Form("try_acquire", _try_acquire, stands=False),
    Form("lock without limit", _lock, stands=True),
    Form("lock with limit", _lock_with_limit, stands=False),
    Form("lock decorator", _lock_decorator, stands=False),
    Form("run", _run, stands=True),
    Form("running", _running, stands=True),
    Form("lead", _lead, stands=True),
    Form("candidacy", _candidacy, stands=True),
)
