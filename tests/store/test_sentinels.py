"""What asking sentinels leaves behind."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from redis.asyncio import Connection
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.exceptions import TimeoutError as RedisTimeoutError

from aioelect._redis import recipe as recipe_module
from support import servers
from support.topologies import SentinelGroup
from support.wait import until


class Stubborn(Connection):
    """A connection whose goodbye fails the first time, as one does that takes too long."""

    failed: ClassVar[list[Stubborn]] = []

    async def disconnect(self, *args: Any, **options: Any) -> None:
        """Close, and complain."""
        await super().disconnect(*args, **options)
        if not self.failed:
            self.failed.append(self)
            raise RedisTimeoutError


@pytest.mark.slow
async def test_no_connection_to_a_sentinel_stays_open_when_the_goodbye_to_another_one_fails() -> None:
    with SentinelGroup(servers.newest()) as group:
        sentinel = group.sentinel()
        for one in sentinel.sentinels:
            one.connection_pool.connection_class = Stubborn
        client = sentinel.master_for(group.name)
        group.replica.pause()
        group.master.kill()  # so that one sentinel after the other is asked
        await until(lambda: all(b"s_down" in master_flags(one, group.name) for one in group.sentinels))
        assert isinstance(client.connection_pool, SentinelConnectionPool)
        pool = recipe_module._resolving(client.connection_pool)
        with pytest.raises(MasterNotFoundError):
            await pool.get_master_address()
        assert Stubborn.failed
        opened = [c for one in pool.sentinel_manager.sentinels for c in one.connection_pool._available_connections]
        assert len(opened) > 1
        assert not any(connection.is_connected for connection in opened)
        await client.aclose()


def master_flags(sentinel: servers.Server, name: str) -> bytes:
    """What a sentinel thinks of the master."""
    fields = sentinel.call("SENTINEL", "MASTER", name)
    return bytes(fields[fields.index(b"flags") + 1])
