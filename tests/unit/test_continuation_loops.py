"""The loop detector (N6), and what the checks before an end say (N4)."""

import pytest

from moorage.core.continuation.checks import AFTER, Changes, Checked, failing_set, objection, tail_of, untested
from moorage.core.continuation.loops import Called, Spurred, Stood, Thresholds, Verified, Watched, WentOn, watch
from moorage.drivers.watching import Circles

AT = Thresholds(calls=3, verifications=3, share=40, turns=1, idle=3)
ON = Stood("a", asks=True)  # and it asks for another decision


def failing(*names: str) -> Verified:
    return Verified(frozenset(names))


def findings(*events: object) -> list[tuple[str, bool]]:
    seen, told = Watched(), []
    for event in events:
        seen, found = watch(seen, event, AT)  # type: ignore[arg-type]
        told += [(found.kind, found.last)] if found else []
    return told


@pytest.mark.rule("N6")
def test_a_failing_set_that_does_not_shrink_is_told_and_one_that_does_is_not() -> None:
    assert findings(*[failing("a", "b")] * 3) == [("FailingSet", False)]
    assert findings(*[failing("a", "b")] * 6) == [("FailingSet", False), ("FailingSet", True)]
    assert findings(failing("a", "b", "c"), failing("a", "b"), failing("a"), failing(), failing("a")) == []
    assert findings(failing("a"), failing("b"), failing("a")) == [("FailingSet", False)], "others are no fewer"


@pytest.mark.rule("N6")
def test_a_share_of_the_limit_on_an_unchanged_tree_is_told() -> None:
    assert findings(Stood("a", 0), Stood("a", 39), Stood("a", 40), Stood("a", 79)) == [("UnchangedTree", False)]
    assert findings(Stood("a", 0), Stood("a", 40), Stood("a", 80)) == [
        ("UnchangedTree", False),
        ("UnchangedTree", True),
    ]
    assert findings(Stood("a", 0), Stood("b", 40), Stood("c", 79)) == []


@pytest.mark.rule("N6")
def test_whoever_has_few_turns_may_look_around_in_most_of_them() -> None:
    seen, told = Watched(), []
    for used in range(0, 100, 20):
        seen, found = watch(seen, Stood("a", used), Thresholds(turns=10))
        told += [found] if found else []
    assert told == []


@pytest.mark.rule("N2", "N6")
@pytest.mark.parametrize(
    ("between", "told"),
    [
        ([ON] * 2, []),
        ([ON] * 3, [False]),
        ([ON] * 6, [False, True]),
        ([Stood("a")] * 9, []),  # nobody says that it goes on
        ([Stood("a"), WentOn()] * 3, [False]),
        ([ON, ON, Called("read", "d", "read"), ON, ON, ON], []),  # the first one after a call is that call's
        ([*[ON] * 5, Called("read", "d", "read"), *[ON] * 4], [False, False]),
        ([ON, ON, Spurred(), ON, ON, ON], []),
        ([ON, ON, Stood("b", asks=True), Stood("b", asks=True), Stood("b", asks=True)], []),
    ],
)
def test_decisions_that_call_nothing_and_are_gone_on_from_are_told(between: list[object], told: list[bool]) -> None:
    assert findings(Stood("a"), *between) == [("IdleDecisions", last) for last in told]


def test_a_call_that_waits_is_no_circle() -> None:
    circles = Circles(AT)
    for _ in range(30):
        circles.told("TOOL_REQUEST", {"tool": "BashOutput", "arguments": {"bash_id": "1"}})
        circles.stood("a", 0, asks=True)
    assert circles.news() is None


@pytest.mark.rule("M3", "N6")
def test_whoever_answers_people_goes_in_no_circle() -> None:
    circles = Circles(AT)
    for _ in range(30):
        circles.told("COMMAND_DELIVERED", {"command_id": "c"})
        circles.stood("a", 0, asks=True)
    assert circles.news() is None


