"""Where the server is: every kind of URL, and passwords that are shown nowhere."""

import asyncio
import traceback
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from aioelect.cli.address import masked
from aioelect.cli.commands import cli
from support import servers
from support.programs import Program, needs_proc, outcome
from support.servers import Server
from support.topologies import Cluster, SentinelGroup

pytestmark = pytest.mark.timeout(120)
SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:s3cr3t@h", "redis://:***@h"),
        ("redis://:@h", "redis://:@h"),
        ("rediss://user:s3cr3t@h:1/2", "rediss://user:***@h:1/2"),
        ("redis://user:s3cr/3t@h", "redis://user:***@h"),
        ("redis://user:s3cr@3t@h", "redis://user:***@h"),
        ("redis+sentinel://:s3cr3t@a:1,b:2/main", "redis+sentinel://:***@a:1,b:2/main"),
        ("redis://h/0?password=s3cr3t&db=1", "redis://h/0?password=***&db=1"),
        ("redis+sentinel://h/main?sentinel_password=s3cr3t", "redis+sentinel://h/main?sentinel_password=***"),
    ],
)
def test_p15_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert masked(url) == shown


def with_password(server: Server) -> str:
    server.call("ACL", "SETUSER", "cli", "on", f">{SECRET}", "~*", "&*", "+@all")
    return server.url.replace("://", f"://cli:{SECRET}@")


@needs_proc
@pytest.mark.parametrize("form", ["--redis URL", "--redis=URL"])
async def test_p15_a_password_in_the_arguments_is_not_in_the_list_of_processes_nor_in_the_commands_environment(
    server: Server, form: str
) -> None:
    url = with_password(server)
    arguments = form.replace("URL", url).split()
    with Program("run", *arguments, "job", "--", "sh", "-c", "env; echo up; while :; do sleep 0.05; done") as program:
        await program.says("up\n")
        lines = program.family()
        assert any("***" in line for line in lines.values())
        for pid, line in lines.items():
            assert SECRET not in line
            assert pid == program.process.pid or SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert SECRET not in program.out + program.err


@needs_proc
async def test_p15_no_password_is_in_any_message(server: Server) -> None:
    bad = [
        "redis://cli:s3cr3t@127.0.0.1:1",
        "redis://cli:s3cr/3t@127.0.0.1:1",
        "redis://cli:s3cr3t@127.0.0.1:port",
        "http://cli:s3cr3t@127.0.0.1:1",
        "redis+sentinel://cli:s3cr3t@127.0.0.1:1",
        server.url.replace("://", "://nobody:s3cr3t@"),
    ]
    for number, url in enumerate(bad):
        options, env = (("--redis", url), {}) if number % 2 else ((), {"AIOELECT_REDIS": url})
        with Program("run", *options, "--wait", "0", "-v", "job", "--", "true", env=env) as program:
            assert await program.ended() not in (0, 1, 2)
            assert program.err
            assert "s3cr" not in program.out + program.err
            assert "3t@" not in program.out + program.err


COMMANDS = [
    ("ls",),
    ("show", "job"),
    ("watch", "job"),
    ("step-down", "job"),
    ("release", "job", "--token", "1"),
    ("bench",),
    ("doctor",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
async def test_p15_no_command_shows_a_password_whatever_is_wrong_with_its_address(
    server: Server, command: tuple[str, ...]
) -> None:
    for url in (
        "redis://cli:s3cr3t@127.0.0.1:1",
        "redis://cli:s3cr/3t@127.0.0.1:1",
        "redis+sentinel://cli:s3cr3t@127.0.0.1:1",
        "redis+cluster://cli:s3cr3t@127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/main?sentinel_password=s3cr3t",
        server.url.replace("://", "://nobody:s3cr3t@"),
    ):
        code, out, err = await outcome(*command, url=url)
        assert code != 0
        assert "s3cr" not in out + err
        assert "3t@" not in out + err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
async def test_p15_a_traceback_after_a_defect_holds_no_password(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Redis, "from_url", fail)
    runner = CliRunner()
    result = await asyncio.to_thread(runner.invoke, cli, [*command, "--redis", "redis://cli:s3cr3t@127.0.0.1:1"])
    assert isinstance(result.exception, RuntimeError)
    shown = "".join(traceback.format_exception(result.exception))
    assert "a defect" in shown
    assert "s3cr3t" not in shown


@needs_proc
async def test_p15_a_command_that_looks_hides_the_password_of_its_arguments_too(server: Server) -> None:
    url = with_password(server)
    with Program("watch", "job", "--json", "--redis", url) as program:
        await program.says('"leader": null')
        lines = program.family().values()
        assert any("***" in line for line in lines)
        assert not any(SECRET in line for line in lines)


@needs_proc
async def test_the_address_may_come_from_the_environment(server: Server) -> None:
    with Program("run", "job", "--", "true", env={"AIOELECT_REDIS": server.url}) as program:
        assert await program.ended() == 0
    with Program("run", "--redis", f"unix://{server.unix_path}", "job", "--", "true") as program:
        assert (await program.ended(), program.err) == (0, "")


@needs_proc
async def test_it_works_behind_sentinels() -> None:
    with SentinelGroup(servers.newest()) as group:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
        with Program("run", "--redis", f"redis+sentinel://{hosts}/{group.name}", "job", "--", "true") as program:
            assert (await program.ended(), program.err) == (0, "")
        assert group.master.call("EXISTS", "aioelect:{job}:fence")


@needs_proc
async def test_it_works_in_a_cluster() -> None:
    with Cluster(servers.newest()) as cluster:
        node = cluster.nodes[0]
        url = node.url.replace("redis://", "redis+cluster://")
        with Program("run", "--redis", url, "job", "--", "true") as program:
            assert (await program.ended(), program.err) == (0, "")
        assert cluster.owner("aioelect:{job}").call("EXISTS", "aioelect:{job}:fence")


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip().endswith(f"version {version('aioelect')}")
