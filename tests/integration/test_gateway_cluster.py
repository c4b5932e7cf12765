"""The gateway's adapters against a real API server: tokens bound to pods, readers, Secrets, Leases."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import client, config

from e2e.cluster.apiserver import ApiServer
from moorage.api.wire import SecretRef
from moorage.gateway.auth import Kind
from moorage.gateway.cluster import ClusterLeases, ClusterSecrets, TokenReviewAuthenticator
from moorage.gateway.errors import Unauthenticated, Unavailable
from moorage.gateway.ports import SecretMissing
from moorage.gateway.settings import GatewaySettings
from moorage.testing.clock import StepClock

pytestmark = pytest.mark.integration
AUDIENCE = "moorage-gateway"


@pytest.fixture
async def api(api_server: ApiServer) -> AsyncIterator[Any]:
    configuration = client.Configuration()
    await config.load_kube_config(str(api_server.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as opened:
        yield opened


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


@pytest.fixture
def authenticator(api: Any, clock: StepClock, namespace: str) -> TokenReviewAuthenticator:
    settings = GatewaySettings(operator_subject=f"system:serviceaccount:{namespace}:operator")
    return TokenReviewAuthenticator(api, clock, settings)


def account(server: ApiServer, namespace: str, name: str) -> None:
    server.kubectl("create", "serviceaccount", name, "-n", namespace)


def token(server: ApiServer, namespace: str, name: str, *more: str, audience: str = AUDIENCE) -> str:
    return server.kubectl("create", "token", name, "-n", namespace, f"--audience={audience}", *more).strip()


def pod(server: ApiServer, namespace: str, name: str, account_name: str) -> str:
    """A pod that no node runs; its UID."""
    spec = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"serviceAccountName": account_name, "containers": [{"name": "c", "image": "none"}]},
    }
    server.kubectl("create", "-f", "-", stdin=json.dumps(spec))
    return server.kubectl("get", "pod", name, "-n", namespace, "-o", "jsonpath={.metadata.uid}").strip()


@pytest.mark.rule("F2", "T2")
async def test_a_pod_bound_token_names_the_pod_until_the_pod_is_gone(
    api_server: ApiServer, namespace: str, authenticator: TokenReviewAuthenticator, clock: StepClock
) -> None:
    account(api_server, namespace, "moorage-sandbox")
    uid = pod(api_server, namespace, "p1", "moorage-sandbox")
    bound = token(api_server, namespace, "moorage-sandbox", "--bound-object-kind=Pod", "--bound-object-name=p1")
    found = await authenticator.authenticate(bound)
    assert (found.kind, found.pod_uid, found.pod_name, found.namespace) == (Kind.SANDBOX, uid, "p1", namespace)
    api_server.kubectl("delete", "pod", "p1", "-n", namespace, "--grace-period=0", "--force")
    assert (await authenticator.authenticate(bound)).pod_uid == uid, "believed for at most ten seconds"
    async with asyncio.timeout(40):  # the API server itself believes a token for ten seconds
        while await believed(authenticator, bound):
            clock.advance(10_000)
            await asyncio.sleep(0.5)


async def believed(authenticator: TokenReviewAuthenticator, bound: str) -> bool:
    try:
        await authenticator.authenticate(bound)
    except Unauthenticated:
        return False
    return True


async def test_only_tokens_for_the_gateway_open_it(
    api_server: ApiServer, namespace: str, authenticator: TokenReviewAuthenticator
) -> None:
    account(api_server, namespace, "operator")
    right = await authenticator.authenticate(token(api_server, namespace, "operator"))
    assert right.kind is Kind.OPERATOR
    for wrong in (token(api_server, namespace, "operator", audience="elsewhere"), api_server.token, "nonsense"):
        with pytest.raises(Unauthenticated):
            await authenticator.authenticate(wrong)


@pytest.mark.rule("T1", "I10")
async def test_readers_are_those_who_may_get_agentruns_there(
    api_server: ApiServer, namespace: str, authenticator: TokenReviewAuthenticator, clock: StepClock
) -> None:
    account(api_server, namespace, "ann")
    ann = await authenticator.authenticate(token(api_server, namespace, "ann"))
    assert ann.kind is Kind.READER
    assert not await authenticator.may_read(ann, namespace)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "r", "namespace": namespace},
        "rules": [{"apiGroups": ["moorage.dev"], "resources": ["agentruns"], "verbs": ["get"]}],
    }
    api_server.kubectl("create", "-f", "-", stdin=json.dumps(role))
    api_server.kubectl("create", "rolebinding", "r", "-n", namespace, "--role=r", f"--serviceaccount={namespace}:ann")
    clock.advance(10_000)
    assert await authenticator.may_read(ann, namespace)
    assert not await authenticator.may_read(ann, "default")


@pytest.mark.rule("T2")
async def test_secrets_are_read_with_their_keys(api_server: ApiServer, namespace: str, api: Any) -> None:
    api_server.kubectl("create", "secret", "generic", "git", "-n", namespace, "--from-literal=password=hunter2")
    secrets = ClusterSecrets(api)
    assert (await secrets.read(namespace, SecretRef(name="git"))).text("password") == "hunter2"
    assert (await secrets.read(namespace, SecretRef(name="git", key="password"))).text("password") == "hunter2"
    with pytest.raises(SecretMissing, match="no key 'token'"):
        await secrets.read(namespace, SecretRef(name="git", key="token"))
    with pytest.raises(SecretMissing, match="is not there"):
        await secrets.read(namespace, SecretRef(name="absent"))


@pytest.mark.rule("F1", "F4")
async def test_a_lease_is_renewed_only_at_its_own_epoch(api_server: ApiServer, namespace: str, api: Any) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "run", "namespace": namespace, "annotations": {"moorage.dev/epoch": "3"}},
        "spec": {"holderIdentity": "attempt-3", "leaseDurationSeconds": 40},
    }
    api_server.kubectl("create", "-f", "-", stdin=json.dumps(lease))
    leases = ClusterLeases(api)
    assert await leases.renew(namespace, "run", 3, 1_800_000_000_123)
    shown = json.loads(api_server.kubectl("get", "lease", "run", "-n", namespace, "-o", "json"))
    assert shown["spec"]["renewTime"] == "2027-01-15T08:00:00.123000Z"
    assert shown["spec"]["holderIdentity"] == "attempt-3"
    assert not await leases.renew(namespace, "run", 2, 1_900_000_000_000)
    assert not await leases.renew(namespace, "absent", 3, 1_900_000_000_000)
    again = json.loads(api_server.kubectl("get", "lease", "run", "-n", namespace, "-o", "json"))
    assert again["metadata"]["resourceVersion"] == shown["metadata"]["resourceVersion"]


async def test_an_api_server_that_is_away_is_said_to_be_away() -> None:
    nowhere = client.Configuration(host="http://127.0.0.1:9")
    async with client.ApiClient(nowhere) as gone:
        with pytest.raises(Unavailable):
            await ClusterSecrets(gone).read("a", SecretRef(name="b"))
        with pytest.raises(Unavailable):
            await ClusterLeases(gone).renew("a", "b", 1, 1)
        with pytest.raises(Unavailable):
            await TokenReviewAuthenticator(gone, StepClock(), GatewaySettings()).authenticate("x")
