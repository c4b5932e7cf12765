"""A run on a cluster, for reading: find it, get a token for its namespace's reader, reach the gateway (ADR 11).

Imported only by commands that need a cluster: the Kubernetes client takes most of a second to load.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import aiohttp
import httpx
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.stream import WsApiClient

from moorage.api.names import GROUP, VERSION
from moorage.cli.evidence import Evidence
from moorage.cli.exits import CliError, Denied, NotFound, Unreachable
from moorage.cli.forward import Forward, forwarded

AUDIENCE = "moorage-gateway"
READER = "moorage-reader"
GATEWAY_SELECTOR = "app.kubernetes.io/name=moorage,app.kubernetes.io/component=gateway"
GATEWAY_PORT = 8080
TOKEN_SECONDS = 600  # the shortest that the API server gives out
HEARTBEAT_S = 20.0

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """Which cluster and namespace; None is what the kubeconfig says."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    system_namespace: str = "moorage-system"


@dataclass(frozen=True)
class Cluster:
    """A connection to the API server, as the user's own identity."""

    configuration: client.Configuration
    api: client.ApiClient
    namespace: str
    system_namespace: str


@contextlib.asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Cluster]:
    """Read the kubeconfig and open a client. Raises Unreachable, NotFound."""
    configuration = client.Configuration()
    _demand_kubeconfig(target.kubeconfig)
    try:
        contexts, active = config.list_kube_config_contexts(config_file=target.kubeconfig)
        await config.load_kube_config(
            config_file=target.kubeconfig, context=target.context, client_configuration=configuration
        )
    except (ConfigException, OSError) as error:
        raise NotFound(f"no usable kubeconfig: {error}", "name one with --kubeconfig or KUBECONFIG") from None
    chosen = next((c for c in contexts if c["name"] == target.context), active)
    namespace = target.namespace or chosen["context"].get("namespace") or "default"
    async with client.ApiClient(configuration) as api:
        yield Cluster(configuration, api, namespace, target.system_namespace)


def _demand_kubeconfig(chosen: str | None) -> None:
    """One of the files has to be there; the library would only say which key it missed."""
    paths = (chosen or config.KUBE_CONFIG_DEFAULT_LOCATION).split(os.pathsep)
    if not any(Path(path).expanduser().is_file() for path in paths):
        raise NotFound(
            f"there is no kubeconfig at {os.pathsep.join(paths)}", "name one with --kubeconfig or KUBECONFIG"
        )


