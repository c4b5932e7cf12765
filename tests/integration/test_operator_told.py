"""Sandboxes that can't start, bad input, drifted policies, missing Secrets: each gets a word on what to do."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.operator_world import (
    OURS,
    OperatorWorld,
    install_crds,
    install_lax_definition,
    own_world,
)

from e2e.cluster.apiserver import ApiServer
from moorage.api import names
from moorage.core.run import admission

pytestmark = pytest.mark.integration


# --- sandboxes that can't start ---------------------------------------------------------------------------------------


async def test_an_image_that_cannot_be_pulled_is_told_and_can_be_cancelled(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    pod = await world.until_pod()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    await world.set_pod(
        pod,
        {
            "phase": "Pending",
            "containerStatuses": [
                {"name": "runner", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": waiting}
            ],
        },
    )
    status = await world.until_reason("fix", "ImagePullFailed")
    assert "no such image" in status["message"]
    await world.api.patch(world.run_path("fix"), {"spec": {"cancel": True}})
    await world.until_phase("fix", "Cancelled")
    assert await world.pods() == []


async def test_a_pod_that_fits_nowhere_is_told(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/0 nodes"}
    await world.set_pod(await world.until_pod(), {"phase": "Pending", "conditions": [condition]})
    assert "0/0 nodes" in (await world.until_reason("fix", "Unschedulable"))["message"]


@pytest.mark.rule("C6")
@pytest.mark.parametrize(
    ("scope", "reason", "phase"),
    [({}, "QuotaTooSmall", "Pending"), ({"scopes": ["NotTerminating"]}, "QuotaExceeded", "Provisioning")],
)
async def test_over_quota_is_waited_out_and_costs_no_attempt(
    world: OperatorWorld, scope: dict[str, Any], reason: str, phase: str
) -> None:
    """What a quota with scopes counts is the API server's to say, which it does at the pod."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": world.namespace},
        "spec": {"hard": {"pods": "0"}, **scope},
    }
    await world.api.create(world.path("resourcequotas"), quota)

    async def counted() -> Any:
        found = await world.api.get(world.path("resourcequotas", "none")) or {}
        return (found.get("status") or {}).get("used")

    await world.until(counted, "the quota counts")
    await world.start()
    await world.apply_run("fix")
    status = await world.until_reason("fix", reason)
    assert status["phase"] == phase
    leases = await world.api.items(f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases")
    assert bool(leases) is (phase == "Provisioning"), "nothing stands for a run that isn't let in"
    found = await world.api.get(world.path("resourcequotas", "none"))
    assert found is not None
    await world.api.delete(world.path("resourcequotas", "none"), found["metadata"]["uid"])
    await world.until_pod()

    async def told() -> Any:
        return (await world.status("fix")).get("attempt")

    assert await world.until(told, "the attempt told") == 1


@pytest.mark.rule("C6", "Q1")
async def test_who_is_refused_a_sandbox_holds_no_slot_and_starts_in_its_turn(world: OperatorWorld) -> None:
    """A quota with scopes, of which nobody but the API server knows, and one slot for two runs."""
    hard = {"limits.cpu": "2"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "some", "namespace": world.namespace},
        "spec": {"hard": hard, "scopes": ["NotTerminating"]},
    }
    await world.api.create(world.path("resourcequotas"), quota)

    async def counted() -> Any:
        return ((await world.api.get(world.path("resourcequotas", "some")) or {}).get("status") or {}).get("used")

    await world.until(counted, "the quota counts")
    await world.start(max_live_runs=1)
    await world.apply_run("big", sandbox={"resources": {"cpu": "4"}})
    await world.until_reason("big", "QuotaExceeded")
    await world.apply_run("small")
    pod = await world.until_pod()
    assert pod["metadata"]["ownerReferences"][0]["name"] == "small"
    waits = await world.until_reason("big", "Queued")
    assert (waits["phase"], waits["queue"]["position"], waits["attempt"]) == ("Provisioning", 1, 1)
    await world.api.patch(world.path("resourcequotas", "some"), {"spec": {"hard": {"limits.cpu": "9"}}})
    await world.work(pod)
    await world.end_pod(pod)
    await world.until_phase("small", "Succeeded")

    async def started() -> bool:
        owners = [each["metadata"]["ownerReferences"][0]["name"] for each in await world.pods()]
        return "big" in owners

    await world.until(started, "the sandbox of who waited", 40)


