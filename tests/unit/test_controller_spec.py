import json
from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import a_spec

from moorage.api import names
from moorage.api.wire import ResolvedSandbox, Role
from moorage.sandbox.port import RunKey, Which
from moorage.sandbox.spec import SandboxSettings, lease, network_policy, pod, service_account, volume

RUN = RunKey("8c0a3c6e-5d5e-4a3f-9a51-0a6a7d2d6f10", "team-a", "fix." + "x" * 249)
SETTINGS = SandboxSettings(
    gateway_ip="10.96.0.7",
    gateway_port=8080,
    gateway_namespace="moorage-system",
    gateway_labels={"app.kubernetes.io/component": "gateway"},
    probe="10.96.0.1:443",
)
SPEC = a_spec(
    sandbox=ResolvedSandbox(runtime_class="gvisor", cpu="2", memory="4Gi", disk="10Gi"),
    agent=a_spec().agent.model_copy(update={"image": "localhost/base:1"}),
)


def a_pod(role: Role = Role.RUNNER, spec: Any = SPEC) -> dict[str, Any]:
    return pod(RUN, spec, SETTINGS, Which(2, role, 0, "c" * 40 if role is Role.VERIFIER else None))


@pytest.mark.rule("T4")
@pytest.mark.parametrize("role", list(Role))
def test_a_pod_meets_the_restricted_standard(role: Role) -> None:
    body = a_pod(role)["spec"]
    (container,) = body["containers"]
    assert body["securityContext"]["runAsNonRoot"]
    assert body["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(body)
    kinds = {kind for v in body["volumes"] for kind in v if kind != "name"}
    assert kinds <= {"emptyDir", "projected", "persistentVolumeClaim"}


@pytest.mark.rule("T2", "T4")
def test_the_one_token_is_the_gateways() -> None:
    body = a_pod()["spec"]
    assert body["automountServiceAccountToken"] is False
    (projected,) = [v["projected"] for v in body["volumes"] if "projected" in v]
    (source,) = projected["sources"]
    assert source["serviceAccountToken"]["audience"] == "moorage-gateway"
    assert "secret" not in json.dumps(body).lower()


@pytest.mark.rule("T3")
def test_nothing_is_resolved_and_only_the_gateway_is_named() -> None:
    body = a_pod()["spec"]
    assert (body["dnsPolicy"], body["dnsConfig"]) == ("None", {"nameservers": ["127.0.0.1"]})
    assert body["hostAliases"] == [{"ip": "10.96.0.7", "hostnames": ["moorage-gateway"]}]
    env = {e["name"]: e["value"] for e in body["containers"][0]["env"]}
    assert env["MOORAGE_GATEWAY_URL"] == "http://moorage-gateway:8080"
    assert env["MOORAGE_PROBE"] == "10.96.0.1:443"
    policy = network_policy("team-a", SETTINGS)["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert len(policy["egress"]) == 1
    assert policy["podSelector"]["matchExpressions"] == [{"key": names.ROLE, "operator": "Exists"}]
    assert a_pod()["metadata"]["labels"][names.ROLE] == "runner"


def test_a_runner_has_the_runs_volume_and_a_verifier_one_of_its_own() -> None:
    runner = {v["name"]: v for v in a_pod()["spec"]["volumes"]}
    verifier = {v["name"]: v for v in a_pod(Role.VERIFIER)["spec"]["volumes"]}
    assert runner["workspace"]["persistentVolumeClaim"]["claimName"] == names.volume_name(RUN.uid, RUN.name)
    assert verifier["workspace"] == {"name": "workspace", "emptyDir": {"sizeLimit": "10Gi"}}
    assert a_pod(Role.VERIFIER)["metadata"]["annotations"][names.COMMIT] == "c" * 40


def test_children_belong_to_the_run_and_never_hold_its_deletion() -> None:
    for body in (a_pod(), volume(RUN, SPEC, SETTINGS), lease(RUN, 1, "h", "t")):
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (RUN.uid, True, False)
        assert body["metadata"]["annotations"][names.RUN_NAME] == RUN.name
        assert len(body["metadata"]["name"]) <= 63
        assert "finalizers" not in body["metadata"]


def test_content_never_enters_an_object() -> None:
    spec = SPEC.model_copy(update={"goal": "the secret plan", "acceptance": SPEC.acceptance})
    assert "the secret plan" not in json.dumps(a_pod(spec=spec))
    assert a_pod()["spec"]["containers"][0]["terminationMessagePolicy"] == "File"


@pytest.mark.parametrize(
    ("cpu", "memory", "requests"),
    [
        ("2", "4Gi", {"cpu": "200m", "memory": str(2 * 1024**3)}),
        ("100m", "1", {"cpu": "10m", "memory": "1"}),
        ("1m", None, {"cpu": "1m"}),
        (None, None, None),
    ],
)
def test_limits_are_as_asked_and_a_part_is_reserved(
    cpu: str | None, memory: str | None, requests: dict[str, str] | None
) -> None:
    spec = SPEC.model_copy(update={"sandbox": ResolvedSandbox(cpu=cpu, memory=memory)})
    found = a_pod(spec=spec)["spec"]["containers"][0]["resources"]
    assert found.get("requests") == requests


def test_a_lease_carries_its_epoch_and_swaps_on_the_version() -> None:
    first = lease(RUN, 1, "a", "2026-01-01T00:00:00.000000Z")
    assert "resourceVersion" not in first["metadata"]
    held = {**first, "metadata": {**first["metadata"], "resourceVersion": "42"}}
    second = lease(RUN, 2, "b", "2026-01-01T00:00:01.000000Z", held)
    assert second["metadata"]["resourceVersion"] == "42"
    assert second["metadata"]["annotations"][names.EPOCH] == "2"
    assert second["spec"]["leaseTransitions"] == 1


def test_the_sandboxes_account_mounts_nothing() -> None:
    assert service_account("team-a")["automountServiceAccountToken"] is False


@pytest.mark.rule("C5")
def test_a_pod_has_the_priority_class_of_its_runs_class_where_there_is_one() -> None:
    settings = replace(SETTINGS, priority_classes={"interactive": "people"})
    background = a_spec(scheduling_class="background")
    found = [pod(RUN, spec, settings, Which(1, Role.RUNNER, 0, None))["spec"] for spec in (SPEC, background)]
    assert [each.get("priorityClassName") for each in found] == ["people", None]
    assert "priorityClassName" not in a_pod()["spec"]
