"""What every store of roles promises beyond the claims: candidates, heirs, preference, requests."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioelect._store import (
    Candidate,
    Claim,
    Contended,
    Granted,
    Heir,
    NoticeKind,
    Released,
    Renewed,
    RoleStore,
    Stand,
    StepDown,
)
from store.conftest import MakeStore, a_claim, again, granted
from support.wait import until

LIMIT = 5.0
LACKING = ("quorum", "postgres", "advisory", "tokenless")


@pytest.fixture
def store(make_store: MakeStore) -> RoleStore:
    """Make a store."""
    made = make_store()
    assert isinstance(made, RoleStore) and made.capabilities.roles
    return made


@pytest.fixture
def other(store: RoleStore, make_store: MakeStore) -> RoleStore:
    """Make another participant's store."""
    made = make_store()
    assert isinstance(made, RoleStore)
    return made


def a_candidate(identity: str = "candidate", *, weight: int = 0, listed: float = 10.0, deference: float = 2.0) -> Claim:
    """Make a candidate's claim."""
    return again(a_claim(identity=identity), stand=Stand(weight, '{"url":"http://a"}', listed, deference))


async def contended(store: RoleStore, claim: Claim) -> Contended:
    """Acquire in vain."""
    answer = await store.acquire(claim, limit=LIMIT)
    assert isinstance(answer, Contended), answer
    return answer


def as_listed(claim: Claim) -> Candidate:
    """What others see of a candidate."""
    assert claim.stand is not None
    return Candidate(claim.identity, claim.id, claim.stand.weight)


# -- who leads, who stands --------------------------------------------------------------------------------------------


async def test_nobody_leads_and_nobody_stands_at_first(store: RoleStore) -> None:
    record = await store.describe("name", limit=LIMIT)
    assert (record.holder, record.candidates, record.reserved_for) == (None, (), None)


async def test_a_role_is_described_without_its_owner_value(store: RoleStore, other: RoleStore) -> None:
    claim = a_candidate("leader – ünïcode")
    token = await granted(store, claim)
    record = await other.describe("name", limit=LIMIT)
    assert record.holder is not None
    assert (record.holder.identity, record.holder.token, record.holder.id) == (claim.identity, token, claim.id)
    assert record.holder.remaining is not None and 9 < record.holder.remaining <= 10
    assert record.ttl == 10.0 and record.info == '{"url":"http://a"}' and not record.asked_to_step_down
    assert record.since is not None
    assert claim.owner not in repr(record)
    await store.release(claim, limit=LIMIT)
    assert (await other.describe("name", limit=LIMIT)).holder is None


async def test_the_begin_of_a_term_is_told_and_its_info_does_not_outlive_it(store: RoleStore) -> None:
    claim = a_candidate()
    await granted(store, claim)
    since = (await store.describe("name", limit=LIMIT)).since
    await store.renew(claim, limit=LIMIT)
    assert (await store.describe("name", limit=LIMIT)).since == since
    await store.release(claim, limit=LIMIT)
    await granted(store, a_claim())
    record = await store.describe("name", limit=LIMIT)
    assert record.info == "" and record.since is not None and since is not None and record.since > since


async def test_a_candidate_is_listed_by_its_failed_try_until_it_wins(store: RoleStore, other: RoleStore) -> None:
    leader, first, second = a_candidate("leader"), a_candidate("same", weight=3), a_candidate("same")
    await granted(store, leader)
    for claim in (first, second, first):
        await contended(other, claim)
    await contended(other, a_claim(identity="a lock that waits"))
    found = (await store.describe("name", limit=LIMIT)).candidates
    assert set(found) == {as_listed(first), as_listed(second)} and len(found) == 2
    await store.release(leader, limit=LIMIT)
    await granted(other, first)
    assert (await store.describe("name", limit=LIMIT)).candidates == (as_listed(second),)


async def test_a_candidate_that_does_not_try_again_falls_out_by_itself(store: RoleStore) -> None:
    await granted(store, a_candidate("leader"))
    alive, dead = a_candidate("alive"), a_candidate("dead", listed=1.0)
    await contended(store, alive)
    await contended(store, dead)
    assert as_listed(dead) in (await store.describe("name", limit=LIMIT)).candidates

    async def only_the_living() -> bool:
        return (await store.describe("name", limit=LIMIT)).candidates == (as_listed(alive),)

    await until(only_the_living)


# -- an heir ----------------------------------------------------------------------------------------------------------


async def test_the_next_term_is_the_heirs_for_a_while_and_then_anyones(store: RoleStore, other: RoleStore) -> None:
    leader, late, heir = a_candidate("leader"), a_candidate("late"), a_candidate("the heir")
    await granted(store, leader)
    assert isinstance(await store.release(leader, heir=Heir("the heir", 5.0), limit=LIMIT), Released)
    answer = await contended(other, late)
    assert answer.reserved and answer.holder.identity == "the heir" and answer.holder.id is None
    assert answer.holder.remaining is not None and 0.0 < answer.holder.remaining <= 5.0
    record = await other.describe("name", limit=LIMIT)
    assert record.holder is None and record.reserved_for == "the heir"
    assert (await contended(other, a_claim(identity="a lock"))).reserved
    await granted(other, heir)
    answer = await contended(other, late)
    assert not answer.reserved and answer.holder.identity == "the heir"


