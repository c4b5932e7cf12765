"""An agent says that it is done before it is, in gVisor: told so in its own sandbox, or judged in another one."""

import json

import pytest

from e2e.system import SANDBOX_IMAGE, Tenant, condition

MENDED = "Mended, and all four tests pass; nothing but slugify.py was touched."


def builtin(check_rounds: int) -> dict[str, object]:
    """The builtin agent; see e2e/manifests/model-conversations.yaml for what its model says."""
    return {
        "driver": "builtin",
        "image": SANDBOX_IMAGE,
        "model": {"providerRef": {"name": "stand-in"}, "name": "scripted"},
        "continuation": {"checkRounds": check_rounds},
    }


@pytest.mark.rule("N4", "V3")
def test_a_first_done_that_fails_acceptance_is_told_the_facts_and_the_second_is_delivered(tenant: Tenant, moorage):
    tenant.run("soon", agent=builtin(2), goal=f"{tenant.namespace}: Say it too soon.")
    status = tenant.ended("soon")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1), json.dumps(status, indent=1)
    assert status["result"]["summary"] == MENDED
    assert condition(status, "Accepted")["reason"] == "Verified"
    assert tenant.world.git("diff", "--name-only", "main", status["result"]["commit"]).split() == ["slugify.py"]
    timeline = moorage("-n", tenant.namespace, "timeline", "soon")
    told = [
        timeline.index(words) for words in ("something stands against it", "told to go on", "nothing stands against it")
    ]
    assert told == sorted(told)


@pytest.mark.rule("N4", "R4")
def test_what_the_isolated_verification_rejects_is_gone_on_from_in_another_attempt(tenant: Tenant, moorage):
    tenant.run("twice", agent=builtin(0), goal=f"{tenant.namespace}: Be judged twice.")
    status = tenant.ended("twice")
    assert (status["phase"], status["attempt"], status["epoch"]) == ("Succeeded", 2, 2), json.dumps(status, indent=1)
    assert status["result"]["summary"] == MENDED
    assert tenant.world.branch(f"moorage/{tenant.namespace}-twice") == status["result"]["commit"]
    assert "another attempt goes on from it" in moorage("-n", tenant.namespace, "timeline", "twice")
