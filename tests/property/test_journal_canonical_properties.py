from __future__ import annotations

from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.journal.canonical import MAX_SAFE_INTEGER, canonical
from moorage.core.journal.errors import NotCanonical

texts = st.text(st.characters(exclude_categories=["Cs"]))
integers = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
floats = st.floats(allow_nan=False, allow_infinity=False).filter(lambda f: not MAX_SAFE_INTEGER < abs(f) < 1e21)
scalars = st.none() | st.booleans() | integers | floats | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=12)
anything = st.recursive(
    scalars | st.text() | st.integers() | st.floats() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@pytest.mark.rule("J4")
@given(values)
def test_both_paths_give_the_bytes_of_rfc_8785(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(values)
def test_what_was_written_is_what_is_read(value: Any) -> None:
    data = canonical(value)
    assert orjson.loads(data) == value
    assert canonical(orjson.loads(data)) == data


@given(st.dictionaries(texts, values), st.randoms(use_true_random=False))
def test_the_order_of_keys_doesnt_matter(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


@given(anything)
def test_anything_else_is_refused_by_name_and_nothing_crashes(value: Any) -> None:
    try:
        data = canonical(value)
    except NotCanonical:
        return
    assert data == rfc8785.dumps(value)
