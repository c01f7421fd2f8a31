"""Where a quorum's promise ends: what its nodes have to be able to tell, and how many of them may go wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

import pytest

from aioelect import Term
from guarantees.conftest import Participant, assert_two_hold_and_a_guard_refuses_the_older, at_hand, on
from support.modes import QUORUMS, Mode, deployed
from support.servers import Server

pytestmark = [pytest.mark.faults, pytest.mark.slow]

Pair = tuple[Participant, Participant]


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    """A deployment of the test's own."""
    with at_hand(lambda: deployed(request.param)) as mode:
        yield mode


def beyond_reach(mode: Mode, one: Participant) -> list[Server]:
    """Cut a participant off from a minority of the nodes; the others, so that it has a bare majority."""
    minority = len(mode.nodes) // 2
    for node in mode.nodes[:minority]:
        one.network.lines[node.port].stop()
    return mode.nodes[minority:]


@on(*QUORUMS)
async def test_one_node_that_forgot_a_claim_of_a_bare_majority_is_enough_and_two_hold_a_name(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    holding = beyond_reach(mode, one)
    first = await one.holds(name)
    assert await other.takes(name) is None
    holding[0].call("UNLINK", f"aioelect:{{{name}}}")
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)


async def restart_with_old_data(node: Server, meanwhile: Awaitable[Term]) -> Term:
    """Save what a node knows, let something happen, and bring the node back as it was before."""
    node.call("CONFIG", "SET", "appendonly", "no")
    node.save()
    kept = (node.folder / "dump.rdb").rename(node.folder / "kept")
    term = await meanwhile
    node.kill()
    node.wipe_data()
    kept.rename(node.folder / "dump.rdb")
    node._settings["appendonly"] = "no"  # else it would not look at the snapshot
    node.start()
    assert node.call("EXISTS", "aioelect:quorum") == 1, "the snapshot was to come back"
    assert node.call("EXISTS", f"aioelect:{{{term.name}}}") == 0
    return term


@on(*QUORUMS)
async def test_a_node_with_old_data_abstains(mode: Mode, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    one, other = pair
    name = mode.name()
    old, *_ = beyond_reach(mode, one)
    first = await restart_with_old_data(old, one.holds(name))
    assert await other.takes(name) is None
    assert f"127.0.0.1:{other.network.port(old.port)}, abstains" in caplog.text
    assert first.is_leader


@on(*QUORUMS)
async def test_a_node_with_old_data_that_may_not_look_at_its_run_id_lets_two_hold_a_name(
    mode: Mode, pair: Pair
) -> None:
    one, other = pair
    name = mode.name()
    old, *_ = beyond_reach(mode, one)
    first = await restart_with_old_data(old, one.holds(name))
    old.call("ACL", "SETUSER", "default", "-info")
    second = await other.holds(name)
    assert_two_hold_and_a_guard_refuses_the_older(first, second)
