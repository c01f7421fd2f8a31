"""P13: an identity is a label, never proof: two candidates that share one are never two leaders."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aioelect import AcquireTimeout, Elector, FencedLock, Term, aclose
from conftest import Connect
from support.processes import Child
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.faults


class Desk:
    """Where only one may work at a time; whoever finds it taken is noted."""

    def __init__(self) -> None:
        self.at_work: list[str] = []
        self.seen: set[str] = set()
        self.clashes: list[list[str]] = []
        self.tokens: list[int] = []

    async def work(self, who: str, term: Term) -> None:
        """Sit down, work until the term is over, get up."""
        self.at_work.append(who)
        self.seen.add(who)
        self.tokens.append(term.token)
        if len(self.at_work) > 1:
            self.clashes.append(list(self.at_work))
        try:
            async for _ in term.every(0.01):
                pass
        finally:
            self.at_work.remove(who)


@pytest.fixture
async def clients(server: Server, connect: Connect) -> AsyncIterator[tuple[Redis, Redis]]:
    """Two clients that share no line, as if on two machines."""
    pair = connect(server), connect(server, unix=True)
    yield pair
    for client in pair:
        await aclose(client)


@pytest.mark.parametrize("shared", [True, False], ids=["same client", "other client"])
async def test_p13_two_candidates_with_one_identity_in_one_process_are_never_two_leaders(
    clients: tuple[Redis, Redis], shared: bool
) -> None:
    desk = Desk()
    ones, others = clients[0], clients[0] if shared else clients[1]
    one = Elector(ones, "election", ttl=0.5, identity="twin")
    other = Elector(others, "election", ttl=0.5, identity="twin")
    both: list[float] = []

    async def watch() -> None:
        while True:
            if one.is_leader and other.is_leader:
                both.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with (
        one.running(lambda term: desk.work("one", term)),
        other.running(lambda term: desk.work("other", term)),
    ):
        while len(desk.tokens) < 6 or desk.seen != {"one", "other"}:
            term = await until(lambda: one.term or other.term)
            term.resign()
            await until(lambda: len(desk.tokens) > desk.tokens.index(term.token) + 1)  # noqa: B023
    watching.cancel()
    assert (desk.clashes, both) == ([], [])
    assert desk.tokens == sorted(set(desk.tokens))


CANDIDATE = """
import asyncio
from redis.asyncio import Redis
from aioelect import Elector

desk = sys.argv[2]

async def work(term):
    try:
        os.close(os.open(desk, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        emit(event="clash")
    emit(event="leads", token=term.token)
    try:
        async for _ in term.every(0.01):
            if quit.is_set():
                quit.clear()
                term.resign()
    finally:
        os.unlink(desk)

async def main():
    global quit
    quit = asyncio.Event()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Elector(Redis(port=int(sys.argv[1])), "election", ttl=0.6, identity="twin").running(work):
        emit(event="up")
        while await reader.readline():
            quit.set()

asyncio.run(main())
"""


async def test_p13_two_candidates_with_one_identity_in_two_processes_are_never_two_leaders(
    server: Server, tmp_path: Path
) -> None:
    desk = tmp_path / "desk"
    arguments = [str(server.port), str(desk)]
    with Child(CANDIDATE, arguments) as one, Child(CANDIDATE, arguments) as other:
        pair = [one, other]
        await asyncio.gather(*(child.expect(event="up", limit=30) for child in pair))

        def terms() -> list[tuple[int, Child]]:
            """Tokens and who had them, in their order."""
            leads = [(line, child) for child in pair for line in child.lines if line.fields.get("event") == "leads"]
            return sorted(((line["token"], child) for line, child in leads), key=lambda term: term[0])

        for count in range(1, 7):
            await until(lambda: len(terms()) == count, limit=10)  # noqa: B023
            # Right after a hand-over the one that resigned still stands back: who comes next is open.
            terms()[-1][1].send(resign=True)
        await until(lambda: len(terms()) == 7, limit=10)
        dead = terms()[-1][1]
        dead.kill()
        await dead.exited()
        desk.unlink()  # the dead work no more
        await until(lambda: len(terms()) == 8, limit=10)
        assert terms()[-1][1] is not dead
        assert [child.find(event="clash") for child in pair] == [None, None]
        assert len({token for token, _ in terms()}) == 8


async def test_p13_an_identity_does_not_let_a_second_one_in_nor_renew_or_release_for_it(
    server: Server, clients: tuple[Redis, Redis]
) -> None:
    async with FencedLock(clients[0], "name", ttl=5, identity="twin") as term:
        with pytest.raises(AcquireTimeout) as caught:
            async with FencedLock(clients[1], "name", ttl=5, identity="twin", wait=0.2):
                pytest.fail("it is held by the other twin")
        assert (caught.value.holder, caught.value.token) == ("twin", term.token)
        await term.renew()
        assert int(server.call("HGET", "aioelect:{name}:fence", "token")) == term.token