@contextlib.asynccontextmanager
async def in_cluster() -> AsyncIterator[Cluster]:
    """The connection of a pod with a mounted service account."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise NotFound(f"not in a cluster: {error}", "leave --in-cluster out") from None
    async with client.ApiClient(configuration) as api:
        yield Cluster(configuration, api, "", "")


async def asked(call: Awaitable[T], what: str) -> T:
    """Await an API call. Raises NotFound, Denied, Unreachable, or CliError, each saying `what` was wanted."""
    try:
        return await call
    except ApiException as error:
        raise _refused(error, what) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unreachable(f"the API server can't be reached: {error}", "check the context and your network") from None


def _refused(error: ApiException, what: str) -> CliError:
    if error.status == 404:
        return NotFound(f"there is no {what}")
    if error.status in {401, 403}:
        return Denied(f"you may not {'use' if error.status == 401 else 'read or make'} {what} (HTTP {error.status})")
    return Unreachable(f"the API server answered {error.status} {error.reason} for {what}", "try again in a moment")


@contextlib.asynccontextmanager
async def evidence(cluster: Cluster, run: str, note: Callable[[str], None]) -> AsyncIterator[Evidence]:
    """The gateway's reader doors for one run, by name. `note` hears of objects that had to be made."""
    name = run.rpartition("/")[2]
    uid = await run_uid(cluster, name)
    token = await reader_token(cluster, note)
    pod = await gateway_pod(cluster)
    sockets_of: Callable[..., Any] = WsApiClient  # untyped in the library
    async with sockets_of(cluster.configuration, heartbeat=HEARTBEAT_S) as sockets:

        async def dial() -> aiohttp.ClientWebSocketResponse:
            opening = await client.CoreV1Api(sockets).connect_get_namespaced_pod_portforward_without_preload_content(
                pod, cluster.system_namespace, ports=str(GATEWAY_PORT)
            )
            return await cast(
                "Awaitable[aiohttp.ClientWebSocketResponse]", opening
            )  # the websocket client's own answer

        async with forwarded(dial) as (path, forward):
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            headers = {"authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as http:
                yield Evidence(http, uid, name, lambda: _failure(forward))


def _failure(forward: Forward) -> str:
    error = forward.failure
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 403:
        return "you may not port-forward in the gateway's namespace; rbac.readers of the chart allows it"
    return str(error) if error is not None else ""


async def run_uid(cluster: Cluster, name: str) -> str:
    """UID of an AgentRun by its name."""
    api = client.CustomObjectsApi(cluster.api)
    call = api.get_namespaced_custom_object(GROUP, VERSION, cluster.namespace, "agentruns", name)
    found: Any = await asked(call, f"AgentRun {name} in namespace {cluster.namespace}")
    return str(found["metadata"]["uid"])


async def gateway_pod(cluster: Cluster) -> str:
    """Name of a ready gateway pod. Raises Unreachable where there is none."""
    where = cluster.system_namespace
    call = client.CoreV1Api(cluster.api).list_namespaced_pod(where, label_selector=GATEWAY_SELECTOR)
    found: Any = await asked(call, f"pods in namespace {where}")
    ready = [pod.metadata.name for pod in found.items if _ready(pod)]
    if not ready:
        raise Unreachable(
            f"no gateway pod is ready in namespace {where} ({len(found.items)} are there)",
            "name the release's namespace with --system-namespace, or ask `kubectl moorage doctor`",
        )
    return str(ready[0])


def _ready(pod: Any) -> bool:
    conditions = (pod.status.conditions or []) if pod.status else []
    return pod.metadata.deletion_timestamp is None and any(c.type == "Ready" and c.status == "True" for c in conditions)


async def reader_token(cluster: Cluster, note: Callable[[str], None]) -> str:
    """A token of the namespace's reader for the gateway, good for ten minutes. A missing reader is made first."""
    try:
        return await _mint(cluster)
    except Denied as error:
        raise Denied(error.message, f"you need create on serviceaccounts/token of {READER}: edit has it") from None
    except NotFound:
        await make_reader(cluster)
        note(f"made ServiceAccount, Role and RoleBinding {READER} in {cluster.namespace}: they may read runs there")
        return await _mint(cluster)


async def _mint(cluster: Cluster) -> str:
    spec = client.V1TokenRequestSpec(audiences=[AUDIENCE], expiration_seconds=TOKEN_SECONDS)
    body = client.AuthenticationV1TokenRequest(spec=spec)
    call = client.CoreV1Api(cluster.api).create_namespaced_service_account_token(READER, cluster.namespace, body)
    answer: Any = await asked(call, f"token of ServiceAccount {cluster.namespace}/{READER}")
    return str(answer.status.token)


async def make_reader(cluster: Cluster) -> None:
    """What ADR 11 asks for in the run's namespace, with the rights of whoever runs this."""
    core, rbac = client.CoreV1Api(cluster.api), client.RbacAuthorizationV1Api(cluster.api)
    meta = client.V1ObjectMeta(name=READER, labels={"app.kubernetes.io/part-of": "moorage"})
    rule = client.V1PolicyRule(api_groups=[GROUP], resources=["agentruns"], verbs=["get"])
    role = client.V1Role(metadata=meta, rules=[rule])
    subject = client.RbacV1Subject(kind="ServiceAccount", name=READER, namespace=cluster.namespace)
    ref = client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="Role", name=READER)
    binding = client.V1RoleBinding(metadata=meta, role_ref=ref, subjects=[subject])
    account = client.V1ServiceAccount(metadata=meta, automount_service_account_token=False)
    where = cluster.namespace
    try:
        await _ensured(rbac.create_namespaced_role(where, role), f"Role {where}/{READER}")
        await _ensured(rbac.create_namespaced_role_binding(where, binding), f"RoleBinding {where}/{READER}")
        await _ensured(core.create_namespaced_service_account(where, account), f"ServiceAccount {where}/{READER}")
    except Denied as error:
        raise Denied(
            error.message, f"an administrator makes it once: kubectl moorage doctor --readers -n {where}"
        ) from None


async def _ensured(call: Awaitable[Any], what: str) -> None:
    """Create, or see that it is there already."""

    async def created() -> None:
        try:
            await call
        except ApiException as error:
            if error.status != 409:
                raise

    await asked(created(), what)
