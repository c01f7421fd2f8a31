"""Every way in which Redis, or the way to it, says no; and the exception that each becomes.

The client library spreads an error over a class, a text and, in newer versions, a code. Here it becomes a `Fault`
again, what the server really said, and one table decides what a caller may make of it. Texts are redacted: an
"unknown command" reply echoes the arguments, which may hold an owner value or a password.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from redis import exceptions as redis_errors

from aioelect._errors import StoreError, StoreRejected, StoreUnavailable

__all__ = ["LOST", "Fault", "Trouble", "fault_of_reply", "hung_up", "timed_out", "trouble_of"]


class Fault(NamedTuple):
    """An error reply: its code (`ERR` where none was given) and its redacted text."""

    code: str
    text: str


class Trouble(NamedTuple):
    """Why no usable answer can be given; makes a fresh exception for each caller that is hit by it."""

    reason: str  # one short word or phrase, for logs and metrics
    message: str
    rejected: bool = False
    passing: bool = False

    def error(self) -> StoreError:
        """Make the exception for one caller."""
        if not self.rejected:
            return StoreUnavailable(self.message, reason=self.reason)
        error = StoreRejected(self.message, reason=self.reason)
        error.passing = self.passing
        return error


# Classes of the client library that swallow the code of the reply.
_CODES: dict[type[Exception], str] = {
    redis_errors.NoScriptError: "NOSCRIPT",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.NoPermissionError: "NOPERM",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.TryAgainError: "TRYAGAIN",
    redis_errors.MovedError: "MOVED",
    redis_errors.AskError: "ASK",
    redis_errors.ClusterCrossSlotError: "CROSSSLOT",
}

# Refusals that pass when the server has come round: worth another try in the time that is left.
_UNAVAILABLE = {
    "LOADING": "the server is still loading its data",
    "TRYAGAIN": "the hash slot is being moved",
    "CLUSTERDOWN": "the cluster is down",
    "MASTERDOWN": "the server has lost its master",
    "MOVED": "the hash slot is served by another node (a cluster needs a RedisCluster client)",
    "ASK": "the hash slot is being moved to another node",
    "BUSY": "the server is busy running somebody's script",
    "READONLY": "the server is a replica (a failover, or the address of a replica)",
    "UNBLOCKED": "the server changed its role",
    "NOMASTERLINK": "the server has lost its master",
}

_LATER = "check that it is up and at this address, and try again"

LOST = Trouble("connection", f"no connection to the server: {_LATER} (it was lost)")

# Refusals that can pass by themselves, but not soon.
_PASSING = {
    "OOM": "the server is out of memory: raise maxmemory, or free some",
    "MISCONF": "the server refuses writes because it cannot persist them: look into its log and its disk",
    "NOREPLICAS": "the server refuses writes because too few replicas are connected (min-replicas-to-write)",
}

# Refusals that last until somebody changes something.
_REJECTED = {
    "NOAUTH": "the server wants a password: give the client one",
    "WRONGPASS": "the server refused the user name or password: correct the client's credentials",
    "NOPERM": "the server user lacks a permission: grant what the documented ACL line lists",
    "WRONGTYPE": "a key of this name holds something else: choose another name or prefix, or remove that key",
    "UNKNOWN COMMAND": "the server, or a proxy before it, does not know a command: let EVAL and EVALSHA pass",
    "NO AOF": "the server keeps no append-only file: set appendonly yes, or do without fsync",
    "NO PASSWORD": "the server has no password: give the client none",
    "NO DATABASE": "the server has no such database: correct the client's db",
    "CROSSSLOT": "the keys of one name are in different hash slots: the prefix must not contain braces",
}

# What has no code of its own, by its text.
_SAID = {
    "appendonly is disabled": "NO AOF",
    "without any password configured": "NO PASSWORD",
    "DB index is out of range": "NO DATABASE",
    "SELECT is not allowed": "NO DATABASE",
}

# Compiled when they are first searched for: few servers ever say such a thing.
_ACL_IN_SCRIPT = r"ACL failure in script|can't run this command or subcommand|can't publish to the channel"
_NESTED = rf"(?:^|[\s:])-?({'|'.join([*_UNAVAILABLE, *_PASSING, *_REJECTED])})\s"
_ECHO = re.compile(r"(unknown (?:sub)?command[^,]{0,40}).*", re.IGNORECASE | re.DOTALL)
_CODE = re.compile(r"([A-Z][A-Z]+)(?: |$)(.*)", re.DOTALL)


def fault_of_reply(text: str) -> Fault:
    """An error reply, from its line."""
    match = _CODE.match(text)
    return Fault("ERR", redacted(text)) if match is None else Fault(match[1], redacted(match[2]))


def hung_up(fault: Fault) -> Trouble | None:
    """Why the server closes the connection after saying this, which is nobody's reply; None if it is one."""
    if "Protocol error" not in fault.text:
        return None
    if "unauthenticated" in fault.text:
        # Said instead of NOAUTH where a request is longer than a stranger's may be.
        return _classed(Fault("NOAUTH", fault.text))
    return Trouble("connection", f"the server did not understand a request and hung up (server: {fault.text})")


