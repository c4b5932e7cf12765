"""T3, T4: what stands for a run is the operator's, also against somebody with all rights in its namespace."""

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import yaml
from tests.integration.operator_world import SANDBOXES, install_crds
from tests.integration.test_chart_installs import CHART, NO_CRDS, in_namespace
from tests.property.run_world import a_spec

from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.errors import CommandFailedError
from moorage.api.wire import ResolvedSandbox, Role
from moorage.cli.tenant_objects import Terms
from moorage.cli.tenant_objects import objects as tenant_objects
from moorage.sandbox import spec as objects
from moorage.sandbox.port import RunKey, Which

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PATIENCE_S = 90.0
Body = dict[str, Any]
GVISOR = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}
SANDBOXES_APART = {"matchExpressions": [{"key": "moorage.dev/role", "operator": "DoesNotExist"}]}
PINNED = f"localhost/base@sha256:{'a' * 64}"


@dataclass(frozen=True)
class Cluster:
    """A server with the chart, and a tenant in whose namespace `mallory` has every right."""

    server: ApiServer
    release: str
    tenant: str
    run: RunKey

    def ask(self, user: str, verb: str, *args: str, body: Body | None = None) -> str:
        """As that user: an account of the release, a node, or a person."""
        accounts = "system:serviceaccounts"
        who = {
            "operator": (f"system:serviceaccount:{self.release}:moorage-operator", accounts),
            "gateway": (f"system:serviceaccount:{self.release}:moorage-gateway", accounts),
        }.get(user, (user, "system:authenticated"))
        argv = ("-n", self.tenant, f"--as={who[0]}", f"--as-group={who[1]}", verb, *args)
        return self.server.kubectl(*argv, *(("-f", "-") if body else ()), stdin=json.dumps(body) if body else None)

    def create(self, user: str, body: Body) -> str:
        return self.ask(user, "create", body=body)

    def refused(self, user: str, verb: str, *args: str, body: Body | None = None) -> str:
        with pytest.raises(CommandFailedError) as error:
            self.ask(user, verb, *args, body=body)
        return str(error.value)


def sandbox(run: RunKey, **change: Any) -> Body:
    """As the operator makes them; `change` goes into its spec."""
    resolved = a_spec(
        sandbox=ResolvedSandbox(runtime_class="gvisor", cpu="1", memory="1Gi", disk="1Gi"),
        agent=a_spec().agent.model_copy(update={"image": PINNED}),
    )
    body = objects.pod(run, resolved, SANDBOXES, Which(1, Role.RUNNER, 0, None))
    body["metadata"].pop("ownerReferences")  # there is no such run
    body["spec"] |= change
    return body


def plain(name: str, **change: Any) -> Body:
    container = {"name": "c", "image": "localhost/x:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **change},
    }


def policy(name: str, **spec: Any) -> Body:
    about = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
    return {**about, "spec": {"policyTypes": ["Ingress", "Egress"], **spec}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Its own: policies are the cluster's."""
    with api_server() as server:
        install_crds(server)
        helm = in_namespace(server)
        helm("install", "moorage", str(CHART), *NO_CRDS, "--set", "policies.digests=true")
        gvisor = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "gvisor"},
            "handler": "r",
        }
        server.kubectl("create", "-f", "-", stdin=json.dumps(gvisor))
        tenant = f"team-{uuid4().hex[:8]}"
        server.kubectl("create", "namespace", tenant)
        server.kubectl("wait", "-n", tenant, "--for=create", "serviceaccount/default", "--timeout=60s")
        server.kubectl(
            "create", "rolebinding", "mallory", "-n", tenant, "--clusterrole=cluster-admin", "--user=mallory"
        )
        made = Cluster(server, helm.namespace, tenant, RunKey(str(uuid4()), tenant, "fix"))
        for body in (objects.service_account(tenant), objects.network_policy(tenant, SANDBOXES)):
            made.create("operator", body)
        made.create("operator", {**sandbox(made.run), "metadata": {**sandbox(made.run)["metadata"], "name": POD}})
        made.create("operator", unowned(objects.lease(made.run, 1, "one", "2026-01-01T00:00:00.000000Z")))
        made.create("mallory", plain("own"))
        settled(made)
        yield made


