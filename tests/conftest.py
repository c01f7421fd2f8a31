"""Fixtures for all rings: real servers, clients, a proxy; and checks after every test that nothing was left behind.

    async def test_it(redis, server): ...              # the newest server at hand, flushed
    async def test_all(redis, any_server): ...         # once per server program found
    async def test_own(make_server): ...               # a server of one's own: to kill, pause, configure
    async def test_trouble(proxy): ...                 # a proxy before `server` (or `any_server`)
    async def test_sql(database): ...                  # URL of an empty PostgreSQL database of the test's own
    async def test_own_sql(make_postgres): ...         # a PostgreSQL server of one's own: to stop, crash, configure

Always on: no asyncio task may be left, no error may reach the loop's exception handler, and no key without a ttl may
lie in the shared server (a test that needs such keys says `@pytest.mark.leaves_keys("why")`).
"""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Protocol

import hypothesis
import pytest
import pytest_asyncio
from redis.asyncio import Redis

import aioelect
from aioelect._gate import gate
from support import postgres, servers
from support.postgres import Postgres
from support.proxy import Proxy
from support.servers import Binary, Server
from support.tls import Certificates, make_certificates

hypothesis.settings.register_profile("aioelect", deadline=None)  # of one example: the machine may be busy
hypothesis.settings.load_profile("aioelect")

# Under nohup, or behind a shell's "&", some signals are ignored; and so they would be by all that the tests start.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

TASK_PATIENCE = 1.0
"""Seconds that detached tasks get to end by themselves after a test."""


class Connect(Protocol):
    """Make a client for a server or proxy; it is closed after the test."""

    def __call__(self, to: "Server | Proxy", **options: Any) -> Redis: ...


class MakeServer(Protocol):
    """Start a server of the test's own; see `support.servers.Server` for the arguments."""

    def __call__(self, *lines: str, binary: Binary | None = None, **settings: Any) -> Server: ...


# -- which servers -----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run be narrowed to some servers."""
    parser.addoption("--servers", metavar="KEY,..", help="run only against these, for example redis-6.2,valkey-9.1")


def pytest_configure(config: pytest.Config) -> None:
    """In CI a server that ought to be there and isn't is a failure of the whole run."""
    unknown = set(_wanted(config) or ()) - set(servers.found())
    if unknown:
        raise pytest.UsageError(f"--servers: not found: {', '.join(sorted(unknown))}")
    if os.environ.get("CI") == "true" and _missing() and not config.option.collectonly:
        raise pytest.UsageError(f"servers missing in CI: {'; '.join(_missing())}")


def pytest_report_header() -> list[str]:
    """Say which servers the run uses and which it lacks."""
    lines = ["servers: " + (", ".join(binary.title for binary in servers.found().values()) or "none")]
    return lines + [f"server missing: {what}" for what in _missing()]


def _missing() -> list[str]:
    """Which servers this machine ought to have and doesn't, and where to get them."""
    lacking = [f"{source.key}, {source.how}" for source in servers.missing()]
    return lacking + ([f"postgres, {postgres.HOW}"] if postgres.missing() else [])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat tests that ask for `any_server` once per server."""
    if "any_server" in metafunc.fixturenames:
        wanted = _wanted(metafunc.config)
        binaries = [binary for key, binary in servers.found().items() if wanted is None or key in wanted]
        metafunc.parametrize("any_server", binaries, ids=lambda binary: binary.key, indirect=True)


def pytest_collection_finish() -> None:
    """Take what was loaded so far out of the garbage collector's sight: it runs after every async test."""
    gc.collect()
    gc.freeze()


def _wanted(config: pytest.Config) -> list[str] | None:
    option: str | None = config.getoption("--servers")
    return option.split(",") if option else None


# -- servers and clients -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Callable[[Binary], Server]]:
    """Start each shared server at its first use and keep it for the session."""
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def get(binary: Binary) -> Server:
            if binary.key not in running:
                running[binary.key] = stack.enter_context(Server(binary))
            return running[binary.key]

        yield get