@pytest.mark.rule("N6")
def test_a_host_sees_calls_by_their_arguments_and_tells_news_once() -> None:
    circles = Circles(AT)
    for _ in range(2):
        circles.told("TOOL_REQUEST", {"tool": "bash", "arguments": {"command": "make test"}})
        circles.told("TOOL_REQUEST", {"tool": "bash", "arguments": {"command": "make lint"}})
        circles.told("TOOL_RESPONSE", {"tool": "bash"})
    assert circles.news() is None
    circles.told("TOOL_REQUEST", {"tool": "bash", "arguments": {"command": "make test"}})
    found = circles.news()
    assert found
    assert (found.kind, found.last) == ("RepeatedCall", False)
    assert "`bash make test` was called 3 times" in found.facts
    assert circles.news() is None


# --- checks -----------------------------------------------------------------------------------------------------------

FAILED = Checked("tests", "pytest -q", "ended with exit code 1", "\n".join(f"line {n}" for n in range(100)))
PASSED = Checked("lint", "ruff check", None, "fine")
NOTHING = Changes(frozenset(), frozenset({"a.py", "test_a.py"}))
SOURCE = Changes(frozenset({"a.py"}), frozenset({"a.py", "test_a.py"}))


@pytest.mark.rule("N4")
def test_a_failed_command_is_told_with_the_last_of_what_it_said() -> None:
    told = objection([PASSED, FAILED], SOURCE, change_asked=True)
    assert told
    assert "Acceptance `tests` failed: `pytest -q` ended with exit code 1." in told
    assert "line 60\n" in told
    assert "line 59\n" not in told, "forty lines"
    assert "lint" not in told
    assert "You changed a.py but not its test test_a.py." in told
    assert told.endswith(AFTER)


@pytest.mark.rule("N4")
def test_what_passes_is_not_objected_to_for_a_test_that_nobody_asked_to_change() -> None:
    assert objection([PASSED], SOURCE, change_asked=True) is None
    assert "not its test" in str(objection([], SOURCE, change_asked=True))


@pytest.mark.rule("N4")
@pytest.mark.parametrize("asked", [True, False])
def test_no_change_is_told_where_one_was_asked(asked: bool) -> None:
    assert ("no file differs" in str(objection([PASSED], NOTHING, change_asked=asked))) is asked


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("src/a.py", "tests/unit/test_a.py"),
        ("pkg/a.go", "pkg/a_test.go"),
        ("src/a.ts", "src/a.test.ts"),
        ("src/a.js", "spec/a.spec.js"),
        ("lib/a.rb", "spec/a_spec.rb"),
        ("src/Shop.java", "test/ShopTest.java"),
    ],
)
def test_a_test_is_known_by_its_name(source: str, test: str) -> None:
    present = frozenset({source, test, "README.md"})
    assert untested(Changes(frozenset({source}), present)) == [(source, test)]
    assert untested(Changes(frozenset({source, test}), present)) == []
    assert untested(Changes(frozenset({test}), present)) == []
    assert untested(Changes(frozenset({"README.md"}), present)) == []


@pytest.mark.rule("N6")
def test_what_fails_is_named_by_its_lines_and_can_be_compared() -> None:
    both = "FAIL: test_a (shop.Tests)\nFAIL: test_b (shop.Tests)\nRan 9 tests in 0.123s\nFAILED (failures=2)"
    one = "FAIL: test_a (shop.Tests)\nRan 9 tests in 0.456s\nFAILED (failures=1)"
    before, after = (failing_set([Checked("tests", "t", "ended with exit code 1", out)]) for out in (both, one))
    assert after < before
    assert failing_set([Checked("tests", "t", "timed out", "quiet")]) == {"tests"}
    assert failing_set([PASSED]) == frozenset()


def test_a_tail_is_bounded_however_long_its_lines_are() -> None:
    assert len(tail_of("x" * 1_000_000)) <= 6_000
