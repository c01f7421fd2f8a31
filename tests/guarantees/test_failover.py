"""Another server takes over that had not heard of the claim: two may hold a name, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from aioelect import LeaseLost, Term
from guarantees.conftest import Participant, assert_two_hold_and_a_guard_refuses_the_older, at_hand, on
from support.modes import Mode, deployed, until_reached
from support.topologies import Cluster, SentinelGroup, start_replica_of
from support.wait import until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

Pair = tuple[Participant, Participant]
TTL = 2.5


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    """A deployment of the test's own: it doesn't come out as it went in."""
    with at_hand(lambda: deployed(request.param)) as mode:
        yield mode


def deaf(mode: Mode) -> None:
    """From here on the replica hears nothing of its master, though it lives."""
    assert mode.replica is not None
    (master,) = mode.nodes
    mode.replica.pause()
    master.call("CLIENT", "KILL", "TYPE", "replica")
    assert master.info("replication")["connected_slaves"] == "0"


@on("sentinel", "cluster")
async def test_after_a_failover_that_lost_the_claim_two_hold_a_name_until_the_older_ones_next_renewal(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    deaf(mode)
    first = await one.holds(name)
    (master,) = mode.nodes
    master.kill()
    assert mode.replica is not None and isinstance(mode.group, SentinelGroup | Cluster)
    mode.replica.resume()
    await mode.group.promoted()
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
    with pytest.raises(LeaseLost):
        await until_reached(lambda: _renewed(first))
    assert second.is_leader


async def _renewed(term: Term) -> bool:
    await term.renew()
    return True


@on("replica", "wait")
async def test_two_hold_a_name_for_as_long_as_the_old_master_lives_on_unless_it_counts_its_replicas(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    (master,), replica = mode.nodes, mode.replica
    assert replica is not None
    begun: list[Term] = []

    async def work() -> None:
        with suppress(LeaseLost):
            async with one.lock(name, ttl=TTL) as term:
                begun.append(term)
                await asyncio.get_running_loop().create_future()

    working = asyncio.create_task(work())
    await until(lambda: begun, limit=10)
    (first,) = begun
    replica.call("REPLICAOF", "NO", "ONE")
    replica.call("FLUSHALL")  # as one that had not heard of the claim
    with ExitStack() as stack:
        if mode.kind == "wait":
            stack.callback(start_replica_of(replica).close)
        (line,) = other.network.lines.values()
        line.upstream = replica.port
        line.cut()
        second = await other.holds(name)
    await asyncio.sleep(1.2 * TTL)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)  # and for ever
    for setting in ("min-replicas-max-lag", "min-replicas-to-write"):
        master.call("CONFIG", "SET", setting, 1)
    await until(lambda: not first.is_leader, limit=3 * TTL)
    assert second.is_leader
    await working
