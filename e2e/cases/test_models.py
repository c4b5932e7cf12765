"""The model door on a cluster: a provider that fails for a moment, and what a namespace's models took."""

import json

import pytest

from e2e.system import SANDBOX_IMAGE, Tenant


@pytest.mark.rule("Q3", "B3", "O1")
def test_a_provider_that_fails_for_a_moment_costs_time_and_its_retries_are_told(tenant: Tenant, moorage):
    model = {"providerRef": {"name": "stand-in"}, "name": "scripted"}
    agent = {"driver": "builtin", "image": SANDBOX_IMAGE, "model": model}
    tenant.run("patient", goal=f"{tenant.namespace}: Be patient with it.", agent=agent)
    status = tenant.ended("patient")
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    usage = status["usage"]
    assert (usage["modelRequests"], usage["modelRetries"]) == (2, 3)
    told = moorage("-n", tenant.namespace, "usage", "-o", "json")
    days, _ = json.JSONDecoder().raw_decode(told)  # a note may follow it
    assert sum(day["modelRetries"] for day in days) == 3
    for name in ("inputTokens", "outputTokens", "cacheReadTokens", "costMicros"):
        assert sum(day[name] for day in days) == usage[name], "the sum over days is the sum over runs"
