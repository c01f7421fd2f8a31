"""For tests of your own leader work: a store in memory, a clock that jumps, and bad days on demand.

    store = MemoryStore()                   # pass it where a Redis client is passed
    one, two = Faults(store), Faults(store) # two copies of the service; also Faults(redis)
    one.partition(), one.heal()             # cut one copy off; .delay(), .fail_next(), .drop_answers(), .lose(term)

    @virtual_time                           # an hour passes in a millisecond
    async def test_it(): ...
    pause(20)                               # the process stands still; suspend(3600): the machine sleeps

Nothing in here needs pytest; fixtures for it come with the plugin that pytest finds by itself: `aioelect_store`,
`aioelect_redis`, `aioelect_redis_url`.
"""

from aioelect.testing._faults import Faults
from aioelect.testing._memory import MemoryStore
from aioelect.testing._virtual import Deadlock, VirtualLoop, pause, suspend, virtual_time

__all__ = ["Deadlock", "Faults", "MemoryStore", "VirtualLoop", "pause", "suspend", "virtual_time"]
