"""Every way in which PostgreSQL, or the way to it, says no; and the exception that each becomes.

By SQLSTATE, so that no class of the driver is needed. No text of the server holds an owner value: none is ever sent.
"""

from __future__ import annotations

from aioelect._errors import StoreError, StoreRejected, StoreUnavailable

__all__ = ["is_answer", "refusal_of", "timed_out"]

_LATER = "check that it is up and at this address, and try again"

# By state, else by its class (the first two characters). Passing: can end by itself, but not soon.
_UNAVAILABLE = {
    "08": "the connection was lost",
    "25006": "the server is read-only (a standby, or a failover)",
    "25P03": "the server closed a transaction that stood idle",
    "40": "the transaction was in another's way (serialization, deadlock)",
    "53300": "the server has too many connections",
    "55P03": "somebody holds a lock on the row or table",
    "57": "the server is shutting down, starting, or has cancelled the statement",
    "58": "the server's system failed",
}
_PASSING = {
    "53": "the server is short of a resource: look into its log, its disk and its memory",
}
_REJECTED = {
    "28": "the server refused the user or password: correct the DSN, or pg_hba.conf",
    "3D000": "the server has no such database: correct the DSN, or create it",
    "3F000": "the store's schema is missing: call `await store.create()` once, or run its DDL",
    "42P01": "the store's table is missing: call `await store.create()` once, or run its DDL",
    "42883": "the store's functions are missing: call `await store.create()` once, or run its DDL",
    "42501": "the database user lacks a privilege: grant what docs/postgres.md lists",
}


def is_answer(error: BaseException) -> bool:
    """True if the server said it in reply to one statement, so that the connection is still good."""
    state = _state_of(error)
    return state is not None and state[:2] not in ("08", "57", "58")


def timed_out(limit: float, what: str = "no answer") -> StoreUnavailable:
    """The call's own limit passed."""
    return StoreUnavailable(
        f"{what} from the server within {limit:.3g} s: {_LATER}, or allow more by a longer ttl", reason="timeout"
    )


def refusal_of(error: BaseException) -> StoreError:
    """Class what the driver raised; makes a fresh exception for each caller that is hit by it."""
    state = _state_of(error)
    if state is None:
        return _no_connection(error)
    said = f"(server: {state} {error})"
    if (why := _of(_UNAVAILABLE, state)) is not None:
        reason = "readonly" if state == "25006" else "connection" if state[:2] == "08" else state
        return StoreUnavailable(f"{why}: try again when that is over {said}", reason=reason)
    if (why := _of(_PASSING, state)) is not None:
        rejected = StoreRejected(f"{why} {said}", reason=state)
        rejected.passing = True
        return rejected
    why = _of(_REJECTED, state) or "the server refused for a reason that is not known here"
    return StoreRejected(f"{why} {said}", reason=state)


def _no_connection(error: BaseException) -> StoreError:
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"the server could not be reached in time: {_LATER}", reason="timeout")
    kind = type(error).__name__
    if kind == "TargetServerAttributeNotMatched":
        return StoreUnavailable(
            "the server is read-only (a standby, or a failover): try again when that is over", reason="readonly"
        )
    if kind == "ClientConfigurationError":
        return StoreRejected(f"the DSN, or a setting, is not understood: correct it ({error})", reason="settings")
    # Other texts are the driver's or the resolver's, and might repeat a DSN.
    detail = str(error) if isinstance(error, OSError) else kind
    return StoreUnavailable(f"no connection to the server: {_LATER} ({detail})", reason="connection")


def _state_of(error: BaseException) -> str | None:
    state: object = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) and len(state) == 5 else None


def _of(table: dict[str, str], state: str) -> str | None:
    return table.get(state, table.get(state[:2]))
