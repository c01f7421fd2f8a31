"""Which names are held: a walk over the keys under a prefix, a page at a time, so that the server is never held up."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

from aioelect._core.names import check_name
from aioelect._errors import ConfigurationError

from .cluster import ClusterRoute
from .refusals import Fault, trouble_of
from .scripts import Route
from .wire import Malformed

__all__ = ["names_under"]

_PAGE = b"1000"  # keys that are looked at in one step, about a millisecond
_GLOB = re.compile(rb"([*?\[\]\\^-])")


async def names_under(route: Route, prefix: str, deadline_of_page: Callable[[], float]) -> AsyncIterator[str]:
    """The names that are held under a prefix, each once; one that changes hands meanwhile may be missing."""
    start = prefix.encode() + b":{"
    pattern = _GLOB.sub(rb"\\\1", start) + b"*}"
    seen: set[bytes] = set()
    for node in await route.nodes(deadline_of_page()) if isinstance(route, ClusterRoute) else [route]:
        cursor = b"0"
        while True:
            command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _PAGE)
            (reply,) = await node.exchange(b"", lambda _, page=command: (page,), deadline_of_page())  # type: ignore[misc]
            match reply:
                case [bytes(cursor), list(keys)]:
                    found = {key for key in keys if isinstance(key, bytes)} - seen
                case Fault():
                    raise trouble_of(reply).error()
                case _:
                    raise Malformed
            seen |= found
            for key in sorted(found):
                if (name := _name_of(key[len(start) : -1])) is not None:
                    yield name
            if cursor == b"0":
                break


def _name_of(text: bytes) -> str | None:
    """None: the key is somebody else's, since no name of ours can look like that."""
    try:
        return check_name(text.decode())
    except (ConfigurationError, UnicodeDecodeError):
        return None
