"""A builtin agent in gVisor is spoken to at work: by kubectl, by the program, twice, and without the right to."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e.cluster.errors import CommandFailedError
from e2e.pods import eventually
from e2e.system import SANDBOX_IMAGE, Tenant

pytestmark = pytest.mark.alone

HOME = "/workspace/.moorage/agent/home"
MUTE = "mute"
"""A ServiceAccount that may create RunCommands and has no right to steer."""


def at_work(tenant: Tenant, name: str) -> str:
    """A run whose agent waits in its first call; the pod's name. See e2e/manifests/model-conversations.yaml."""
    model = {"providerRef": {"name": "stand-in"}, "name": "scripted"}
    agent = {"driver": "builtin", "image": SANDBOX_IMAGE, "model": model}
    tenant.run(name, agent=agent, goal=f"{tenant.namespace}: Listen while you work.")
    tenant.running(name)
    pod = str(tenant.sandbox(name)["metadata"]["name"])

    def begun() -> bool:
        said = tenant.kubectl("exec", pod, "--", "sh", "-c", f"test ! -e {HOME}/begun || echo begun")
        return said.strip() == "begun"

    assert eventually(begun, within_s=60), tenant.status(name)
    return pod


def steer(name: str, run: str, text: str) -> dict[str, Any]:
    spec = {"runRef": {"name": run}, "type": "Steer", "text": text}
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": "RunCommand", "metadata": {"name": name}, "spec": spec}


def let_speak(tenant: Tenant) -> str:
    """Make the ServiceAccount; its user name."""
    tenant.kubectl("create", "serviceaccount", MUTE)
    tenant.kubectl("create", "role", MUTE, "--verb=create", "--resource=runcommands.moorage.dev")
    tenant.kubectl("create", "rolebinding", MUTE, f"--role={MUTE}", f"--serviceaccount={tenant.namespace}:{MUTE}")
    return f"system:serviceaccount:{tenant.namespace}:{MUTE}"


@pytest.mark.rule("M2", "M3", "T6")
def test_an_agent_is_spoken_to_while_it_works_by_those_who_may(tenant: Tenant, moorage: Callable[..., str]):
    before = len(tenant.world.model_log())
    pod = at_work(tenant, "listener")
    tenant.apply(steer("tabs", "listener", "Indent with tabs."))
    tenant.apply(steer("tabs", "listener", "Indent with tabs."))
    tenant.kubectl("wait", "rcmd/tabs", "--for=jsonpath={.status.state}=Accepted", "--timeout=60s")
    follow = ("-n", tenant.namespace, "follow-up", "listener", "Now look again.", "--id", "again", "-o", "json")
    first, second = json.loads(moorage(*follow)), json.loads(moorage(*follow))
    assert first == second
    assert first["state"] == "Accepted"

    mute = let_speak(tenant)
    with pytest.raises(CommandFailedError) as error:
        tenant.kubectl("create", f"--as={mute}", "-f", "-", stdin=json.dumps(steer("no", "listener", "Stop.")))
    assert f"{mute} may not Steer AgentRun listener in {tenant.namespace}" in str(error.value)
    assert "agentruns/steer" in str(error.value)

    tenant.kubectl("exec", pod, "--", "touch", f"{HOME}/go")
    status = tenant.ended("listener")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1), json.dumps(status, indent=1)
    assert len(tenant.world.model_log()) == before + 3, "its work, its end, and what it was told after that"
    told = {each["metadata"]["name"]: each["status"]["state"] for each in tenant.get("rcmd")}
    assert told == {"tabs": "Delivered", "again": "Delivered"}
    timeline = moorage("-n", tenant.namespace, "timeline", "listener")
    assert timeline.count("the agent is given tabs") == timeline.count("the agent is given again") == 1
    late = moorage("-n", tenant.namespace, "steer", "listener", "Too late.", code=1)
    assert "RunEnded" in late
