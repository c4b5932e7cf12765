"""A run that is stopped softly: by a limit of its own, and by its author; nothing stands meanwhile, and it goes on."""

import json
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
    """Its status, once nothing but its volume stands for it."""
    tenant.kubectl("wait", f"ar/{name}", "--for=jsonpath={.status.phase}=Paused", "--timeout=120s")
    assert eventually(lambda: not tenant.sandboxes(name), within_s=60), tenant.kubectl("get", "pods", "-o", "wide")
    assert eventually(lambda: not tenant.get("lease"), within_s=30), tenant.get("lease")
    assert len(tenant.get("pvc")) == 1
    return tenant.status(name)


@pytest.mark.rule("C3", "B3", "I4")
def test_a_run_whose_tokens_are_used_up_is_paused_and_goes_on_once_the_limit_is_raised(tenant: Tenant, moorage):
    model = {"providerRef": {"name": "stand-in"}, "name": "scripted"}
    agent = {"driver": "builtin", "image": SANDBOX_IMAGE, "model": model}
    limits = {"tokens": {"hard": 200}}
    tenant.run("spent", agent=agent, goal=f"{tenant.namespace}: Stop at the limit.", constraints=limits)
    status = paused(tenant, "spent")
    assert (status["reason"], status["usage"]["tokens"], status["attempt"]) == ("BudgetExhausted", 220, 1)
    assert condition(status, "WithinBudget")["reason"] == "TokensExhausted"
    assert condition(status, "Stalled")["status"] == "True"
    assert f"kubectl patch ar spent -n {tenant.namespace}" in status["message"]

    tenant.kubectl("patch", "ar", "spent", "--type=merge", "-p", json.dumps({"spec": {"constraints": limits}}))
    raised = {"spec": {"constraints": {"tokens": {"hard": "5k"}}}}
    tenant.kubectl("patch", "ar", "spent", "--type=merge", "-p", json.dumps(raised))
    status = tenant.ended("spent")
    assert (status["phase"], status["attempt"], status["epoch"]) == ("Succeeded", 2, 2), json.dumps(status, indent=1)
    assert status["usage"]["tokens"] == 220 + 220 + 250, "nothing that was used is forgotten"
    changed = tenant.world.git("diff", "--name-only", "main", status["result"]["commit"]).split()
    assert changed == ["slugify.py", "step-1"], "the work goes on from the checkpoint"
    timeline = moorage("-n", tenant.namespace, "timeline", "spent")
    told = [
        "is to pause (BudgetExhausted",
        "paused: nothing stands",
        "raised tokens hard to 5000",
        "goes on",
        "succeeded",
    ]
    assert [timeline.index(words) for words in told] == sorted(timeline.index(words) for words in told)


@pytest.mark.rule("C3", "Q5")
def test_a_run_that_is_suspended_stops_at_its_next_safe_point_and_goes_on_when_that_is_taken_back(tenant: Tenant):
    tenant.run("slept", agent=shell(TICKING))
    tenant.running("slept")
    tenant.kubectl("patch", "ar", "slept", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    status = paused(tenant, "slept")
    assert status["reason"] == "Suspended"
    assert condition(status, "Stalled")["status"] == "False"
    assert condition(status, "Owned")["reason"] == "Paused"
    tenant.kubectl("patch", "ar", "slept", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    status = tenant.ended("slept")
    assert (status["phase"], status["attempt"], status["epoch"]) == ("Succeeded", 2, 2), json.dumps(status, indent=1)
    names = set(tenant.world.git("ls-tree", "--name-only", status["result"]["commit"]).split())
    assert {"step-1", "ticks"} <= names


@pytest.mark.rule("X3", "C3")
def test_a_cancel_ends_a_paused_run(tenant: Tenant):
    tenant.run("given-up", agent=shell(TICKING))
    tenant.running("given-up")
    tenant.kubectl("patch", "ar", "given-up", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    paused(tenant, "given-up")
    tenant.kubectl("patch", "ar", "given-up", "--type=merge", "-p", '{"spec":{"cancel":true}}')
    assert tenant.ended("given-up", within_s=60)["phase"] == "Cancelled"