def _lend(server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Hand out a shared server empty, and look at what the test left in it."""
    if not server.running:
        server.start()
    server.call("FLUSHALL")
    yield server
    if server.running:
        server.resume()
        if not request.node.get_closest_marker("leaves_keys"):
            permanent = _permanent_keys(server)
            assert not permanent, f"keys without a ttl were left: {permanent}"


def _permanent_keys(server: Server) -> list[str]:
    """Keys that would stay for ever, in any database."""
    # INFO counts them in one step; only if some are there are they looked for by name.
    counts = {
        db: dict(part.split("=") for part in figures.split(","))
        for db, figures in server.info("keyspace").items()
        if db.startswith("db")
    }
    suspect = [db for db, figures in counts.items() if figures["keys"] != figures["expires"]]
    script = (
        "redis.call('SELECT', ARGV[1]) local r = {} for _, k in ipairs(redis.call('KEYS', '*')) do "
        "if redis.call('PTTL', k) == -1 then r[#r+1] = k end end return r"
    )
    return [f"{db}: {key.decode(errors='replace')}" for db in suspect for key in server.call("EVAL", script, 0, db[2:])]


@pytest.fixture
def server(shared_servers: Callable[[Binary], Server], request: pytest.FixtureRequest) -> Iterator[Server]:
    """The newest server at hand, empty. For reading and writing only: to stop or configure one, use `make_server`."""
    wanted = _wanted(request.config)
    try:
        binary = servers.found()[wanted[-1]] if wanted else servers.newest()
    except LookupError as error:
        pytest.skip(str(error))
    yield from _lend(shared_servers(binary), request)


@pytest.fixture
def any_server(shared_servers: Callable[[Binary], Server], request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each server program found, one after the other, empty."""
    yield from _lend(shared_servers(request.param), request)


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Start servers of the test's own, the newest unless told otherwise; gone after the test."""
    with ExitStack() as stack:

        def make(*lines: str, binary: Binary | None = None, **settings: Any) -> Server:
            return stack.enter_context(Server(binary or servers.newest(), *lines, **settings))

        yield make


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[str]:
    """URL of the session's PostgreSQL server, started at its first use."""
    if url := postgres.given():
        yield url
        return
    try:
        server = Postgres()
    except LookupError as error:
        pytest.skip(str(error))
    with server:
        yield server.url


@pytest.fixture(scope="session")
def shared_database(shared_postgres: str) -> Iterator[str]:
    """URL of the session's PostgreSQL database."""
    with postgres.database(shared_postgres) as url:
        yield url


@pytest.fixture
def database(shared_database: str) -> Iterator[str]:
    """URL of a PostgreSQL database that is empty, and will be again after the test."""
    yield shared_database
    postgres.empty(shared_database)


@pytest.fixture
def make_postgres() -> Iterator[Callable[..., Postgres]]:
    """Start PostgreSQL servers of the test's own; gone after the test."""
    with ExitStack() as stack:

        def make(release: str = postgres.NEWEST, **settings: Any) -> Postgres:
            try:
                server = Postgres(release, **settings)
            except LookupError as error:
                pytest.skip(str(error))
            return stack.enter_context(server)

        yield make


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Make clients that are closed after the test."""
    async with AsyncExitStack() as stack:

        def make(to: Server | Proxy, **options: Any) -> Redis:
            client = to.client(**options)
            stack.push_async_callback(client.aclose)
            stack.push_async_callback(aioelect.aclose, client)
            return client

        yield make


@pytest.fixture
def the_server(request: pytest.FixtureRequest) -> Server:
    """Whichever of `any_server` and `server` the test uses; `server` if neither."""
    server: Server = request.getfixturevalue("any_server" if "any_server" in request.fixturenames else "server")
    return server


@pytest.fixture
async def redis(the_server: Server, connect: Connect) -> Redis:
    """A client for the test's server, with redis-py's own defaults."""
    return connect(the_server)


@pytest.fixture
async def proxy(the_server: Server) -> AsyncIterator[Proxy]:
    """A proxy before the test's server, in the test's own loop."""
    async with Proxy(the_server) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for `Proxy(server, tls=certificates.server)`."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


# -- nothing left behind -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> None:
    """Watch the loop of every async test; being autouse it is set up first and looks last."""
    if pytest_asyncio.is_async_test(request.node):
        request.getfixturevalue("loop_errors")


@pytest.fixture
async def loop_errors() -> AsyncIterator[list[str]]:
    """What reached the loop's exception handler. A test that provokes such errors looks at them and clears the list."""
    errors: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(f"{context['message']}: {context.get('exception')!r}"))
    yield errors
    give_up = loop.time() + TASK_PATIENCE
    while (left := asyncio.all_tasks() - {asyncio.current_task()}) and loop.time() < give_up:
        await asyncio.wait(left, timeout=0.02)
    # An exception that nobody retrieved is reported when its task is collected.
    gc.collect()
    assert not left, f"tasks were left running: {[task.get_coro() for task in left]}"
    assert not errors, f"errors reached the event loop: {errors}"
    assert not gate()._inside, "a try that is over has kept its place in the gate"
