"""What every store promises, held against each real server and the memory store."""

from __future__ import annotations

import asyncio

import pytest

from aioelect._errors import ConfigurationError, StoreUnavailable
from aioelect._store import Contended, Granted, Holder, NoticeKind, Refused, Released, Renewed, Store
from store.conftest import MakeStore, a_claim, again, granted, granted_after_expiry, is_described
from support.wait import until

LIMIT = 5.0


# -- acquire ----------------------------------------------------------------------------------------------------------


async def test_a_free_name_is_granted(store: Store) -> None:
    token = await granted(store, a_claim())
    assert token > 0 if store.capabilities.mints else token == 0


async def test_a_held_name_is_contended_and_says_by_whom(store: Store, other: Store) -> None:
    claim = a_claim(identity="worker 7 – ünïcode", ttl=9.0)
    token = await granted(store, claim)
    answer = await other.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended) and is_described(store, answer.holder, claim, token)


async def test_names_do_not_contend_with_each_other(store: Store) -> None:
    await granted(store, a_claim("one"))
    await granted(store, a_claim("two"))


async def test_p5_a_try_that_finds_its_own_value_has_won_with_the_same_token_and_a_fresh_ttl(
    store: Store, other: Store
) -> None:
    claim = a_claim(ttl=5.0)
    token = await granted(store, claim)
    longer = again(claim, ttl=60.0)
    assert await granted(store, longer) == token
    answer = await other.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended) and is_described(store, answer.holder, longer, token)


async def test_a_failed_try_changes_nothing(store: Store, other: Store) -> None:
    claim = a_claim(identity="holder")
    token = await granted(store, claim)
    for _ in range(3):
        answer = await other.acquire(a_claim(identity="loser"), limit=LIMIT)
        assert isinstance(answer, Contended) and is_described(store, answer.holder, claim, token)
    assert isinstance(await store.renew(claim, limit=LIMIT), Renewed)


async def test_a_claim_ends_with_its_ttl(store: Store, other: Store) -> None:
    await granted(other, a_claim("another name"))  # opens its connections
    await granted(store, a_claim(ttl=0.4))
    await asyncio.sleep(0.1)
    assert isinstance(await other.acquire(a_claim(), limit=LIMIT), Contended)
    await asyncio.sleep(0.305)
    await granted_after_expiry(other, a_claim())


async def test_the_ttl_is_as_asked_within_a_millisecond(store: Store, other: Store) -> None:
    claim = a_claim(ttl=1.1111)
    token = await granted(store, claim)
    answer = await other.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended) and is_described(store, answer.holder, again(claim, ttl=1.1122), token)


async def test_one_of_many_wins(make_store: MakeStore) -> None:
    stores = [make_store() for _ in range(5)]
    answers = await asyncio.gather(*(store.acquire(a_claim(), limit=LIMIT) for store in stores for _ in range(10)))
    assert [type(answer) for answer in answers].count(Granted) == 1


async def test_p9_tokens_rise_with_every_term(store: Store, other: Store) -> None:
    tokens = []
    for turn in range(20):
        claim = a_claim()
        who = (store, other)[turn % 2]
        tokens.append(await granted(who, claim))
        assert isinstance(await who.release(claim, limit=LIMIT), Released)
    assert tokens == (sorted(set(tokens)) if store.capabilities.mints else [0] * 20)


async def test_p9_a_token_outlives_the_claim(store: Store, other: Store) -> None:
    first = await granted(store, a_claim(ttl=0.1))
    await asyncio.sleep(0.12)
    second = await granted_after_expiry(other, a_claim())
    assert second > first or not store.capabilities.mints


async def test_p9_a_renewal_does_not_move_the_token(store: Store, other: Store) -> None:
    claim = a_claim()
    token = await granted(store, claim)
    await store.renew(claim, limit=LIMIT)
    answer = await other.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended) and is_described(store, answer.holder, claim, token)
    await store.release(claim, limit=LIMIT)
    assert await granted(store, a_claim()) > token or not store.capabilities.mints


# -- renew ------------------------------------------------------------------------------------------------------------


async def test_a_renewal_gives_the_full_ttl_again(store: Store, other: Store) -> None:
    claim = a_claim(ttl=0.3)
    await granted(store, claim)
    for _ in range(4):
        await asyncio.sleep(0.1)
        assert await store.renew(claim, limit=LIMIT) == Renewed()
    answer = await other.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended)


