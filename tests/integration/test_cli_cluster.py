"""The program against a real API server: kubeconfig, run by name, reader's token, rights, doctor."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from kubernetes.aio.client import ApiClient

from e2e.cluster.apiserver import ApiServer
from moorage.api.crd import DEFINITIONS
from moorage.cli import cluster_checks
from moorage.cli.cluster import (
    AUDIENCE,
    READER,
    RESOLVING,
    Cluster,
    Target,
    agent_run,
    connected,
    expects,
    gateway_pod,
    published_head,
    reader_token,
    run_uid,
    user_name,
)
from moorage.cli.exits import Denied, NotFound, Unreachable
from moorage.cli.namespaces import streams, waiting_in
from moorage.clock import SystemClock
from moorage.gateway.auth import Identity, Kind
from moorage.gateway.cluster import TokenReviewAuthenticator
from moorage.gateway.settings import GatewaySettings
from moorage.sandbox.kube import path_of

pytestmark = pytest.mark.integration

CRDS = Path(__file__).resolve().parents[2] / "crds"
RUN = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "AgentRun",
    "metadata": {"name": "fix-login"},
    "spec": {
        "workspace": {"ephemeral": {}},
        "goal": "Make the tests pass.",
        "agent": {"driver": "command", "command": ["true"]},
        "delivery": {"branch": "moorage/fix-login", "push": False},
    },
}


@pytest.fixture
async def cluster(api_server: ApiServer, namespace: str) -> AsyncIterator[Cluster]:
    target = Target(kubeconfig=str(api_server.kubeconfig), namespace=namespace, system_namespace=namespace)
    async with connected(target) as connection:
        yield connection


@pytest.fixture
def definitions(api_server: ApiServer) -> None:
    api_server.kubectl("apply", "--server-side", "-f", str(CRDS))
    api_server.kubectl("wait", "--for=condition=Established", "-f", str(CRDS), "--timeout=30s")


def as_user(server: ApiServer, folder: Path, user: str, *roles: tuple[str, str]) -> Path:
    """A kubeconfig of a service account with the given ClusterRoles, each in a namespace."""
    server.kubectl("create", "serviceaccount", user, "-n", "default")
    for role, namespace in roles:
        name = f"{user}-{role}-{uuid4().hex[:6]}"
        server.kubectl(
            "create", "rolebinding", name, f"--clusterrole={role}", f"--serviceaccount=default:{user}", "-n", namespace
        )
    token = server.kubectl("create", "token", user, "-n", "default").strip()
    path = folder / f"{user}.kubeconfig"
    path.write_text(server.kubeconfig.read_text().replace(server.token, token))
    return path


async def test_a_run_is_found_by_name(api_server: ApiServer, definitions: None, cluster: Cluster) -> None:
    api_server.kubectl("create", "-n", cluster.namespace, "-f", "-", stdin=json.dumps(RUN))
    uid = api_server.kubectl("get", "ar", "fix-login", "-n", cluster.namespace, "-o", "jsonpath={.metadata.uid}")
    assert await run_uid(cluster, "fix-login") == uid
    with pytest.raises(NotFound, match="AgentRun nothing in namespace"):
        await run_uid(cluster, "nothing")
    api_server.kubectl("delete", "ar", "fix-login", "-n", cluster.namespace)
    assert await run_uid(cluster, uid) == uid, "what is kept of a deleted run is found by its UID"


async def test_the_readers_token_is_for_the_gateway_alone_and_may_read_its_namespace_alone(cluster: Cluster) -> None:
    notes: list[str] = []
    token = await reader_token(cluster, notes.append)
    assert len(notes) == 1
    await reader_token(cluster, notes.append)
    assert len(notes) == 1  # made once
    user = f"system:serviceaccount:{cluster.namespace}:{READER}"
    assert await reviewed(cluster, token, AUDIENCE) == user
    assert await reviewed(cluster, token, None) is None  # good for nothing at the API server
    assert await allowed(cluster, user, cluster.namespace, "get")
    assert not await allowed(cluster, user, cluster.namespace, "delete")
    assert not await allowed(cluster, user, "default", "get")


async def reviewed(cluster: Cluster, token: str, audience: str | None) -> str | None:
    spec = {"token": token, "audiences": [audience] if audience else None}
    answer = await cluster.api.create(path_of("authentication.k8s.io/v1", "tokenreviews"), {"spec": spec})
    status = answer["status"]
    return str(status["user"]["username"]) if status.get("authenticated") else None


async def allowed(cluster: Cluster, user: str, namespace: str, verb: str) -> bool:
    wanted = {"group": "moorage.dev", "resource": "agentruns", "verb": verb, "namespace": namespace}
    body = {"spec": {"user": user, "resourceAttributes": wanted}}
    answer = await cluster.api.create(path_of("authorization.k8s.io/v1", "subjectaccessreviews"), body)
    return bool(answer["status"]["allowed"])


@pytest.mark.rule("T1")
async def test_rights_in_one_namespace_open_no_other(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    await reader_token(cluster, print)
    other = f"other-{uuid4().hex[:8]}"
    api_server.kubectl("create", "namespace", other)
    config = as_user(api_server, tmp_path, f"ed-{uuid4().hex[:6]}", ("edit", other))
    async with connected(Target(kubeconfig=str(config), namespace=namespace)) as theirs:
        with pytest.raises(Denied, match="you may not"):
            await reader_token(theirs, print)
    async with connected(Target(kubeconfig=str(config), namespace=other)) as own:
        with pytest.raises(Denied, match=f"Role {other}"):  # past the token, where only the reader is missing
            await reader_token(own, print)


async def test_an_editor_may_read_once_an_administrator_has_made_the_reader(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    config = as_user(api_server, tmp_path, f"ed-{uuid4().hex[:6]}", ("edit", namespace))
    async with connected(Target(kubeconfig=str(config), namespace=namespace)) as theirs:
        with pytest.raises(Denied) as denied:
            await reader_token(theirs, print)
        assert f"doctor --readers -n {namespace}" in denied.value.hint
        await reader_token(cluster, print)
        assert await reader_token(theirs, print)


async def test_no_ready_gateway_is_unreachable_and_a_ready_one_is_found(
    api_server: ApiServer, cluster: Cluster
) -> None:
    with pytest.raises(Unreachable, match="no gateway pod is ready"):
        await gateway_pod(cluster)
    labels = {"app.kubernetes.io/name": "moorage", "app.kubernetes.io/component": "gateway"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gw", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}], "automountServiceAccountToken": False},
    }
    api_server.kubectl("create", "-n", cluster.namespace, "-f", "-", stdin=json.dumps(pod))
    with pytest.raises(Unreachable, match="1 are there"):
        await gateway_pod(cluster)
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    patch = ("patch", "pod", "gw", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    api_server.kubectl("-n", cluster.namespace, *patch)
    assert await gateway_pod(cluster) == "gw"


async def test_doctor_names_what_is_missing_and_what_is_there(
    api_server: ApiServer, definitions: None, cluster: Cluster
) -> None:
    api_server.kubectl("delete", "runtimeclasses", "--all", "--timeout=30s")
    checks = {check.name: check for check in await cluster_checks.installation(cluster)}
    assert checks["kubernetes"].state == "ok"
    assert checks["definitions"].state == "ok"
    assert all(definition.plural in checks["definitions"].message for definition in DEFINITIONS)
    assert checks["runtime classes"].state == "fail"
    assert "runtimeClass.create=true" in checks["runtime classes"].hint
    assert checks["flow control"].state == "warn"
    assert checks["gateway"].state == "fail"
    assert checks["rights"].state == "ok"


async def test_a_stopped_api_server_is_unreachable(api_server: ApiServer, cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "away.kubeconfig"
    config.write_text(api_server.kubeconfig.read_text().replace(str(api_server.port), "1"))
    async with connected(Target(kubeconfig=str(config))) as away:
        with pytest.raises(Unreachable, match="can't be reached"):
            await run_uid(away, "x")
        (only,) = await cluster_checks.installation(away)
        assert (only.name, only.state) == ("kubernetes", "fail")


@pytest.mark.rule("T1", "I10")
async def test_who_resolves_has_an_account_with_a_right_of_its_own(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    notes: list[str] = []
    token = await reader_token(cluster, notes.append, RESOLVING)
    assert "resolve effects" in notes[0]
    user = f"system:serviceaccount:{namespace}:{RESOLVING.name}"
    assert await reviewed(cluster, token, AUDIENCE) == user
    reader = f"system:serviceaccount:{namespace}:{READER}"
    await reader_token(cluster, notes.append)
    async with ApiClient(cluster.configuration) as api:
        gateway = TokenReviewAuthenticator(api, SystemClock(), GatewaySettings())
        assert await gateway.may_resolve(Identity(Kind.READER, user), namespace)
        assert not await gateway.may_resolve(Identity(Kind.READER, user), "default")
        assert not await gateway.may_resolve(Identity(Kind.READER, reader), namespace)
        assert not await gateway.may_resolve(Identity(Kind.SANDBOX, user), namespace)
    config = as_user(api_server, tmp_path, f"ed-{uuid4().hex[:6]}", ("edit", namespace))
    async with connected(Target(kubeconfig=str(config), namespace=namespace)) as theirs:
        assert (await user_name(theirs)).startswith("system:serviceaccount:default:ed-")


async def test_the_head_that_status_names_is_read_from_the_run(
    api_server: ApiServer, definitions: None, cluster: Cluster
) -> None:
    api_server.kubectl("create", "-n", cluster.namespace, "-f", "-", stdin=json.dumps(RUN))
    assert published_head(await agent_run(cluster, "fix-login")) is None
    told = {"status": {"journal": {"offset": 3, "hash": "f" * 64, "signature": "ed25519:a:1:b"}}}
    patch = ("patch", "ar", "fix-login", "--subresource=status", "--type=merge", "-p", json.dumps(told))
    api_server.kubectl("-n", cluster.namespace, *patch)
    found = published_head(await agent_run(cluster, "fix-login"))
    assert found is not None
    assert (found.offset, found.hash, found.signature) == (3, "f" * 64, "ed25519:a:1:b")


async def test_a_run_that_waits_for_its_admission_is_expected_and_listed_with_what_it_waits_for(
    api_server: ApiServer, definitions: None, cluster: Cluster
) -> None:
    target = Target(str(api_server.kubeconfig), namespace=cluster.namespace, system_namespace=cluster.namespace)
    assert await expects(cluster, "fix-login") == ""
    api_server.kubectl("create", "-n", cluster.namespace, "-f", "-", stdin=json.dumps(RUN))
    assert await expects(cluster, "fix-login") == "fix-login is Pending (Accepted)"
    assert [run.name for run in await waiting_in(cluster)] == ["fix-login"]
    patch = ("patch", "ar", "fix-login", "--subresource=status", "--type=merge", "-p")
    told = {"status": {"phase": "Queued", "reason": "SlotsTaken"}}
    api_server.kubectl("-n", cluster.namespace, *patch, json.dumps(told))
    assert await expects(cluster, "fix-login") == "fix-login is Queued (SlotsTaken)"
    assert [(run.phase, run.doing) for run in await waiting_in(cluster)] == [("Queued", "SlotsTaken")]
    api_server.kubectl("-n", cluster.namespace, *patch, json.dumps({"status": {"phase": "Running"}}))
    assert await expects(cluster, "fix-login") == ""
    assert await waiting_in(cluster) == []
    with pytest.raises(Unreachable, match="no gateway pod is ready"):
        async with streams(target, print, everywhere=False, follow=False):
            pass
