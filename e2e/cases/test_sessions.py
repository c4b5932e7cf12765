"""A run goes on with a failed one, in gVisor: with its agent's conversation, from its work, out of the same budget."""

import json

import pytest

from e2e.system import SANDBOX_IMAGE, Tenant, condition

FIRST = 200 + 20 + 240 + 10  # tokens, as e2e/manifests/model-conversations.yaml has them
SECOND = 300 + 20 + 340 + 10


@pytest.mark.rule("O2", "O7", "B3")
def test_what_a_failed_run_has_begun_is_gone_on_with_and_delivered(tenant: Tenant, moorage):
    agent = {
        "driver": "builtin",
        "image": SANDBOX_IMAGE,
        "model": {"providerRef": {"name": "stand-in"}, "name": "scripted"},
        "continuation": {"checkRounds": 0},
    }
    once = {"recovery": {"acceptanceRounds": 0}, "constraints": {"tokens": {"hard": 5_000}}}
    tenant.run("first", agent=agent, goal=f"{tenant.namespace}: Leave the rest to another run.", **once)
    goal = f"{tenant.namespace}: Now mend it."
    tenant.run("second", agent=agent, goal=goal, continueFrom={"name": "first"})
    waits = tenant.until("second", lambda s: s.get("reason") in {"ContinuedNotEnded", "ContinuedNotFound"})
    assert "first" in waits["message"]
    failed = tenant.ended("first")
    assert (failed["phase"], failed["usage"]["tokens"]) == ("Failed", FIRST), json.dumps(failed, indent=1)
    status = tenant.ended("second")
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert status["result"]["summary"] == "Mended."
    assert condition(status, "Accepted")["reason"] == "Verified"
    assert status["usage"]["tokens"] == SECOND
    session = status["session"]
    assert (session["continues"], session["tokens"]) == ("first", FIRST + SECOND)
    assert session["id"] == tenant.get("ar", "first")["metadata"]["uid"]
    commit = status["result"]["commit"]
    assert tenant.world.branch(f"moorage/{tenant.namespace}-second") == commit
    assert tenant.world.git("diff", "--name-only", "main", commit).split() == ["slugify.py", "step-1"]
    assert "goes on with first" in moorage("-n", tenant.namespace, "timeline", "second")
