"""A namespace's contract on a real cluster: who makes room for whom, and a day that is used up."""

import json

import pytest

from e2e.cases.test_pauses import TICKING, paused
from e2e.system import SANDBOX_IMAGE, Tenant, shell

SCHEDULED = {"class": "background", "preemptible": True}


def constrained(tenant: Tenant, **spec: object) -> None:
    """With the contract in force."""
    meta = {"name": "team", "namespace": tenant.namespace}
    tenant.apply({"apiVersion": "moorage.dev/v1alpha1", "kind": "ResourceConstraint", "metadata": meta, "spec": spec})
    tenant.kubectl("wait", "rcon/team", "--for=condition=Ready", "--timeout=60s")


@pytest.mark.rule("Q5", "C5", "Q4")
def test_a_background_run_makes_room_for_one_that_somebody_waits_for_and_goes_on_after_it(tenant: Tenant):
    constrained(tenant, concurrency={"sandboxes": 1})
    tenant.run("nightly", agent=shell(TICKING), scheduling=SCHEDULED)
    tenant.running("nightly")
    tenant.run("urgent")
    waits = tenant.until("urgent", lambda status: status.get("phase") == "Queued")
    assert "uses 1 of 1 sandboxes; next when nightly ends or rcon/team is raised" in waits["queue"]["reason"]
    stopped = tenant.until("nightly", lambda status: status.get("phase") == "Paused", within_s=150)
    assert tenant.ended("urgent")["phase"] == "Succeeded"
    status = tenant.ended("nightly")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 2), json.dumps(status, indent=1)
    assert "queue" not in status
    assert stopped["attempt"] == 1
    names = set(tenant.world.git("ls-tree", "--name-only", status["result"]["commit"]).split())
    assert {"step-1", "ticks"} <= names, "what it had done until then is there"


@pytest.mark.rule("C5", "C6")
def test_a_namespace_whose_day_is_used_up_waits_for_the_next_one_or_for_more_of_it(tenant: Tenant):
    constrained(tenant, perDay={"tokens": 1_000})
    model = {"providerRef": {"name": "stand-in"}, "name": "scripted"}
    agent = {"driver": "builtin", "image": SANDBOX_IMAGE, "model": model}
    tenant.run("thrifty", agent=agent, goal=f"{tenant.namespace}: Stop at the limit.")
    status = paused(tenant, "thrifty")
    assert status["reason"] == "DayBudgetExhausted"
    assert "ResourceConstraint" in status["message"]
    tenant.kubectl("patch", "rcon", "team", "--type=merge", "-p", '{"spec":{"perDay":{"tokens":"5M"}}}')
    status = tenant.ended("thrifty")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 2), json.dumps(status, indent=1)

    used = f"{{.status.lines[0].used}}={status['usage']['tokens']}"
    tenant.kubectl("wait", "rcon/team", f"--for=jsonpath={used}", "--timeout=60s")