@pytest.mark.rule("T3", "C6")
async def test_a_network_policy_that_would_open_sandboxes_holds_them_until_it_leaves_them_out(
    world: OperatorWorld,
) -> None:
    """It stood there before the namespace's first sandbox, so that no admission policy has refused it."""
    theirs = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "allow-all", "namespace": world.namespace},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]},
    }
    path = world.path("networkpolicies", version="networking.k8s.io/v1")
    await world.api.create(path, theirs)
    await world.start()
    await world.apply_run("fix")
    message = (await world.until_reason("fix", "NetworkOpen"))["message"]
    assert "NetworkPolicy allow-all selects them" in message
    assert await world.pods() == []
    spared = {"matchExpressions": [{"key": "moorage.dev/role", "operator": "DoesNotExist"}]}
    await world.api.patch(f"{path}/allow-all", {"spec": {"podSelector": spared}})
    await world.until(world.pods, "the sandbox starts", 30)
    assert (await world.status("fix")).get("attempt", 1) == 1


async def test_a_runtime_class_that_is_not_there_is_named_and_waited_for(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", sandbox={"runtimeClassName": f"kata-{world.namespace}"})
    status = await world.until_reason("fix", "RuntimeClassNotFound")
    assert "isn't installed" in status["message"]
    assert await world.pods() == []


# --- bad input --------------------------------------------------------------------------------------------------------


async def test_a_missing_workspace_is_told_and_its_appearance_is_enough(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", workspace=None, workspaceRef={"name": "web"})
    status = await world.until_reason("fix", "WorkspaceNotFound")
    assert status["phase"] == "Pending"
    assert "create it" in status["message"]
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "Workspace",
        "metadata": {"name": "web", "namespace": world.namespace},
        "spec": {"ephemeral": {}},
    }
    await world.api.create(world.path("workspaces", version=names.API_VERSION), body)
    await world.until_pod()


async def test_an_unknown_driver_names_the_known_ones_and_stalls(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", agent={"driver": "nobody"})
    status = await world.until_reason("fix", "UnknownDriver")
    assert "builtin, command" in status["message"]
    assert {c["type"]: c["status"] for c in status["conditions"]}["Stalled"] == "True"


def lax(server: ApiServer) -> None:
    install_crds(server)
    server.kubectl("delete", "crd", "agentruns.moorage.dev")
    install_lax_definition(server)


async def test_one_malformed_old_object_harms_nobody_else(tmp_path: Path) -> None:
    """As an older version's schema may have let it in: spec of another shape, no spec, status of another shape."""
    async with own_world(tmp_path, lax) as world:
        for name, body in MALFORMED.items():
            meta = {"name": name, "namespace": "team"}
            about = {"apiVersion": names.API_VERSION, "kind": "AgentRun", "metadata": meta}
            await world.api.create(world.path("agentruns", version=names.API_VERSION), about | body)
        await world.api.patch(f"{world.run_path('odd-status')}/status", {"status": {"phase": 7, "conditions": "x"}})
        await world.start()
        await world.succeed("good")
        for name in MALFORMED:
            assert (await world.until_reason(name, "InvalidSpec"))["phase"] == "Pending", name


MALFORMED: dict[str, dict[str, Any]] = {
    "no-spec": {},
    "null-spec": {"spec": None},
    "list-spec": {"spec": ["a"]},
    "odd-spec": {"spec": {"goal": {"deep": []}, "agent": "x", "retention": "long"}},
    "odd-status": {"spec": {"goal": "g"}, "status": {"phase": 7}},
}


# --- the tenant's objects ---------------------------------------------------------------------------------------------


@pytest.mark.rule("T3", "T4")
async def test_the_policy_is_put_back_and_goes_with_the_last_run(world: OperatorWorld) -> None:
    await world.start()
    made = await world.apply_run("fix")
    pod = await world.until_pod()
    assert pod["spec"]["automountServiceAccountToken"] is False
    path = world.path("networkpolicies", names.SANDBOX, "networking.k8s.io/v1")
    policy = await world.api.get(path)
    assert policy is not None
    await world.api.patch(path, {"spec": {"egress": [{}], "policyTypes": ["Ingress"]}})

    async def restored() -> bool:
        found = await world.api.get(path)
        return found is not None and found["spec"] == policy["spec"]

    await world.until(restored, "the policy says again what it said")
    found = await world.api.get(path)
    assert found is not None
    await world.api.delete(path, found["metadata"]["uid"])
    await world.until(restored, "the policy is back")
    await world.api.delete(world.run_path("fix"), made["metadata"]["uid"])

    async def gone() -> bool:
        accounts = await world.api.items(world.path("serviceaccounts"), labels=OURS)
        return await world.api.get(path) is None and not accounts

    await world.until(gone, "policy and account go with the last run")


WITH_SECRETS = {
    "workspace": {"remoteGit": {"url": "https://git.example.test/x.git", "credentialsSecretRef": {"name": "git"}}},
    "agent": {"driver": "builtin", "model": {"providerRef": {"name": "p"}, "name": "m"}},
}


async def test_a_missing_secret_is_told_before_anything_is_made_and_the_run_goes_on_once_it_is_there(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "SECRET_RECHECK_MS", 200)
    spec = {
        "protocol": "anthropic-messages",
        "baseURL": "https://model.example.test",
        "credentialsSecretRef": {"name": "model", "key": "apiKey"},
    }
    meta = {"name": "p", "namespace": world.namespace}
    provider = {"apiVersion": names.API_VERSION, "kind": "ModelProvider", "metadata": meta, "spec": spec}
    await world.api.create(world.path("modelproviders", version=names.API_VERSION), provider)
    await world.start()
    await world.apply_run("fix", **WITH_SECRETS)
    status = await world.until_reason("fix", "SecretNotFound")
    told = next(c for c in status["conditions"] if c["type"] == "Admitted")
    assert (status["phase"], told["status"], told["reason"]) == ("Pending", "False", "SecretNotFound")
    assert f"kubectl create secret generic git -n {world.namespace}" in told["message"]
    world.gateway.secrets.give(world.namespace, "git", username="ada", password="x")
    world.gateway.secrets.give(world.namespace, "model", other="x")
    status = await world.until_reason("fix", "SecretKeyNotFound")
    assert "apiKey" in status["message"]
    assert await world.standing() == []
    before = len(world.writes)
    await asyncio.sleep(1.0)
    assert world.writes[before:] == [], "waiting costs no writes"
    world.gateway.secrets.give(world.namespace, "model", apiKey="x")
    await world.until_pod()


async def test_a_secret_that_never_comes_ends_the_run_in_its_time(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", workspace=WITH_SECRETS["workspace"], timeouts={"scheduleToStart": "2s"})
    await world.until_reason("fix", "SecretNotFound")
    status = await world.until_phase("fix", "Failed")
    assert status["reason"] == "ScheduleToStartTimeout"
    assert "git" in status["message"]
    assert await world.standing() == []


async def test_a_cancel_while_a_secret_is_waited_for_ends_the_run(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", workspace=WITH_SECRETS["workspace"])
    await world.until_reason("fix", "SecretNotFound")
    await world.api.patch(world.run_path("fix"), {"spec": {"cancel": True}})
    await world.until_phase("fix", "Cancelled")
