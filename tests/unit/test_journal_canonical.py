from __future__ import annotations

from collections import OrderedDict
from typing import Any

import orjson
import pytest
import rfc8785

from moorage.core.journal.canonical import MAX_DEPTH, canonical, canonical_hash
from moorage.core.journal.errors import NotCanonical
from moorage.core.journal.record import Source

LIMIT = 2**53 - 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [True, None, ""]}, b'{"a":[true,null,""],"b":1}'),
        # RFC 8785 sorts by UTF-16: a surrogate pair comes before U+FB33, by code point it comes after
        ({"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3}, '{"\u20ac":3,"\U0001f600":2,"\ufb33":1}'.encode()),
        ({"x": '\u2028\x7f\x00\n"\\/'}, '{"x":"\u2028\x7f\\u0000\\n\\"\\\\/"}'.encode()),
        ([1.0, -0.0, 1e21, 1e-7, 0.1, 333333333.33333329, 4.5], b"[1,0,1e+21,1e-7,0.1,333333333.3333333,4.5]"),
        ([LIMIT, -LIMIT], b"[9007199254740991,-9007199254740991]"),
        ((1, (2,)), b"[1,[2]]"),
        (OrderedDict([("z", Source.RUNNER), ("a", 1)]), b'{"a":1,"z":"runner"}'),
        ("é", b'"\xc3\xa9"'),
    ],
)
@pytest.mark.rule("J4")
def test_the_bytes_are_those_of_rfc_8785(value: Any, expected: bytes) -> None:
    assert canonical(value) == expected


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (LIMIT + 1, "9007199254740992"),
        (-LIMIT - 1, "-9007199254740992"),
        ([1e16], r"value\[0\] is 1e\+16"),
        ("\ud800", "surrogate|UTF-8"),
        ({"\udfff": 1}, "surrogate|UTF-8"),
        ({"\U0001f600": 1, "\ud800": 1}, "surrogate|UTF-8"),
        ({"a": {1: 2}}, r"value\.a has the key 1"),
        ({"a": [0, {"b": b"x"}]}, r"value\.a\[1\]\.b is a bytes"),
        ({"a": {1, 2}}, r"value\.a is a set"),
        (object(), "value is a object"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_place(value: Any, says: str) -> None:
    with pytest.raises(NotCanonical, match=says):
        canonical(value)


def test_nesting_is_bounded_before_any_stack_is() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert canonical(value) == b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH
    for _ in range(100_000):
        value = {"x": value}
    with pytest.raises(NotCanonical, match="levels deep"):
        canonical(value)
    while value != 1:  # taken apart by hand: freeing it at once would be the interpreter's own recursion
        value = value["x"] if isinstance(value, dict) else value[0]


def test_integers_that_look_like_booleans_stay_apart() -> None:
    assert canonical([True, 1, False, 0]) == b"[true,1,false,0]"


def test_the_hash_is_of_the_canonical_bytes() -> None:
    assert canonical_hash({"b": 1, "a": 2}) == canonical_hash({"a": 2, "b": 1})
    assert canonical_hash({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_the_library_agrees_that_it_knows_better_than_the_fast_path() -> None:
    """Each guard is there for a reason: without it orjson's bytes would be other ones."""
    for value in ({"\ufb33": 1, "\U0001f600": 2}, [1.0], [-0.0]):
        assert orjson.dumps(value, option=orjson.OPT_SORT_KEYS) != rfc8785.dumps(value) == canonical(value)
