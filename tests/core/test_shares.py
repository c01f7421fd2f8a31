"""Who should hold what: members that decide for themselves come to fair shares, and move only what must move."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioelect._core.shares import Member, decide, quotas


class Group:
    """Members that hold partitions, and what each last told of itself; every change of hands is counted."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.holds: dict[str, set[int]] = {}
        self.told: dict[str, Member] = {}
        self.seen: dict[str, list[dict[str, int]]] = {}  # the quotas, by each in its rounds
        self.lost = 0
        self.taken = 0

    def join(self, who: str) -> None:
        self.holds[who] = set()
        self.tell(who)

    def leave(self, who: str) -> None:
        del self.holds[who], self.told[who]

    def tell(self, who: str) -> None:
        self.told[who] = Member(who, who, frozenset(self.holds[who]), stays=True, remaining=1.0)

    def round(self, who: str, stale: dict[str, Member] | None = None) -> bool:
        """One member's round; `stale`: what it still believes of others. Says whether it did something."""
        self.tell(who)
        view = [
            member if name == who or stale is None else stale.get(name, member) for name, member in self.told.items()
        ]
        seen = self.seen.setdefault(who, [])
        due = quotas(self.count, view)
        moves = decide(self.count, who, view, settled=seen[-2:] == [due, due])
        seen.append(due)
        for number in moves.let_go:
            self.holds[who].remove(number)
            self.lost += 1
        for number in moves.take:
            if not any(number in held for held in self.holds.values()):  # the store gives it to one
                self.holds[who].add(number)
                self.taken += 1
        return bool(moves.let_go or moves.take)

    def settle(self, chance: random.Random) -> None:
        """Rounds in any order until nobody has anything to do for so long that all have told all."""
        quiet = 0
        for _ in range(20):
            acted = [self.round(who) for who in chance.sample(sorted(self.holds), len(self.holds))]
            quiet = 0 if any(acted) else quiet + 1
            if quiet == 4:
                return
        pytest.fail("it does not come to rest")

    def assert_fair(self) -> None:
        sizes = [len(held) for held in self.holds.values()]
        assert sum(sizes) == self.count and set().union(*self.holds.values()) == set(range(self.count))
        least, rest = divmod(self.count, len(sizes))
        assert sorted(sizes) == [least] * (len(sizes) - rest) + [least + 1] * rest


COUNTS = st.integers(1, 40)
NAMES = st.lists(st.text("abcdefghij", min_size=1, max_size=3), min_size=1, max_size=9, unique=True)
CHANCES = st.integers(0, 2**32).map(random.Random)


@given(COUNTS, NAMES, CHANCES)
def test_from_nothing_all_get_their_share_and_nothing_is_moved_twice(
    count: int, names: list[str], chance: random.Random
) -> None:
    group = Group(count)
    for name in names:
        group.join(name)
    group.settle(chance)
    group.assert_fair()
    assert (group.taken, group.lost) == (count, 0)


@given(COUNTS, NAMES, st.sampled_from(["", "bz", "z"]), CHANCES)
def test_a_join_moves_the_newcomers_share_and_nothing_else(
    count: int, names: list[str], newcomer: str, chance: random.Random
) -> None:
    group = Group(count)
    for name in names:
        group.join(name)
    group.settle(chance)
    group.taken = group.lost = 0
    group.join(newcomer)
    group.settle(chance)
    group.assert_fair()
    assert group.taken == group.lost == len(group.holds[newcomer]) == count // len(group.holds)


@given(COUNTS, NAMES.filter(lambda names: len(names) > 1), CHANCES)
def test_a_leave_moves_what_the_leaver_held_and_nothing_else(
    count: int, names: list[str], chance: random.Random
) -> None:
    group = Group(count)
    for name in names:
        group.join(name)
    group.settle(chance)
    group.taken = group.lost = 0
    leaver = chance.choice(names)
    held = len(group.holds[leaver])
    group.leave(leaver)
    group.settle(chance)
    group.assert_fair()
    assert (group.taken, group.lost) == (held, 0)


@settings(max_examples=200)
@given(COUNTS, NAMES, CHANCES)
def test_whatever_came_before_it_comes_to_rest_and_is_fair(count: int, names: list[str], chance: random.Random) -> None:
    group = Group(count)
    group.join("first")
    for name in names:
        match chance.choice(["join", "leave", "stale", "stale"]):
            case "join" if name not in group.holds:
                group.join(name)
            case "leave" if len(group.holds) > 1:
                group.leave(chance.choice(sorted(group.holds)))
            case _:
                pass
        stale = dict(group.told)
        for who in chance.sample(sorted(group.holds), len(group.holds)):
            group.round(who, stale if chance.random() < 0.5 else None)
    group.settle(chance)
    group.assert_fair()


def test_what_is_let_go_already_is_not_let_go_twice() -> None:
    mine = Member("a", "a", frozenset(range(4)), stays=True, remaining=1.0)
    other = Member("b", "b", frozenset(), stays=True, remaining=1.0)
    assert decide(4, "a", [mine, other]) == ((2, 3), ())
    assert decide(4, "a", [mine, other], frozenset({2, 3})) == ((), ())


def test_one_that_leaves_has_no_share_and_what_it_still_holds_is_not_free() -> None:
    leaver = Member("a", "a", frozenset({0, 1}), stays=False, remaining=1.0)
    other = Member("b", "b", frozenset({2}), stays=True, remaining=1.0)
    assert quotas(4, [leaver, other]) == {"b": 4}
    assert decide(4, "b", [leaver, other]) == ((), (3,))
    assert decide(4, "a", [leaver, other]) == ((), ())
