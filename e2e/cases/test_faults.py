"""Killing what carries the run, in the middle of it: the same result, or a typed reason, and nothing left behind."""

import time

import pytest

from e2e.system import SYSTEM, Tenant, shell

SLOW = """
echo step-1 > step-1; echo '{"moorage": {"event": "iteration"}}'; sleep 3
echo step-2 > step-2; echo '{"moorage": {"event": "iteration"}}'; sleep 6
sh agent.sh
"""


def restart(tenant: Tenant, app: str) -> None:
    tenant.cluster.kubectl(
        "-n", SYSTEM, "delete", "pod", "-l", f"app.kubernetes.io/component={app}", "--grace-period=0", "--force"
    )


def settled(tenant: Tenant, app: str) -> None:
    tenant.cluster.kubectl("-n", SYSTEM, "rollout", "status", f"deploy/moorage-{app}", "--timeout=120s")


@pytest.mark.rule("R7", "F2")
@pytest.mark.parametrize("app", ["operator", "gateway"])
def test_killing_a_process_of_ours_mid_run_ends_in_the_same_result(tenant: Tenant, app: str):
    tenant.run("slow", agent=shell(SLOW))
    tenant.running("slow")
    restart(tenant, app)
    status = tenant.ended("slow")
    settled(tenant, app)
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1)
    assert tenant.world.branch(f"moorage/{tenant.namespace}-slow") == status["result"]["commit"]


@pytest.mark.rule("R1", "R3", "F1")
def test_a_deleted_sandbox_goes_on_from_its_checkpoint_under_a_new_epoch(tenant: Tenant):
    script = "[ -e step-1 ] && echo again > recovered\n" + SLOW
    tenant.run("slow", agent=shell(script))
    tenant.until("slow", lambda s: s.get("iteration", 0) >= 1)
    pod = tenant.sandbox("slow")["metadata"]["name"]
    tenant.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    status = tenant.ended("slow")
    assert (status["phase"], status["attempt"], status["epoch"]) == ("Succeeded", 2, 2)
    branch = f"moorage/{tenant.namespace}-slow"
    names = set(tenant.world.git("ls-tree", "--name-only", branch).split())
    assert {"step-1", "recovered", "step-2"} <= names


def test_the_agents_memory_kill_is_told(tenant: Tenant):
    eat = 'python3 -c "x = []\nwhile True: x.append(bytearray(16 << 20))"'
    tenant.run("oom", agent=shell(eat), recovery={"maxAttempts": 1})
    status = tenant.ended("oom")
    assert status["phase"] == "Failed"
    assert "OOMKilled" in status["reason"] + status["message"]


def test_an_image_that_cannot_be_pulled_is_told_and_can_be_cancelled(tenant: Tenant):
    agent = {**shell("true"), "image": "localhost/no/such/image:1"}
    tenant.run("pull", agent=agent)
    status = tenant.until("pull", lambda s: s.get("reason") == "ImagePullFailed", within_s=60)
    assert "localhost/no/such/image:1" in status["message"]
    tenant.kubectl("patch", "ar", "pull", "--type=merge", "-p", '{"spec":{"cancel":true}}')
    assert tenant.ended("pull", within_s=60)["phase"] == "Cancelled"


def leftovers(tenant: Tenant) -> list[str]:
    kinds = "pods,persistentvolumeclaims,leases,networkpolicies"
    return tenant.kubectl("get", kinds, "-o", "name").split()


def gone(tenant: Tenant, *, within_s: float = 90) -> None:
    deadline = time.monotonic() + within_s
    while left := leftovers(tenant):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


@pytest.mark.rule("W5")
def test_delete_mid_run_leaves_nothing(tenant: Tenant):
    tenant.run("doomed", agent=shell("sleep 600"))
    tenant.running("doomed")
    tenant.kubectl("delete", "ar", "doomed", "--timeout=20s")
    gone(tenant)


@pytest.mark.rule("W5")
@pytest.mark.parametrize("app", ["operator", "gateway"])
def test_delete_never_waits_for_us(tenant: Tenant, app: str):
    tenant.run("doomed", agent=shell("sleep 600"))
    tenant.running("doomed")
    tenant.cluster.kubectl("-n", SYSTEM, "scale", f"deploy/moorage-{app}", "--replicas=0")
    try:
        tenant.kubectl("delete", "ar", "doomed", "--timeout=20s")
    finally:
        tenant.cluster.kubectl("-n", SYSTEM, "scale", f"deploy/moorage-{app}", "--replicas=1")
        settled(tenant, app)
    gone(tenant)


def test_a_namespace_goes_with_a_run_in_it(tenant: Tenant):
    tenant.run("doomed", agent=shell("sleep 600"))
    tenant.running("doomed")
    tenant.cluster.kubectl("delete", "namespace", tenant.namespace, "--timeout=90s")
