"""Killing what carries the run, in the middle of it: the same result, or a typed reason, and nothing left behind."""

import time

import pytest

from e2e.pods import eventually
from e2e.system import SANDBOX_IMAGE, SYSTEM, Installation, Tenant, condition, shell

BEGUN = "/workspace/.moorage/agent/home/begun"
"""Made by the builtin agent's second command, which then takes long; see e2e/manifests/model-conversations.yaml."""
SLOW = """
echo step-1 > step-1; echo '{"moorage": {"event": "iteration"}}'; sleep 3
echo step-2 > step-2; echo '{"moorage": {"event": "iteration"}}'; sleep 6
sh agent.sh
"""


@pytest.mark.alone
@pytest.mark.rule("R7", "F2")
@pytest.mark.parametrize("app", ["operator", "gateway"])
def test_killing_a_process_of_ours_mid_run_ends_in_the_same_result(tenant: Tenant, app: str):
    tenant.run("slow", agent=shell(SLOW))
    tenant.running("slow")
    moorage = Installation(tenant.cluster)
    moorage.kill(app)
    status = tenant.ended("slow")
    moorage.settled(app)
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


@pytest.mark.alone
@pytest.mark.rule("R1", "R2", "R3", "E2", "I4")
@pytest.mark.parametrize("how", ["killed", "told to go"])
def test_a_builtin_agent_goes_on_from_its_checkpoint_and_asks_nothing_twice(tenant: Tenant, how: str):
    agent = {
        "driver": "builtin",
        "image": SANDBOX_IMAGE,
        "model": {"providerRef": {"name": "stand-in"}, "name": "scripted"},
    }
    before = len(tenant.world.model_log())
    tenant.run("slow", agent=agent, goal=f"{tenant.namespace}: Take your time.")
    assert eventually(lambda: len(tenant.world.model_log()) >= before + 2, within_s=90), tenant.status("slow")
    pod = tenant.sandbox("slow")["metadata"]["name"]

    def begun() -> bool:
        return tenant.kubectl("exec", pod, "--", "sh", "-c", f"test ! -e {BEGUN} || echo begun").strip() == "begun"

    assert eventually(begun, within_s=50), tenant.status("slow")
    tenant.kubectl("delete", "pod", pod, *(("--grace-period=0", "--force") if how == "killed" else ("--wait=false",)))
    status = tenant.ended("slow")
    assert (status["phase"], status["attempt"], status["epoch"]) == ("Succeeded", 2, 2)
    assert tenant.world.branch(f"moorage/{tenant.namespace}-slow") == status["result"]["commit"]
    assert set(tenant.world.git("diff", "--name-only", "main", status["result"]["commit"]).split()) == {
        "step-1",
        "slugify.py",
    }
    asked = tenant.world.model_log()[before:]
    assert len(asked) == len({entry["key"] for entry in asked}) == 3, "what was decided is not asked for again"
    assert status["usage"]["modelRequests"] == 3
    assert status["iteration"] == 3, "the second one was decided, and is completed under its number"


@pytest.mark.rule("V3")
def test_a_verifier_that_is_killed_is_followed_by_another_with_the_same_verdict(tenant: Tenant):
    tenant.run("judged", acceptance=[{"name": "tests", "run": "sleep 8; python3 -m unittest -q", "timeout": "2m"}])
    tenant.until("judged", lambda s: s.get("phase") == "Verifying")
    waited = time.monotonic() + 60
    while not any(pod["status"]["phase"] == "Running" for pod in tenant.sandboxes("judged", "verifier")):
        assert time.monotonic() < waited, tenant.status("judged")
        time.sleep(0.25)
    first = tenant.sandbox("judged", "verifier")["metadata"]
    tenant.kubectl("delete", "pod", first["name"], "--grace-period=0", "--force")
    status = tenant.ended("judged")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1)
    assert condition(status, "Accepted")["reason"] == "Verified"
    assert tenant.world.branch(f"moorage/{tenant.namespace}-judged") == status["result"]["commit"]
    assert first["uid"] not in {pod["metadata"]["uid"] for pod in tenant.sandboxes("judged", "verifier")}


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
    tenant.kubectl("delete", "ar", "doomed", "--timeout=60s")
    gone(tenant)


KEPT = """
import json, pathlib, sqlite3, subprocess, sys
uid, data = sys.argv[1], pathlib.Path("/var/lib/moorage")
for mirror in sorted((data / "mirrors").glob("*/*.git")):
    refs = subprocess.check_output(["git", "--git-dir", str(mirror), "for-each-ref", "--format=%(refname)"], text=True)
    print(*(f"ref {name}" for name in refs.split() if uid in name), sep="\\n")
db = sqlite3.connect(f"file:{data / 'moorage.db'}?mode=ro", uri=True)
tables = "execution_events e join executions x on x.run = e.run"
for (body,) in db.execute(f"select e.body from {tables} where x.run_uid = ? order by e.seq", (uid,)):
    print("record", json.loads(body)["type"])
"""


def kept(tenant: Tenant, uid: str) -> dict[str, list[str]]:
    """What the gateway's volume holds of a run."""
    pod = ("-n", SYSTEM, "exec", "deploy/moorage-gateway", "--", "python3", "-c", KEPT, uid)
    found: dict[str, list[str]] = {"ref": [], "record": []}
    for line in filter(None, tenant.cluster.kubectl(*pod).splitlines()):
        kind, _, what = line.partition(" ")
        found[kind].append(what)
    return found


@pytest.mark.rule("W5", "W3")
def test_the_refs_of_a_deleted_run_go_and_its_journal_stays(tenant: Tenant):
    script = 'echo 1 > step-1; echo \'{"moorage": {"event": "iteration"}}\'; sleep 600'
    tenant.run("doomed", agent=shell(script))
    tenant.until("doomed", lambda s: s.get("iteration", 0) >= 1)
    uid = tenant.get("ar", "doomed")["metadata"]["uid"]
    before = kept(tenant, uid)["ref"]
    assert {name.rpartition("/")[2] for name in before} >= {"base", "checkpoints"}, "what is to go was there"
    tenant.kubectl("delete", "ar", "doomed", "--timeout=60s")
    gone(tenant)
    waited = time.monotonic() + 90
    while (left := kept(tenant, uid))["ref"]:
        assert time.monotonic() < waited, left
        time.sleep(1)
    records = left["record"]
    assert records[0] == "RUN_ADMITTED"
    assert {"ITERATION_COMPLETE", "RUN_CANCELLED"} <= set(records)
    assert records[-1] == "TOMBSTONE"


@pytest.mark.alone
@pytest.mark.rule("W5")
@pytest.mark.parametrize("app", ["operator", "gateway"])
def test_delete_never_waits_for_us(tenant: Tenant, app: str):
    tenant.run("doomed", agent=shell("sleep 600"))
    tenant.running("doomed")
    with Installation(tenant.cluster).without(app):
        tenant.kubectl("delete", "ar", "doomed", "--timeout=60s")
    gone(tenant)


def test_a_namespace_goes_with_a_run_in_it(tenant: Tenant):
    tenant.run("doomed", agent=shell("sleep 600"))
    tenant.running("doomed")
    tenant.cluster.kubectl("delete", "namespace", tenant.namespace, "--timeout=90s")
