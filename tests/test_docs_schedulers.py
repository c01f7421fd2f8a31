"""The code on the pages about other schedulers is run: one works, is killed, and the other goes on."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from support.examples import Example
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults

DOCS = Path(__file__).resolve().parent.parent / "docs"
ARQ = Path(sys.prefix) / "arq"  # wants another redis-py, so it lies in a folder of its own (Makefile)


def program(page: str, server: Server, **changes: str) -> str:
    """The page's program, on our server, with a ttl that a test can wait for."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    for old, new in {"ttl=15": "ttl=2", "Redis()": f"Redis.from_url({server.url!r})"}.items():
        code = code.replace(old, new)
    for old, new in changes.items():
        assert old in code
        code = code.replace(old, new)
    return str(code)


@pytest.mark.parametrize(
    ("library", "page", "says"),
    [("apscheduler", "with-apscheduler.md", "reporting, token"), ("taskiq", "with-taskiq.md", "reporting")],
)
async def test_only_the_leaders_scheduler_runs_and_another_follows_it(
    library: str, page: str, says: str, server: Server, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    (tmp_path / "app.py").write_text(program(page, server))
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with Example(tmp_path, "-m", "app", env=env) as first:
        await until(lambda: first.output.count(says) >= 2, 20)
        with Example(tmp_path, "-m", "app", env=env) as second:
            await until(lambda: server.call("ZCARD", f"aioelect:{{{name(page)}}}:candidates") or None, 20)
            await until(lambda: first.output.count(says) >= 4, 20)
            assert says not in second.output
            first.process.kill()
            await second.says(says)
            assert second.tokens()[0] > first.tokens()[0]
            second.process.send_signal(signal.SIGINT)
            await until(lambda: second.process.poll() is not None, 20)
            assert re.sub(r"(?s)^Traceback.*KeyboardInterrupt\n$", "", second.errors) == ""
    assert server.call("EXISTS", f"aioelect:{{{name(page)}}}") == 0


def name(page: str) -> str:
    """Of the election on a page."""
    (found,) = re.findall(r'Elector\(Redis\(\), "([\w-]+)"', (DOCS / page).read_text())
    return str(found)


@pytest.mark.skipif(not ARQ.exists(), reason="arq is not installed here: pip install --target $VENV/arq arq")
@pytest.mark.leaves_keys("arq's queue is a sorted set")
async def test_arq_workers_of_which_one_enqueues_each_run_once(server: Server, tmp_path: Path) -> None:
    changes = {'"0 3 * * *"': '"* * * * * *"', "RedisSettings()": f"RedisSettings(port={server.port})"}
    (tmp_path / "app.py").write_text(program("with-arq.md", server, **changes))
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ARQ), os.environ.get("PYTHONPATH", "")])}
    with Example(tmp_path, "-m", "app", env=env) as first, Example(tmp_path, "-m", "app", env=env) as second:

        def reports() -> list[str]:
            return re.findall(r"report of (\S+)", first.output + second.output)

        await until(lambda: len(reports()) >= 3, 30)
        leader_token = max(first.tokens() + second.tokens())
        owner = server.call("HGET", "aioelect:{nightly}:fence", "identity").decode()
        leader, other = (first, second) if str(first.process.pid) in owner else (second, first)
        leader.process.kill()
        await until(lambda: other.tokens() and other.tokens()[-1] > leader_token, 30)
        other.process.terminate()
        await other.ended()
        found = reports()
    assert len(found) == len(set(found)), "a run was done twice"
    assert server.call("EXISTS", "aioelect:{nightly}") == 0


@pytest.mark.leaves_keys("Celery's queue is a list")
async def test_a_beat_that_is_killed_with_its_pod_is_followed_by_another(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("celery")
    (tmp_path / "app.py").write_text(program("with-celery-beat.md", server, **{"redis://localhost": server.url}))
    (tmp_path / "pod.py").write_text("from aioelect.cli import main; main()")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    def pod(number: int) -> Example:
        beat = ("-m", "celery", "-A", "app", "beat", "--pidfile=", "--schedule", str(tmp_path / f"schedule{number}"))
        options = ("--redis", server.url, "--ttl", "2", "beat", "--")
        return Example(tmp_path, "-m", "pod", "elect", *options, sys.executable, *beat, env=env)

    def sent() -> int:
        return int(server.call("LLEN", "celery"))

    with pod(1) as first:
        await until(lambda: sent() >= 2, 30)
        with pod(2) as second:
            await until(lambda: server.call("ZCARD", "aioelect:{beat}:candidates") or None, 20)
            before, began = sent(), time.monotonic()
            await until(lambda: sent() >= before + 4, 20)
            assert time.monotonic() - began > 2.5, "two beats send at the same time"
            first.process.kill()
            await first.ended()
            before = sent()
            await until(lambda: sent() >= before + 3, 30)
            second.process.terminate()
            await second.ended()
    assert server.call("EXISTS", "aioelect:{beat}") == 0
