"""TELL: is this copy well? For the liveness and readiness routes of a service."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from aioelect._elector import Elector

__all__ = ["Health", "health"]


@dataclass(frozen=True, slots=True)
class Health:
    """How an elector fares.

    Attributes:
        live: False if only a restart of this process helps: its candidacy has died, or cancelled work doesn't end.
            Never False because another leads, or because the store can't be reached.
        ready: True if it leads with its last renewal confirmed, or could lead as soon as the name is free.
        leading: it leads, by its clock.
        standing: it campaigns.
        problems: what is wrong, in words; empty when all is well.
    """

    live: bool
    ready: bool
    leading: bool
    standing: bool
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, bool | tuple[str, ...]]:
        """For a JSON answer."""
        return asdict(self)


def health(elector: Elector) -> Health:
    """How an elector fares: a local read, no I/O, never waits; from any thread.

    Let liveness follow `live` alone. A copy that doesn't lead is well, and one that can't reach the store is not helped
    by a restart: who fails liveness for that restarts all copies at once in an outage of the store. Let readiness
    follow `ready` only if the service is of no use without its election.

    Examples:
        >>> state = health(elector)  # doctest: +SKIP
        >>> return JSONResponse(state.as_dict(), 200 if state.live else 503)  # doctest: +SKIP
    """
    vitals, leading = elector._vitals, elector.is_leader  # noqa: SLF001 - kept there for this function alone
    fatal = []
    if vitals.died is not None:
        fatal.append(f"the candidacy has ended: {type(vitals.died).__name__}: {vitals.died}")
    if vitals.overruns:
        fatal.append("cancelled work has outlived the drain limit; this process does not stand meanwhile")
    passing = [
        f"{what}: {why}"
        for what, why in (
            ("the store does not serve", vitals.unreachable),
            ("it leads, but the last renewal failed", vitals.doubtful if leading else None),
            ("it is not fit to lead", vitals.unfit),
        )
        if why is not None
    ]
    if not vitals.standing and vitals.died is None:
        passing.append("it does not stand")
    return Health(
        live=not fatal,
        ready=not (fatal or passing),
        leading=leading,
        standing=vitals.standing,
        problems=(*fatal, *passing),
    )
