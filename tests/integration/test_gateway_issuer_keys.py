"""Namespaced mode: the gateway with the chart's own Roles and no ClusterRole, against a real API server."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from e2e.cluster.apiserver import ApiServer
from moorage.clock import SystemClock
from moorage.gateway.auth import Identity, Kind
from moorage.gateway.errors import Unauthenticated
from moorage.gateway.issuer import IssuerAuthenticator
from moorage.gateway.settings import GatewaySettings

pytestmark = pytest.mark.integration
AUDIENCE = "moorage-gateway"


def minted(server: ApiServer, namespace: str, name: str, *more: str) -> str:
    return server.kubectl("create", "token", name, "-n", namespace, *more).strip()


def account(server: ApiServer, namespace: str, name: str) -> str:
    server.kubectl("create", "serviceaccount", name, "-n", namespace)
    return f"{namespace}:{name}"


@pytest.fixture
async def gateway(api_server: ApiServer, namespace: str) -> AsyncIterator[Any]:
    """An API client as the gateway's account, whose only right is what the chart gives it in that namespace."""
    who = account(api_server, namespace, "gateway")
    rights = ("--verb=create", "--resource=localsubjectaccessreviews.authorization.k8s.io")
    api_server.kubectl("create", "role", "gateway", "-n", namespace, *rights)
    api_server.kubectl("create", "rolebinding", "gateway", "-n", namespace, "--role=gateway", f"--serviceaccount={who}")
    configuration = client.Configuration()
    await config.load_kube_config(str(api_server.kubeconfig), client_configuration=configuration)
    configuration.api_key["BearerToken"] = f"Bearer {minted(api_server, namespace, 'gateway')}"
    async with client.ApiClient(configuration) as opened:
        yield opened


@pytest.fixture
def authenticator(gateway: Any, namespace: str) -> IssuerAuthenticator:
    settings = GatewaySettings(operator_subject=f"system:serviceaccount:{namespace}:operator")
    return IssuerAuthenticator(gateway, SystemClock(), settings, frozenset({namespace}))


@pytest.mark.rule("T7")
async def test_tokens_are_told_apart_without_a_cluster_wide_right(
    api_server: ApiServer, namespace: str, gateway: Any, authenticator: IssuerAuthenticator
) -> None:
    with pytest.raises(ApiException):  # what this mode does without
        await client.AuthenticationV1Api(gateway).create_token_review(
            client.V1TokenReview(spec=client.V1TokenReviewSpec(token="x"))
        )
    account(api_server, namespace, "operator")
    account(api_server, namespace, "reader")
    audience = f"--audience={AUDIENCE}"
    operator = await authenticator.authenticate(minted(api_server, namespace, "operator", audience))
    reader = await authenticator.authenticate(minted(api_server, namespace, "reader", audience))
    assert (operator.kind, reader.kind, reader.namespace) == (Kind.OPERATOR, Kind.READER, namespace)
    with pytest.raises(Unauthenticated, match="audience"):
        await authenticator.authenticate(minted(api_server, namespace, "reader"))
    good = minted(api_server, namespace, "reader", audience)
    with pytest.raises(Unauthenticated):
        await authenticator.authenticate(good[:-4] + ("AAAA" if not good.endswith("AAAA") else "BBBB"))


async def test_a_sandboxs_token_names_its_pod(
    api_server: ApiServer, namespace: str, authenticator: IssuerAuthenticator
) -> None:
    account(api_server, namespace, "sandbox")
    api_server.kubectl(
        "run", "p", "-n", namespace, "--image=none", '--overrides={"spec":{"serviceAccountName":"sandbox"}}'
    )
    uid = api_server.kubectl("get", "pod", "p", "-n", namespace, "-o", "jsonpath={.metadata.uid}")
    bound = ("--bound-object-kind=Pod", "--bound-object-name=p", f"--bound-object-uid={uid}")
    identity = await authenticator.authenticate(
        minted(api_server, namespace, "sandbox", f"--audience={AUDIENCE}", *bound)
    )
    assert (identity.kind, identity.pod_uid, identity.pod_name) == (Kind.SANDBOX, uid, "p")


async def test_readers_are_asked_about_in_served_namespaces_only(
    api_server: ApiServer, namespace: str, authenticator: IssuerAuthenticator
) -> None:
    who = account(api_server, namespace, "reader")
    identity = Identity(Kind.READER, f"system:serviceaccount:{who}", namespace=namespace)
    assert not await authenticator.may_read(identity, "default")
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "v", "namespace": namespace},
        "rules": [{"apiGroups": ["moorage.dev"], "resources": ["agentruns"], "verbs": ["get"]}],
    }
    api_server.kubectl("create", "-f", "-", stdin=json.dumps(role))
    api_server.kubectl("create", "rolebinding", "v", "-n", namespace, "--role=v", f"--serviceaccount={who}")
    assert await authenticator.may_read(identity, namespace)
    stranger = Identity(Kind.READER, "system:serviceaccount:default:default", namespace="default")
    assert not await authenticator.may_read(stranger, namespace)
