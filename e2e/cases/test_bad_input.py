"""Bad input: refused at admission where a schema can, else a typed condition within a minute; always what to do."""

from typing import Any

import pytest

from e2e.cluster.errors import CommandFailedError
from e2e.system import Tenant, shell

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
    for name, url, ref, secret in (
        ("wrong", tenant.world.git_url, "main", "wrong"),
        ("nowhere", tenant.world.git_url.replace("demo.git", "nowhere.git"), "main", "git"),
        ("noref", tenant.world.git_url, "no-such-branch", "git"),
    ):
        tenant.apply(_workspace(tenant, name, url, ref, secret))
    tenant.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "wrong", "namespace": tenant.namespace},
            "stringData": {"username": "demo", "password": "not this"},
        }
    )
    tenant.run("bad", **spec)
    status = tenant.ended("bad", within_s=60)
    assert (status["phase"], status["reason"]) == ("Failed", reason)


def _workspace(tenant: Tenant, name: str, url: str, ref: str, secret: str) -> dict[str, Any]:
    remote = {"url": url, "ref": ref, "credentialsSecretRef": {"name": secret}}
    meta = {"name": name, "namespace": tenant.namespace}
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": "Workspace", "metadata": meta, "spec": {"remoteGit": remote}}


@pytest.mark.parametrize("length", [63, 64, 253])
def test_long_names_with_dots_work(tenant: Tenant, length: int):
    name = ("long.name-" * 26)[: length - 1] + "x"
    tenant.run(name, delivery={"branch": f"moorage/{tenant.namespace}-{length}", "push": True})
    assert tenant.ended(name)["phase"] == "Succeeded"


def test_two_runs_asking_for_one_branch(tenant: Tenant):
    branch = {"branch": f"moorage/{tenant.namespace}-shared", "push": True}
    tenant.run("first", agent=shell("sleep 5; sh agent.sh"), delivery=branch)
    tenant.running("first")
    tenant.run("second", delivery=branch)
    status = tenant.ended("second")
    assert (status["phase"], status["reason"]) == ("Failed", "BranchTaken")
    assert "first" in status["message"]
    assert tenant.ended("first")["phase"] == "Succeeded"


def test_a_symlink_out_of_the_repository_is_harmless(tenant: Tenant):
    tenant.run("link", agent=shell("ln -s /etc/passwd out; sh agent.sh"))
    assert tenant.ended("link")["phase"] == "Succeeded"


def test_an_unknown_field_is_refused_by_kubectl(tenant: Tenant):
    body = tenant.manifest("unknown")
    body["spec"]["gaol"] = "a typing mistake"
    with pytest.raises(CommandFailedError, match="gaol"):
        tenant.apply(body)
