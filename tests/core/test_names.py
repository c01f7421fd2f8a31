"""P14: what may be a name, a prefix, an identity."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioelect._core.names import check_identity, check_name, check_prefix
from aioelect._errors import ConfigurationError

Check = Callable[[object], str]
CHECKS: dict[str, Check] = {"name": check_name, "prefix": check_prefix, "identity": check_identity}
each = pytest.mark.parametrize(("field", "check"), CHECKS.items(), ids=list(CHECKS))


@each
@pytest.mark.parametrize("value", ["a", "inventory:SKU-001", "Größe", "東京", "a b", "x" * 200, "é" * 100, "\u00a0"])
def test_p14_plain_names_in_any_script_pass_unchanged(field: str, check: Check, value: str) -> None:
    assert check(value) == value


@each
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "is empty; give it 1 to 200 bytes"),
        ("x" * 201, "takes 201 bytes of UTF-8; at most 200"),
        ("é" * 101, "takes 202 bytes of UTF-8; at most 200"),
        ("a\nb", "which may not be in it: no line breaks or other control characters"),
        ("a\x00", "which may not be in it: no line breaks"),
        ("\x7f", "which may not be in it"),
        ("\x85", "which may not be in it"),
        ("\ud800", "can't be encoded as UTF-8"),
        (b"name", "is a bytes; expected a str"),
        (None, "is a NoneType; expected a str"),
        (5, "is a int; expected a str"),
        (True, "is a bool; expected a str"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_p14_other_names_are_refused_with_field_and_limit(field: str, check: Check, value: object, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        check(value)
    assert str(caught.value).startswith(field)
    assert caught.value.reason == field


@pytest.mark.parametrize("value", ["{", "}", "a{b}c"])
@pytest.mark.parametrize("field", ["name", "prefix"])
def test_p14_braces_mark_the_hash_slot_and_are_refused_in_keys(field: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"[{}].*which may not be in it: braces mark"):
        CHECKS[field](value)


def test_p14_a_label_for_people_may_hold_braces() -> None:
    assert check_identity("pod{7}") == "pod{7}"


@each
@given(value=st.text())
def test_p14_a_text_passes_unchanged_or_is_refused(field: str, check: Check, value: str) -> None:
    try:
        assert check(value) == value
    except ConfigurationError:
        assert not value or len(value.encode(errors="replace")) > 200 or not value.isprintable() or set(value) & {*"{}"}
