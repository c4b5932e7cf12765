"""C1, C2 over any constraints and any context."""

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.budget import Budget, ResolvedConstraint, ResolvedLimits
from moorage.core.constraints.cel import BadExpression, Expression
from moorage.core.constraints.judging import Action, Context, Snapshot, Validation, evaluate
from moorage.core.constraints.limits import METERED, WALL_CLOCK, HardLimit, SoftLimit, metered, timed
from moorage.core.constraints.telling import budget_of, stopping
from moorage.core.run.state import RunState, Violation
from moorage.runner.remaining import told

AMOUNTS = st.integers(min_value=0, max_value=2**53)
LIMITS = st.builds(
    ResolvedLimits,
    **{
        name: st.none() | st.integers(min_value=0, max_value=50)
        for name in ResolvedLimits.model_fields
        if name != "custom"
    },
)
SMALL = st.integers(min_value=0, max_value=60)
USED = {each.uses: SMALL for each in METERED}
CONTEXTS = st.builds(
    Context,
    **USED,
    asking=st.dictionaries(st.sampled_from([each.name for each in METERED]), SMALL, max_size=len(METERED)),
)


@dataclass
class Scripted:
    """Holds or doesn't; says what follows; knows whether it was asked."""

    name: str
    holds: bool
    action: Action
    asked: list[str] = field(default_factory=list)

    def validate(self, _: Context) -> Validation:
        self.asked.append(self.name)
        return Validation(self.name, self.holds, "Any", "any")

    def on_violation(self, _: Validation) -> Action:
        return self.action


@st.composite
def scripts(draw: Any) -> tuple[list[Scripted], list[str]]:
    asked: list[str] = []
    kinds = draw(st.lists(st.tuples(st.booleans(), st.sampled_from(Action)), max_size=8))
    return [Scripted(f"c{at}", holds, action, asked) for at, (holds, action) in enumerate(kinds)], asked


@pytest.mark.rule("C2")
@given(given=scripts())
def test_in_order_most_severe_wins_and_the_first_emergency_ends_it(given: tuple[list[Scripted], list[str]]) -> None:
    constraints, asked = given
    verdict = evaluate(constraints, Context())
    broken = [c for c in constraints if not c.holds]
    emergency = next((at for at, c in enumerate(constraints) if not c.holds and c.action == 3), None)
    expected = constraints if emergency is None else constraints[: emergency + 1]
    assert asked == [c.name for c in expected]
    assert [j.validation.constraint for j in verdict.judged] == asked, "all validations so far are kept"
    seen = [c.action for c in expected if c in broken]
    assert verdict.action == max(seen, default=Action.ALLOW)
    if seen:
        assert verdict.worst is not None
        first = next(c for c in expected if c in broken and c.action is verdict.action)
        assert verdict.worst.validation.constraint == first.name
    else:
        assert verdict.violations == ()
        assert verdict.worst is None


@pytest.mark.rule("C2")
def test_the_actions_are_ordered() -> None:
    assert Action.ALLOW < Action.WARN_CONTINUE < Action.GRACEFUL_EXIT < Action.EMERGENCY_STOP
    assert [action.stops for action in Action] == [False, False, True, True]


@pytest.mark.rule("B2", "C2")
@given(limits=LIMITS, context=CONTEXTS)
def test_a_limit_stops_exactly_what_asks_for_more_than_is_left(limits: ResolvedLimits, context: Context) -> None:
    verdict = evaluate(metered(limits), context)
    stopped = {j.validation.constraint for j in verdict.judged if j.action.stops}
    for of in METERED:
        most, used, asked = of.hard(limits), of.used(context), context.asking.get(of.name, 0)
        over = most is not None and (used > most if of.kind == "level" else 0 < asked > most - used)
        assert (of.name in stopped) == over
        left = of.left(limits, context)
        assert (left is None) == (most is None)
        assert left is None or left == max(0, (most or 0) - used), "0 left is 0, and nothing else is unlimited"
    warned = {j.validation.constraint for j in verdict.judged if j.action is Action.WARN_CONTINUE}
    soft = {of.name for of in METERED if (at := of.soft(limits)) is not None and of.used(context) >= at}
    assert warned == {f"{name}.soft" for name in soft}


