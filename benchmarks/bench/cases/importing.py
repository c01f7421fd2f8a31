"""What `import aioelect` costs."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from bench import stats
from bench.results import US, Outcome, Row, Verdict, timing_row
from bench.stage import Bench, case

WHAT = "import"
MODULES = {
    US: "aioelect",
    "redis-py": "redis.asyncio",
    "pottery AIORedlock": "pottery",
    "coredis Lock": "coredis.patterns.lock",
    "python-redis-lock": "redis_lock",
}
_SCRIPT = """
import sys, time
start = time.perf_counter()
try:
    import {module}
except ImportError:
    sys.exit("not installed here: make bench installs it")
print(time.perf_counter() - start, "prometheus_client" in sys.modules)
"""


@case("import", "import aioelect")
async def importing(bench: Bench) -> Outcome:
    """Fresh interpreters import one module each, in turn; timed inside, from just before the import to just after it.

    The first round, which writes the .pyc files, is thrown away. `redis.asyncio`, which aioelect imports too, is the
    measure. The interpreter's own start is not in it.
    """
    rounds = bench.pick(10, 1)
    took: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    loaded = False
    for number in range(rounds + 1):
        for who, module in MODULES.items():
            if who in absent:
                continue
            bench.tell(number, rounds + 1, module)
            done = await asyncio.to_thread(_import, module)
            if done.returncode:
                absent[who] = done.stderr.strip().splitlines()[-1][:100]
            elif number:
                seconds, metrics = done.stdout.split()
                took.setdefault(who, []).append(float(seconds))
                loaded |= who == US and metrics == "True"
    against = {who: stats.ratios(took[US], theirs) for who, theirs in took.items()}
    rows = [timing_row(who, f"{WHAT} {MODULES[who]}", took[who], ratio=against[who]) for who in took]
    rows += [Row(who, WHAT, note=why) for who, why in absent.items()]
    verdicts = [
        Verdict("at most 1.25x importing redis.asyncio", against["redis-py"].median, 1.25),
        Verdict("prometheus_client is not imported (1: it is)", int(loaded), 0),
    ]
    return Outcome(rows, verdicts, settings={"rounds": rounds})


def _import(module: str) -> subprocess.CompletedProcess[str]:
    script = _SCRIPT.format(module=module)
    return subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
