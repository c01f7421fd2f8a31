"""What may be a name, a prefix or an identity; refused where it enters."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping

from aioelect._errors import ConfigurationError

__all__ = ["check_identity", "check_key", "check_name", "check_prefix", "check_weight", "pack_info", "unpack_info"]

MAX_BYTES = 200
MAX_INFO = 1024
MAX_WEIGHT = 1000
_BRACES = "{}"


def _check(field: str, value: object, forbidden: str = "") -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{field} is a {type(value).__name__}; expected a str", reason=field)
    if not value:
        raise ConfigurationError(f"{field} is empty; give it 1 to {MAX_BYTES} bytes", reason=field)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{field}={value!r} can't be encoded as UTF-8", reason=field) from None
    if size > MAX_BYTES:
        raise ConfigurationError(f"{field} takes {size} bytes of UTF-8; at most {MAX_BYTES}: {value!r}", reason=field)
    bad = sorted({char for char in value if char in forbidden or unicodedata.category(char) == "Cc"})
    if bad:
        why = (
            "braces mark the hash slot in a key; a colon does as well, like 'user:42'"
            if bad[0] in _BRACES
            else "no line breaks or other control characters: it is shown in logs and tables"
        )
        raise ConfigurationError(f"{field}={value!r} holds {bad!r}, which may not be in it: {why}", reason=field)
    return value


def check_name(value: object) -> str:
    """A contended name: 1 to 200 bytes, no braces (they mark the hash slot), no control characters."""
    return _check("name", value, _BRACES)


def check_prefix(value: object) -> str:
    """The key prefix, under the same limits."""
    return _check("prefix", value, _BRACES)


def check_identity(value: object) -> str:
    """A label for people: 1 to 200 bytes, no control characters."""
    return _check("identity", value)


def check_key(value: object) -> str:
    """The name of a schedule, under the same limits."""
    return _check("key", value)


def check_weight(value: object) -> int:
    """A candidate's weight: 0 to 1000."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"weight={value!r} is a {type(value).__name__}; expected an int", reason="weight")
    if not 0 <= value <= MAX_WEIGHT:
        raise ConfigurationError(f"weight={value!r} is out of range: 0 to {MAX_WEIGHT}", reason="weight")
    return value


def pack_info(value: object) -> str:
    """What a leader tells of itself, as it lies in the store: text by text, together at most 1024 bytes."""
    if value is None:
        return ""
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise ConfigurationError(f"info={value!r}; expected a mapping of str to str", reason="info")
    packed = json.dumps(dict(value), separators=(",", ":"))
    if len(packed) > MAX_INFO:
        raise ConfigurationError(f"info takes {len(packed)} bytes; at most {MAX_INFO}", reason="info")
    return packed


def unpack_info(packed: str) -> dict[str, str]:
    """The same, read back; what others wrote and is not understood is left out."""
    try:
        found = json.loads(packed)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {field: text for field, text in found.items() if isinstance(text, str)}
