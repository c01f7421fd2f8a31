"""What the log says, at which level, and with which fields: people's searches and alerts hang on all three."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aioelect import EndReason, FencedLock, LeaseLost, ReleaseOutcome, StoreUnavailable
from aioelect._events import log
from aioelect._store import Claim
from aioelect.facts import (
    AcquisitionFailed,
    CandidacyBegan,
    CandidacyFailed,
    CandidacyOver,
    ConsumerFailed,
    Declared,
    DrainOverrun,
    Fact,
    FitnessChanged,
    LoopLag,
    LoopStalled,
    RenewalConfirmed,
    RenewalFailed,
    RenewalRecovered,
    StepDownAsked,
    StepDownHookFailed,
    StoreFailed,
    StoreFailing,
    StoreRecovered,
    TermBegan,
    TermInfo,
    TermOver,
    TermStopped,
    WriteRefused,
)
from aioelect.testing._faults import Silence
from runtime.world import NAME
from support.process import Process

FIELDS = {"lease_name", "identity", "token", "term_id", "reason"}
TERM = TermInfo("role", "me", 33, "ab12", 15.0)
BROKEN = StoreUnavailable("no answer", reason="timeout")

KNOWN = ("role", "me", 33, "ab12")
NO_TERM = ("role", "me", None, None)

# Fact -> level and fields of the one record about it; None: no record.
TABLE: list[tuple[Fact, str | None, tuple[object, ...]]] = [
    (Declared("role", 15.0), None, ()),
    (CandidacyBegan("role", "me"), None, ()),
    (CandidacyOver("role", "me"), None, ()),
    (CandidacyFailed("role", "me", BROKEN), "ERROR", (*NO_TERM, "timeout")),
    (ConsumerFailed("role", "me", BROKEN, 1.0), "ERROR", (*NO_TERM, "timeout")),
    (AcquisitionFailed("role", "me", 1.0, "held"), None, ()),
    (TermBegan(TERM, 1.0, None, lambda: 1.0), "INFO", (*KNOWN, None)),
    (RenewalConfirmed(TERM, 0.001, 7.0), None, ()),
    (RenewalFailed(TERM, 1, 5.0, "no answer", "timeout"), "WARNING", (*KNOWN, "timeout")),
    (RenewalFailed(TERM, 2, 3.0, "no answer", "timeout"), "DEBUG", (*KNOWN, "timeout")),
    (RenewalRecovered(TERM, 2, 4.0), "WARNING", (*KNOWN, None)),
    (TermStopped(TERM, EndReason.RELEASED, 9.0, None), "DEBUG", (*KNOWN, "released")),
    (TermStopped(TERM, EndReason.EXPIRED, 9.0, "no answer"), "WARNING", (*KNOWN, "expired")),
    (TermStopped(TERM, EndReason.TAKEN, 9.0, "taken"), "WARNING", (*KNOWN, "taken")),
    (DrainOverrun(TERM, 15.0), "ERROR", (*KNOWN, "overrun")),
    (TermOver(TERM, EndReason.RELEASED, ReleaseOutcome.RELEASED, None), "INFO", (*KNOWN, "released")),
    (TermOver(TERM, EndReason.EXPIRED, None, None), "INFO", (*KNOWN, "expired")),
    (TermOver(TERM, EndReason.RELEASED, ReleaseOutcome.UNCONFIRMED, None), "INFO", (*KNOWN, "released")),
    (TermOver(TERM, EndReason.RELEASED, ReleaseOutcome.ALREADY_LOST, None), "WARNING", (*KNOWN, "already lost")),
    (TermOver(TERM, EndReason.RELEASED, ReleaseOutcome.UNKNOWN, "no answer"), "WARNING", (*KNOWN, "unknown")),
    (StepDownAsked(TERM, None), "INFO", (*KNOWN, None)),
    (StepDownHookFailed(TERM, "broken"), "ERROR", (*KNOWN, None)),
    (FitnessChanged("role", "me", fit=False, cause="ill"), "WARNING", (*NO_TERM, None)),
    (StoreFailed("role", "acquire", "timeout"), "DEBUG", ("role", None, None, None, "timeout")),
    (StoreFailing("role", "me", candidate=True, cause="x", reason="timeout"), "ERROR", (*NO_TERM, "timeout")),
    (StoreFailing("role", "me", candidate=False, cause="x", reason="timeout"), "WARNING", (*NO_TERM, "timeout")),
    (StoreRecovered("role", "me", candidate=True, lasted=3.0), "WARNING", (*NO_TERM, None)),
    (WriteRefused("role", "stock", 33, 34), "WARNING", ("role", None, 33, None, "stale")),
    (LoopLag(0.1), None, ()),
    (LoopStalled(TERM, 5.0, "here"), None, ()),  # its thread has said it already
]


class Kept(logging.Handler):
    """A handler that keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.records.append(record)


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    """What is logged, DEBUG included."""
    kept, logger = Kept(), logging.getLogger("aioelect")
    logger.addHandler(kept)
    with caplog.at_level(logging.DEBUG, logger="aioelect"):
        yield kept.records
    logger.removeHandler(kept)


