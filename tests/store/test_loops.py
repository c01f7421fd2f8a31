"""Event loops: another one than asyncio's own, and how `asyncio.run` ends one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine

import pytest
import uvloop
from redis.asyncio import Connection, Redis

import aioelect
from aioelect import FencedLock, StoreUnavailable, Term
from aioelect._redis.store import open_store
from store.conftest import a_claim
from store.test_links import run
from support.proxy import ThreadedProxy
from support.servers import Server
from support.tls import Certificates
from support.wait import until


async def hand_on(client: Redis, cut: Callable[[], object]) -> None:
    """Use a section, one that waits for it, and one after all connections broke."""
    section = FencedLock(client, "name", ttl=5, wait=5)

    async def second() -> Term:
        async with section as term:
            return term

    async with section as first:
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.1)
    assert (await waiting).token > first.token
    cut()
    async with FencedLock(client, "name", ttl=5, wait=5) as third:
        assert third.token > first.token
    await aioelect.aclose(client)
    await client.aclose()


def test_p4_uvloop_will_do_over_tcp_unix_sockets_and_tls(server: Server, certificates: Certificates) -> None:
    def cut() -> None:
        server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    for unix in (False, True):
        uvloop.run(hand_on(server.client(unix=unix), cut))
    with ThreadedProxy(server, tls=certificates.server) as proxy:
        options = {"ssl": True, "ssl_ca_certs": str(certificates.ca_file), "ssl_check_hostname": False}
        uvloop.run(hand_on(proxy.client(**options), lambda: proxy.run(lambda: proxy.cut(reset=True))))


@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_p4_a_connection_that_its_peer_has_closed_before_it_is_used_is_none(
    runs: Callable[[Coroutine[None, None, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is heard by the client library's stream, and not told again to whoever takes it over."""
    connect = Connection.connect

    async def connect_late(self: Connection) -> None:
        await connect(self)  # type: ignore[no-untyped-call]
        await until(lambda: self._reader is not None and self._reader.at_eof())

    async def ask(port: int) -> None:
        async with Redis(host="127.0.0.1", port=port) as client:
            store = open_store(client, "aioelect")
            with pytest.raises(StoreUnavailable) as caught:
                await store.acquire(a_claim(), limit=3.0)
            assert caught.value.reason == "connection", "at once, and not when the limit is over"
            await aioelect.aclose(client)

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
            await ask(server.sockets[0].getsockname()[1])

    monkeypatch.setattr(Connection, "connect", connect_late)
    runs(main())


def test_p6_a_release_that_asyncio_run_cancels_is_made_all_the_same(server: Server) -> None:
    """Both the task that leaves and the detached one that releases are cancelled, while the server is silent."""
    code = """
    from aioelect import FencedLock
    from redis.asyncio import Redis
    from support.wait import until

    async def main():
        redis = Redis(host="127.0.0.1", port=PORT)
        leaving = asyncio.Event()

        async def work():
            async with FencedLock(redis, "name", ttl=20) as term:
                term.start_soon(asyncio.sleep, 60)  # with a child, the release is made by a task of its own
                await Redis(host="127.0.0.1", port=PORT).client_pause(1000)
            print("not reached")

        asyncio.ensure_future(work())
        await until(lambda: any(task.get_name() == "aioelect release of name" for task in asyncio.all_tasks()))
        await asyncio.sleep(0.05)

    asyncio.run(main())
    """
    start = time.monotonic()
    run(code, server)
    assert time.monotonic() - start < 25
    assert not server.call("EXISTS", "aioelect:{name}")
