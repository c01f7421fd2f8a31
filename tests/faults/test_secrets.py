"""P12, P15: owner values and passwords never reach a log, a message, a repr or a chained cause, whatever goes wrong.

One run through all the trouble there is, with everything logged at DEBUG and every exception kept; the owner values are
taken from the wire.
"""

import asyncio
import gc
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable

import pytest
from prometheus_client import REGISTRY, generate_latest

from aioelect import AioelectError, Elector, FencedLock, Lease, Term, aclose
from conftest import Connect, MakeServer
from support import servers
from support.proxy import Proxy
from support.servers import Server

pytestmark = pytest.mark.faults

PASSWORD = "correct-horse-battery"


class Heard:
    """All that anybody might get to see."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[BaseException] = []

    def see(self, *things: object) -> None:
        """Keep what a thing shows of itself."""
        self.texts += [text for thing in things for text in (repr(thing), str(thing))]

    def fail(self, error: BaseException) -> None:
        """Keep an exception with all that hangs on it."""
        self.errors.append(error)
        self.texts += traceback.format_exception(error)
        seen: list[BaseException | None] = [error]
        for link in seen:  # grows while it is walked
            if link is not None:
                self.see(link, link.args, vars(link), *getattr(link, "__notes__", ()))
                seen += [link.__cause__, link.__context__]

    async def of(self, attempt: Awaitable[object]) -> None:
        """Await something that may fail."""
        try:
            self.see(await asyncio.wait_for(attempt, 15))
        except (AioelectError, TimeoutError) as error:
            self.fail(error)


@pytest.fixture
async def guarded(make_server: MakeServer, request: pytest.FixtureRequest) -> Server:
    """A server with a password: the oldest, which says most, and the newest."""
    return make_server(binary=request.param, requirepass=PASSWORD)


@pytest.fixture
async def wire(guarded: Server) -> AsyncIterator[Proxy]:
    """The way to it."""
    async with Proxy(guarded) as proxy:
        yield proxy


def owner_values(proxy: Proxy) -> set[bytes]:
    """The secrets that went over the wire."""
    found: set[bytes] = set()
    for command in proxy.commands:
        match command.args:
            case (b"EVALSHA" | b"EVAL", _, b"2", _, _, owner, *_):
                found.add(owner)
            case (b"DELEX", _, b"IFEQ", owner) | (b"DELIFEQ", _, owner) if owner != b"aioelect:nobody":
                found.add(owner)
    return found


@pytest.mark.parametrize(
    "guarded",
    {b.key: b for b in (next(iter(servers.found().values())), servers.newest())}.values(),
    indirect=True,
    ids=lambda b: b.key,
)
async def test_p12_no_owner_value_and_no_password_is_ever_shown(
    guarded: Server, wire: Proxy, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    heard = Heard()
    seen_by_get: set[bytes] = set()
    redis = connect(wire, password=PASSWORD)
    admin = guarded.client(password=PASSWORD)

    async def hold(name: str, *, ttl: float = 0.6, until_lost: bool = False) -> None:
        lock = FencedLock(redis, name, ttl=ttl, wait=0.4)
        async with lock as term:
            seen_by_get.add(present(await admin.get(f"aioelect:{{{name}}}")))
            heard.see(lock, term, term.id, term.renew, vars_of(term))
            await term.renew()
            if until_lost:
                await asyncio.sleep(10)

    async def work(term: Term) -> None:
        heard.see(term)
        raise ValueError("work failed")

    # All is well; held by another; taken; a body that raises.
    await heard.of(hold("well"))
    lease = Lease(redis, "held", ttl=20)
    kept = await lease.try_acquire()
    heard.see(lease, kept)
    await heard.of(hold("held"))
    losing = asyncio.create_task(heard.of(hold("taken", ttl=1.0, until_lost=True)))
    await asyncio.sleep(0.2)
    await admin.set("aioelect:{taken}", "another's", px=3000)
    await losing
    elector = Elector(redis, "election", ttl=0.6)
    with pytest.raises(ValueError, match="work failed") as raised:
        await elector.run(work)
    heard.fail(raised.value)
    heard.see(elector)
    # Refusals of every kind, at acquire, renew and release.
    assert kept is not None
    for begin, end in (
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("ACL", "SETUSER", "default", "-evalsha"), ("ACL", "SETUSER", "default", "+evalsha")),
        (("ACL", "SETUSER", "default", "-get", "-hmget"), ("ACL", "SETUSER", "default", "+get", "+hmget")),
    ):
        await admin.execute_command(*begin)  # type: ignore[no-untyped-call,unused-ignore]
        await heard.of(hold("refused"))
        await heard.of(kept.renew())
        await heard.of(Lease(redis, "refused-2").try_acquire())
        await admin.execute_command(*end)  # type: ignore[no-untyped-call,unused-ignore]
    await admin.rpush("aioelect:{list}", "x")  # type: ignore[misc,unused-ignore]
    await heard.of(hold("list"))
    await admin.delete("aioelect:{list}")
    await admin.set("aioelect:{foreign}", "x")
    await heard.of(hold("foreign"))
    await admin.delete("aioelect:{foreign}")
    # The way: cut, silent, refused; then a loss by the clock. Answers that never come for a release.
    cut = wire.request("EVALSHA", times=2).cut()
    await heard.of(hold("cut"))
    cut.remove()
    drop = wire.reply(lambda command: command.name in ("DELEX", "DELIFEQ", "EVALSHA"), nth=3, times=1).drop()
    await heard.of(hold("dropped"))
    drop.remove()
    losing = asyncio.create_task(heard.of(hold("expired", until_lost=True)))
    await asyncio.sleep(0.3)
    wire.black_hole()
    await losing
    await heard.of(hold("silent"))
    wire.heal(deliver=False)
    wire.refuse()
    wire.cut()
    await heard.of(hold("unreachable"))
    wire.heal()
    await heard.of(kept.release())
    # Passwords: wrong, and right ones in a URL.
    await heard.of(Lease(wrong := connect(wire, password=PASSWORD + "-no"), "name").try_acquire())
    heard.see(elector, lease, *gc_repr())

    assert len(heard.errors) > 10
    shown = "\n".join([*heard.texts, *every_record(caplog), generate_latest(REGISTRY).decode()])
    secrets = owner_values(wire)
    assert len(secrets) >= 15
    assert seen_by_get <= secrets
    assert [secret for secret in secrets if secret.decode() in shown] == []
    assert PASSWORD not in shown
    for client in (redis, wrong):
        await aclose(client)
    await admin.aclose()


def present(value: object) -> bytes:
    """What GET says of a key that is there."""
    assert isinstance(value, bytes)
    return value


def vars_of(term: Term) -> list[object]:
    """What a debugger or an error reporter would look at next."""
    keeper = term._supervisor
    return [
        keeper,
        keeper.info,
        keeper.state,
        keeper.timing,
        getattr(keeper, "_claim", None),
        getattr(keeper, "_store", None),
    ]


def gc_repr() -> list[object]:
    """Every object of ours that lives."""
    return [thing for thing in gc.get_objects() if type(thing).__module__.startswith("aioelect.")]


def every_record(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines with their arguments and extra fields; the proxy's own and asyncio's are not ours to judge."""
    records = [record for record in caplog.get_records("call") if not record.name.startswith("support")]
    return [f"{record.getMessage()} {record.args!r} {vars(record)!r}" for record in records]