@pytest.mark.rule("C1")
@given(limits=LIMITS, context=CONTEXTS)
def test_the_same_context_comes_to_the_same_verdict(limits: ResolvedLimits, context: Context) -> None:
    assert evaluate(metered(limits), context) == evaluate(metered(limits), replace(context))


@pytest.mark.rule("C2")
@given(limits=LIMITS, context=CONTEXTS, more=st.sampled_from(sorted(USED)), amount=SMALL)
def test_more_use_never_lets_through_what_less_did_not(
    limits: ResolvedLimits, context: Context, more: str, amount: int
) -> None:
    before = evaluate(metered(limits), context).action
    after = evaluate(metered(limits), replace(context, **{more: getattr(context, more) + amount})).action
    assert after >= before


@pytest.mark.rule("C2")
@given(most=st.integers(min_value=0, max_value=10**9), passed=st.integers(min_value=0, max_value=10**9))
def test_time_is_an_emergency_when_it_is_over(most: int, passed: int) -> None:
    verdict = evaluate(timed(ResolvedLimits(wall_clock_ms=most)), Context(wall_ms=passed))
    assert verdict.action == (Action.EMERGENCY_STOP if passed >= most else Action.ALLOW)
    assert HardLimit(WALL_CLOCK, most).name == "wallClock"
    assert SoftLimit(METERED[1], most).name == "tokens.soft"


@pytest.mark.rule("C7")
@given(limits=LIMITS, context=CONTEXTS)
def test_what_is_told_survives_the_wire_and_null_is_unlimited_alone(limits: ResolvedLimits, context: Context) -> None:
    budget = budget_of(limits, context, RunState(admitted_at=0))
    assert Budget.model_validate_json(budget.model_dump_json()) == budget
    file = told(budget)
    for of in METERED:
        assert file[of.uses] == of.left(limits, context)
    assert (file["cost"] is None) == (limits.cost_hard_micros is None)
    assert (file["ends_at"] is None) == (limits.wall_clock_ms is None)


@pytest.mark.rule("C2")
@given(actions=st.lists(st.sampled_from(["WARN_CONTINUE", "GRACEFUL_EXIT", "EMERGENCY_STOP"]), max_size=6))
def test_what_stops_a_run_is_the_first_of_the_most_severe(actions: list[str]) -> None:
    violations = tuple(Violation(f"c{at}", action, "R", "m", at) for at, action in enumerate(actions))
    found = stopping(violations)
    severe = [a for a in ("EMERGENCY_STOP", "GRACEFUL_EXIT") if a in actions]
    assert (found is None) == (not severe)
    assert found is None or found == violations[actions.index(severe[0])]


NAMES = ("iterations", "tokens", "costMicros", "toolCalls", "effects", "egressBytes", "diskBytes", "humanApprovals")
COMPARED = st.builds(
    lambda name, sign, bound: f"{name} {sign} {bound}",
    st.sampled_from(NAMES),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    SMALL,
)
EXPRESSIONS = st.recursive(
    COMPARED,
    lambda inner: st.builds(
        lambda left, op, right: f"({left}) {op} ({right})", inner, st.sampled_from(["&&", "||"]), inner
    ),
    max_leaves=5,
)


@pytest.mark.rule("C4")
@given(text=EXPRESSIONS, context=CONTEXTS)
def test_an_expression_says_what_python_would(text: str, context: Context) -> None:
    fields = {"costMicros": "cost_micros", "toolCalls": "tool_calls", "egressBytes": "egress_bytes"}
    fields |= {"diskBytes": "disk_bytes", "humanApprovals": "human_approvals"}
    values = {name: getattr(context, fields.get(name, name)) for name in NAMES}
    expected = eval(text.replace("&&", "and").replace("||", "or"), {"__builtins__": {}}, values)
    said = Expression.compiled(ResolvedConstraint(name="mine", cel=text)).validate(context)
    assert said.holds is bool(expected)


@pytest.mark.rule("C4")
@given(text=st.text(max_size=200) | EXPRESSIONS)
def test_any_text_is_an_expression_or_refused_in_words(text: str) -> None:
    with contextlib.suppress(BadExpression):
        made = Expression.compiled(ResolvedConstraint(name="mine", cel=text))
        made.demand_held(Context(state=Snapshot("Running", 1, "command", "")))
        assert made.validate(Context()).holds