POD = f"fix-{'0' * 12}"
ZONE = "topology.kubernetes.io/zone"  # the API server copies it from a pod's node
NETWORKS = "k8s.v1.cni.cncf.io/networks=other"


def unowned(body: Body) -> Body:
    body["metadata"].pop("ownerReferences")
    return body


def settled(cluster: Cluster) -> None:
    """Policies are in force a moment after they were made, and each on its own."""
    own = objects.network_policy(cluster.tenant, SANDBOXES)
    bindings = f"/api/v1/namespaces/{cluster.tenant}/bindings?dryRun=All"
    posing = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "any"}}
    for user, verb, args, body in (
        ("mallory", "create", ("--dry-run=server",), sandbox(cluster.run)),
        ("mallory", "create", ("--dry-run=server",), plain("p", serviceAccountName="moorage-sandbox")),
        ("mallory", "delete", ("sa", "moorage-sandbox", "--dry-run=server"), None),
        ("mallory", "replace", ("--dry-run=server",), own),
        ("mallory", "annotate", ("lease", "--all", "moorage.dev/epoch=9", "--overwrite", "--dry-run=server"), None),
        ("mallory", "create", ("--dry-run=server",), an_agent("localhost/x:1")),
        (
            "mallory",
            "create",
            ("--raw", bindings),
            {**posing, "metadata": {"name": "own", "labels": {"moorage.dev/role": "r"}}},
        ),
    ):
        in_force(partial(cluster.ask, user, verb, *args, body=body))