def test_p6_a_yes_never_equals_a_no() -> None:
    yes: tuple[object, ...] = (Granted(0), Renewed(), Released(0))
    no: tuple[object, ...] = (Contended(Holder(None, None, None, None)), Refused(None))
    assert not [(one, other) for one in yes for other in no if one == other]


async def test_p6_a_renewal_never_creates_a_claim(store: Store, other: Store) -> None:
    claim = a_claim(ttl=0.1)
    assert await store.renew(claim, limit=LIMIT) == Refused(None)
    await granted(store, claim)
    await asyncio.sleep(0.12)
    answer = await store.renew(claim, limit=LIMIT)
    assert isinstance(answer, Refused) and (answer.holder is None or not store.capabilities.expires)
    await granted_after_expiry(other, a_claim())


async def test_a_renewal_of_another_s_claim_is_refused_and_says_whose_it_is(store: Store, other: Store) -> None:
    mine, theirs = a_claim(identity="me", ttl=0.1), a_claim(identity="them", ttl=9.0)
    await granted(store, mine)
    await asyncio.sleep(0.12)
    token = await granted_after_expiry(other, theirs)
    answer = await store.renew(mine, limit=LIMIT)
    assert isinstance(answer, Refused) and is_described(store, answer.holder, theirs, token)


# -- release ----------------------------------------------------------------------------------------------------------


async def test_a_released_name_is_free_at_once(store: Store, other: Store) -> None:
    claim = a_claim()
    await granted(store, claim)
    assert await store.release(claim, limit=LIMIT) == Released(0)
    await granted(other, a_claim())


async def test_p6_a_second_release_says_gone(store: Store) -> None:
    claim = a_claim()
    await granted(store, claim)
    await store.release(claim, limit=LIMIT)
    assert await store.release(claim, limit=LIMIT) == Refused(None)


async def test_p6_a_release_leaves_the_successor_alone(store: Store, other: Store) -> None:
    mine, theirs = a_claim(ttl=0.1), a_claim(identity="them")
    await granted(store, mine)
    await asyncio.sleep(0.12)
    token = await granted_after_expiry(other, theirs)
    answer = await store.release(mine, limit=LIMIT)
    assert isinstance(answer, Refused) and is_described(store, answer.holder, theirs, token)
    assert await other.renew(theirs, limit=LIMIT) == Renewed()


async def test_p6_a_minimum_hold_keeps_the_name_a_while(store: Store, other: Store) -> None:
    claim = a_claim(ttl=9.0)
    await granted(store, claim)
    if not store.capabilities.keeps:
        with pytest.raises(ConfigurationError):
            await store.release(claim, keep=0.1, limit=LIMIT)
        return
    await granted(other, a_claim("another name"))  # opens its connections
    assert await store.release(claim, keep=0.4, limit=LIMIT) == Released(0)
    answer = await other.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended)
    assert answer.holder.remaining is not None and answer.holder.remaining <= 0.4
    await asyncio.sleep(0.41)
    await granted(other, a_claim())


async def test_p6_a_minimum_hold_never_prolongs(store: Store, other: Store) -> None:
    if not store.capabilities.keeps:
        return
    claim = a_claim(ttl=2.0)
    await granted(store, claim)
    assert isinstance(await store.release(claim, keep=60.0, limit=LIMIT), Released)
    answer = await other.acquire(a_claim(), limit=LIMIT)
    assert isinstance(answer, Contended)
    assert answer.holder.remaining is not None and answer.holder.remaining <= 2.0


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_p4_no_time_left_is_unavailable(store: Store) -> None:
    with pytest.raises(StoreUnavailable):
        await store.acquire(a_claim(), limit=0.0)
    await granted(store, a_claim())


async def test_p5_a_cancelled_acquisition_can_be_undone(store: Store, other: Store) -> None:
    claims = [a_claim(f"name-{n}") for n in range(20)]
    tasks = [asyncio.create_task(store.acquire(claim, limit=LIMIT)) for claim in claims]
    for turns, task in enumerate(tasks):
        for _ in range(turns % 7):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for claim in claims:
        assert isinstance(await store.release(claim, limit=LIMIT), Released | Refused)
        await granted(other, a_claim(claim.name))


# -- notices ----------------------------------------------------------------------------------------------------------