def _fields(record: logging.LogRecord) -> tuple[object, ...]:
    return tuple(getattr(record, key) for key in ("lease_name", "identity", "token", "term_id", "reason"))


def silent(verb: str, claim: Claim) -> None:
    """No answer to anything."""
    raise Silence


@pytest.mark.parametrize(("fact", "level", "fields"), TABLE, ids=lambda case: type(case).__name__)
def test_p15_each_fact_has_its_level_and_each_record_the_same_five_fields(
    fact: Fact, level: str | None, fields: tuple[object, ...], records: list[logging.LogRecord]
) -> None:
    log(fact)
    said = [(record.name, record.levelname, _fields(record)) for record in records]
    assert said == ([] if level is None else [("aioelect", level, fields)])
    for record in records:
        plain = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
        assert set(vars(record)) - plain == FIELDS
        assert record.getMessage().startswith("role: ") or "request" in record.getMessage()


@pytest.mark.parametrize(
    ("outcome", "says"), [(ReleaseOutcome.RELEASED, "let it go"), (None, "the work of me has ended, .* nothing was")]
)
def test_a_lost_claim_is_not_said_to_be_let_go(
    outcome: ReleaseOutcome | None, says: str, records: list[logging.LogRecord]
) -> None:
    log(TermOver(TERM, EndReason.EXPIRED, outcome, None))
    assert re.search(says, records[-1].getMessage())


def test_every_kind_of_fact_is_in_that_table() -> None:
    assert {type(fact) for fact, _, _ in TABLE} == set(Fact.__args__)


async def test_p15_an_outage_is_one_warning_at_its_start_and_one_at_its_end(
    ours: Process, records: list[logging.LogRecord]
) -> None:
    async with FencedLock(ours, NAME, ttl=15, observers=[]) as term:
        await asyncio.sleep(4.9)
        ours.before = silent
        await asyncio.sleep(5)  # three tries, and time for another one
        ours.before = lambda verb, claim: None
        await asyncio.sleep(10)
        token = term.token
    warnings = [record for record in records if record.levelno >= logging.WARNING]
    assert ["a renewal failed" in w.getMessage() for w in warnings] == [True, False]
    assert ["renewed again" in w.getMessage() for w in warnings] == [False, True]
    assert {(w.__dict__["token"], w.__dict__["term_id"]) for w in warnings} == {(token, term.id)}
    assert {r.levelname for r in records if "failed again" in r.getMessage()} == {"DEBUG"}


async def test_p15_an_outage_that_lasts_is_one_warning_and_the_loss_another(
    ours: Process, records: list[logging.LogRecord]
) -> None:
    with pytest.raises(LeaseLost):
        async with FencedLock(ours, NAME, ttl=15, observers=[]):
            ours.before = silent
            await asyncio.sleep(60)
    assert [r.__dict__["reason"] for r in records if r.levelno >= logging.WARNING] == ["timeout", "expired"]


def test_p15_the_logger_has_no_handler_level_or_filter_of_ours() -> None:
    script = """
import logging
from redis.asyncio import Redis
from aioelect import Elector
Elector(Redis(), "role")
logger = logging.getLogger("aioelect")
assert (logger.handlers, logger.level, logger.filters, logger.propagate) == ([], 0, [], True)
assert not logging.root.handlers
"""
    subprocess.run([sys.executable, "-P", "-c", script], check=True)
