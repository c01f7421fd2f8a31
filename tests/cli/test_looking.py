"""`aioelect ls`, `show`, `watch`, `step-down` and `release`: what people on call see and do."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aioelect import Elector, EndReason, FencedLock, Lease, Term
from support import servers
from support.programs import LIMIT, Program
from support.servers import Server
from support.topologies import Cluster
from support.wait import until

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
ACL = Path(__file__).parents[2] / "docs" / "acl.txt"


async def outcome(server: Server, *args: str, url: str = "", **more: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    with Program(*args, "--redis", url or server.url, **more) as program:
        return await program.ended(), program.out, program.err


@pytest.fixture
async def leader(redis: Redis) -> AsyncIterator[Term]:
    """Leads "scheduler"."""
    info = {"address": "http://10.0.0.7"}
    elector = Elector(redis, "scheduler", ttl=5, identity="pod-[a]", info=info, observers=[])
    async with elector.running(until_cancelled):
        await until(lambda: elector.term is not None, LIMIT)
        assert elector.term is not None
        yield elector.term


async def until_cancelled(_: Term) -> None:
    await asyncio.Event().wait()


async def test_show_tells_who_leads_in_fields_that_stay(server: Server, leader: Term) -> None:
    code, out, err = await outcome(server, "show", "scheduler", "--json")
    shown = json.loads(out)
    assert (code, err) == (0, "")
    assert set(shown) == {
        "name",
        "leader",
        "since",
        "ttl",
        "remaining",
        "step_down_asked",
        "reserved_for",
        "candidates",
    }
    assert shown["name"] == "scheduler"
    assert shown["leader"] == {
        "identity": "pod-[a]",
        "token": leader.token,
        "term": leader.id,
        "info": {"address": "http://10.0.0.7"},
    }
    assert (shown["ttl"], shown["candidates"], shown["step_down_asked"]) == (5.0, [], False)
    assert 0 < shown["remaining"] <= 5
    code, out, err = await outcome(server, "show", "scheduler")
    assert out.startswith(f"scheduler: pod-[a], token {leader.token}\n")
    code, out, err = await outcome(server, "show", "other", "--json")
    assert (code, json.loads(out)["leader"]) == (0, None)


async def test_show_lists_who_stands(server: Server, leader: Term) -> None:
    options = ("--redis", server.url, "--identity", "pod-b")
    with Program("elect", *options, "scheduler", "--", "true"):
        await until(lambda: server.call("ZCARD", "aioelect:{scheduler}:candidates"), LIMIT)
        _, out, _ = await outcome(server, "show", "scheduler", "--json")
        (candidate,) = json.loads(out)["candidates"]
        assert (set(candidate), candidate["identity"]) == ({"identity", "id", "weight"}, "pod-b")


async def test_ls_lists_what_is_held_and_nothing_else(server: Server, redis: Redis, leader: Term) -> None:
    free = FencedLock(redis, "free", observers=[])
    async with free:
        pass  # its record is still there
    server.call("SET", "aioelect2:{other}", "1", "PX", 60_000)
    for number in range(120):
        assert await Lease(redis, f"name {number:03}", observers=[]).try_acquire()
    code, out, err = await outcome(server, "ls", "--json")
    listed = json.loads(out)
    assert (code, err) == (0, "")
    assert [role["name"] for role in listed] == [*(f"name {number:03}" for number in range(120)), "scheduler"]
    assert listed[-1]["leader"]["token"] == leader.token
    code, out, err = await outcome(server, "ls")
    assert "pod-[a]" in out
    assert await outcome(server, "ls", "--prefix", "aio*", "--json") == (0, "[]\n", "")


async def test_ls_asks_every_node_of_a_cluster() -> None:
    with Cluster(servers.newest()) as cluster:
        redis = cluster.client()
        try:
            for number in range(12):
                assert await Lease(redis, f"name {number:02}", observers=[]).try_acquire()
            url = cluster.nodes[0].url.replace("redis://", "redis+cluster://")
            code, out, err = await outcome(cluster.nodes[0], "ls", "--json", url=url)
            assert (code, err) == (0, "")
            assert [role["name"] for role in json.loads(out)] == [f"name {number:02}" for number in range(12)]
        finally:
            from aioelect import aclose

            await aclose(redis)
            await redis.aclose()


async def test_never_keys_and_only_documented_rights(any_server: Server, redis: Redis) -> None:
    line = next(text for text in ACL.read_text().splitlines() if text.startswith("ACL SETUSER")).split()
    any_server.call(*line)
    url = any_server.url.replace("://", "://aioelect:PASSWORD@")
    try:
        term = await Lease(redis, "name", ttl=60, observers=[]).try_acquire()
        assert term is not None
        code, out, err = await outcome(any_server, "ls", url=url)
        assert (code, out) == (77, "")
        assert "+scan" in err and "PASSWORD" not in err
        native = {"redis-8.10": "+delex", "valkey-9.1": "+delifeq"}.get(any_server.binary.key)
        any_server.call(*line, "+scan", *([native] if native else []))
        any_server.call("ACL", "LOG", "RESET")
        commands = [("ls",), ("show", "name"), ("step-down", "name"), ("release", "name", "--token", str(term.token))]
        for command in commands:
            assert (await outcome(any_server, *command, url=url))[0] == 0
        assert any_server.call("ACL", "LOG") == []
    finally:
        any_server.call("ACL", "DELUSER", "aioelect")


async def test_p6_release_gives_up_only_the_holder_whose_token_it_names(any_server: Server, redis: Redis) -> None:
    term = await Lease(redis, "name", ttl=60, identity="pod-a", observers=[]).try_acquire()
    assert term is not None
    for token in (term.token - 1, term.token + 1):
        code, out, err = await outcome(any_server, "release", "name", "--token", str(token))
        assert (code, out) == (1, "")
        assert f"refused: pod-a holds 'name' with token {term.token}" in err
        assert any_server.call("EXISTS", "aioelect:{name}") == 1
    code, out, err = await outcome(any_server, "release", "name", "--token", str(term.token), "--json")
    assert (code, json.loads(out), err) == (0, {"released": "name", "token": term.token}, "")
    assert any_server.call("EXISTS", "aioelect:{name}") == 0
    code, out, err = await outcome(any_server, "release", "name", "--token", str(term.token))
    assert (code, out, err) == (1, "", "aioelect: nobody holds 'name'\n")


async def test_who_waits_is_told_of_an_operators_release_at_once(server: Server, redis: Redis) -> None:
    term = await Lease(redis, "name", ttl=60, observers=[]).try_acquire()
    assert term is not None
    with Program("run", "--redis", server.url, "name", "--", "echo", "ran") as waiting:
        await until(lambda: server.call("PUBSUB", "NUMSUB", "aioelect:{name}:events")[1], LIMIT)
        await outcome(server, "release", "name", "--token", str(term.token))
        assert (await waiting.ended(), waiting.out) == (0, "ran\n")


async def test_step_down_asks_the_leader_and_says_whom(server: Server, leader: Term) -> None:
    code, out, err = await outcome(server, "step-down", "scheduler", "--json")
    assert (code, json.loads(out), err) == (0, {"asked": "pod-[a]", "token": leader.token}, "")
    await until(lambda: not leader.is_leader, LIMIT)
    assert leader.end_reason in (None, EndReason.RELEASED)
    code, out, err = await outcome(server, "step-down", "nothing")
    assert (code, out, err) == (1, "", "aioelect: nobody holds 'nothing'\n")


@pytest.mark.parametrize("name", [("name",), ()])
async def test_watch_tells_each_change_once(server: Server, redis: Redis, name: tuple[str, ...]) -> None:
    with Program("watch", *name, "--every", "0.1", "--json", "--redis", server.url) as watching:
        if name:
            await watching.says('"leader": null')
        else:
            await until(lambda: b"cmd=scan" in server.call("CLIENT", "LIST"), LIMIT)
        lock = Lease(redis, "name", ttl=60, identity="pod-a", observers=[])
        term = await lock.try_acquire()
        assert term is not None
        await watching.says("pod-a")
        await term.release()
        await until(lambda: watching.out.endswith("\n") and json.loads(watching.out.splitlines()[-1])["leader"] is None)
        lines = [json.loads(line)["leader"] for line in watching.out.splitlines()]
        told = [leader and leader["token"] for leader in lines]
        assert told == [None, term.token, None][3 - len(told) :]


async def test_completion_is_there_for_the_usual_shells() -> None:
    for shell in ("bash", "zsh", "fish"):
        with Program(env={"_AIOELECT_COMPLETE": f"{shell}_source"}) as program:
            # bash is asked for its version, which may not be there
            assert await program.ended() == 0
            assert "_AIOELECT_COMPLETE" in program.out
    words = {"_AIOELECT_COMPLETE": "bash_complete", "COMP_WORDS": "aioelect st", "COMP_CWORD": "1"}
    with Program(env=words) as program:
        assert await program.ended() == 0
        assert "step-down" in program.out
