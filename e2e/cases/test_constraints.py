"""Constraints on a cluster: a call too many isn't made, nobody is asked too often, an expression stops a run; all go on
from where they stood.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e.pods import eventually
from e2e.system import SANDBOX_IMAGE, Tenant, condition, shell

TICKING = """
if [ -e step-1 ]; then sh agent.sh; exit; fi
echo 1 > step-1
while :; do echo tick >> ticks; echo '{"moorage": {"event": "iteration"}}'; sleep 0.5; done
"""


def paused(tenant: Tenant, name: str) -> dict[str, Any]:
    """Its status, once its sandbox is gone."""
    tenant.kubectl("wait", f"ar/{name}", "--for=jsonpath={.status.phase}=Paused", "--timeout=120s")
    assert eventually(lambda: not tenant.sandboxes(name), within_s=60), tenant.kubectl("get", "pods", "-o", "wide")
    return tenant.status(name)


@pytest.mark.rule("B3", "C3", "C7")
def test_a_tool_call_too_many_isnt_made_until_there_may_be_more(tenant: Tenant):
    model = {"providerRef": {"name": "stand-in"}, "name": "scripted"}
    agent = {"driver": "builtin", "image": SANDBOX_IMAGE, "model": model}
    limits = {"toolCalls": {"hard": 1}}
    tenant.run("called", agent=agent, goal=f"{tenant.namespace}: Call no more than you may.", constraints=limits)
    status = paused(tenant, "called")
    assert (status["reason"], status["usage"]["toolCalls"]) == ("BudgetExhausted", 1), json.dumps(status, indent=1)
    assert condition(status, "WithinBudget")["reason"] == "ToolCallsExhausted"

    raised = {"spec": {"constraints": {"toolCalls": {"hard": 9}}}}
    tenant.kubectl("patch", "ar", "called", "--type=merge", "-p", json.dumps(raised))
    status = tenant.ended("called")
    assert (status["phase"], status["usage"]["toolCalls"]) == ("Succeeded", 3), json.dumps(status, indent=1)
    assert condition(status, "WithinBudget")["reason"] == "WithinLimits"


@pytest.mark.rule("B3", "C3", "T6")
def test_nobody_is_asked_more_often_than_may_be_until_the_limit_is_raised(tenant: Tenant, moorage: Callable[..., str]):
    model = {"providerRef": {"name": "stand-in"}, "name": "scripted"}
    agent = {"driver": "builtin", "image": SANDBOX_IMAGE, "model": model}
    asked_first = [{"name": "shell", "before": "ToolCall", "tools": ["bash"]}]
    limits = {"humanApprovals": {"hard": 0}}
    goal = f"{tenant.namespace}: Ask before you mend it."
    tenant.run("unasked", agent=agent, goal=goal, approvals=asked_first, constraints=limits)
    status = paused(tenant, "unasked")
    assert status["reason"] == "BudgetExhausted", json.dumps(status, indent=1)
    assert '{"spec": {"constraints": {"humanApprovals": {"hard": 2}}}}' in status["message"]
    assert condition(status, "WithinBudget")["reason"] == "HumanApprovalsExhausted"
    assert condition(status, "AwaitingApproval")["status"] == "False", "nobody was asked"

    raised = {"spec": {"constraints": {"humanApprovals": {"hard": 1}}}}
    tenant.kubectl("patch", "ar", "unasked", "--type=merge", "-p", json.dumps(raised))
    tenant.until("unasked", lambda s: condition(s, "AwaitingApproval").get("status") == "True", within_s=180)
    moorage("-n", tenant.namespace, "approve", "unasked", "shell")
    status = tenant.ended("unasked")
    assert (status["phase"], status["usage"]["humanApprovals"]) == ("Succeeded", 1), json.dumps(status, indent=1)
    assert condition(status, "WithinBudget")["reason"] == "WithinLimits"


@pytest.mark.rule("C3", "C4")
def test_an_expression_stops_a_run_and_only_warns_once_somebody_lets_it_go_on(tenant: Tenant, moorage):
    custom = [{"name": "three-steps", "cel": "iterations < 3", "message": "three steps are enough"}]
    tenant.run("stepped", agent=shell(TICKING), constraints={"maxIterations": 1000, "custom": custom})
    status = paused(tenant, "stepped")
    assert status["reason"] == "Constraint", json.dumps(status, indent=1)
    resume = f"to go on: kubectl moorage resume stepped -n {tenant.namespace}"
    assert status["message"] == f"constraint three-steps: three steps are enough; {resume}"
    assert status["iteration"] in {3, 4}, "it was passed by no more than one"
    assert condition(status, "WithinBudget")["reason"] == "ConstraintViolated"

    moorage("-n", tenant.namespace, "resume", "stepped")
    status = tenant.ended("stepped")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 2), json.dumps(status, indent=1)
    timeline = moorage("-n", tenant.namespace, "timeline", "stepped")
    assert "constraints: custom.three-steps: constraint three-steps: three steps are enough (GRACEFUL_EXIT)" in timeline


@pytest.mark.rule("C4")
def test_an_expression_that_cant_be_meant_is_refused_by_name(tenant: Tenant):
    tenant.run("mistyped", agent=shell("true"), constraints={"custom": [{"name": "a", "cel": "iteration < 3"}]})
    status = tenant.until("mistyped", lambda status: status.get("reason") == "ConstraintInvalid")
    assert "constraints.custom a: iteration isn't known here; known are: attempt" in status["message"]
    assert not tenant.sandboxes("mistyped")
