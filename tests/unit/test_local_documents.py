"""A manifest's YAML has bounds: of depth, of what its aliases come to, and of how often it says one thing."""

import pytest

from moorage.app.documents import MAX_BYTES, Refused, read_documents

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)
)


def test_documents_are_read_in_order_and_empty_ones_are_none() -> None:
    assert read_documents("a: 1\n---\n---\nb: {c: [2, null]}\n") == [{"a": 1}, {"b": {"c": [2, None]}}]


def test_aliases_and_merges_mean_what_they_mean_elsewhere() -> None:
    assert read_documents("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: *a\n") == [
        {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 1, "y": 2}}
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("a: " + "[" * 50_000, "line 1: it is nested more than 100 levels deep", id="depth"),
        pytest.param(BOMB, "more than 200000 values", id="bomb"),
        pytest.param("a: &a [1, *a]\n", "line 1: an alias names what it lies in", id="loop"),
        pytest.param("# " + "x" * MAX_BYTES, "larger than 2048 KiB", id="size"),
        pytest.param("a:\n  goal: x\n  goal: y\n", "line 3: goal is there a second time, after line 2", id="twice"),
        pytest.param("a: 1\n---\n{b: 1, 'b': 2}\n", "line 3: b is there a second time", id="twice in a flow"),
        pytest.param("a: [", "while parsing", id="syntax"),
        pytest.param("a: !!python/object:os.system {}\n", "could not determine a constructor", id="tag"),
        pytest.param("? [1, 2]\n: 3\n? {a: b}\n: 4\n", "unhashable", id="unhashable"),
        pytest.param("a: 2026-99-99\n", "month", id="no date"),
    ],
)
def test_what_has_no_bounds_or_two_meanings_is_refused(text: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        read_documents(text)
