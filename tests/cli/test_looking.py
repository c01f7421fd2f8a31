"""`aioelect ls`, `show`, `watch`, `step-down` and `release`: what people on call see and do."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis, RedisCluster

from aioelect import Elector, EndReason, FencedLock, Lease, Term, aclose
from conftest import MakeServer
from support import servers
from support.programs import LIMIT, Program, needs_proc, outcome
from support.servers import Server
from support.topologies import Cluster, SentinelGroup
from support.wait import until

pytestmark = pytest.mark.timeout(120)
ACL = Path(__file__).parents[2] / "docs" / "acl.txt"
DOCUMENTED = next(text for text in ACL.read_text().splitlines() if text.startswith("ACL SETUSER")).split()


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
    code, out, err = await outcome("show", "scheduler", "--json", url=server.url)
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
    code, out, err = await outcome("show", "scheduler", url=server.url)
    assert out.startswith(f"scheduler: pod-[a], token {leader.token}\n")
    code, out, err = await outcome("show", "other", "--json", url=server.url)
    assert (code, json.loads(out)["leader"]) == (0, None)


@needs_proc
async def test_show_lists_who_stands(server: Server, leader: Term) -> None:
    options = ("--redis", server.url, "--identity", "pod-b")
    with Program("elect", *options, "scheduler", "--", "true"):
        await until(lambda: server.call("ZCARD", "aioelect:{scheduler}:candidates"), LIMIT)
        _, out, _ = await outcome("show", "scheduler", "--json", url=server.url)
        (candidate,) = json.loads(out)["candidates"]
        assert (set(candidate), candidate["identity"]) == ({"identity", "id", "weight"}, "pod-b")


async def test_ls_lists_what_is_held_and_nothing_else(server: Server, redis: Redis, leader: Term) -> None:
    free = FencedLock(redis, "free", observers=[])
    async with free:
        pass  # its record is still there
    server.call("SET", "aioelect2:{other}", "1", "PX", 60_000)
    for number in range(120):
        assert await Lease(redis, f"name {number:03}", observers=[]).try_acquire()
    code, out, err = await outcome("ls", "--json", url=server.url)
    listed = json.loads(out)
    assert (code, err) == (0, "")
    assert [role["name"] for role in listed] == [*(f"name {number:03}" for number in range(120)), "scheduler"]
    assert listed[-1]["leader"]["token"] == leader.token
    code, out, err = await outcome("ls", url=server.url)
    assert "pod-[a]" in out
    assert await outcome("ls", "--prefix", "aio*", "--json", url=server.url) == (0, "[]\n", "")


async def test_every_command_works_in_a_cluster() -> None:
    with Cluster(servers.newest()) as cluster:
        redis = cluster.client()
        try:
            names = [f"name {number:02}" for number in range(12)]  # on every node
            await every_command(redis, cluster.nodes[0].url.replace("redis://", "redis+cluster://"), names)
        finally:
            await aclose(redis)
            await redis.aclose()


async def test_every_command_works_behind_sentinels() -> None:
    with SentinelGroup(servers.newest()) as group:
        redis = Redis(port=group.master.port)
        try:
            hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
            await every_command(redis, f"redis+sentinel://{hosts}/{group.name}", ["name"])
        finally:
            await aclose(redis)
            await redis.aclose()


async def every_command(redis: "Redis | RedisCluster", url: str, names: list[str]) -> None:
    terms = [await Lease(redis, name, ttl=60, observers=[]).try_acquire() for name in names]
    token = terms[0].token if terms[0] else 0
    code, out, err = await outcome("ls", "--json", url=url)
    assert (code, err, [role["name"] for role in json.loads(out)]) == (0, "", names)
    code, out, err = await outcome("bench", "--json", "--rounds", "10", "--coroutines", "3", url=url)
    assert (code, err, "hand_over" in json.loads(out)) == (0, "", True)
    for command in (("show",), ("step-down",), ("release", "--token", str(token))):
        code, out, err = await outcome(*command, names[0], "--json", url=url)
        assert (code, err) == (0, "")
        assert str(token) in out


async def test_never_keys_and_only_documented_rights(any_server: Server, redis: Redis) -> None:
    url = any_server.url.replace("://", "://aioelect:PASSWORD@")
    native = {"redis-8.10": "+delex", "valkey-9.1": "+delifeq"}.get(any_server.binary.key)
    term = await Lease(redis, "name", ttl=60, observers=[]).try_acquire()
    assert term is not None
    commands = [("ls",), ("show", "name"), ("step-down", "name"), ("release", "name", "--token", str(term.token))]
    try:
        any_server.call(*DOCUMENTED, "+scan", *([native] if native else []))
        any_server.call("ACL", "LOG", "RESET")
        for command in commands:
            assert (await outcome(*command, url=url))[0] == 0
        assert any_server.call("ACL", "LOG") == []
    finally:
        any_server.call("ACL", "DELUSER", "aioelect")


async def test_a_command_says_which_right_it_lacks(any_server: Server, redis: Redis) -> None:
    url = any_server.url.replace("://", "://aioelect:PASSWORD@")
    assert await Lease(redis, "name", ttl=60, observers=[]).try_acquire()
    lacking = {
        ("ls",): ("-scan", "+scan"),
        ("show", "name"): ("-evalsha", "+evalsha"),
        ("step-down", "name"): ("resetkeys", "~PREFIX:*"),
    }
    try:
        for command, (change, named) in lacking.items():
            any_server.call(*DOCUMENTED, "+scan", change)
            code, out, err = await outcome(*command, url=url)
            assert (code, out) == (77, "")
            assert f"the right that is lacking: {named}" in err and "PASSWORD" not in err
        any_server.call(*DOCUMENTED, "-hmget")
        code, out, err = await outcome("release", "name", "--token", "1", url=url)
        assert code == 77
        assert "+hmget" in err or "aioelect doctor" in err  # a script on an older server doesn't say
        assert any_server.call("EXISTS", "aioelect:{name}") == 1
    finally:
        any_server.call("ACL", "DELUSER", "aioelect")


async def test_p6_release_gives_up_only_the_holder_whose_token_it_names(any_server: Server, redis: Redis) -> None:
    term = await Lease(redis, "name", ttl=60, identity="pod-a", observers=[]).try_acquire()
    assert term is not None
    for token in (term.token - 1, term.token + 1):
        code, out, err = await outcome("release", "name", "--token", str(token), url=any_server.url)
        assert (code, out) == (1, "")
        assert f"refused: pod-a holds 'name' with token {term.token}" in err
        assert any_server.call("EXISTS", "aioelect:{name}") == 1
    code, out, err = await outcome("release", "name", "--token", str(term.token), "--json", url=any_server.url)
    assert (code, json.loads(out), err) == (0, {"released": "name", "token": term.token}, "")
    assert any_server.call("EXISTS", "aioelect:{name}") == 0
    code, out, err = await outcome("release", "name", "--token", str(term.token), url=any_server.url)
    assert (code, out, err) == (1, "", "aioelect: nobody holds 'name'\n")


@needs_proc
async def test_who_waits_is_told_of_an_operators_release_at_once(server: Server, redis: Redis) -> None:
    term = await Lease(redis, "name", ttl=60, observers=[]).try_acquire()
    assert term is not None
    with Program("run", "--redis", server.url, "--ttl", "300", "name", "--", "echo", "ran") as waiting:
        await until(lambda: server.call("PUBSUB", "NUMSUB", "aioelect:{name}:events")[1], LIMIT)
        await outcome("release", "name", "--token", str(term.token), url=server.url)
        assert (await waiting.ended(), waiting.out) == (0, "ran\n")  # its own timer is later than that limit


async def test_step_down_asks_the_leader_and_says_whom(server: Server, leader: Term) -> None:
    code, out, err = await outcome("step-down", "scheduler", "--json", url=server.url)
    assert (code, json.loads(out), err) == (0, {"asked": "pod-[a]", "token": leader.token}, "")
    await until(lambda: not leader.is_leader, LIMIT)
    assert leader.end_reason in (None, EndReason.RELEASED)
    code, out, err = await outcome("step-down", "nothing", url=server.url)
    assert (code, out, err) == (1, "", "aioelect: nobody holds 'nothing'\n")


@needs_proc
async def test_step_down_can_reserve_the_next_term_for_a_candidate(server: Server, leader: Term) -> None:
    def stand(who: str) -> Program:
        command = ("sh", "-c", "echo leads; sleep 60")
        return Program("elect", "--redis", server.url, "--ttl", "5", "--identity", who, "scheduler", "--", *command)

    with stand("pod-b") as other, stand("pod-c") as wanted:
        await until(lambda: server.call("ZCARD", "aioelect:{scheduler}:candidates") == 2, LIMIT)
        assert (await outcome("step-down", "scheduler", "--to", "pod-c", url=server.url))[0] == 0
        await wanted.says("leads")
        assert other.out == ""
        assert not leader.is_leader


@needs_proc
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


@pytest.mark.leaves_keys("somebody else's")
async def test_keys_that_can_be_nobodys_name_hide_no_other(server: Server) -> None:
    for key in (b"aioelect:{}", b"aioelect:{a}b}", b"aioelect:{\xff}", b"aioelect:{" + b"x" * 201 + b"}"):
        server.call("SET", key, "theirs")
    server.call("SET", "aioelect:{ours}", "value", "PX", 60_000)
    code, out, err = await outcome("ls", "--json", url=server.url)
    assert (code, err, [one["name"] for one in json.loads(out)]) == (0, "", ["ours"])


@needs_proc
async def test_watch_tells_an_outage_once_and_goes_on_after_it(make_server: MakeServer) -> None:
    server = make_server()
    with Program("watch", "scheduler", "--every", "0.1", "--json", "--redis", server.url) as watching:
        await watching.says('"leader": null')
        await server.astop()
        await until(lambda: watching.err.endswith("\n"), LIMIT)
        await asyncio.sleep(0.5)  # a few looks more
        await server.astart()
        server.call("SET", "aioelect:{scheduler}", "somebody's", "PX", 60_000)
        await watching.says('"leader": {')
        assert watching.err.count("\n") == 1 and watching.err.startswith("aioelect: ")
        watching.process.send_signal(signal.SIGINT)
        assert await watching.ended() == 130


@needs_proc
async def test_watch_is_a_table_that_moves_on_a_terminal(server: Server, redis: Redis) -> None:
    with Program("watch", "--every", "0.1", "--redis", server.url, terminal=True, env={"TERM": "xterm"}) as watching:
        await watching.says("holder")
        term = await Lease(redis, "name", ttl=60, identity="pod-[a]", observers=[]).try_acquire()
        assert term is not None
        await watching.says(f"pod-[a]  {term.token}")
        await term.release()
        second = await Lease(redis, "name", ttl=60, identity="pod-b", observers=[]).try_acquire()
        assert second is not None
        await watching.says(f"pod-b   {second.token}")
        rows = watching.out.count("pod-b")
        await until(lambda: watching.out.count("pod-b") > rows + 2, LIMIT)
        assert "\x1b[1A" in watching.out  # drawn over itself
        watching.process.send_signal(signal.SIGINT)
        assert await watching.ended() == 130
        assert watching.out.rstrip().endswith("\x1b[?25h")  # the cursor is back
        assert "Traceback" not in watching.out + watching.err


@needs_proc
async def test_as_a_program_the_commands_print_to_the_right_places(server: Server, leader: Term) -> None:
    with Program("show", "scheduler", "--redis", server.url) as program:
        assert await program.ended() == 0
        assert (program.out.splitlines()[0], program.err) == (f"scheduler: pod-[a], token {leader.token}", "")
    with Program("step-down", "nothing", "--redis", server.url) as program:
        assert await program.ended() == 1
        assert (program.out, program.err) == ("", "aioelect: nobody holds 'nothing'\n")


@needs_proc
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
