"""P12: the server's own compare-and-delete where it has one, found out by trying, forgotten with the connection."""

import pytest
from redis.asyncio import Redis

from aioelect import FencedLock, Lease, ReleaseOutcome, aclose
from conftest import Connect, MakeServer
from support import servers
from support.proxy import Proxy
from support.servers import Binary, Server

pytestmark = pytest.mark.faults

FORMS = ("DELEX", "DELIFEQ", "EVALSHA")


def native(binary: Binary) -> str:
    """How a release is sent to this server."""
    if binary.is_valkey:
        return "DELIFEQ" if binary.version >= (9, 0, 0) else "EVALSHA"
    return "DELEX" if binary.version >= (8, 4, 0) else "EVALSHA"


async def release_form(proxy: Proxy, redis: Redis, server: Server) -> str:
    """How a release goes to the server now."""
    term = await Lease(redis, "name").try_acquire()
    assert term is not None
    proxy.commands.clear()
    assert await term.release() is ReleaseOutcome.RELEASED
    assert server.call("EXISTS", "aioelect:{name}") == 0
    # What is sent with a value that is nobody's is the trying.
    forms = [c.name for c in proxy.commands if c.name in FORMS and b"aioelect:nobody" not in c.args]
    assert len(forms) == 1, "a release is one round trip"
    return forms[0]


async def test_p12_each_server_is_asked_in_its_own_way(any_server: Server, proxy: Proxy, connect: Connect) -> None:
    redis = connect(proxy)
    for _ in range(3):
        assert await release_form(proxy, redis, any_server) == native(any_server.binary)
    tried = [c for c in proxy.commands if b"aioelect:nobody" in c.args]
    assert tried == [], "it tries once for each connection, not for each release"
    await aclose(redis)


def upgrades() -> list[tuple[Binary, Binary]]:
    """From a server without to one with it, from one form to the other, and back."""
    found = servers.found()
    pairs = [("redis-6.2", "redis-8.10"), ("valkey-8.1", "valkey-9.1"), ("redis-8.10", "valkey-9.1")]
    there = [(found[old], found[new]) for old, new in pairs if old in found and new in found]
    return there + [(new, old) for old, new in there]


@pytest.mark.parametrize(("old", "new"), upgrades(), ids=lambda binary: binary.key)
async def test_p12_another_server_program_on_the_same_port_is_asked_in_its_own_way(
    make_server: MakeServer, connect: Connect, old: Binary, new: Binary
) -> None:
    before = make_server(binary=old)
    async with Proxy(before) as proxy:
        redis = connect(proxy)
        assert await release_form(proxy, redis, before) == native(old)
        # It goes while a claim is held, and the successor comes up without data.
        term = await Lease(redis, "held", ttl=5.0).try_acquire()
        assert term is not None
        await before.astop()
        after = make_server(binary=new, port=before.port)
        assert await term.release() in (ReleaseOutcome.ALREADY_LOST, ReleaseOutcome.UNCONFIRMED)
        async with FencedLock(redis, "again", wait=10):
            pass
        for _ in range(2):
            assert await release_form(proxy, redis, after) == native(new)
        await aclose(redis)


async def test_p12_a_release_of_what_is_not_ours_is_refused_by_the_native_form_too(
    any_server: Server, redis: Redis
) -> None:
    async with FencedLock(redis, "name"):
        pass  # the form is known from here on
    term = await Lease(redis, "name").try_acquire()
    assert term is not None
    any_server.call("SET", "aioelect:{name}", "another's", "PX", 1000)
    assert await term.release() is ReleaseOutcome.ALREADY_LOST
    assert any_server.call("GET", "aioelect:{name}") == b"another's"
    await aclose(redis)
