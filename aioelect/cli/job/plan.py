"""When a command is told to stop, and when it is killed: pure decisions."""

from __future__ import annotations

from dataclasses import dataclass

from aioelect._core.timing import Timing, drift

__all__ = ["Plan", "kill_instant", "plan_of"]

_SHARE = 0.75  # of the time between the renew deadline and the deadline: the rest is for killing


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds after the last confirmed renewal was sent."""

    term_at: float  # SIGTERM: the renew deadline
    kill_at: float  # SIGKILL
    deadline: float  # the claim can be proved up to here

    @property
    def grace(self) -> float:
        """From SIGTERM to SIGKILL."""
        return self.kill_at - self.term_at

    @property
    def margin(self) -> float:
        """From SIGKILL to the deadline."""
        return self.deadline - self.kill_at


def plan_of(timing: Timing) -> Plan:
    """SIGTERM at the renew deadline, SIGKILL when three quarters of what is left to the deadline have passed."""
    deadline = timing.ttl - drift(timing.ttl)
    return Plan(timing.renew_deadline, timing.renew_deadline + _SHARE * (deadline - timing.renew_deadline), deadline)


def kill_instant(plan: Plan, now: float, remaining: float, before: float, stopped_at: float | None) -> float:
    """When the command is to be dead.

    While the claim can be proved (`remaining` > 0 s) that moves on with it. Once it can't be, what was decided `before`
    holds. `stopped_at`: its time counts from here, since the store refused the claim, or the command has ended and left
    others behind.
    """
    limit = now + remaining - plan.margin if remaining > 0 else before
    return limit if stopped_at is None else min(limit, stopped_at + plan.grace)