def is_reply(error: Exception) -> bool:
    """True if the server said it in reply to one command, so that the connection is still good."""
    kinds = redis_errors.ResponseError | redis_errors.BusyLoadingError | redis_errors.AuthenticationError
    return isinstance(error, kinds) and "Protocol error" not in str(error)  # after that, the server hangs up


def fault_of(error: Exception) -> Fault:
    """What the server said, from the exception that the client library made of it."""
    text = str(error)
    code: object = getattr(error, "status_code", None)
    if not isinstance(code, str):
        code = next((known for kind, known in _CODES.items() if isinstance(error, kind)), None)
    if code is None and (match := _CODE.match(text)):
        code, text = match[1], match[2]
    if code is None and isinstance(error, redis_errors.AuthenticationError):
        # Older versions keep the class of the error only.
        code = "NOAUTH" if "required" in text else "WRONGPASS"
    return Fault(code if isinstance(code, str) else "ERR", redacted(text))


def trouble_of(error: BaseException | Fault) -> Trouble:
    """Class an error reply, a lost connection or a failed handshake."""
    if isinstance(error, Fault):
        return _classed(error)
    if isinstance(error, Exception) and is_reply(error):
        return _classed(fault_of(error))
    if isinstance(error, redis_errors.ConnectionError) and "previous master is now a slave" in str(error):
        return _classed(Fault("READONLY", str(error)))
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return Trouble("timeout", f"the server could not be reached in time: {_LATER}")
    if isinstance(error, redis_errors.RedisError | OSError):
        return Trouble("connection", f"no connection to the server: {_LATER} ({redacted(str(error))})")
    # A credential provider, or a connection class of the user's: its text might hold a secret.
    return Trouble("connection", f"no connection to the server: {_LATER} ({type(error).__name__})")


def redacted(text: str) -> str:
    """Cut off what follows an unknown command's name: the server repeats the arguments there."""
    return _ECHO.sub(r"\1", text)


def timed_out(limit: float, what: str = "no answer") -> Trouble:
    """The call's own limit passed."""
    wait = max(0.0, limit)  # the time may have been up before the call began
    return Trouble("timeout", f"{what} from the server within {wait:.3g} s: {_LATER}, or allow more by a longer ttl")


def _classed(fault: Fault) -> Trouble:
    code, whole = fault.code, f"{fault.code} {fault.text}"
    if code not in _UNAVAILABLE and code not in _PASSING and code not in _REJECTED:
        # A script on 6.2 reports the refusal of one of its commands somewhere inside its own error text.
        if re.search(_ACL_IN_SCRIPT, whole):  # an older client library takes its first word for a code
            code = "NOPERM"
        elif nested := re.search(_NESTED, fault.text):
            code = nested[1]
        elif _ECHO.search(fault.text):
            code = "UNKNOWN COMMAND"
        else:
            code = next((known for text, known in _SAID.items() if text in whole), code)
    said = f"(server: {whole})"
    if code in _UNAVAILABLE:
        return Trouble(code.lower(), f"{_UNAVAILABLE[code]}: try again when that is over {said}")
    if code in _PASSING:
        return Trouble(code.lower(), f"{_PASSING[code]} {said}", rejected=True, passing=True)
    if code in _REJECTED:
        return Trouble(code.lower(), f"{_REJECTED[code]} {said}", rejected=True)
    return Trouble("unknown answer", f"the server refused for a reason that is not known here {said}", rejected=True)
