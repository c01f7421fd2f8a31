"""What a majority decides: single counts, and whole stories in which everything goes wrong that may."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioelect import ConfigurationError
from aioelect._core import quorum
from aioelect._core.quorum import Held, No, Split, Unable, Verdict, Void, Vote, Won, Yes, elect, majority, settle
from aioelect._core.timing import drift
from support import model_quorum
from support.model_quorum import Violation, play

votes = (
    st.builds(Yes, st.integers(1, 5), st.booleans())
    | st.builds(No, st.sampled_from(["a", "b", None]), st.none(), st.none() | st.integers(1, 5), st.floats(0, 9))
    | st.just(Void())
)
polls = st.sampled_from([3, 5, 7]).flatmap(lambda nodes: st.lists(votes, min_size=nodes, max_size=nodes))


# -- one count


@given(polls, st.data())
def test_what_is_decided_early_stays_so_whatever_votes_come_later(poll: list[Vote], data: st.DataObject) -> None:
    counted = data.draw(st.integers(0, len(poll)))
    early, final = elect(poll[:counted], len(poll)), elect(poll, len(poll))
    assert final is not None
    if isinstance(early, Won | Unable):
        assert type(final) is type(early)
    if isinstance(early, Held):
        assert isinstance(final, Held) and final.by.id == early.by.id


@given(polls, st.randoms(use_true_random=False))
def test_the_order_of_the_votes_decides_nothing(poll: list[Vote], shuffle: object) -> None:
    shuffled = list(poll)
    shuffle.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = elect(poll, len(poll)), elect(shuffled, len(poll))
    assert type(one) is type(other)
    if isinstance(one, Won):
        assert one == other


@given(polls)
def test_a_win_takes_a_majority_and_its_token_is_not_below_any_of_its_proposals(poll: list[Vote]) -> None:
    ours = [vote for vote in poll if isinstance(vote, Yes)]
    match elect(poll, len(poll)):
        case Won(token=token, recorded=True):
            assert sum(vote.recorded and vote.token == token for vote in ours) >= majority(len(poll))
        case Won(token=token):
            assert len(ours) >= majority(len(poll))
            assert token == max(vote.token for vote in ours)
        case _:
            assert len(ours) < majority(len(poll))


@given(st.sampled_from([3, 5, 7]), st.integers(0, 7), st.integers(0, 7), st.integers(0, 7))
def test_fewer_than_a_majority_of_refusals_is_no_loss(nodes: int, yes: int, no: int, pending: int) -> None:
    verdict = settle(yes, no, pending, nodes)
    assert (verdict is Verdict.YES) == (yes >= majority(nodes))
    assert (verdict is Verdict.NO) == (no >= majority(nodes) > yes)
    if verdict is Verdict.UNCLEAR:
        assert max(yes, no) + pending < majority(nodes)


def test_a_rival_whose_token_nobody_has_recorded_has_not_won_yet() -> None:
    unrecorded = No("a", "them", None, 9.0)
    assert isinstance(elect([unrecorded] * 3, 3), Split)
    assert elect([unrecorded, unrecorded], 3) is None  # the third may know
    assert isinstance(elect([unrecorded, No("a", "them", 7, 9.0)], 3), Held)


def test_a_contended_name_is_free_when_a_majority_of_its_nodes_is() -> None:
    held = [No("a", "them", 7, remaining) for remaining in (9.0, 3.0, 5.0)]
    outcome = elect([*held, Yes(1, recorded=False), Yes(1, recorded=False)], 5)
    assert isinstance(outcome, Held) and outcome.free_in == 3.0
    outcome = elect(held, 3)
    assert isinstance(outcome, Held) and outcome.free_in == 5.0
    outcome = elect(held[:2], 3)
    assert isinstance(outcome, Held) and outcome.free_in == 3.0, "who has not been heard may be free"


def test_too_few_votes_decide_at_once_and_nobody_waits_for_a_node_that_hangs() -> None:
    assert elect([Void(), Void()], 3) == Unable()
    assert elect([Void(), Void(), Yes(1, recorded=False)], 5) is None
    assert elect([Yes(1, recorded=False), Yes(4, recorded=False)], 3) == Won(4, recorded=False)


def test_p5_a_token_counts_as_recorded_where_a_majority_has_it_and_the_others_are_waited_for() -> None:
    mine, other = Yes(7, recorded=True), Yes(9, recorded=False)
    assert elect([mine, mine], 3) == Won(7, recorded=True)
    assert elect([mine, other], 3) is None
    assert elect([mine, other, mine], 3) == Won(7, recorded=True)
    assert elect([mine, other, Void()], 3) == Won(9, recorded=False)


@pytest.mark.parametrize(
    ("nodes", "why"), [(0, "at least 3"), (1, "at least 3"), (2, "at least 3"), (4, "take 3 or 5")]
)
def test_p14_a_number_of_nodes_that_makes_no_quorum_is_refused_with_the_reason(nodes: int, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        quorum.check_size(nodes)
    quorum.check_size(3)


@given(st.floats(0.1, 86400), st.floats(0, 86400))
def test_p1_a_grant_counts_only_within_the_ttl_less_the_margins_of_the_nodes_clocks(ttl: float, elapsed: float) -> None:
    if quorum.in_time(elapsed, ttl):
        assert elapsed < ttl - (ttl / 100 + 0.002)
    assert quorum.in_time(elapsed, ttl) == (elapsed < ttl - drift(ttl))


def test_candidates_that_split_a_vote_stand_back_longer_and_longer_and_never_alike() -> None:
    spread = [(quorum.back_off(n, 0.001, 0.0), quorum.back_off(n, 0.001, 0.999)) for n in range(6)]
    assert all(least < most for least, most in spread)
    assert all(later[0] > earlier[0] for earlier, later in itertools.pairwise(spread))


# -- whole stories


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 5]))
def test_p1_p9_nobody_holds_a_name_twice_and_tokens_rise_whatever_happens_to_the_nodes(seed: int, nodes: int) -> None:
    play(seed, nodes=nodes)


def test_the_stories_are_about_something() -> None:
    assert sum(play(seed).terms for seed in range(20)) > 60


def half(nodes: int) -> int:
    return nodes // 2


def votes_only(node: model_quorum.Node, who: int, token: int, now: float) -> bool:
    return node.holder(now) == who  # nothing is written back


def any_round(node: model_quorum.Node, who: int, turn: int, now: float) -> None:
    if node.holder(now) == who:
        node.owner = None


def lowest(yes: list[Yes], need: int, pending: int) -> Won:
    return Won(min(vote.token for vote in yes), recorded=False)


def any_record(yes: list[Yes], need: int, pending: int) -> Won:
    known = [vote.token for vote in yes if vote.recorded]
    return Won(known[0], recorded=True) if known else Won(max(vote.token for vote in yes), recorded=False)


@pytest.mark.parametrize(
    ("place", "name", "mistake"),
    [
        (quorum, "majority", half),
        (quorum, "_won", lowest),
        (quorum, "_won", any_record),
        (quorum, "in_time", lambda elapsed, ttl: True),
        (model_quorum.Node, "record", votes_only),
        (model_quorum.Node, "withdraw", any_round),
    ],
)
def test_the_stories_notice_a_mistake(
    place: object, name: str, mistake: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, mistake)
    with pytest.raises(Violation):
        for seed in range(2000):
            play(seed)


def test_the_stories_notice_a_node_that_votes_although_it_lost_its_data() -> None:
    with pytest.raises(Violation):
        for seed in range(2000):
            play(seed, guarded=False)