def in_force(ask: Callable[[], str]) -> None:
    """Wait until a policy refuses that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            ask()
        except CommandFailedError as error:
            if "ValidatingAdmissionPolicy" in str(error):
                return
        assert time.monotonic() < deadline, ask
        time.sleep(0.2)


def an_agent(image: str) -> Body:
    spec = {"driver": "command", "command": ["true"], "image": image}
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": spec}


def without(body: Body, change: Callable[[Body], None]) -> Body:
    changed = deepcopy(body)
    change(changed)
    return changed


@pytest.mark.rule("T3", "T4", "I10")
def test_nobody_but_the_operator_makes_or_alters_a_sandbox(cluster: Cluster) -> None:
    dry, words = "--dry-run=server", "sandboxes and the labels moorage.dev/… of pods are the operator's"
    assert words in cluster.refused("mallory", "create", dry, body=sandbox(cluster.run, serviceAccountName="default"))
    labelled = plain("posing")
    labelled["metadata"]["labels"] = {"moorage.dev/role": "runner"}
    assert words in cluster.refused("mallory", "create", dry, body=labelled)
    assert words in cluster.refused("mallory", "label", "pod", "own", "moorage.dev/role=runner", dry)
    assert words in cluster.refused("mallory", "label", "pod", "own", f"moorage.dev/run={cluster.run.uid}", dry)
    assert words in cluster.refused("mallory", "label", "pod", POD, "moorage.dev/role-", dry)
    assert words in cluster.refused("mallory", "label", "pod", POD, "app=web", dry)
    assert words in cluster.refused("mallory", "set", "image", f"pod/{POD}", "runner=localhost/evil:1", dry)
    owners = '{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"own","uid":"u"}]}}'
    assert words in cluster.refused("mallory", "patch", "pod", POD, "--type=merge", "-p", owners, dry)
    by_status = ("--subresource=status", "--type=merge", dry, "-p")  # it takes labels, too
    for pod, role in ((POD, None), ("own", "runner")):
        labels = json.dumps({"metadata": {"labels": {"moorage.dev/role": role}}})
        assert words in cluster.refused("mallory", "patch", "pod", pod, *by_status, labels)
    told = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    cluster.ask("mallory", "patch", "pod", POD, *by_status, told)  # as a node does, with which it has no more to do
    debug = ("debug", POD, "--image=localhost/evil:1", "--attach=false", "--profile=restricted")
    assert words in cluster.refused("mallory", *debug)
    cluster.ask("mallory", "annotate", "pod", POD, "note=mine", dry)  # says nothing about what it may do
    for told in ("moorage.dev/run-name=other", "moorage.dev/run-name-", "dev.gvisor.spec.mount.m=x", NETWORKS):
        assert words in cluster.refused("mallory", "annotate", "--overwrite", "pod", POD, told, dry)
    kept = '{"metadata":{"finalizers":["example.com/forever"]}}'
    assert words in cluster.refused("mallory", "patch", "pod", POD, "--type=merge", "-p", kept, dry)
    other = sandbox(cluster.run)
    cluster.create("operator", other)
    cluster.ask("mallory", "delete", "pod", other["metadata"]["name"])  # an attempt lost, as a node may lose it


SHAPES: list[tuple[str, Callable[[Body], None]]] = [
    ("shares nothing with its node", lambda b: b["spec"].update(hostNetwork=True)),
    ("shares nothing with its node", lambda b: b["spec"].update(hostPID=True)),
    ("shares nothing with its node", lambda b: b["spec"].update(automountServiceAccountToken=True)),
    ("shares nothing with its node", lambda b: b["spec"].update(serviceAccountName="default")),
    ("one container", lambda b: b["spec"]["containers"].append({"name": "side", "image": PINNED})),
    ("one container", lambda b: b["spec"].update(initContainers=[{"name": "first", "image": PINNED}])),
    ("one container", lambda b: b["spec"]["containers"][0]["securityContext"].update(readOnlyRootFilesystem=False)),
    ("one container", lambda b: b["spec"]["containers"][0]["securityContext"].pop("capabilities")),
    ("mounts its worktree", lambda b: b["spec"]["volumes"].append({"name": "h", "hostPath": {"path": "/"}})),
    ("mounts its worktree", lambda b: b["spec"]["volumes"].append({"name": "s", "secret": {"secretName": "key"}})),
    (
        "mounts its worktree",
        lambda b: b["spec"]["volumes"].append(
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
        ),
    ),
    ("has a RuntimeClass", lambda b: b["spec"].pop("runtimeClassName")),
    ("pinned", lambda b: b["spec"]["containers"][0].update(image="localhost/base:1")),
]


@pytest.mark.rule("T2", "T4")
@pytest.mark.parametrize(("words", "change"), SHAPES)
def test_a_sandbox_has_its_shape_whoever_makes_it(cluster: Cluster, words: str, change: Callable[[Body], None]) -> None:
    cluster.ask("operator", "create", "--dry-run=server", body=sandbox(cluster.run))
    said = cluster.refused("operator", "create", "--dry-run=server", body=without(sandbox(cluster.run), change))
    assert words in said


@pytest.mark.rule("T1", "T2")
def test_a_sandboxes_identity_is_taken_by_nobody(cluster: Cluster) -> None:
    posing = plain("posing", serviceAccountName="moorage-sandbox")
    assert "for sandboxes alone" in cluster.refused("mallory", "create", body=posing)
    assert "made by nodes" in cluster.refused("mallory", "create", "token", "moorage-sandbox")
    assert "the operator's" in cluster.refused("mallory", "delete", "sa", "moorage-sandbox")
    assert "the operator's" in cluster.refused("mallory", "annotate", "sa", "moorage-sandbox", "a=b")
    all_of_them = f"/api/v1/namespaces/{cluster.tenant}/serviceaccounts"
    assert "the operator's" in cluster.refused("mallory", "delete", "--raw", all_of_them)
    elsewhere = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"generateName": "moorage-sandbox"}}
    cluster.ask("mallory", "create", "--dry-run=server", body=elsewhere)
    cluster.ask("mallory", "create", "token", "default")


@pytest.mark.rule("T1")
def test_nobody_enters_a_sandbox_and_anybody_their_own_pods(cluster: Cluster) -> None:
    for way in ("exec", "attach", "portforward", "proxy"):
        for pod, theirs in ((POD, True), ("own", False)):
            path = f"/api/v1/namespaces/{cluster.tenant}/pods/{pod}/{way}"
            said = cluster.refused("mallory", "create", "--raw", path, body={"kind": "any"})
            assert ("nobody enters a sandbox" in said) is theirs, said  # no node runs its own: another refusal
    for named in (f"{POD}:8080", f"http:{POD}:8080", f"https:{POD}:"):
        path = f"/api/v1/namespaces/{cluster.tenant}/pods/{named}/proxy/"
        assert "nobody enters a sandbox" in cluster.refused("mallory", "get", "--raw", path)


@pytest.mark.rule("T3", "T4")
@pytest.mark.parametrize("door", ["pods/{pod}/binding", "bindings"])
def test_a_binding_makes_no_sandbox_of_a_pod_and_alters_none(cluster: Cluster, door: str) -> None:
    def bind(pod: str, **meta: dict[str, str]) -> tuple[tuple[str, ...], Body]:
        path = f"/api/v1/namespaces/{cluster.tenant}/{door.format(pod=pod)}?dryRun=All"
        target = {"kind": "Node", "name": "any"}
        return ("create", "--raw", path), {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": cluster.tenant, **meta},
            "target": target,
        }

    ask, body = bind("own", labels={"moorage.dev/role": "runner"})
    assert "no binding brings them" in cluster.refused("mallory", *ask, body=body)
    assert "no binding brings them" in cluster.refused("system:kube-scheduler", *ask, body=body)
    ask, body = bind(POD, annotations={"dev.gvisor.spec.mount.m": "x"})
    assert "placed by the cluster's scheduler" in cluster.refused("mallory", *ask, body=body)
    ask, body = bind("own", labels={"app": "web"})
    cluster.ask("mallory", *ask, body=body)
    ask, body = bind(POD)
    cluster.ask("system:kube-scheduler", *ask, body=body)


@pytest.mark.rule("T3")
@pytest.mark.parametrize(
    "spec",
    [
        {"podSelector": {}, "egress": [{}]},
        {"podSelector": {}, "ingress": [{}]},
        {"podSelector": {"matchLabels": {"moorage.dev/role": "runner"}}, "egress": [{}]},
        {"podSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "moorage"}}, "egress": [{}]},
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, "egress": [{}]},
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}, "egress": [{}]},
        {"podSelector": {"matchLabels": {ZONE: "a"}}, "egress": [{}]},
        {"podSelector": {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}, "ingress": [{}]},
    ],
)
def test_nobody_opens_a_sandboxes_network(cluster: Cluster, spec: Body) -> None:
    assert "could open the network of sandboxes" in cluster.refused("mallory", "create", body=policy("open", **spec))


@pytest.mark.rule("T3")
@pytest.mark.parametrize(
    "spec",
    [
        {"podSelector": {}},
        {"podSelector": {"matchLabels": {"app": "web"}}, "egress": [{}]},
        {
            "podSelector": {"matchExpressions": [{"key": "moorage.dev/role", "operator": "DoesNotExist"}]},
            "egress": [{}],
        },
    ],
)
def test_a_tenants_own_policies_are_its_own(cluster: Cluster, spec: Body) -> None:
    cluster.ask("mallory", "create", "--dry-run=server", body=policy("mine", **spec))


@pytest.mark.rule("T3")
def test_the_operators_policy_is_changed_and_removed_by_nobody_else(cluster: Cluster) -> None:
    words = "the NetworkPolicy moorage-sandbox is the operator's"
    assert words in cluster.refused("mallory", "delete", "netpol", "moorage-sandbox")
    patch = ("patch", "netpol", "moorage-sandbox", "--type=merge", "-p", '{"spec":{"egress":[{}]}}')
    assert words in cluster.refused("mallory", *patch)
    all_of_them = f"/apis/networking.k8s.io/v1/namespaces/{cluster.tenant}/networkpolicies"
    assert words in cluster.refused("mallory", "delete", "--raw", all_of_them)
    drifted = objects.network_policy(cluster.tenant, SANDBOXES)
    drifted["spec"]["egress"] = []
    cluster.ask("operator", "replace", "--dry-run=server", body=drifted)


@pytest.mark.rule("F1")
def test_a_runs_lease_is_raised_and_renewed_by_us_alone(cluster: Cluster) -> None:
    name = objects.lease(cluster.run, 1, "one", "")["metadata"]["name"]
    patch = ("patch", "lease", name, "--type=merge", "-p", '{"spec":{"holderIdentity":"me"}}', "--dry-run=server")
    assert "Leases of runs" in cluster.refused("mallory", *patch)
    cluster.ask("gateway", *patch)
    own = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "own"}}
    cluster.ask("mallory", "create", "--dry-run=server", body=own)


@pytest.mark.rule("T4")
def test_images_are_named_by_digest_where_that_is_asked_for(cluster: Cluster) -> None:
    assert "image localhost/x:1 is not pinned" in cluster.refused("mallory", "create", body=an_agent("localhost/x:1"))
    cluster.ask("mallory", "create", "--dry-run=server", body=an_agent(PINNED))


@pytest.mark.rule("T3")
def test_where_no_sandboxes_are_nobody_is_hindered_and_a_namespace_goes_with_all_of_it(cluster: Cluster) -> None:
    server, free = cluster.server, f"free-{uuid4().hex[:8]}"
    server.kubectl("create", "namespace", free)
    server.kubectl("create", "rolebinding", "eve", "-n", free, "--clusterrole=admin", "--user=eve")
    server.kubectl("wait", "-n", free, "--for=create", "serviceaccount/default", "--timeout=60s")
    opening = policy("open", podSelector={}, egress=[{}])
    server.kubectl("create", "-n", free, "-f", "-", "--as=eve", stdin=yaml.safe_dump(opening))
    for body in (objects.service_account(free), objects.network_policy(free, SANDBOXES)):
        operator = f"--as=system:serviceaccount:{cluster.release}:moorage-operator"
        server.kubectl("create", "-f", "-", operator, stdin=json.dumps(body))
    server.kubectl("delete", "namespace", free, "--timeout=60s")


@pytest.mark.rule("T4")
def test_pod_security_of_a_tenant_is_lifted_by_nobody_whom_it_binds(cluster: Cluster) -> None:
    server, bound = cluster.server, f"bound-{uuid4().hex[:8]}"
    (namespace,) = (each.body for each in tenant_objects(Terms(bound)) if each.body["kind"] == "Namespace")
    server.kubectl("create", "-f", "-", stdin=json.dumps(namespace))
    server.kubectl("create", "rolebinding", "eve", "-n", bound, "--clusterrole=cluster-admin", "--user=eve")

    def label(*labels: str, user: str | None = "eve", sub: str = "") -> str:
        changed = {key: value or None for key, _, value in (each.partition("=") for each in labels)}
        patch = ("patch", "namespace", bound, "--type=merge", "-p", json.dumps({"metadata": {"labels": changed}}))
        ways = (f"--subresource={sub}",) if sub else ()
        return server.kubectl("-n", bound, *patch, "--dry-run=server", *ways, *((f"--as={user}",) if user else ()))

    level = "pod-security.kubernetes.io/enforce"
    in_force(partial(label, level))
    for labels in ((f"{level}=privileged",), (level,), ("app.kubernetes.io/part-of",)):
        for sub in ("", "status"):
            with pytest.raises(CommandFailedError, match="Pod Security of a tenant's namespace"):
                label(*labels, sub=sub)
    label("team=search")
    label(f"{level}=baseline", user=None)
