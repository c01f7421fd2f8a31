"""The tour uses the fixtures of the pytest plugin, which pytest finds by itself only where aioelect is installed."""

from pytest_aioelect import _aioelect_server, aioelect_redis, aioelect_redis_url, aioelect_store

__all__ = ["_aioelect_server", "aioelect_redis", "aioelect_redis_url", "aioelect_store"]
