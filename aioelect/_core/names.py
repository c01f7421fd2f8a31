"""What may be a name, a prefix or an identity; refused where it enters."""

from __future__ import annotations

import unicodedata

from aioelect._errors import ConfigurationError

__all__ = ["check_identity", "check_name", "check_prefix"]

MAX_BYTES = 200
_BRACES = ": braces mark the hash slot in a key; a colon does as well, like 'user:42'"


def _check(field: str, value: object, forbidden: str = "", why: str = "") -> str:
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
        raise ConfigurationError(f"{field}={value!r} holds {bad!r}, which may not be in it{why}", reason=field)
    return value


def check_name(value: object) -> str:
    """A contended name: 1 to 200 bytes, no braces (they mark the hash slot), no control characters."""
    return _check("name", value, "{}", _BRACES)


def check_prefix(value: object) -> str:
    """The key prefix, under the same limits."""
    return _check("prefix", value, "{}", _BRACES)


def check_identity(value: object) -> str:
    """A label for people: 1 to 200 bytes, no control characters."""
    return _check("identity", value)
