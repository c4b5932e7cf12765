"""A run on a cluster, for reading: find it, get a token for its namespace's reader, reach the gateway (ADR 11).

Imported only by commands that need a cluster: the Kubernetes client takes most of a second to load.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import httpx
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.stream import WsApiClient

from moorage.api.names import API_VERSION, GROUP
from moorage.cli.evidence import Evidence
from moorage.cli.exits import CliError, Denied, NotFound, Unreachable
from moorage.cli.forward import Forward, forwarded
from moorage.core.journal.heads import SignedHead
from moorage.core.run.phases import RunPhase
from moorage.sandbox.kube import ApiUnavailable, Body, Exists, KubeApi, KubeError, Missing, path_of

AUDIENCE = "moorage-gateway"
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
READER = "moorage-reader"
GATEWAY_PODS = "app.kubernetes.io/name=moorage,app.kubernetes.io/component=gateway"
GATEWAY_PORT = 8080
PROTOCOL = "v4.channel.k8s.io"
RBAC = "rbac.authorization.k8s.io/v1"
TOKEN_SECONDS = 600  # the shortest that the API server gives out
HEARTBEAT_S = 20.0

T = TypeVar("T")


@dataclass(frozen=True)
class Account:
    """A service account of a run's namespace that speaks to the gateway for people: what it is for, what it may do
    (resource, verb), and the command by which an administrator makes it.
    """

    name: str
    may: str
    rights: tuple[tuple[str, str], ...]
    made_by: str


READING = Account(READER, "read runs", (("agentruns", "get"),), "kubectl moorage doctor --readers")
RESOLVING = Account(
    "moorage-resolver",
    "resolve effects",
    (("agentruns", "get"), ("agentruns/effects", "update")),
    "kubectl moorage resolve RUN EFFECT",
)


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

    configuration: Configuration
    api: KubeApi
    namespace: str
    system_namespace: str


@contextlib.asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Cluster]:
    """Read the kubeconfig and open a client. Raises Unreachable, NotFound."""
    configuration = Configuration()
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
    async with ApiClient(configuration) as api:
        yield Cluster(configuration, KubeApi(api), namespace, target.system_namespace)


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
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise NotFound(f"not in a cluster: {error}", "leave --in-cluster out") from None
    async with ApiClient(configuration) as api:
        yield Cluster(configuration, KubeApi(api), "", "")


async def asked(call: Awaitable[T], what: str) -> T:
    """Await an API call. Raises NotFound, Denied, Unreachable, or CliError, each saying `what` was wanted."""
    try:
        return await call
    except KubeError as error:
        raise _refused(error, what) from None


def _refused(error: KubeError, what: str) -> CliError:
    if isinstance(error, Missing):
        return NotFound(f"there is no {what}")
    if error.status in {401, 403}:
        return Denied(f"you may not {'use' if error.status == 401 else 'read or make'} {what} (HTTP {error.status})")
    if error.status == 0:
        return Unreachable(f"the API server can't be reached: {error}", "check the context and your network")
    if isinstance(error, ApiUnavailable):
        return Unreachable(f"the API server answered {error.status} for {what}", "try again in a moment")
    return CliError(f"the API server refuses {what}: {error}")


@contextlib.asynccontextmanager
async def evidence(
    cluster: Cluster, run: str, note: Callable[[str], None], account: Account | None = None
) -> AsyncIterator[Evidence]:
    """The gateway's reader doors for one run, by name, as `account` (default: the reader). `note` hears of objects
    that had to be made.
    """
    account = account or READING
    name = run.rpartition("/")[2]
    found = await agent_run(cluster, name)
    uid = uid_of(cluster, name, found)
    token = await reader_token(cluster, note, account)
    user = await user_name(cluster) if account is not READING else ""
    async with reached(cluster, Renewed(token, lambda: reader_token(cluster, note, account))) as (http, forward):
        head, expected = published_head(found), functools.partial(expects, cluster, name)
        yield Evidence(http, uid, name, lambda: failure(forward), head, user, expected=expected)


async def expects(cluster: Cluster, name: str) -> str:
    """What an AgentRun waits for that isn't admitted yet; empty where it isn't there, or needs no waiting for."""
    found = await agent_run(cluster, name)
    status = (found or {}).get("status") or {}
    phase = str(status.get("phase") or RunPhase.PENDING.value)
    if found is None or phase not in {RunPhase.PENDING, RunPhase.QUEUED}:
        return ""
    return f"{name} is {phase}" + (f" ({status['reason']})" if status.get("reason") else "")


@contextlib.asynccontextmanager
async def reached(cluster: Cluster, auth: Renewed) -> AsyncIterator[tuple[httpx.AsyncClient, Forward]]:
    """A client of the gateway's doors. Each of its connections goes to a pod that is ready then."""
    await gateway_pod(cluster)  # what is wrong is said at once
    sockets_of: Callable[..., Any] = WsApiClient  # untyped in the library
    async with (
        sockets_of(cluster.configuration, heartbeat=HEARTBEAT_S) as sockets,
        forwarded(lambda: _dial(sockets, cluster)) as (socket, forward),
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://gateway", auth=auth
        ) as http,
    ):
        yield http, forward


