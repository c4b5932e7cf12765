"""Bad input: refused at admission where a schema can, else a typed condition within a minute; always what to do."""

import json
from typing import Any

import pytest

from e2e import upstream
from e2e.cluster.errors import CommandFailedError
from e2e.system import Tenant, condition, shell

TYPED = {
    "a runtime class that is not there": (
        {"sandbox": {"runtimeClassName": "kata"}}, "RuntimeClassNotFound", "kata"),
    "an unknown driver": ({"agent": {"driver": "nobody", "image": "x"}}, "UnknownDriver", "command"),
    "a missing workspace": ({"workspaceRef": {"name": "elsewhere"}}, "WorkspaceNotFound", "elsewhere"),
    "a missing goal": (
        {"goal": None, "goalFrom": {"configMapKeyRef": {"name": "no", "key": "x"}}}, "GoalNotFound", "no"),
}  # fmt: skip


@pytest.mark.parametrize("what", TYPED)
def test_is_told_within_a_minute(tenant: Tenant, what: str):
    spec, reason, named = TYPED[what]
    tenant.run("bad", **spec)
    status = tenant.until("bad", lambda s: s.get("reason") == reason, within_s=60)
    assert status["phase"], "the phase is never empty"
    assert named in status["message"]


ENDS = {
    "a branch that exists": ({"delivery": {"branch": "main", "push": True}}, "BranchExists"),
    "a wrong password": ({"workspaceRef": {"name": "wrong"}}, "GitAuthFailed"),
    "a repository that is not there": ({"workspaceRef": {"name": "nowhere"}}, "GitNotFound"),
    "a ref that is not there": ({"workspaceRef": {"name": "noref"}}, "GitRefNotFound"),
}


@pytest.mark.parametrize("what", ENDS)
def test_ends_the_run_with_a_reason(tenant: Tenant, what: str):
    spec, reason = ENDS[what]
    tenant.secret("wrong", username="demo", password="not this")
    tenant.workspace("wrong", credentialsSecretRef={"name": "wrong"})
    tenant.workspace("nowhere", url=tenant.world.git_url.replace("demo.git", "nowhere.git"))
    tenant.workspace("noref", ref="no-such-branch")
    tenant.run("bad", **spec)
    status = tenant.ended("bad", within_s=60)
    assert (status["phase"], status["reason"]) == ("Failed", reason)


def test_a_missing_secret_is_told_with_the_command_that_makes_it_and_then_the_run_goes_on(tenant: Tenant):
    tenant.workspace("locked", credentialsSecretRef={"name": "later"})
    tenant.run("patient", workspaceRef={"name": "locked"})
    status = tenant.until("patient", lambda s: s.get("reason") == "SecretNotFound", within_s=60)
    assert f"kubectl create secret generic later -n {tenant.namespace}" in condition(status, "Admitted")["message"]
    assert tenant.get("pods") == []
    tenant.secret("later", username="demo")
    status = tenant.until("patient", lambda s: s.get("reason") == "SecretKeyNotFound", within_s=60)
    assert "kubectl patch secret later" in status["message"]
    tenant.secret("later", username="demo", password=upstream.PASSWORD)
    assert tenant.ended("patient")["phase"] == "Succeeded"
    assert len(tenant.sandboxes("patient")) == 1


def test_a_branch_that_the_remote_protects_is_told_and_left_alone(tenant: Tenant):
    branch = f"protected/{tenant.namespace}"
    hook = 'case "$1" in refs/heads/protected/*) echo "$1 is protected by policy"; exit 1;; esac'
    tenant.world.shell(
        f"printf '#!/bin/sh\\n%s\\n' '{hook}' > $REPOSITORY/hooks/update; chmod +x $REPOSITORY/hooks/update"
    )
    tenant.run("guarded", delivery={"branch": branch, "push": True})
    status = tenant.ended("guarded")
    assert (status["phase"], status["reason"]) == ("Failed", "ProtectedBranch")
    assert "protected by policy" in status["message"]
    assert (condition(status, "Accepted")["status"], condition(status, "Delivered")["status"]) == ("True", "False")
    assert tenant.world.branch(branch) is None


@pytest.mark.parametrize("length", [63, 64, 253])
def test_long_names_with_dots_work(tenant: Tenant, length: int):
    name = ("long.name-" * 26)[: length - 1] + "x"
    tenant.run(name, delivery={"branch": f"moorage/{tenant.namespace}-{length}", "push": True})
    assert tenant.ended(name)["phase"] == "Succeeded"


