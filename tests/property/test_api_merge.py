"""Merge patches: what is sent makes of the old object the new one, at every depth (RFC 7386)."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moorage.api.merge import patch_to, patched

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=3)


@given(OBJECTS, OBJECTS)
def test_a_patch_makes_the_new_one_of_the_old_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = patch_to(new, old)
    assert patched(old, patch) == new
    assert patched(new, patch) == new


def test_what_is_no_longer_said_below_goes_too() -> None:
    old = {"workspace": {"base": "x", "head": "y"}, "node": "n"}
    assert patch_to({"workspace": {"base": "x"}}, old) == {"workspace": {"base": "x", "head": None}, "node": None}
