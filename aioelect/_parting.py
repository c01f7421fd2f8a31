"""KEEP: how a claim is given up. By compare-and-delete, tried again, bounded, never in anybody's way."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from aioelect import _clock
from aioelect._background import outlast, spawn
from aioelect._core.timing import RELEASE_LIMIT
from aioelect._errors import StoreError, StoreUnavailable
from aioelect._store import Claim, Heir, Holder, Refused, Released, Store, roles_of
from aioelect.facts import ReleaseOutcome

__all__ = ["Parting", "as_store_error", "give_up", "undo"]


class Parting(NamedTuple):
    """What became of a claim that was given up."""

    outcome: ReleaseOutcome
    told: int = 0  # how many others heard of it
    error: StoreError | None = None  # what was in the way
    taken_by: Holder | None = None


async def give_up(
    store: Store,
    claim: Claim,
    until: float,
    error: StoreError | None = None,
    *,
    heir: Heir | None = None,
    at: float = 0.0,
) -> Parting:
    """Release by compare-and-delete with effect from `at`, tried until the instant `until` of the loop's clock.

    The next term is reserved for `heir`.

    `error` is what an earlier attempt ended with: its request may have been carried out since.
    """
    loop = asyncio.get_running_loop()
    while (left := until - loop.time()) > 0:
        try:
            limit = min(left, RELEASE_LIMIT / 3)
            keep = max(0.0, at - _clock.now())
            if heir is None:
                answer = await store.release(claim, keep=keep, limit=limit)
            else:
                answer = await roles_of(store, "hand_over()").release(claim, keep=keep, heir=heir, limit=limit)
        except StoreUnavailable as exc:
            error = exc
            await asyncio.sleep(min(left, 0.02 + 0.03 * random.random()))
            continue
        except Exception as exc:  # noqa: BLE001 - whatever it is, the claim is left to its ttl
            return Parting(ReleaseOutcome.UNKNOWN, error=as_store_error(exc))
        match answer:
            case Released(told=told):
                return Parting(ReleaseOutcome.RELEASED, told)
            case Refused(holder=holder):
                outcome = ReleaseOutcome.UNCONFIRMED if error else ReleaseOutcome.ALREADY_LOST
                return Parting(outcome, error=error, taken_by=holder)
    return Parting(ReleaseOutcome.UNKNOWN, error=error)


async def undo(store: Store, claim: Claim, patience: float) -> None:
    """Give up a claim that may exist and that nobody will use; goes on detached after `patience` seconds."""
    until = asyncio.get_running_loop().time() + RELEASE_LIMIT
    await outlast(spawn(give_up(store, claim, until), f"release of {claim.name}"), patience)


def as_store_error(exc: Exception) -> StoreError:
    """Whatever it is, it is not the word that a claim is lost."""
    return exc if isinstance(exc, StoreError) else StoreUnavailable(f"the store failed: {type(exc).__name__}")
