"""Several independent masters, for stores that want a majority of them."""

from collections.abc import Iterable

from aioelect._redis import scripts, voting, wire
from support.servers import Server


def commissioned(nodes: Iterable[Server], longest_ttl: float = 60.0, prefix: str = "aioelect") -> None:
    """Let nodes vote at once, as `QuorumStore.commission` does; any of them."""
    body, _ = scripts._script("commission")
    for node in nodes:
        node.call("EVAL", body, 1, voting.register_of(prefix), wire.milliseconds(longest_ttl))
