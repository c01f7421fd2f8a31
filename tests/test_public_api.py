"""The public surface: exactly the exported names, each documented, nothing of the inside among them."""

import doctest
import inspect
import pickle
import subprocess
import sys
import types

import pytest

import aioelect
from aioelect import metrics, testing

EXPECTED = {
    "AcquireTimeout",
    "AdvisoryLock",
    "AdvisoryStore",
    "AioelectError",
    "Candidate",
    "ConfigurationError",
    "Cron",
    "Daily",
    "Elector",
    "EndReason",
    "FencedLock",
    "Interval",
    "Leader",
    "LeaderChanged",
    "LeaderEvent",
    "Leadership",
    "Lease",
    "LeaseExpired",
    "LeaseLost",
    "LeaseTaken",
    "NotAcquired",
    "NotHeld",
    "Partition",
    "Partitions",
    "PostgresStore",
    "QuorumStore",
    "ReleaseOutcome",
    "ReplicatedStore",
    "Schedule",
    "StaleToken",
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "Term",
    "TermEnded",
    "TermStarted",
    "aclose",
    "info",
    "observe",
    "step_down",
}


NOT_NAMES = {"TYPE_CHECKING"}


def test_the_exported_names_are_these_and_no_others() -> None:
    assert set(aioelect.__all__) == EXPECTED
    for name in EXPECTED:
        assert getattr(aioelect, name) is not None
    visible = {
        name
        for name, value in {**vars(aioelect), **aioelect._LATER}.items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert visible - NOT_NAMES == EXPECTED


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Redlock'"):
        aioelect.Redlock  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", sorted(EXPECTED - {"LeaderEvent"}))
def test_every_public_item_and_member_has_a_docstring(name: str) -> None:
    item = getattr(aioelect, name)
    assert inspect.getdoc(item), f"{name} has no docstring"
    if inspect.isclass(item):
        for member, value in vars(item).items():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member} has no docstring"


def test_the_error_tree_separates_held_unreachable_rejected_and_lost() -> None:
    held, unreachable, rejected, lost = (
        aioelect.NotAcquired,
        aioelect.StoreUnavailable,
        aioelect.StoreRejected,
        aioelect.LeaseLost,
    )
    for one in (held, unreachable, rejected, lost):
        assert issubclass(one, aioelect.AioelectError)
        assert [other for other in (held, unreachable, rejected, lost) if issubclass(one, other)] == [one]
    assert issubclass(aioelect.AcquireTimeout, TimeoutError)
    assert issubclass(aioelect.ConfigurationError, ValueError)
    assert issubclass(aioelect.LeaseExpired, lost) and issubclass(aioelect.LeaseTaken, lost)


def test_errors_keep_their_facts_through_pickle() -> None:
    error = aioelect.AcquireTimeout("held", name="a", holder="b", token=3, waited=1.5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.name, copy.holder, copy.token, copy.waited) == (
        aioelect.AcquireTimeout,
        "held",
        "a",
        "b",
        3,
        1.5,
    )


TESTING = {"Deadlock", "Faults", "MemoryStore", "VirtualLoop", "pause", "suspend", "virtual_time"}


def test_the_kit_for_tests_exports_these_names_and_each_is_documented_with_an_example() -> None:
    assert set(testing.__all__) == TESTING
    for name in TESTING:
        item = getattr(testing, name)
        assert inspect.getdoc(item), f"{name} has no docstring"
        assert ">>>" in (item.__doc__ or "") or issubclass(item, BaseException), f"{name} has no example"
        if inspect.isclass(item):
            for member, value in vars(item).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert inspect.getdoc(value), f"{name}.{member} has no docstring"


@pytest.mark.parametrize("module", [testing._faults, testing._memory, testing._virtual])
def test_the_examples_in_the_docstrings_of_the_kit_run(module: types.ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"MemoryStore": testing.MemoryStore})
    assert result.failed == 0 and result.attempted > 0


def test_metrics_exports_its_observer() -> None:
    assert set(metrics.__all__) == {"Metrics", "MultiProcessCollector", "default"}


def test_what_few_use_is_not_loaded_with_the_package() -> None:
    program = "import sys, aioelect; print(*sorted(name for name in sys.modules if name.startswith('aioelect')))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    later = "_core.cron _core.schedule _core.shares _observe _partitions _periodic _redis.cluster _redis.quorum _stall"
    assert not {f"aioelect.{name}" for name in later.split()} & set(loaded)
    assert set(aioelect.__all__) <= set(dir(aioelect)), "and yet it is there for whoever looks"
