"""What a person must allow first: asked for once, whoever is killed; nothing stands meanwhile; and it is done once."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from e2e.pods import eventually
from e2e.system import SANDBOX_IMAGE, Installation, Tenant, condition

pytestmark = pytest.mark.alone

ASKED_FIRST = [
    {"name": "shell", "before": "ToolCall", "tools": ["bash"]},
    {"name": "push", "before": "Delivery"},
]


def parked(tenant: Tenant, name: str) -> dict[str, Any]:
    """Its status, once it waits with nothing but its volume; see PARK_MS in moorage.core.run.approving."""
    status = tenant.until(name, lambda s: s.get("phase") == "Paused", within_s=180)
    assert eventually(lambda: not tenant.sandboxes(name), within_s=60), tenant.kubectl("get", "pods", "-o", "wide")
    assert eventually(lambda: not tenant.get("lease"), within_s=30), tenant.get("lease")
    return status


def live(tenant: Tenant) -> list[dict[str, Any]]:
    """Pods that use anything: those of a finished attempt stay until the run ends."""
    return [pod for pod in tenant.get("pods") if pod["status"]["phase"] in {"Pending", "Running"}]


def all_killed(tenant: Tenant) -> None:
    """The operator and the gateway, at once, and ready again."""
    system = Installation(tenant.cluster)
    for app in ("operator", "gateway"):
        system.kill(app)
    for app in ("operator", "gateway"):
        system.settled(app)


def allow(run: str, approval: str) -> dict[str, Any]:
    spec = {"runRef": {"name": run}, "type": "Approve", "approval": approval}
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": "RunCommand", "metadata": {"name": "allowed"}, "spec": spec}


@pytest.mark.rule("T6")
def test_what_needs_a_word_waits_for_it_over_every_restart_and_is_done_once(
    tenant: Tenant, moorage: Callable[..., str]
):
    before = len(tenant.world.model_log())
    model = {"providerRef": {"name": "stand-in"}, "name": "scripted"}
    agent = {"driver": "builtin", "image": SANDBOX_IMAGE, "model": model}
    tenant.run("careful", agent=agent, goal=f"{tenant.namespace}: Ask before you mend it.", approvals=ASKED_FIRST)
    status = parked(tenant, "careful")
    assert condition(status, "AwaitingApproval")["status"] == "True", json.dumps(status, indent=1)
    assert "sh agent.sh" in status["message"], "what is to be allowed can be read"
    command = re.search(r"kubectl moorage (approve careful shell --question [^\s,]+)", status["message"])
    assert command, status["message"]

    all_killed(tenant)
    assert tenant.status("careful")["phase"] == "Paused"
    assert not tenant.get("ar", "careful")["status"].get("result")
    said = moorage("-n", tenant.namespace, *command[1].split(), "-o", "json")
    assert json.loads(said)["state"] == "Done", said

    status = tenant.until("careful", lambda s: s.get("phase") == "AwaitingApproval", within_s=180)
    assert "push" in condition(status, "AwaitingApproval")["message"]
    assert eventually(lambda: not live(tenant), within_s=60), tenant.kubectl("get", "pods", "-o", "wide")
    branch = f"moorage/{tenant.namespace}-careful"
    assert tenant.world.branch(branch) is None, "nothing leaves before it may"
    all_killed(tenant)
    tenant.apply(allow("careful", "push"))
    tenant.apply(allow("careful", "push"))
    tenant.kubectl("wait", "rcmd/allowed", "--for=jsonpath={.status.state}=Done", "--timeout=60s")

    status = tenant.ended("careful")
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert tenant.world.branch(branch) == status["result"]["commit"]
    assert (status["usage"]["toolCalls"], len(tenant.world.model_log())) == (1, before + 2), "nothing is done twice"
    moorage("-n", tenant.namespace, "verify", "careful")


@pytest.mark.rule("T6")
def test_what_a_person_refuses_never_leaves(tenant: Tenant, moorage: Callable[..., str]):
    tenant.run("refused", approvals=[{"name": "push", "before": "Delivery"}])
    tenant.until("refused", lambda s: s.get("phase") == "AwaitingApproval", within_s=120)
    moorage("-n", tenant.namespace, "reject", "refused", "push", "--note", "not before the release")
    status = tenant.ended("refused", within_s=60)
    assert (status["phase"], status["reason"]) == ("Failed", "ApprovalRejected"), json.dumps(status, indent=1)
    assert "not before the release" in status["message"]
    assert tenant.world.branch(f"moorage/{tenant.namespace}-refused") is None
