"""`aioelect run`: a command under a lock, on a real server, with real signals and real kills."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from aioelect import _clock
from aioelect._core.timing import Timing
from aioelect.cli.exits import Exit
from aioelect.cli.job.plan import kill_instant, plan_of
from support.processes import spawn
from support.programs import LIMIT, Program, needs_proc
from support.proxy import ThreadedProxy
from support.servers import Server
from support.wait import until

pytestmark = [
    pytest.mark.timeout(120),
    needs_proc,
]
KEY = "aioelect:{job}"
# Notes when it was told to stop, and that it lives.
STUBBORN = f"""
import os, signal, sys, time
os.sched_setaffinity(0, os.sched_getaffinity(0))
def now(): return time.clock_gettime({_clock.ID})
def note(word): os.write(1, f"{{word}} {{now()!r}}{{os.linesep}}".encode())  # whole, also in a signal
def told(*_): note("told")
signal.signal(signal.SIGTERM, told)
signal.signal(signal.SIGINT, told)
print("up", flush=True)
while True:
    note("alive")
    time.sleep(0.005)
"""


def run(server: Server, *command: str, options: tuple[str, ...] = (), **more: object) -> Program:
    """`aioelect run job -- command`."""
    return Program("run", "--redis", server.url, *options, "job", "--", *command, **more)  # type: ignore[arg-type]


def held(server: Server) -> bool:
    return bool(server.call("EXISTS", KEY))


def times(text: str, word: str) -> list[float]:
    """The instants that were noted; a last line that was cut off is none."""
    whole = text[: text.rfind("\n")].splitlines()
    return [float(line.split()[1]) for line in whole if line.startswith(f"{word} ")]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -9 $$", 128 + 9),
        ("kill -TERM $$", 128 + 15),
        ("exit 75", 75),
    ],
)
async def test_the_exit_code_is_the_commands_own_and_the_lock_is_released(
    server: Server, command: str, code: int
) -> None:
    with run(server, "sh", "-c", command) as program:
        assert (await program.ended(), program.err) == (code, "")
    assert not held(server)


async def test_a_command_that_is_not_there_or_not_executable_is_told_without_taking_the_lock(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "broken").write_bytes(b"\x7fELF and no more")
    (tmp_path / "broken").chmod(0o755)
    for command, code in (("no-such-command", 127), (str(tmp_path / "text"), 126), (str(tmp_path / "broken"), 126)):
        with run(server, command) as program:
            assert await program.ended() == code
            assert program.err.startswith(f"aioelect: {command}")
        assert not held(server)


async def test_the_command_knows_name_token_and_deadline_and_holds_the_lock_while_it_runs(server: Server) -> None:
    script = 'echo "$AIOELECT_NAME $AIOELECT_TOKEN $AIOELECT_DEADLINE $(date +%s)"; read line'
    ours, theirs = os.pipe()
    with run(server, "sh", "-c", script, stdin=ours, options=("--ttl", "20")) as program:
        os.close(ours)
        await program.says("job")
        name, token, deadline, now = program.out.split()
        assert (name, token.encode()) == ("job", server.call("HGET", f"{KEY}:fence", "token"))
        assert 15 < float(deadline) - int(now) < 21
        assert held(server)
        os.write(theirs, b"go on\n")  # its stdin is ours
        os.close(theirs)
        assert await program.ended() == 0
    assert not held(server)


async def test_a_second_one_is_turned_away_with_a_code_of_its_own_or_the_wanted_one(server: Server) -> None:
    server.call("SET", KEY, "another's", "PX", 60_000)
    for options, code in (((), 75), (("--conflict-exit-code", "0"), 0), (("--conflict-exit-code", "99"), 99)):
        with run(server, "echo", "ran", options=("--wait", "0", *options)) as program:
            assert (await program.ended(), program.out) == (code, "")
            assert "aioelect: 'job' is held" in program.err
    with run(server, "echo", "ran", options=("--wait", "0.3")) as program:
        assert (await program.ended(), program.out) == (75, "")


async def test_a_minimum_hold_keeps_the_lock_after_a_command_that_ends_at_once(server: Server) -> None:
    with run(server, "true", options=("--ttl", "60", "--min-hold", "50")) as program:
        assert await program.ended() == 0
    assert 0 < server.call("PTTL", KEY) <= 50_000
    with run(server, "echo", "ran", options=("--wait", "0")) as program:
        assert (await program.ended(), program.out) == (75, "")


async def test_a_right_that_is_lacking_is_named(server: Server) -> None:
    server.call("ACL", "SETUSER", "few", "on", ">few", "~*", "&*", "+@all", "-evalsha")
    try:
        url = server.url.replace("://", "://few:few@")
        with Program("run", "--redis", url, "job", "--", "true") as program:
            assert await program.ended() == Exit.REJECTED
            assert "the right that is lacking: +evalsha" in program.err
    finally:
        server.call("ACL", "DELUSER", "few")


async def test_our_own_codes_differ_by_what_went_wrong(server: Server) -> None:
    cases = [
        (("--redis", "redis://127.0.0.1:1", "--wait", "0"), Exit.UNREACHABLE),
        (("--redis", "http://nowhere", "--wait", "0"), Exit.USAGE),
        (("--redis", server.url, "--ttl", "0.01"), Exit.USAGE),
        (("--bogus",), Exit.USAGE),
    ]
    for options, code in cases:
        with Program("run", *options, "job", "--", "true") as program:
            assert (await program.ended(), program.err != "") == (code, True)
    server.call("SADD", KEY, "of another kind")
    server.call("PEXPIRE", KEY, 60_000)
    with run(server, "true") as program:
        assert await program.ended() == Exit.REJECTED
    assert len({*Exit}) == len(Exit)
    assert not [code for code in Exit if code <= 2 or code >= 128]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
async def test_p5_a_signal_while_waiting_ends_at_once_and_leaves_no_lock(
    server: Server, number: signal.Signals
) -> None:
    server.call("SET", KEY, "another's", "PX", 60_000)
    with run(server, "echo", "ran") as program:
        await until(lambda: server.call("PUBSUB", "NUMSUB", f"{KEY}:events")[1], LIMIT)
        program.process.send_signal(number)
        assert (await program.ended(), program.out) == (128 + number, "")
    assert server.call("GET", KEY) == b"another's"


async def test_signals_are_passed_on_to_the_commands_group(server: Server) -> None:
    traps = "; ".join(f'trap "echo got {name}" {name}' for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"))
    with run(server, "sh", "-c", f"{traps}; echo up; while :; do sleep 0.02; done") as program:
        await program.says("up")
        for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"):
            program.process.send_signal(signal.Signals[f"SIG{name}"])
            await program.says(f"got {name}")
        assert held(server)


async def test_a_second_int_kills_a_command_that_ignores_the_first(server: Server) -> None:
    with run(server, sys.executable, "-c", STUBBORN) as program:
        await program.says("up")
        program.process.send_signal(signal.SIGINT)
        await program.says("told")
        assert program.process.poll() is None
        program.process.send_signal(signal.SIGINT)
        assert await program.ended() == 128 + 9
        assert program.family() == {}
    assert not held(server)


@pytest.mark.parametrize(
    "script",
    [
        "(while :; do sleep 0.01; done) & exit 3",
        "setsid sleep 1000 & exit 3",
        "setsid sh -c 'trap : TERM; while :; do sleep 0.01; done' & exit 3",
    ],
)
async def test_p7_what_the_command_leaves_behind_is_ended_before_the_lock_is_released(
    server: Server, script: str
) -> None:
    with run(server, "sh", "-c", script, options=("--ttl", "3")) as program:
        assert await program.ended() == 3
        assert program.family() == {}
    assert not held(server)


LOST = {
    "one that writes in the background": [
        "sh",
        "-c",
        f"{sys.executable} -c '{STUBBORN.replace(chr(39), chr(34))}' & wait",
    ],
    "one that ignores SIGTERM": [sys.executable, "-c", STUBBORN],
    "one that forks and changes its group": [
        sys.executable,
        "-c",
        f"import os, time\nif os.fork(): time.sleep(1000)\nos.setsid()\nif os.fork(): os._exit(0)\n{STUBBORN}",
    ],
}


@pytest.mark.parametrize("kind", LOST)
async def test_p3_a_black_hole_kills_every_descendant_before_the_claim_can_expire(
    server: Server, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ttl = 3.0
    plan = plan_of(Timing.of(ttl))
    with ThreadedProxy(server) as proxy:
        with Program("run", "--redis", proxy.url, "--ttl", str(ttl), "job", "--", *LOST[kind]) as program:
            await program.says("up")
            proxy.run(proxy.black_hole)
            before = _clock.now()
            expires = before + server.call("PTTL", KEY) / 1000
            sent = expires - ttl  # the last renewal that arrived; it was sent a little earlier
            assert await program.ended() == Exit.LOST
            assert program.family() == {}
            told, last = times(program.out, "told")[0], times(program.out, "alive")[-1]
            assert "aioelect: 'job' (token" in program.err
        proxy.run(proxy.heal)
    with capsys.disabled():
        print(  # noqa: T201  # the figures
            f"\n{kind}: SIGTERM {told - sent:.3f} s after the last renewal (planned {plan.term_at:.3f}), last sign of "
            f"life {last - sent:.3f} (SIGKILL planned {plan.kill_at:.3f}), deadline {plan.deadline:.3f}, ttl {ttl:.3f}"
        )
    assert plan.term_at - 0.3 < told - sent
    assert last < expires


async def test_p3_after_the_store_says_that_the_lock_is_anothers_the_command_is_told_and_then_killed(
    server: Server,
) -> None:
    plan = plan_of(Timing.of(3.0))
    with run(server, sys.executable, "-c", STUBBORN, options=("--ttl", "3")) as program:
        await program.says("up")
        server.call("SET", KEY, "another's", "PX", 60_000)
        assert await program.ended() == Exit.LOST
        told, last = times(program.out, "told")[0], times(program.out, "alive")[-1]
        assert last - told < plan.grace + 2  # a busy machine
    assert server.call("GET", KEY) == b"another's"


async def test_a_command_that_ends_on_sigterm_is_not_killed_after_a_loss(server: Server) -> None:
    script = 'trap "echo cleaned up; exit 0" TERM; echo up; while :; do sleep 0.02; done'
    with run(server, "sh", "-c", script, options=("--ttl", "3")) as program:
        await program.says("up")
        server.call("DEL", KEY)
        assert await program.ended() == Exit.LOST
        assert "cleaned up" in program.out


async def test_when_the_wrapper_is_killed_nothing_of_the_command_lives_on(server: Server) -> None:
    for kind, command in LOST.items():
        server.call("DEL", KEY)
        with run(server, *command) as program:
            await program.says("up")
            program.process.kill()
            await until(lambda: not program.family(), LIMIT)
            assert times(program.out, "alive"), kind


async def test_p3_when_the_wrapper_is_stopped_its_command_is_dead_before_the_claim_can_expire(server: Server) -> None:
    with run(server, *LOST["one that writes in the background"], options=("--ttl", "3")) as program:
        await program.says("up")
        program.process.send_signal(signal.SIGSTOP)
        expires = _clock.now() + server.call("PTTL", KEY) / 1000
        await until(lambda: not held(server), LIMIT)
        await until(lambda: len(program.family()) <= 1, LIMIT)
        assert times(program.out, "alive")[-1] < expires
        program.process.send_signal(signal.SIGCONT)
        assert await program.ended() == Exit.LOST


async def test_when_the_process_in_between_is_killed_the_command_dies_and_the_lock_is_released(server: Server) -> None:
    with run(server, sys.executable, "-c", STUBBORN) as program:
        await program.says("up")
        (minder,) = [pid for pid, line in program.family().items() if "_minder.py" in line]
        os.kill(minder, signal.SIGKILL)
        assert await program.ended() == 128 + 9
        assert program.family() == {}
    assert not held(server)


async def test_the_command_has_the_terminal_and_ctrl_c_is_its_own(server: Server) -> None:
    script = 'trap "echo interrupted; exit 5" INT; echo up; read line; echo "read $line"; while :; do sleep 0.02; done'
    with run(server, "bash", "-c", script, terminal=True) as program:
        await program.says("up")
        os.write(program.ours, b"a line\n")
        await program.says("read a line")
        os.write(program.ours, b"\x03")
        assert await program.ended() == 5
        assert "interrupted" in program.out
    assert not held(server)


async def test_ctrl_z_gives_the_prompt_back_and_fg_goes_on(server: Server, tmp_path: Path) -> None:
    (tmp_path / "job").write_text('echo up-$((1+1)); read line; echo "read $line"; exit 3\n')
    (tmp_path / "program").write_text("from aioelect.cli import main\nmain()\n")
    ours, theirs = os.openpty()
    take = "import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execvp('bash', ['bash', '--norc', '-i'])"
    shell = spawn(
        [sys.executable, "-c", take], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "PS1": "prompt> "}
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = bytearray()

    def shows(text: bytes) -> bool:
        try:
            seen.extend(os.read(ours, 65536))
        except BlockingIOError:
            pass
        return text in seen

    try:
        await until(lambda: shows(b"prompt>"), LIMIT)
        program = f"{sys.executable} {tmp_path}/program run --redis {server.url} job -- sh {tmp_path}/job"
        os.write(ours, program.encode() + b"\n")
        await until(lambda: shows(b"up-2"), LIMIT)
        os.write(ours, b"\x1a")
        await until(lambda: shows(b"Stopped"), LIMIT)
        os.write(ours, b"echo back-$((2+2))\n")
        await until(lambda: shows(b"back-4"), LIMIT)
        os.write(ours, b"fg\n")
        await until(lambda: seen.count(b"job -- sh") >= 3 if shows(b"") else False, LIMIT)
        os.write(ours, b"a line\n")
        await until(lambda: shows(b"read a line"), LIMIT)
        os.write(ours, b"echo code-$?\n")
        await until(lambda: shows(b"code-3"), LIMIT)
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
    await until(lambda: not held(server), LIMIT)


def test_the_instants_follow_from_the_renew_deadline_and_are_shown() -> None:
    for ttl in (0.1, 0.3, 5.0, 15.0, 3600.0):
        plan = plan_of(Timing.of(ttl))
        assert 0.8 * ttl == pytest.approx(plan.term_at)
        assert plan.term_at < plan.kill_at < plan.deadline < ttl
        assert kill_instant(plan, 100.0, 2.0 * ttl, 0.0, None) == pytest.approx(100 + 2 * ttl - plan.margin)
        assert kill_instant(plan, 100.0, 0.0, 90.0, None) == 90.0  # already past: at once
        assert kill_instant(plan, 100.0, 0.0, 200.0 + ttl, 100.0) == pytest.approx(100 + plan.grace)
    assert (plan_of(Timing.of(15.0)).kill_at, plan_of(Timing.of(15.0)).deadline) == pytest.approx((14.13525, 14.847))


async def test_help_shows_the_instants_and_the_codes() -> None:
    with Program("run", "--help") as program:
        assert await program.ended() == 0
        text = " ".join(program.out.split())
    assert "SIGTERM 12.0 s after the last confirmed renewal was sent, SIGKILL 14.1 s after it" in text
    for code in Exit:
        assert f"{code.value} {code.name.lower().replace('_', ' ')}" in text


def test_the_documented_codes_and_instants_are_the_real_ones() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    listed = dict(re.findall(r"^\| (\d+) \| ([a-z ]+):", page, re.MULTILINE))
    assert listed.pop("1", None) is None
    assert listed == {str(code.value): code.name.lower().replace("_", " ") for code in Exit}
    for ttl in (15.0, 5.0):
        plan = plan_of(Timing.of(ttl))
        assert f"| {ttl:g} s | {plan.term_at:g} s | {plan.kill_at:.3g} s | {plan.deadline:.3g} s |" in page