async def test_p10_a_watch_hears_of_acquire_and_release(store: Store, other: Store) -> None:
    watch = other.watch("name")
    assert await watch.ready(LIMIT) and watch.live
    claim = a_claim(identity="some one", ttl=9.0)
    token = await granted(store, claim)
    notice = await watch.next(LIMIT)
    assert notice is not None and notice.kind is NoticeKind.ACQUIRED and notice.holder is not None
    assert (notice.holder.identity, notice.holder.token, notice.holder.id) == ("some one", token, claim.id)
    assert notice.holder.remaining == 9.0
    assert await store.release(claim, limit=LIMIT) == Released(1)
    notice = await watch.next(LIMIT)
    assert notice is not None and notice.kind is NoticeKind.RELEASED and notice.holder is not None
    assert notice.holder.id == claim.id
    watch.close()
    watch.close()
    assert not watch.live


async def test_p10_a_release_with_a_minimum_hold_tells_too(store: Store, other: Store) -> None:
    if not store.capabilities.keeps:
        return
    claim = a_claim()
    await granted(store, claim)
    watch = other.watch("name")
    assert await watch.ready(LIMIT)
    assert await store.release(claim, keep=0.1, limit=LIMIT) == Released(1)
    notice = await watch.next(LIMIT)
    assert notice is not None and notice.kind is NoticeKind.RELEASED
    watch.close()


async def test_p10_our_own_watch_does_not_count_as_somebody_who_waits(store: Store, other: Store) -> None:
    mine, theirs = store.watch("name"), other.watch("name")
    assert await mine.ready(LIMIT) and await theirs.ready(LIMIT)
    claim = a_claim()
    await granted(store, claim)
    assert await store.release(claim, limit=LIMIT) == Released(1)
    mine.close()
    theirs.close()


async def test_several_watches_of_one_name_each_hear(store: Store) -> None:
    watches = [store.watch("name") for _ in range(3)]
    assert all([await watch.ready(LIMIT) for watch in watches])
    watches[2].close()
    await granted(store, a_claim())
    assert [bool(await watch.next(LIMIT if watch.live else 0.05)) for watch in watches] == [True, True, False]
    for watch in watches:
        watch.close()


async def test_a_watch_of_one_name_does_not_hear_of_another(store: Store) -> None:
    watch = store.watch("one")
    assert await watch.ready(LIMIT)
    await granted(store, a_claim("two"))
    assert await watch.next(0.05) is None
    watch.close()


async def test_notices_that_pile_up_are_folded_into_the_newest(store: Store) -> None:
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    claim = a_claim()
    await granted(store, claim)
    await store.release(claim, limit=LIMIT)
    await granted(store, a_claim(identity="last"))

    async def last() -> bool:
        notice = await watch.next(LIMIT)
        return notice is not None and notice.holder is not None and notice.holder.identity == "last"

    await until(last)
    assert await watch.next(0.02) is None
    watch.close()


async def test_next_waits_no_longer_than_its_limit_and_can_be_cancelled(store: Store) -> None:
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    assert await watch.next(0.01) is None
    waiting = asyncio.create_task(watch.next(None))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await granted(store, a_claim())
    assert await watch.next(LIMIT) is not None
    watch.close()


# -- life -------------------------------------------------------------------------------------------------------------


async def test_a_closed_store_may_be_used_again(store: Store) -> None:
    claim = a_claim()
    token = await granted(store, claim)
    await store.aclose()
    await store.aclose()
    # A claim that does not expire lives by its connection, and has ended with it.
    again_token = await granted_after_expiry(store, claim)
    assert (again_token == token) == (store.capabilities.expires or not store.capabilities.mints)


async def test_equal_stores_have_equal_keys(make_store: MakeStore) -> None:
    assert make_store().key == make_store().key
    hash(make_store().key)


async def test_a_watch_of_a_closed_store_lets_the_time_pass(store: Store) -> None:
    watch = store.watch("name")
    assert await watch.ready(LIMIT)
    waiting = asyncio.create_task(watch.next(None))
    await asyncio.sleep(0.01)
    await store.aclose()
    assert await waiting is None
    assert not watch.live
    assert not await watch.ready(LIMIT)
    start = asyncio.get_running_loop().time()
    assert await watch.next(0.05) is None  # callers sleep in there: without this they would spin
    assert asyncio.get_running_loop().time() - start > 0.04
    watch.close()
    assert await watch.next(LIMIT) is None
