"""O2, B3, C4: what becomes of a child, and of a run that may have any, once all that it names is followed."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.test_run_children import STATE, a_parent, accepted, child

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.budget import ResolvedConstraint, ResolvedLimits
from moorage.api.modelprovider import ModelProvider
from moorage.api.wire import ResolvedChildren, ResolvedRun
from moorage.core.run.family import Child, Share
from moorage.core.run.observed import Problem
from moorage.core.run.resolve import Defaults, References, read_run, resolve

# --- limits of its Agent's --------------------------------------------------------------------------------------------


def resolved_child(usual: dict[str, Any], own: dict[str, Any], left: int) -> ResolvedRun | Problem:
    """A child by hand, whose Agent has limits, of a parent that has so many tool calls left."""
    meta = {"name": "fix", "namespace": "team-a", "uid": "8c0a3c6e-5d5e-4a3f-9a51-0a6a7d2d6f10", "generation": 1}
    spec = {"workspace": {"ephemeral": {}}, "goal": "g", "agentRef": {"name": "coder"}, "parentRef": {"name": "elder"}}
    run = read_run({"metadata": meta, "spec": spec | {"constraints": own}})
    assert isinstance(run, AgentRun), run
    agent = {"metadata": {"name": "coder"}, "spec": {"driver": "command", "command": ["true"], "constraints": usual}}
    parent = a_parent(limits=ResolvedLimits(tool_calls_hard=left))
    refs = References(agent=Agent.model_validate(agent), drivers=frozenset({"command"}), parent=parent)
    return resolve(run, refs, Defaults())


@pytest.mark.rule("B3")
@pytest.mark.parametrize(
    ("usual", "own", "left", "share"),
    [
        (200, None, 190, 95),
        (50, None, 190, 50),
        (0, None, 1, 0),
        (50, 150, 190, 150),
        (200, 191, 190, None),
        (200, None, 1, None),
    ],
)
def test_a_limit_of_a_childs_agent_caps_what_it_gets_and_asks_for_nothing(
    usual: int, own: int | None, left: int, share: int | None
) -> None:
    """The same Agent may be its parent's, which has used some of as much."""
    asked = {} if own is None else {"toolCalls": {"hard": own}}
    found = resolved_child({"toolCalls": {"hard": usual}, "maxIterations": 7}, asked, left)
    if share is None:
        assert isinstance(found, Problem)
        assert found.reason == "ParentBudget"
    else:
        assert isinstance(found, ResolvedRun), found
        assert (found.limits.tool_calls_hard, found.limits.max_iterations) == (share, 7)


# --- constraints of the parent's own ----------------------------------------------------------------------------------

FEW = ResolvedConstraint(name="few", cel="tokens < 900 || toolCalls + effects < 9 && modelRequests < 7")


@pytest.mark.rule("B3", "C4")
@pytest.mark.parametrize(
    ("expression", "limits", "missing"),
    [
        ("costMicros < 9000000", {}, "constraints.cost.hard"),
        ("costMicros < 9000000", {"tokens": {"hard": "1k"}}, "constraints.cost.hard"),
        ("costMicros < 9000000", {"cost": {"soft": "5.00"}}, "constraints.cost.hard"),
        ("costMicros < 9000000", {"cost": {"hard": "10.00"}}, ""),
        (FEW.cel, {"toolCalls": {"hard": 9}}, "constraints.tokens.hard and constraints.effects.hard"),
        ("humanApprovals < 3", {"toolCalls": {"hard": 9}}, "constraints.humanApprovals.hard"),
        ("humanApprovals < 3", {"humanApprovals": {"hard": 3}}, ""),
        ("modelRequests < 9 && wallTimeMs < 9000", {}, ""),
    ],
)
def test_a_run_whose_constraint_would_see_too_late_what_children_use_says_a_limit_or_has_none(
    expression: str | None, limits: dict[str, Any], missing: str
) -> None:
    custom = {"name": "few", "cel": expression, "onViolation": "EmergencyStop"}
    found = parental("builtin", constraints=limits | {"custom": [custom]})
    if missing:
        assert isinstance(found, Problem)
        assert (found.reason, found.stalled) == ("LimitMissing", True)
        assert found.message.endswith(f": set {missing} beside agent.children")
    else:
        assert isinstance(found, ResolvedRun), found
    warned = parental("builtin", constraints=limits | {"custom": [custom | {"onViolation": "Warn"}]})
    assert isinstance(warned, ResolvedRun), warned