class Renewed(httpx.Auth):
    """A token that is asked for anew before it runs out: a run is followed for longer than one is good."""

    def __init__(self, token: str, mint: Callable[[], Awaitable[str]]) -> None:
        self._token, self._mint = token, mint
        self._until = time.monotonic() + TOKEN_SECONDS * 3 / 4

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """See httpx. Raises CliError."""
        if time.monotonic() >= self._until:
            self._token = await self._mint()
            self._until = time.monotonic() + TOKEN_SECONDS * 3 / 4
        request.headers["authorization"] = f"Bearer {self._token}"
        yield request


async def _dial(sockets: Any, cluster: Cluster) -> aiohttp.ClientWebSocketResponse:
    """Open a websocket to the port of a gateway's pod."""
    path = f"{path_of('v1', 'pods', cluster.system_namespace, await gateway_pod(cluster))}/portforward"
    headers = {"sec-websocket-protocol": PROTOCOL}
    await sockets.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    url = f"{sockets.configuration.host}{path}"
    opening = await sockets.request("GET", url, [("ports", GATEWAY_PORT)], headers, _preload_content=False)
    opened: aiohttp.ClientWebSocketResponse = await opening
    return opened


def failure(forward: Forward) -> str:
    """Why the last connection ended, for people; empty where nothing is known."""
    error = forward.failure
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 403:
        return "you may not port-forward in the gateway's namespace; rbac.readers of the chart allows it"
    return str(error) if error is not None else ""


async def agent_run(cluster: Cluster, name: str) -> Body | None:
    """The AgentRun of that name, where it is there. Raise as `asked`."""
    what = f"AgentRun {name} in namespace {cluster.namespace}"
    return await asked(cluster.api.get(path_of(API_VERSION, "agentruns", cluster.namespace, name)), what)


def uid_of(cluster: Cluster, name: str, found: Body | None) -> str:
    """UID of an AgentRun. The evidence of a deleted one is kept, and found by the UID itself."""
    if found is not None:
        return str(found["metadata"]["uid"])
    if UID.fullmatch(name):
        return name
    what = f"AgentRun {name} in namespace {cluster.namespace}"
    raise NotFound(f"there is no {what}", "the evidence of a deleted run is found by its UID")


def published_head(found: Body | None) -> SignedHead | None:
    """J6: the head that the run's status names; None where it names none."""
    told = ((found or {}).get("status") or {}).get("journal")
    if found is None or not told:
        return None
    return SignedHead(
        str(found["metadata"]["uid"]), int(told["offset"]), str(told["hash"]), told.get("signature") or ""
    )


