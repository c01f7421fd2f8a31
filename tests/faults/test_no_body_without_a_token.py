"""P11: nothing but a clear "yes" is a win, so no body runs without a confirmed token, in whatever form of use.

Every test makes one kind of trouble and sends all forms of use into it at once, each for a name of its own.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from aioelect import StoreRejected, StoreUnavailable, Term, aclose
from conftest import Connect, MakeServer
from support.forms import FORMS, PATIENCE, Form
from support.proxy import Proxy
from support.servers import Server, free_port
from support.wait import until

pytestmark = pytest.mark.faults

TTL = 1.0
LONG_ENOUGH = PATIENCE + 2 * TTL
"""By then every form that gives up has done so."""


class Attempts:
    """One attempt in every form."""

    def __init__(self, redis: Redis):
        self.entered: list[str] = []
        self._tasks = {form: asyncio.create_task(self._attempt(redis, form)) for form in FORMS}

    async def _attempt(self, redis: Redis, form: Form) -> None:
        async def body(term: Term) -> None:
            self.entered.append(form.name)

        await form.use(redis, form.name, body, ttl=TTL)

    async def outcomes(self) -> dict[Form, BaseException | None]:
        """What each raised; None for those that still wait, which are then cancelled."""
        given_up = [task for form, task in self._tasks.items() if not form.stands]
        await asyncio.wait(given_up, timeout=30)
        # Those that stand may need a moment more to hear of a refusal, or to go on trying.
        await asyncio.wait(self._tasks.values(), timeout=PATIENCE)
        waiting = [task for task in self._tasks.values() if not task.done()]
        for task in waiting:
            task.cancel()
        await asyncio.wait(self._tasks.values(), timeout=30)
        return {form: None if task in waiting else task.exception() for form, task in self._tasks.items()}

    async def cancelled(self) -> list[bool]:
        """Cancel all; whether each came out as cancelled."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values(), timeout=30)
        return [task.cancelled() for task in self._tasks.values()]


@pytest.fixture
async def used() -> AsyncIterator[list[Redis]]:
    """Clients whose own connections are closed after the test."""
    clients: list[Redis] = []
    yield clients
    for client in clients:
        await aclose(client)


def claims(server: Server) -> list[bytes]:
    """Claims that lie in the server now."""
    return [key for key in server.call("KEYS", "aioelect:{*}") if key.endswith(b"}")]


def check(outcomes: dict[Form, BaseException | None], kind: type[Exception], *, also_standing: bool) -> None:
    """All that give up raise `kind`; those that stand do too, or go on waiting."""
    for form, outcome in outcomes.items():
        if form.stands and not also_standing:
            assert outcome is None, f"{form.name} ended: {outcome!r}"
        else:
            assert type(outcome) is kind, f"{form.name}: {outcome!r}"


async def test_p11_no_body_while_the_server_is_silent(proxy: Proxy, connect: Connect, used: list[Redis]) -> None:
    used.append(redis := connect(proxy))
    proxy.black_hole()
    attempts = Attempts(redis)
    check(await attempts.outcomes(), StoreUnavailable, also_standing=False)
    assert attempts.entered == []


async def test_p11_no_body_when_the_yes_never_arrives(
    proxy: Proxy, server: Server, connect: Connect, used: list[Redis]
) -> None:
    used.append(redis := connect(proxy))
    proxy.reply("EVALSHA", times=None).drop()
    proxy.reply("EVAL", times=None).drop()
    attempts = Attempts(redis)
    check(await attempts.outcomes(), StoreUnavailable, also_standing=False)
    assert attempts.entered == []
    # Each of them was granted by the server. What cannot be undone by the same way ends with its ttl.
    await until(lambda: not claims(server), limit=3 * TTL + 2)


async def test_p11_no_body_when_the_connection_is_refused(connect: Connect, used: list[Redis]) -> None:
    used.append(redis := Redis(host="127.0.0.1", port=free_port()))
    attempts = Attempts(redis)
    check(await attempts.outcomes(), StoreUnavailable, also_standing=False)
    assert attempts.entered == []
    await redis.aclose()


async def test_p11_no_body_with_a_wrong_password(make_server: MakeServer, connect: Connect, used: list[Redis]) -> None:
    server = make_server(requirepass="right")
    for credentials in ({}, {"password": "wrong"}, {"username": "nobody", "password": "right"}):
        used.append(redis := connect(server, **credentials))
        attempts = Attempts(redis)
        check(await attempts.outcomes(), StoreRejected, also_standing=True)
        assert attempts.entered == []


async def test_p11_no_body_without_permission(make_server: MakeServer, connect: Connect, used: list[Redis]) -> None:
    server = make_server()
    server.call("ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@read", "+@connection")
    used.append(redis := connect(server, username="reader", password="secret"))
    attempts = Attempts(redis)
    check(await attempts.outcomes(), StoreRejected, also_standing=True)
    assert attempts.entered == []


async def test_p11_no_body_while_the_server_is_out_of_memory(
    make_server: MakeServer, connect: Connect, used: list[Redis]
) -> None:
    server = make_server(maxmemory="1", maxmemory_policy="noeviction")
    used.append(redis := connect(server))
    attempts = Attempts(redis)
    # It can pass by itself: who stands goes on.
    check(await attempts.outcomes(), StoreRejected, also_standing=False)
    assert attempts.entered == []
    assert claims(server) == []


async def test_p5_no_body_when_cancelled_before_the_yes_arrives(
    proxy: Proxy, server: Server, connect: Connect, used: list[Redis]
) -> None:
    used.append(redis := connect(proxy))
    held = proxy.reply(lambda command: command.name in ("EVALSHA", "EVAL"), times=None).hold()
    attempts = Attempts(redis)
    await held.reached()
    cancelled = asyncio.create_task(attempts.cancelled())
    await asyncio.sleep(0)
    held.remove()  # now the yes arrives, too late
    assert all(await cancelled)
    assert attempts.entered == []
    await until(lambda: not claims(server), limit=3 * TTL)


async def test_p11_each_form_runs_its_body_once_when_all_is_well(
    server: Server, redis: Redis, used: list[Redis]
) -> None:
    used.append(redis)
    attempts = Attempts(redis)
    outcomes = await attempts.outcomes()
    assert [form.name for form, outcome in outcomes.items() if outcome is not None] == []
    assert sorted(attempts.entered) == sorted(form.name for form in FORMS)
    assert claims(server) == []