@pytest.mark.rule("B3", "C4")
def test_what_somebody_is_asked_for_before_it_is_spent_is_limited_enough_for_shares() -> None:
    custom = {"custom": [{"name": "few", "cel": "costMicros < 9000000"}]}
    spend = [{"name": "spend", "before": "Cost", "step": "2.00"}]
    found = parental("builtin", constraints=custom, approvals=spend)
    assert isinstance(found, ResolvedRun), found


@pytest.mark.rule("B3", "C4")
def test_a_child_by_hand_says_a_limit_of_what_its_parents_constraint_reads() -> None:
    parent = a_parent(limits=ResolvedLimits(tokens_hard=1_000, custom=(FEW,)))
    found = child(parent, limits=ResolvedLimits(effects_hard=3))
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("LimitMissing", True)
    assert found.message.endswith("set constraints.toolCalls.hard in a child of elder")
    limits = accepted(parent, limits=ResolvedLimits(effects_hard=3, tool_calls_hard=4)).limits
    assert (limits.tokens_hard, limits.effects_hard, limits.tool_calls_hard) == (500, 3, 4)
    known = replace(parent, state=replace(STATE, children=(Child("u-1", "fix", Share(tokens=250)),)))
    assert accepted(known).limits.tokens_hard == 250, "it was started already"


# --- who may start any ------------------------------------------------------------------------------------------------


def parental(driver: str, placement: Any = "cluster", **more: Any) -> ResolvedRun | Problem:
    """What becomes of a run whose agent is to have children. `more`: of its spec."""
    agent: dict[str, Any] = {"driver": driver, "children": {"max": 4}}
    agent |= {"command": ["agent"]} if driver in {"acp", "command", "mine"} else {}
    agent |= {} if driver in {"command", "mine"} else {"model": {"providerRef": {"name": "models"}, "name": "m"}}
    spec = {"workspace": {"ephemeral": {}}, "goal": "g", "agent": agent} | more
    meta = {"name": "fix", "namespace": "team-a", "uid": "8c0a3c6e-5d5e-4a3f-9a51-0a6a7d2d6f10", "generation": 1}
    run = read_run({"metadata": meta, "spec": spec}, placement)
    assert isinstance(run, AgentRun), run
    protocol = "openai-responses" if driver == "codex" else "anthropic-messages"
    priced = {"models": [{"name": "m", "prices": {"input": "3.00", "output": "15.00"}}]}
    offered = {"protocol": protocol, "baseURL": "https://models.example"} | priced
    provider = {"metadata": {"name": "models"}, "spec": offered}
    known = frozenset({"acp", "builtin", "claude-code", "codex", "command", "mine", "pi"})
    refs = References(provider=ModelProvider.model_validate(provider), drivers=known)
    return resolve(run, refs, Defaults(placement=placement))


@pytest.mark.rule("O2")
@pytest.mark.parametrize("driver", ["acp", "builtin", "claude-code", "codex", "pi"])
def test_an_agent_whose_program_is_told_of_the_tools_may_have_children(driver: str) -> None:
    found = parental(driver)
    assert isinstance(found, ResolvedRun), found
    assert found.agent.children == ResolvedChildren(max=4, concurrent=2)


@pytest.mark.parametrize(
    ("driver", "placement", "who"),
    [("command", "cluster", "command"), ("mine", "cluster", "mine"), ("builtin", "local", "a local run")],
)
def test_any_other_is_refused_before_it_begins(driver: str, placement: str, who: str) -> None:
    found = parental(driver, placement)
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("NotSupported", True)
    assert f"agent.children: {'' if who.startswith('a ') else 'the driver '}{who} can't start any" in found.message
