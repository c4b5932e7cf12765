"""The chart on a real API server: what it installs is accepted, what it grants is exact, what it leaves is known."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.console import Console
from e2e.cluster.errors import CommandFailedError
from e2e.cluster.paths import cache_root
from e2e.cluster.programs import Programs
from e2e.cluster.shell import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NO_CRDS = ("--set", "crds.install=false")
POLICIES = [f"{kind}admissionpolicy" for kind in ("validating", "mutating")]
FLOW = ("priorityclass", "flowschema", "prioritylevelconfiguration")
CLUSTERS = ("clusterrole", "clusterrolebinding", *FLOW, *POLICIES, *(f"{each}binding" for each in POLICIES))
"""What a release has that lies in no namespace."""
CHART = Path(__file__).resolve().parents[2] / "charts" / "moorage"


@dataclass(frozen=True)
class Helm:
    """Helm against one API server and namespace."""

    program: str
    server: ApiServer
    namespace: str

    def __call__(self, *args: str, code: int = 0) -> str:
        argv = [self.program, *args, "-n", self.namespace, "--kubeconfig", str(self.server.kubeconfig)]
        env = {"PATH": os.environ["PATH"], "HOME": str(self.server.folder)}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def can(self, account: str, verb: str, resource: str, namespace: str = "default") -> bool:
        """Whether a service account of the release may do something, by the API server's own word."""
        return may(self.server, f"system:serviceaccount:{self.namespace}:moorage-{account}", verb, resource, namespace)


def may(server: ApiServer, user: str, verb: str, resource: str, namespace: str) -> bool:
    """Whether RBAC allows it; `resource` is plural.group/subresource, and needn't be served."""
    kind, _, subresource = resource.partition("/")
    plural, _, group = kind.partition(".")
    wanted = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": wanted},
    }
    answer = json.loads(server.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
    return bool(answer["status"]["allowed"])


def helm_program() -> str:
    """Helm from PATH, else the harness's own, built once."""
    if found := shutil.which("helm"):
        return found
    programs = Programs(cache_root())
    programs.build(("helm",), Console())
    return str(programs.path("helm"))


def in_namespace(server: ApiServer) -> Helm:
    """Helm for a new namespace that enforces the restricted standard."""
    name = f"moorage-{uuid4().hex[:8]}"
    server.kubectl("create", "namespace", name)
    server.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    return Helm(helm_program(), server, name)


@pytest.fixture
def helm(api_server: ApiServer) -> Iterator[Helm]:
    """A namespace of the shared API server. Definitions have one owner, so the release brings none."""
    helm = in_namespace(api_server)
    yield helm
    api_server.kubectl("delete", "namespace", helm.namespace, "--wait=false")
    api_server.kubectl("delete", ",".join(CLUSTERS), "-l", "app.kubernetes.io/part-of=moorage")


def kinds(server: ApiServer) -> list[str]:
    names = [path.name.removesuffix(".yaml").split("_") for path in (CHART / "files" / "crds").glob("*.yaml")]
    return [f"{plural}.{group}" for group, plural in names]


def test_install_upgrade_and_uninstall_leave_only_definitions_and_evidence() -> None:
    with api_server() as server:  # of its own: deleting definitions that were just made can take minutes
        come_and_go(in_namespace(server))


def come_and_go(helm: Helm) -> None:
    said = helm("install", "moorage", str(CHART))
    assert "helm test moorage" in said
    server = helm.server
    server.kubectl("wait", "--for=condition=Established", *(f"crd/{kind}" for kind in kinds(server)), "--timeout=30s")
    served = json.loads(server.get("/apis/moorage.dev/v1alpha1"))
    assert {"agentruns", "workspaces", "agents", "modelproviders"} <= {each["name"] for each in served["resources"]}
    helm("upgrade", "moorage", str(CHART), "--set", "admission.maxLiveRuns=3")
    helm("uninstall", "moorage")
    left = server.kubectl(
        "get", "deploy,svc,sa,role,rolebinding,netpol,pvc", "-n", helm.namespace, "-o", "name"
    ).split()
    assert left == ["serviceaccount/default", "persistentvolumeclaim/moorage-gateway"]
    assert all(
        f"customresourcedefinition.apiextensions.k8s.io/{kind}" in server.kubectl("get", "crd", "-o", "name")
        for kind in kinds(server)
    )
    helm("install", "moorage", str(CHART))  # takes over what it kept


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("--set", "tenancy.namespaces={default},rbac.readers[0].kind=Group,rbac.readers[0].name=dev"),
        ("-f", str(CHART / "values-production.yaml")),
    ],
    ids=("default", "readers", "production"),
)
def test_every_pod_is_admitted_where_the_restricted_standard_is_enforced(helm: Helm, values: tuple[str, ...]) -> None:
    helm("install", "moorage", str(CHART), *NO_CRDS, *values)
    for name in ("operator", "gateway"):
        found = json.loads(helm.server.kubectl("get", "deploy", f"moorage-{name}", "-n", helm.namespace, "-o", "json"))
        template = found["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"trial-{name}", "namespace": helm.namespace},
            "spec": template["spec"],
        }
        helm.server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
        unsafe = json.loads(json.dumps(pod))
        unsafe["spec"]["containers"][0]["securityContext"]["capabilities"] = {"drop": []}
        with pytest.raises(CommandFailedError, match="PodSecurity"):
            helm.server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(unsafe))


