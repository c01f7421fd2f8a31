"""The first claim of a process is no slower in use than the later ones."""

import pytest

from support.processes import Child
from support.servers import Server

pytestmark = pytest.mark.faults

FORMS = {
    "lock": "async with FencedLock(redis, 'name', ttl=5, observers=[note]): mark()",
    "lead": "async with Elector(redis, 'name', ttl=5, observers=[note]).lead(): mark()",
    "run": "await Elector(redis, 'name', ttl=5, observers=[note]).run(work)",
    "running": "async with Elector(redis, 'name', ttl=5, observers=[note]).running(work): await done.wait()",
}


@pytest.mark.parametrize("form", FORMS)
async def test_p1_nothing_is_imported_between_a_win_and_its_work(server: Server, form: str) -> None:
    """What is first needed there (anyio's backend) takes 50 ms and more to load, out of a ttl that is running."""
    script = f"""
        import asyncio
        from redis.asyncio import Redis
        from aioelect import Elector, FencedLock, aclose

        seen = {{}}
        def note(fact):
            seen.setdefault(type(fact).__name__, set(sys.modules))
        def mark():
            seen["work"] = set(sys.modules)

        async def main():
            redis, done = Redis(port={server.port}), asyncio.Event()
            async def work(term):
                mark()
                done.set()
            {FORMS[form]}
            await aclose(redis)
            await redis.aclose()
            emit(late=sorted(seen["work"] - seen["TermBegan"]))

        asyncio.run(main())
    """
    with Child(script) as child:
        await child.expect(late=[])
