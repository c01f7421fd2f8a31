"""`aioelect run --once-per`: started on many hosts and again, a command succeeds once in a period."""

from datetime import timedelta
from pathlib import Path

import click
import pytest

from aioelect.cli.period import period_of
from support.programs import LIMIT, Program, needs_proc
from support.servers import Server
from support.wait import until

pytestmark = [pytest.mark.timeout(120), needs_proc]
PERIOD = "3650d"  # 1970, 1979, ...: no test runs into the next one


def run(server: Server, script: str, *options: str, period: str = PERIOD) -> Program:
    return Program("run", "--redis", server.url, "--once-per", period, *options, "job", "--", "sh", "-c", script)


async def test_hosts_that_start_it_at_the_same_time_run_it_once(server: Server, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script = f"echo $AIOELECT_TOKEN >> {ran}"
    with run(server, script) as one, run(server, script) as two, run(server, script) as three:
        for program in (one, two, three):
            assert (await program.ended(), program.err) == (0, "")
    with run(server, script, "-v") as late:
        assert await late.ended() == 0
        assert "'job' has succeeded in this period; nothing to do" in late.err
    assert len(ran.read_text().splitlines()) == 1
    with run(server, script, period="3649d") as other:  # another period is another schedule
        assert await other.ended() == 0
    assert len(ran.read_text().splitlines()) == 2


async def test_a_command_that_fails_is_run_again_by_the_next_and_its_code_is_told(server: Server) -> None:
    with run(server, "exit 7") as first:
        assert await first.ended() == 7
    with run(server, "echo ran") as second:
        assert (await second.ended(), second.out) == (0, "ran\n")
    with run(server, "echo ran") as third:
        assert (await third.ended(), third.out) == (0, "")


async def test_a_host_that_dies_half_way_is_replaced_by_one_that_waits(server: Server) -> None:
    with run(server, "echo up; sleep 60", "--ttl", "2") as first:
        await first.says("up")
        with run(server, "echo made up for", "--ttl", "2") as second:
            await until(lambda: server.call("PUBSUB", "NUMSUB", "aioelect:{job}:events")[1], LIMIT)
            first.process.kill()
            assert (await second.ended(), second.out) == (0, "made up for\n")


async def test_a_command_that_outlives_its_period_runs_once_a_start(server: Server) -> None:
    with run(server, "echo ran; sleep 1.2", period="1s") as program:
        assert (await program.ended(), program.out) == (0, "ran\n")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h", 3600), ("1d", 86400), ("3650d", 315360000)]
)
def test_p14_a_period_is_seconds_or_has_a_unit(text: str, seconds: int) -> None:
    assert period_of(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "0", "0d", "-1", "1.5h", "1w", "daily", "1h30m", "9" * 30])
def test_p14_what_is_no_period_is_refused_by_name(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected"):
        period_of(text)