def test_rights_are_what_each_process_needs_and_no_more(helm: Helm) -> None:
    helm("install", "moorage", str(CHART), *NO_CRDS)
    assert helm.can("operator", "patch", "agentruns.moorage.dev/status")
    assert helm.can("operator", "create", "pods")
    assert helm.can("operator", "list", "runtimeclasses.node.k8s.io")
    assert helm.can("gateway", "get", "secrets")
    assert helm.can("gateway", "create", "tokenreviews.authentication.k8s.io")
    for verb, resource in (
        ("get", "secrets"),
        ("list", "secrets"),
        ("update", "agentruns.moorage.dev"),
        ("create", "pods/exec"),
        ("create", "rolebindings.rbac.authorization.k8s.io"),
        ("list", "nodes"),
        ("create", "tokenreviews.authentication.k8s.io"),
    ):
        assert not helm.can("operator", verb, resource), f"{verb} {resource}"
    for verb, resource in (
        ("list", "secrets"),
        ("create", "pods"),
        ("delete", "leases"),
        ("get", "agentruns.moorage.dev"),
    ):
        assert not helm.can("gateway", verb, resource), f"{verb} {resource}"


@pytest.mark.rule("T7")
def test_namespaced_mode_grants_nothing_outside_its_namespaces(helm: Helm, namespace: str) -> None:
    helm(
        "install",
        "moorage",
        str(CHART),
        *NO_CRDS,
        "--set",
        "tenancy.namespaced=true",
        "--set",
        f"tenancy.namespaces={{{namespace}}}",
    )
    assert helm.can("operator", "create", "pods", namespace)
    assert helm.can("gateway", "get", "secrets", namespace)
    for account in ("operator", "gateway"):
        for verb, resource in (
            ("create", "pods"),
            ("get", "secrets"),
            ("get", "leases"),
            ("list", "agentruns.moorage.dev"),
        ):
            assert not helm.can(account, verb, resource, "default"), f"{account}: {verb} {resource}"
    assert "moorage" not in helm.server.kubectl("get", "clusterrolebinding", "-o", "name")


def test_a_team_with_the_built_in_roles_may_use_our_kinds(helm: Helm, namespace: str) -> None:
    helm("install", "moorage", str(CHART), *NO_CRDS)
    server = helm.server
    server.kubectl("create", "rolebinding", "v", "--clusterrole=view", "--user=vera", "-n", namespace)
    server.kubectl("create", "rolebinding", "e", "--clusterrole=edit", "--user=ed", "-n", namespace)

    def can(user: str, verb: str, resource: str) -> bool:
        return may(server, user, verb, resource, namespace)

    wait_until(lambda: can("vera", "watch", "agentruns.moorage.dev"), "the aggregated roles", timeout_s=20)
    wait_until(lambda: can("ed", "create", "agentruns.moorage.dev"), "the aggregated roles", timeout_s=20)
    assert not can("vera", "create", "agentruns.moorage.dev")
    assert not can("ed", "patch", "agentruns.moorage.dev/status")
