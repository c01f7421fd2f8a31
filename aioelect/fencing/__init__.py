"""Guards for the places that are written to: they refuse a holder that is out of date.

No lock can do that: its holder may be paused after its last check, for longer than the ttl, and then write. Each term
has a token that is higher than every earlier one of its name; these guards send it with the write, and the place that
is written to compares it.
"""

from aioelect._tokens import TokenSource

from ._offer import refuse_stale
from ._protocol import Gate
from ._sql import fence_table, fence_trigger, token_sequence
from .postgres import PostgresGuard, PostgresSequence, stale_token
from .redis import RedisGuard
from .sqlite import SqliteGuard

__all__ = [
    "Gate",
    "PostgresGuard",
    "PostgresSequence",
    "RedisGuard",
    "SqliteGuard",
    "TokenSource",
    "fence_table",
    "fence_trigger",
    "refuse_stale",
    "stale_token",
    "token_sequence",
]
