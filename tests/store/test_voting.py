"""What one node of a quorum does when it is asked, on each real server: votes, records, withdrawals, the register."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aioelect import StoreRejected, StoreUnavailable
from aioelect._core.quorum import No, Yes
from aioelect._redis.node import Node
from aioelect._redis.recipe import recipe_of
from aioelect._store import Claim
from store.conftest import a_claim
from support.quorums import commissioned
from support.servers import Server

CLAIM = "aioelect:{name}"
FENCE = f"{CLAIM}:fence"
REGISTER = "aioelect:quorum"
LIMIT = 5.0
LONGEST = 60.0


@pytest.fixture
async def node(any_server: Server) -> AsyncIterator[Node]:
    """A node that votes."""
    commissioned([any_server], LONGEST)
    client = any_server.client()
    node = Node(recipe_of(client), "aioelect")
    yield node
    await node.aclose()
    await client.aclose()


async def vote(node: Node, claim: Claim, turn: int = 1, *, floor: int = 0, longest: float = LONGEST) -> Yes | No:
    return await node.vote(claim, floor=floor, turn=turn, longest=longest, limit=LIMIT)


async def proposal(node: Node, claim: Claim, turn: int = 1, *, floor: int = 0) -> int:
    answer = await vote(node, claim, turn, floor=floor)
    assert isinstance(answer, Yes)
    return answer.token


async def test_a_vote_proposes_what_is_no_token_before_it_is_recorded(node: Node, any_server: Server) -> None:
    mine, theirs = a_claim(identity="me"), a_claim()
    proposed = await proposal(node, mine)
    answer = await vote(node, theirs)
    assert answer == No(mine.id, "me", None, answer.remaining if isinstance(answer, No) else None)
    assert await node.record(mine, proposed + 5, limit=LIMIT)
    answer = await vote(node, theirs)
    assert isinstance(answer, No) and answer.token == proposed + 5
    assert await vote(node, mine) == Yes(proposed + 5, recorded=True)


async def test_p9_the_next_proposal_is_above_what_was_recorded_and_above_what_was_proposed(node: Node) -> None:
    first, second, third = a_claim(), a_claim(), a_claim()
    high = await proposal(node, first, floor=2**60)
    assert high == 2**60 + 1, "exact beyond 2^53"
    assert await node.record(first, 7, limit=LIMIT), "a majority without this node's proposal chose a lower one"
    await node.release(first, limit=LIMIT)
    later = await proposal(node, second)
    assert later == high + 1
    assert await node.record(second, later + 100, limit=LIMIT)
    await node.release(second, limit=LIMIT)
    assert await proposal(node, third) > later + 100


async def test_nothing_is_recorded_for_a_claim_that_is_gone_or_another_s(node: Node, any_server: Server) -> None:
    mine, theirs = a_claim(), a_claim()
    await proposal(node, mine)
    await node.release(mine, limit=LIMIT)
    assert not await node.record(mine, 2**61, limit=LIMIT)
    await proposal(node, theirs)
    assert not await node.record(mine, 2**61, limit=LIMIT)
    assert any_server.call("HGET", FENCE, "token") == b""


async def test_a_withdrawal_that_arrives_late_leaves_a_later_round_of_the_same_claim_alone(node: Node) -> None:
    mine, theirs = a_claim(), a_claim()
    await proposal(node, mine, turn=1)
    await proposal(node, mine, turn=2)
    assert not await node.withdraw(mine, 1, limit=LIMIT)
    assert isinstance(await vote(node, theirs), No)
    assert not await node.withdraw(theirs, 9, limit=LIMIT), "another's claim is left alone in any case"
    assert await node.withdraw(mine, 2, limit=LIMIT)
    assert isinstance(await vote(node, theirs), Yes)


async def test_a_node_whose_register_is_gone_abstains_until_the_longest_ttl_has_passed(
    node: Node, any_server: Server
) -> None:
    any_server.call("DEL", REGISTER)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"it votes in (60\.0|59\.)") as caught:
            await vote(node, a_claim())
        assert caught.value.reason == "abstains"
    assert any_server.call("EXISTS", CLAIM) == 0
    now = any_server.call("TIME")[0]
    any_server.call("HSET", REGISTER, "since", (int(now) - 61) * 1000)
    assert isinstance(await vote(node, a_claim()), Yes)


async def test_a_node_of_another_run_abstains_also_towards_whoever_has_a_claim_on_it(
    node: Node, any_server: Server
) -> None:
    mine = a_claim()
    await proposal(node, mine)
    any_server.call("HSET", REGISTER, "run", "before", "longest", 3600_000)
    with pytest.raises(StoreUnavailable, match="may have forgotten claims"):
        await vote(node, mine)
    assert isinstance(await vote(node, a_claim()), No), "who holds it is told all the same"


async def test_a_longer_ttl_makes_a_node_wait_longer_and_a_clock_that_is_set_back_begins_anew(
    node: Node, any_server: Server
) -> None:
    with pytest.raises(StoreUnavailable, match="it votes in"):
        now = int(any_server.call("TIME")[0])
        any_server.call("HSET", REGISTER, "since", (now - 70) * 1000)
        await vote(node, a_claim(), longest=90.0)
    any_server.call("HSET", REGISTER, "since", (now + 100_000) * 1000, "longest", 1000)
    with pytest.raises(StoreUnavailable, match=r"it votes in (60\.0|59\.)"):
        await vote(node, a_claim())


async def test_p11_a_key_that_is_not_ours_is_told_and_left(node: Node, any_server: Server) -> None:
    any_server.call("SET", CLAIM, "somebody's")
    with pytest.raises(StoreRejected, match="another program"):
        await vote(node, a_claim())
    any_server.call("DEL", CLAIM)
    any_server.call("SET", FENCE, "no hash", "PX", 1000)
    with pytest.raises(StoreRejected, match="holds something else"):
        await vote(node, a_claim())
    assert any_server.call("EXISTS", CLAIM) == 0


async def test_every_key_of_a_node_has_a_ttl(node: Node, any_server: Server) -> None:
    claim = a_claim(ttl=2.0)
    await node.record(claim, await proposal(node, claim), limit=LIMIT)
    for key, least in ((CLAIM, 1000), (FENCE, 3_500_000), (REGISTER, 7_000_000_000)):
        assert any_server.call("PTTL", key) > least
