"""C4: which expressions are taken, and what is said of those that aren't."""

import pytest

from moorage.api.budget import ResolvedConstraint
from moorage.core.constraints.cel import BadExpression, Expression
from moorage.core.constraints.judging import Action, Context, Snapshot

BEGINS = Context(state=Snapshot("Running", 1, "builtin", "m-1"))


def made(text: str, **more: str) -> Expression:
    return Expression.compiled(ResolvedConstraint.model_validate({"name": "mine", "cel": text} | more))


@pytest.mark.rule("C4")
@pytest.mark.parametrize(
    "text",
    [
        "tokens <= 1000 || toolCalls > 0",
        "iterations < 3 || effects == 0",
        "double(costMicros) / 1000000.0 < 2.5",
        "iterations == 0 || tokens / iterations < 20000",
        "model.startsWith('m-') && driver != 'command' && size(phase) > 0 && attempt < 4",
        "attempt in [1, 2] ? wallTimeMs < 60000 : true",
    ],
)
def test_is_taken(text: str) -> None:
    made(text).demand_held(BEGINS)


@pytest.mark.rule("C4")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tokens >", "can't be read"),
        ("tokens = 5", "can't be read"),
        ("toolcalls < 5", "toolcalls isn't known here; known are: attempt, costMicros"),
        ("tokens", "is a int, no condition"),
        ("tokens > 5", "say what must stay true"),
        ("tokens / iterations < 5", "division by zero"),
        ("phase < 5", "the expression fails where it is tried"),
        ("tokens == 0 || phase < 5", "the expression fails where it is tried"),
        ("[1, 2].all(x, x > 0)", "all isn't taken"),
        ("[tokens].map(x, x)[0] < 5", "map isn't taken"),
        ("[tokens].\nexists (tokens, tokens > 5)", "exists isn't taken"),
        ("phase.matches('a+')", "matches() isn't known here"),
        ("now() < 5", "now() isn't known here"),
        ("tokens < " + "1 + " * 300 + "1", "at most 1024 are taken"),
    ],
)
def test_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(BadExpression) as refused:
        made(text).demand_held(BEGINS)
    assert said in str(refused.value)


@pytest.mark.rule("C4")
@pytest.mark.parametrize(
    ("on_violation", "action"),
    [("Warn", Action.WARN_CONTINUE), ("GracefulExit", Action.GRACEFUL_EXIT), ("EmergencyStop", Action.EMERGENCY_STOP)],
)
def test_says_what_follows_in_its_authors_words(on_violation: str, action: Action) -> None:
    constraint = made("tokens < 5", on_violation=on_violation, message="enough")
    said = constraint.validate(Context(tokens=5))
    assert (said.holds, said.reason, said.message) == (False, "ConstraintViolated", "constraint mine: enough")
    assert constraint.on_violation(said) is action
    assert made("tokens < 5").validate(Context(tokens=5)).message == "constraint mine: tokens < 5 is false"


@pytest.mark.rule("C4")
def test_what_cant_be_evaluated_doesnt_hold() -> None:
    said = made("iterations != 3 || tokens / (iterations - 3) < 5").validate(Context(iterations=3))
    assert not said.holds
    assert "can't be evaluated: division by zero" in said.message