async def test_an_heir_that_does_not_come_keeps_the_others_waiting_no_longer_than_told(store: RoleStore) -> None:
    leader, late = a_candidate("leader"), a_candidate("late")
    await granted(store, leader)
    await store.release(leader, heir=Heir("nobody", 0.5), limit=LIMIT)
    answer = await contended(store, late)
    assert answer.holder.remaining is not None
    await asyncio.sleep(answer.holder.remaining + 0.002)
    assert (await store.describe("name", limit=LIMIT)).reserved_for is None
    await granted(store, late)


async def test_a_reservation_is_for_the_next_term_only(store: RoleStore) -> None:
    leader, heir = a_candidate("leader"), a_candidate("the heir")
    await granted(store, leader)
    await store.release(leader, heir=Heir("the heir", 60.0), limit=LIMIT)
    await granted(store, heir)
    await store.release(heir, limit=LIMIT)
    await granted(store, a_candidate("late"))


async def test_a_minimum_hold_comes_before_the_reservation(store: RoleStore) -> None:
    leader = a_candidate("leader")
    await granted(store, leader)
    await store.release(leader, keep=0.5, heir=Heir("the heir", 5.0), limit=LIMIT)
    answer = await contended(store, a_candidate("the heir"))
    assert not answer.reserved and answer.holder.remaining is not None
    await asyncio.sleep(answer.holder.remaining + 0.002)
    assert (await contended(store, a_candidate("late"))).reserved
    await granted(store, a_candidate("the heir"))


# -- preference -------------------------------------------------------------------------------------------------------


async def test_a_free_name_is_kept_for_a_listed_candidate_of_a_higher_weight(
    store: RoleStore, other: RoleStore
) -> None:
    leader, near, far = a_candidate("leader"), a_candidate("near", weight=10), a_candidate("far", weight=2)
    await granted(store, leader)
    await contended(store, near)
    await store.release(leader, limit=LIMIT)
    answer = await contended(other, far)
    assert answer.reserved and answer.holder.remaining is not None and 0 < answer.holder.remaining <= 2.0
    assert (await contended(other, a_candidate("farther"))).reserved
    await granted(store, near)
    assert not (await contended(other, far)).reserved  # and who leads is not disturbed
    assert await store.renew(near, limit=LIMIT) == Renewed()


async def test_a_candidate_of_any_weight_leads_at_once_if_no_heavier_one_stands(store: RoleStore) -> None:
    leader, equal = a_candidate("leader"), a_candidate("equal", weight=2)
    await granted(store, leader)
    await contended(store, equal)
    await store.release(leader, limit=LIMIT)
    await granted(store, a_candidate("late", weight=2))


async def test_a_heavier_candidate_that_has_died_delays_the_others_once(store: RoleStore) -> None:
    leader, dead, far = a_candidate("leader"), a_candidate("dead", weight=10), a_candidate("far", deference=0.5)
    await granted(store, leader)
    await contended(store, dead)
    await store.release(leader, limit=LIMIT)
    began = time.monotonic()
    while isinstance(answer := await store.acquire(far, limit=LIMIT), Contended):
        assert answer.reserved and answer.holder.remaining is not None
        await asyncio.sleep(answer.holder.remaining + 0.002)
    assert isinstance(answer, Granted)
    assert 0.5 <= time.monotonic() - began < 1.0


async def test_a_lock_does_not_defer_to_candidates(store: RoleStore) -> None:
    leader = a_candidate("leader")
    await granted(store, leader)
    await contended(store, a_candidate("near", weight=10))
    await store.release(leader, limit=LIMIT)
    await granted(store, a_claim())


# -- requests to step down --------------------------------------------------------------------------------------------


async def test_a_request_reaches_the_holder_with_its_next_renewal_and_ends_with_its_term(
    store: RoleStore, other: RoleStore
) -> None:
    claim = a_candidate("leader")
    token = await granted(store, claim)
    assert await store.renew(claim, limit=LIMIT) == Renewed()
    asked = await other.ask_to_step_down("name", StepDown("pod b"), limit=LIMIT)
    assert asked is not None and (asked.identity, asked.token, asked.id) == ("leader", token, claim.id)
    assert (await other.describe("name", limit=LIMIT)).asked_to_step_down
    for _ in range(2):
        assert await store.renew(claim, limit=LIMIT) == Renewed(StepDown("pod b"))
    await store.release(claim, limit=LIMIT)
    following = a_candidate("next")
    await granted(other, following)
    assert await other.renew(following, limit=LIMIT) == Renewed()
    assert not (await other.describe("name", limit=LIMIT)).asked_to_step_down


async def test_a_request_without_a_successor_names_none(store: RoleStore) -> None:
    claim = a_candidate("leader")
    await granted(store, claim)
    await store.ask_to_step_down("name", StepDown(None), limit=LIMIT)
    assert await store.renew(claim, limit=LIMIT) == Renewed(StepDown(None))


async def test_where_nobody_leads_nobody_is_asked(store: RoleStore) -> None:
    assert await store.ask_to_step_down("name", StepDown(None), limit=LIMIT) is None
    claim = a_candidate()
    await granted(store, claim)
    await store.release(claim, limit=LIMIT)
    assert await store.ask_to_step_down("name", StepDown(None), limit=LIMIT) is None
    await granted(store, claim)
    assert await store.renew(claim, limit=LIMIT) == Renewed()


async def test_a_request_is_told_at_once_to_whoever_watches(store: RoleStore, other: RoleStore) -> None:
    claim = a_candidate()
    await granted(store, claim)
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    await other.ask_to_step_down("name", StepDown(None), limit=LIMIT)
    notice = await watch.next(LIMIT)
    assert notice is not None and notice.kind is NoticeKind.STEP_DOWN
    assert notice.holder is not None and notice.holder.id == claim.id
    watch.close()
