"""`aioelect elect`: a command under a leader."""

import os
import signal

import pytest
from redis.asyncio import Redis

import aioelect
from support.programs import LIMIT, Program, needs_proc
from support.servers import Server
from support.wait import until

pytestmark = [
    pytest.mark.timeout(120),
    needs_proc,
]
KEY = "aioelect:{role}"
WORK = 'trap "echo stopped; exit 4" TERM; echo "leading $AIOELECT_TOKEN"; while :; do sleep 0.02; done'


def elect(server: Server, script: str, identity: str = "one", ttl: str = "3") -> Program:
    options = ("--redis", server.url, "--identity", identity, "--ttl", ttl)
    return Program("elect", *options, "role", "--", "sh", "-c", script)


async def test_it_leads_stands_again_after_a_loss_and_ends_with_the_command_on_sigterm(server: Server) -> None:
    with elect(server, WORK, ttl="9") as program:  # after a loss the command has a seventh of that to say so
        await program.says("leading")
        server.call("DEL", KEY)
        await program.says("stopped")
        await until(lambda: program.out.count("leading") == 2, LIMIT)
        first, second = (int(line.split()[1]) for line in program.out.splitlines() if line.startswith("leading"))
        assert second > first
        program.process.send_signal(signal.SIGTERM)
        assert await program.ended() == 4
        assert program.family() == {}
    assert server.call("EXISTS", KEY) == 0


async def test_a_command_that_ends_by_itself_gives_the_role_up_and_it_stands_again(server: Server) -> None:
    with elect(server, 'echo "leading $AIOELECT_TOKEN"; exit 1', ttl="0.6") as program:
        await until(lambda: program.out.count("leading") >= 3, LIMIT)
        assert program.process.poll() is None


async def test_a_request_to_step_down_stops_the_command_and_another_leads(server: Server, redis: Redis) -> None:
    with elect(server, WORK) as one:
        await one.says("leading")
        with elect(server, WORK, identity="two") as two:
            await until(lambda: server.call("PUBSUB", "NUMSUB", f"{KEY}:events")[1] >= 2, LIMIT)
            await aioelect.step_down(redis, "role")
            await one.says("stopped")
            await two.says("leading")
            one.process.send_signal(signal.SIGTERM)
            assert await one.ended() in (4, 128 + signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_while_it_waits_a_signal_ends_it_at_once(server: Server, number: signal.Signals) -> None:
    server.call("SET", KEY, "another's", "PX", 60_000)
    with elect(server, "echo ran") as program:
        await until(lambda: server.call("PUBSUB", "NUMSUB", f"{KEY}:events")[1], LIMIT)
        os.kill(program.process.pid, number)
        assert (await program.ended(), program.out) == (128 + number, "")