def test_two_runs_asking_for_one_branch(tenant: Tenant):
    branch = {"branch": f"moorage/{tenant.namespace}-shared", "push": True}
    tenant.run("first", agent=shell("sleep 3600"), delivery=branch)
    tenant.running("first")
    tenant.run("second", delivery=branch)
    status = tenant.ended("second")
    assert (status["phase"], status["reason"]) == ("Failed", "BranchTaken")
    assert "first" in status["message"]
    tenant.kubectl("patch", "ar", "first", "--type=merge", "-p", '{"spec":{"cancel":true}}')
    assert tenant.ended("first")["phase"] == "Cancelled"


def test_a_symlink_out_of_the_repository_is_harmless(tenant: Tenant):
    """It leads into the sandbox's own files, never into those of who keeps or verifies the work."""
    tenant.world.shell(
        f"cd $(mktemp -d) && git clone -q $REPOSITORY . && git checkout -q -b linked-{tenant.namespace}"
        " && ln -s /etc/passwd out && ln -s ../../.. up && git add -A"
        " && git -c user.name=d -c user.email=d@example.test commit -qm Links && git push -q origin HEAD"
    )
    tenant.workspace("linked", ref=f"linked-{tenant.namespace}")
    tenant.run("link", workspaceRef={"name": "linked"}, agent=shell("ln -s /etc/hostname mine; sh agent.sh"))
    status = tenant.ended("link")
    assert status["phase"] == "Succeeded"
    listed = tenant.world.git("ls-tree", f"moorage/{tenant.namespace}-link").splitlines()
    assert {line.split()[-1] for line in listed if line.startswith("120000 ")} == {"out", "up", "mine"}
    assert "slugify.py" in tenant.world.git(
        "diff", "--name-only", f"linked-{tenant.namespace}", status["result"]["commit"]
    )


def test_labels_are_the_api_servers_business_and_annotations_may_be_anything(tenant: Tenant):
    body = tenant.manifest("named")
    body["metadata"]["labels"] = {"team": "Überläufer"}
    with pytest.raises(CommandFailedError, match="Überläufer"):
        tenant.apply(body)
    body["metadata"] |= {"labels": {"team": "a" * 63}, "annotations": {"example.test/说明": "修复 🎉"}}
    with pytest.raises(CommandFailedError, match="annotations"):
        tenant.apply(body)
    body["metadata"]["annotations"] = {"example.test/note": "修复 🎉" * 1000}
    tenant.apply(body)
    assert tenant.ended("named")["phase"] == "Succeeded"


def test_a_goal_of_300_kib_is_refused_at_once_and_by_a_config_map_within_a_minute(tenant: Tenant):
    body = tenant.manifest("long", goal="x" * (300 * 1024))
    with pytest.raises(CommandFailedError, match="256 KiB"):
        tenant.kubectl("create", "-f", "-", stdin=json.dumps(body))
    data = {"goal": "x" * (300 * 1024)}
    meta = {"name": "long", "namespace": tenant.namespace}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
    tenant.kubectl("create", "-f", "-", stdin=json.dumps(made))
    tenant.run("long", goal=None, goalFrom={"configMapKeyRef": {"name": "long", "key": "goal"}})
    status = tenant.until("long", lambda s: s.get("reason") == "GoalTooLarge", within_s=60)
    assert "shorten" in status["message"]


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ({"constraints": {"maxIterations": 0}}, "greater than or equal to 1"),
        ({"constraints": {"tokens": {"hard": -5}}}, "greater than zero"),
        ({"constraints": {"wallClock": "-1h"}}, "greater than zero"),
        ({"workspaceRef": None, "workspace": {"remoteGit": {"url": "nonsense"}}}, "URL of a git repository"),
        ({"delivery": {"branch": "a..b"}}, "branch name that git accepts"),
    ],
    ids=str,
)
def test_what_a_schema_can_refuse_is_refused_by_kubectl(tenant: Tenant, spec: dict[str, Any], advice: str):
    with pytest.raises(CommandFailedError, match=advice):
        tenant.run("bad", **spec)


def test_suspend_holds_a_run_back_until_it_is_taken_back(tenant: Tenant):
    tenant.run("held", suspend=True)
    tenant.until("held", lambda s: s.get("reason") == "Suspended", within_s=60)
    assert tenant.get("pods") == []
    tenant.kubectl("patch", "ar", "held", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    assert tenant.ended("held")["phase"] == "Succeeded"


def test_an_unknown_field_is_refused_by_kubectl(tenant: Tenant):
    body = tenant.manifest("unknown")
    body["spec"]["gaol"] = "a typing mistake"
    with pytest.raises(CommandFailedError, match="gaol"):
        tenant.apply(body)
