"""The operator under the very rights that the chart grants: nothing that it asks for is denied."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import structlog
from kubernetes.aio.client import ApiClient
from tests.integration.operator_world import OperatorWorld, install_crds, operator_world
from tests.integration.test_chart_installs import CHART, NO_CRDS, Helm, in_namespace

from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.errors import CommandFailedError
from e2e.cluster.shell import wait_until
from moorage.api.names import API_VERSION, SANDBOX
from moorage.clock import SystemClock
from moorage.controller.election import Election
from moorage.sandbox.kube import KubeApi, KubeError, load_configuration, path_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
MODES = ("cluster", "namespaced")


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """Where the API server writes down who asked for what."""
    return tmp_path / "audit.log"


@pytest.fixture
def server(tmp_path: Path, audit: Path) -> Iterator[ApiServer]:
    """A server of its own: an operator over all namespaces must not meet other tests' runs."""
    policy = tmp_path / "audit.yaml"
    rules = {"omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}
    policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", **rules}))
    with api_server(extra=(f"--audit-policy-file={policy}", f"--audit-log-path={audit}")) as alone:
        install_crds(alone)
        yield alone


@pytest.fixture
def tenant(server: ApiServer) -> str:
    name = f"team-{uuid4().hex[:8]}"
    server.kubectl("create", "namespace", name)
    server.kubectl("wait", "-n", name, "--for=create", "serviceaccount/default", "--timeout=60s")
    return name


def install(server: ApiServer, tenant: str, mode: str) -> Helm:
    helm = in_namespace(server)
    more = (
        ("--set", "tenancy.namespaced=true", "--set", f"tenancy.namespaces={{{tenant}}}")
        if mode == "namespaced"
        else ()
    )
    plain = ("--set", "sandbox.runtimeClassName=")  # as the operator of these tests makes its sandboxes
    helm("install", "moorage", str(CHART), *NO_CRDS, *plain, *more)
    return helm


@pytest.fixture(params=MODES)
async def world(
    request: pytest.FixtureRequest, server: ApiServer, tenant: str, tmp_path: Path
) -> AsyncIterator[OperatorWorld]:
    """The operator's world, with the token of the chart's own service account in place of the administrator's."""
    helm = install(server, tenant, request.param)
    token = server.kubectl("create", "token", "moorage-operator", "-n", helm.namespace).strip()
    config = tmp_path / "operator.kubeconfig"
    config.write_text(server.kubeconfig.read_text().replace(server.token, token))
    async with operator_world(server, tenant, tmp_path / "gateway") as made:
        made.configuration = await load_configuration(str(config))
        made.settings["watch_namespaces"] = (tenant,) if request.param == "namespaced" else ()
        yield made


def denied(audit: Path, user: str) -> set[str]:
    """What was refused to a user for want of rights."""
    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    mine = [each for each in entries if each["user"]["username"].endswith(user)]
    assert mine, f"{user} never asked for anything"
    refused = [each for each in mine if each.get("responseStatus", {}).get("code") == 403]
    return {f"{each['verb']} {each['requestURI']}" for each in refused}


def expected(world: OperatorWorld) -> set[str]:
    """What namespaced mode asks for in vain and says that it can't tell: whether a RuntimeClass is there."""
    return {"list /apis/node.k8s.io/v1/runtimeclasses"} if world.settings["watch_namespaces"] else set()


async def until_hard(world: OperatorWorld, cpu: str | None) -> None:
    async def stands() -> bool:
        quota = await world.api.get(world.path("resourcequotas", "moorage-contract")) or {}
        return quota.get("spec", {}).get("hard", {}).get("limits.cpu") == cpu

    await world.until(stands, f"the tenant's quota with {cpu} cores")


@pytest.mark.rule("T7")
async def test_a_whole_run_needs_no_right_beyond_the_charts(world: OperatorWorld, audit: Path) -> None:
    await world.start()
    contract = {"apiVersion": API_VERSION, "kind": "ResourceConstraint", "metadata": {"name": "team"}}
    lines = {"resources": {"cpu": 8, "memory": "8Gi", "storage": "20Gi"}, "perSandbox": {"cpu": 2}}
    world.server.kubectl("create", "-n", world.namespace, "-f", "-", stdin=json.dumps({**contract, "spec": lines}))
    await until_hard(world, "8")
    meta = {"name": "web", "namespace": world.namespace}
    space = {"apiVersion": API_VERSION, "kind": "Workspace", "metadata": meta, "spec": {"ephemeral": {}}}
    world.server.kubectl("create", "-f", "-", stdin=json.dumps(space))
    await world.apply_run(
        "whole",
        acceptance=[{"name": "tests", "run": "true"}],
        goal=None,
        goalFrom={"configMapKeyRef": {"name": "goal", "key": "text"}},
        delivery={"branch": "moorage/whole", "push": False, "allowEmpty": True},
    )
    await world.until_reason("whole", "GoalNotFound")
    world.server.kubectl("create", "configmap", "goal", "-n", world.namespace, "--from-literal=text=Mend it.")
    await world.work(await world.until_pod(seconds=60))
    verifier = await world.until_pod("verifier")
    await world.start_pod(verifier)
    await world.judge(verifier, exit_code=0)
    assert (await world.until_phase("whole", "Succeeded"))["reason"] == "Completed"
    policies = world.server.kubectl("get", "networkpolicy", "-n", world.namespace, "-o", "name")
    assert f"networkpolicy.networking.k8s.io/{SANDBOX}" in policies
    events = world.server.kubectl("get", "events.events.k8s.io", "-n", world.namespace, "-o", "name")
    assert "whole" in events
    uid = (await world.run("whole"))["metadata"]["uid"]
    world.server.kubectl("delete", "ar", "whole", "-n", world.namespace, "--wait=false")
    await world.until_released(uid)
    drift = {"spec": {"hard": {"limits.cpu": "80"}}}
    await world.api.patch(world.path("resourcequotas", "moorage-contract"), drift)
    await until_hard(world, "8")
    world.server.kubectl("delete", "rcon", "team", "-n", world.namespace)
    await until_hard(world, None)
    await asyncio.sleep(1.5)  # one more scan
    world.server.kubectl("wait", "workspace/web", "-n", world.namespace, "--for=condition=Ready", "--timeout=60s")
    assert denied(audit, ":moorage-operator") == expected(world)
    async with ApiClient(world.configuration) as client:
        with pytest.raises(KubeError):
            await KubeApi(client).items(path_of("v1", "secrets", world.namespace))
    assert len(denied(audit, ":moorage-operator") - expected(world)) == 1, "a denial would have been seen"


async def test_a_policy_that_somebody_opened_is_closed_again_under_the_charts_rights(
    world: OperatorWorld, audit: Path
) -> None:
    await world.start()
    await world.apply_run("fix")
    await world.until_pod()
    policy = ("networkpolicy", SANDBOX, "-n", world.namespace)
    open_policy(world.server, *policy)

    async def closed() -> bool:
        said = world.server.kubectl("get", *policy, "-o", "jsonpath={.spec.egress}")
        return said != "[{}]"

    await world.until(closed, "the policy as it must be")
    assert denied(audit, ":moorage-operator") == expected(world)


def open_policy(server: ApiServer, *policy: str) -> None:
    """As where the chart's admission policies are off: else nobody may."""
    server.kubectl("delete", "validatingadmissionpolicybinding", "moorage-networks", "--ignore-not-found")

    def opened() -> bool:
        try:
            server.kubectl("patch", *policy, "--type=merge", "-p", '{"spec":{"egress":[{}]}}')
        except CommandFailedError as error:
            if "ValidatingAdmissionPolicy" not in str(error):
                raise
            return False
        return True

    wait_until(opened, "a policy that is taken away", timeout_s=60)


@pytest.mark.rule("F7")
async def test_an_operator_is_elected_under_the_charts_rights(world: OperatorWorld, audit: Path) -> None:
    """Also where somebody has deleted the Lease, which is how one asks for another leader."""
    said = world.server.kubectl("get", "leases", "-A", "-l", "app.kubernetes.io/part-of=moorage", "-o", "json")
    (lease,) = [item["metadata"] for item in json.loads(said)["items"]]
    place = ("lease", lease["name"], "-n", lease["namespace"])
    heard: list[bool] = []
    async with ApiClient(world.configuration) as client:

        def candidate(me: str) -> Election:
            return Election(
                KubeApi(client),
                namespace=lease["namespace"],
                name=lease["name"],
                me=me,
                clock=SystemClock(),
                log=structlog.get_logger(),
                told=heard.append,
            )

        first, second = candidate("first"), candidate("second")
        await first.win()
        await first.resign()
        await second.win()
        world.server.kubectl("delete", *place)
        await candidate("third").win()
    assert world.server.kubectl("get", *place, "-o", "jsonpath={.spec.holderIdentity}") == "third"
    assert heard == [False, True, False, False, True, False, True]
    assert denied(audit, ":moorage-operator") == set()
