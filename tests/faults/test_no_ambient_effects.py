"""P15: nothing happens by itself: not at import, not at construction, not in a forked child, not at the loop's end.

Each test is a process of its own, with warnings as errors and asyncio's debug mode on; its stderr must stay empty.
"""

import subprocess
import sys
import textwrap

import pytest

from support.servers import Server

pytestmark = pytest.mark.faults


def run(script: str, *args: str, debug: bool = True) -> str:
    """Run a script and return what it printed; anything on stderr is a failure."""
    options = ["-X", "dev", "-W", "error"] if debug else []
    done = subprocess.run(
        [sys.executable, "-P", *options, "-c", textwrap.dedent(script), *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # A loaded machine makes anything slow, and debug mode says so.
    said = [line for line in done.stderr.splitlines() if not (line.startswith("Executing <") and " took " in line)]
    assert (done.returncode, said) == (0, []), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_p15_import_registers_and_configures_nothing() -> None:
    run(
        """
        import asyncio, atexit, gc, logging, os, signal, sys, threading, warnings
        import redis.asyncio, anyio  # what they do is theirs

        def world():
            return {
                "handlers": [logging.root.handlers, logging.getLogger("aioelect").handlers],
                "levels": [logging.root.level, logging.getLogger("aioelect").level],
                "signals": [signal.getsignal(n) for n in signal.valid_signals()],
                "threads": threading.enumerate(),
                "hooks": [sys.excepthook, sys.unraisablehook, threading.excepthook],
                "filters": list(warnings.filters),
                "atexit": atexit._ncallbacks(),
                "policy": asyncio.events._event_loop_policy,
                "files": sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None,
                "environment": dict(os.environ),
            }

        before = world()
        import aioelect
        assert world() == before, (before, world())
        for module in ("prometheus_client", "click", "rich", "pytest"):
            assert module not in sys.modules, module
        assert [m for m in sys.modules if m.startswith(("aioelect.cli", "aioelect.metrics", "aioelect.testing"))] == []
        """
    )


def test_p15_construction_touches_no_loop_and_no_network_and_registers_the_collector_once() -> None:
    run(
        """
        import asyncio, signal, socket, sys

        def refuse(*args, **kwargs):
            raise AssertionError("the network was touched")

        import redis.asyncio
        import aioelect
        client = redis.asyncio.Redis(host="nowhere.invalid")
        socket.socket.connect = socket.getaddrinfo = refuse
        asyncio.new_event_loop = asyncio.get_event_loop = refuse
        signals = [signal.getsignal(n) for n in signal.valid_signals()]
        for turn in range(3):
            aioelect.Lease(client, "name")
            aioelect.FencedLock(client, "name")
            aioelect.Elector(client, "name").running(None)
        assert [signal.getsignal(n) for n in signal.valid_signals()] == signals
        from prometheus_client import REGISTRY
        names = [metric.name for metric in REGISTRY.collect() if metric.name.startswith("leader_election")]
        assert names and len(names) == len(set(names)), names
        """
    )


ENDINGS = {
    "held": 'await Lease(redis, "held").try_acquire()',
    "waiting": """
        server.call("SET", "aioelect:{waiting}", "another's", "PX", 5000)
        asyncio.create_task(FencedLock(redis, "waiting").__aenter__())
        await asyncio.sleep(0.1)
        """,
    "candidacy": """
        elector = Elector(redis, "candidacy", ttl=0.5)
        await elector.__aenter__()
        await elector.wait_elected()
        """,
    "after use": """
        async with FencedLock(redis, "after") as term:
            await term.renew()
        """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_p15_a_store_that_was_not_closed_ends_silently_with_its_loop(server: Server, ending: str) -> None:
    script = """
        import asyncio, gc, sys
        from redis.asyncio import Redis
        from aioelect import Elector, FencedLock, Lease

        class server:  # a raw call, for the part of another
            @staticmethod
            def call(*args):
                import redis
                with redis.Redis(port=int(sys.argv[1])) as client:
                    client.execute_command(*args)

        async def main():
            redis = Redis(port=int(sys.argv[1]))
            {body}
            await redis.aclose()  # the user's own client; aioelect.aclose() is left out

        asyncio.run(main())
        gc.collect()
        print("done")
        """
    body = textwrap.indent(textwrap.dedent(ENDINGS[ending]).strip(), " " * 12).strip()
    assert run(script.replace("{body}", body), str(server.port)) == "done\n"


def test_p15_module_level_objects_work_in_successive_loops_without_being_closed(server: Server) -> None:
    out = run(
        """
        import asyncio, gc, sys
        from redis.asyncio import Redis
        from aioelect import Elector, FencedLock

        # The user's client belongs to a loop (redis-py); its settings are all that is used of it.
        redis = Redis(port=int(sys.argv[1]))
        lock = FencedLock(redis, "name", ttl=1.0, wait=5)
        elector = Elector(redis, "election", ttl=1.0)

        async def work(term):
            return term.token

        async def main():
            async with lock as term:
                print(term.token)
            print(await elector.run(work))

        for _ in range(3):
            asyncio.run(main())
            gc.collect()
        """,
        str(server.port),
    )
    tokens = [int(line) for line in out.split()]
    assert len(tokens) == 6
    assert tokens[0::2] == sorted(set(tokens[0::2]))


FORK = """
    import asyncio, os, sys
    from redis.asyncio import Redis
    from aioelect import Elector, FencedLock, Lease, LeaseLost, aclose

    def child(part):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                part()
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    redis = Redis(port=int(sys.argv[1]))
    lock = FencedLock(redis, "name", ttl=2.0)

    def holds_nothing(term, elector):
        assert not term.is_leader and not term.is_valid and term.remaining() == 0.0
        assert not elector.is_leader and elector.term is None
        try:
            term.check()
        except Exception as error:
            print(type(error).__name__)
        else:
            raise AssertionError("check() passed in the child")

    def works_on_its_own():
        async def main():
            own = Redis(port=int(sys.argv[1]))
            assert await Lease(own, "name").try_acquire() is None  # the parent's
            async with FencedLock(own, "childs", wait=5) as term:
                await term.renew()
                assert term.is_leader
            await aclose(own)
            await own.aclose()
        # A fresh loop in a thread-free child: the parent's is running and is not the child's.
        asyncio.events._set_running_loop(None)
        asyncio.run(main())

    async def main():
        elector = Elector(redis, "election", ttl=2.0)
        async with lock as term, elector:
            await elector.wait_elected()
            child(lambda: holds_nothing(term, elector))
            child(works_on_its_own)
            # The parent has noticed nothing.
            await term.renew()
            await asyncio.sleep(0.8)
            await term.renew()
            assert term.is_leader and elector.is_leader
        await aclose(redis)
        await redis.aclose()

    asyncio.run(main())
    """


def test_p15_a_forked_child_holds_nothing_and_its_parent_goes_on_holding(server: Server) -> None:
    assert run(FORK, str(server.port)) in ("LeaseExpired\n", "NotHeld\n", "LeaseLost\n")
    assert server.call("EXISTS", "aioelect:{name}", "aioelect:{election}") == 0


def test_p15_a_child_that_ends_releases_nothing_of_its_parents(server: Server) -> None:
    out = run(
        """
        import asyncio, gc, os, sys
        from redis.asyncio import Redis
        from aioelect import FencedLock, aclose

        async def main():
            redis = Redis(port=int(sys.argv[1]))
            async with FencedLock(redis, "name", ttl=1.0) as term:
                pid = os.fork()
                if pid == 0:
                    gc.collect()
                    os._exit(0)
                os.waitpid(pid, 0)
                await asyncio.sleep(1.3)
                await term.renew()
                print(await redis.exists("aioelect:{name}"))
            await aclose(redis)
            await redis.aclose()

        asyncio.run(main())
        """,
        str(server.port),
    )
    assert out == "1\n"