async def run_uid(cluster: Cluster, name: str) -> str:
    """UID of an AgentRun by its name."""
    return uid_of(cluster, name, await agent_run(cluster, name))


async def gateway_pod(cluster: Cluster) -> str:
    """Name of a ready gateway pod, drawn by lot: no gateway has all readers. Raises Unreachable where there is none."""
    where = cluster.system_namespace
    call = cluster.api.items(path_of("v1", "pods", where), labels=GATEWAY_PODS)
    try:
        found = await asked(call, f"pods in namespace {where}")
    except Denied as error:
        raise Denied(error.message, "rbac.readers of the chart lets you reach the gateway") from None
    ready = [str(pod["metadata"]["name"]) for pod in found if _ready(pod)]
    if not ready:
        raise Unreachable(
            f"no gateway pod is ready in namespace {where} ({len(found)} are there)",
            "name the release's namespace with --system-namespace, or ask `kubectl moorage doctor`",
        )
    return random.choice(ready)  # noqa: S311  a lot, not a secret


def _ready(pod: Body) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    going = pod["metadata"].get("deletionTimestamp") is not None
    return not going and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def reader_token(cluster: Cluster, note: Callable[[str], None], account: Account | None = None) -> str:
    """A token of the namespace's reader for the gateway, good for ten minutes. A missing reader is made first."""
    account = account or READING
    try:
        return await _mint(cluster, account)
    except Denied as error:
        hint = f"you need create on serviceaccounts/token of {account.name}: edit has it"
        raise Denied(error.message, hint) from None
    except NotFound:
        await make_reader(cluster, account)
        made = f"made ServiceAccount, Role and RoleBinding {account.name} in {cluster.namespace}"
        note(f"{made}: they may {account.may} there")
        return await _mint(cluster, account)


async def user_name(cluster: Cluster) -> str:
    """Who we are to the API server."""
    path = path_of("authentication.k8s.io/v1", "selfsubjectreviews")
    answer = await asked(cluster.api.create(path, {}), "SelfSubjectReview")
    return str(answer["status"]["userInfo"]["username"])


async def _mint(cluster: Cluster, account: Account) -> str:
    where = cluster.namespace
    body = {"spec": {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS}}
    path = f"{path_of('v1', 'serviceaccounts', where, account.name)}/token"
    answer = await asked(cluster.api.create(path, body), f"token of ServiceAccount {where}/{account.name}")
    return str(answer["status"]["token"])


async def make_reader(cluster: Cluster, account: Account | None = None) -> None:
    """What ADR 11 asks for in the run's namespace, with the rights of whoever runs this."""
    where, account = cluster.namespace, account or READING
    try:
        for kind, path, body in _objects(where, account):
            await asked(_ensured(cluster.api, path, body), f"{kind} {where}/{account.name}")
    except Denied as error:
        raise Denied(error.message, f"an administrator makes it once: {account.made_by} -n {where}") from None


def _objects(namespace: str, account: Account) -> tuple[tuple[str, str, Body], ...]:
    """Kind, place and body of each object; the account last, since its being there means that all is."""
    meta = {"name": account.name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "moorage"}}
    rules = [{"apiGroups": [GROUP], "resources": [what], "verbs": [verb]} for what, verb in account.rights]
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account.name}
    subject = {"kind": "ServiceAccount", "name": account.name, "namespace": namespace}
    return (
        ("Role", path_of(RBAC, "roles", namespace), {"metadata": meta, "rules": rules}),
        (
            "RoleBinding",
            path_of(RBAC, "rolebindings", namespace),
            {"metadata": meta, "roleRef": ref, "subjects": [subject]},
        ),
        (
            "ServiceAccount",
            path_of("v1", "serviceaccounts", namespace),
            {"metadata": meta, "automountServiceAccountToken": False},
        ),
    )


async def _ensured(api: KubeApi, path: str, body: Body) -> None:
    """Create, or see that it is there already."""
    with contextlib.suppress(Exists):
        await api.create(path, body)
