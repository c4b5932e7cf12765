"""The load: a client with a ServiceAccount's token, so that the API server's fairness treats it as any tenant's.

Every time is read from the monotonic clock of this process: when a request was sent, when a watch told of a change.
"""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from e2e.cluster.errors import HarnessError
from e2e.upstream import Kubectl

Body = dict[str, Any]
OnEvent = Callable[[float, str, Body], None]
ACCOUNT = "moorage-bench"
AGENTRUNS = "/apis/moorage.dev/v1alpha1"
RULES = [
    {"apiGroups": ["moorage.dev"], "resources": ["agentruns"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["pods", "pods/status", "persistentvolumeclaims"], "verbs": ["*"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch", "patch"]},
]


def token(cluster: Kubectl, namespace: str, rules: list[dict[str, Any]] = RULES, account: str = ACCOUNT) -> str:
    """A token of a new ServiceAccount with these rules in the whole cluster."""
    about = {"name": account}
    rbac, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    objects: list[Body] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**about, "namespace": namespace}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": about, "rules": rules},
        {
            "apiVersion": rbac,
            "kind": "ClusterRoleBinding",
            "metadata": about,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": account},
            "subjects": [subject],
        },
    ]
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return cluster.kubectl("-n", namespace, "create", "token", account, "--duration=2h").strip()


class Kube:
    """One client of the API server. `levels` are the priority levels that its requests were given, by UID."""

    def __init__(self, kubeconfig: Path, bearer: str) -> None:
        cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
        self.url = cluster["server"]
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._headers = {"Authorization": f"Bearer {bearer}"}
        self._http: aiohttp.ClientSession
        self.levels: set[str] = set()

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=64)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self._http = aiohttp.ClientSession(self.url, headers=self._headers, connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Body:
        """One request; raises HarnessError for anything but a success."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self._http.request(method, path, json=body, headers={"Content-Type": kind}) as answer:
            if level := answer.headers.get("X-Kubernetes-PF-PriorityLevel-UID"):
                self.levels.add(level)
            found: Body = json.loads(await answer.read())
        if answer.status >= 400:
            raise HarnessError(f"{method} {path}: {answer.status} {found.get('message')}")
        return found

    @contextlib.asynccontextmanager
    async def watching(self, path: str, heard: OnEvent) -> AsyncIterator[None]:
        """Call `heard` with (monotonic seconds, type, object) for each change from now on."""
        version = (await self.call("GET", f"{path}?limit=1"))["metadata"]["resourceVersion"]
        task = asyncio.create_task(self._watch(f"{path}?watch=true&resourceVersion={version}", heard))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, path: str, heard: OnEvent) -> None:
        async with self._http.get(path, timeout=aiohttp.ClientTimeout(total=None)) as stream:
            held = bytearray()
            async for chunk in stream.content.iter_any():
                at = time.monotonic()
                held += chunk
                *lines, rest = held.split(b"\n")
                held = bytearray(rest)
                for line in lines:
                    event = json.loads(line)
                    heard(at, event["type"], event["object"])

    async def level_names(self, cluster: Kubectl) -> list[str]:
        """Names of the priority levels that the requests so far were given."""
        found = json.loads(cluster.kubectl("get", "prioritylevelconfigurations", "-o", "json"))["items"]
        return sorted(each["metadata"]["name"] for each in found if each["metadata"]["uid"] in self.levels)


class Board:
    """Facts by object name, each told once, with its time; whoever waits is woken."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str], tuple[float, Any]] = {}
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, at: float, name: str, fact: str, value: Any = None) -> None:
        """Keep the first word of that fact."""
        if (name, fact) in self.facts:
            return
        self.facts[name, fact] = (at, value)
        task = asyncio.get_running_loop().create_task(self._wake())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, name: str, fact: str, within_s: float = 120.0) -> tuple[float, Any]:
        """When, and what. Raises HarnessError after `within_s`."""
        await self.wait_all([name], fact, within_s)
        return self.facts[name, fact]

    async def wait_all(self, names: list[str], fact: str, within_s: float) -> list[float]:
        """Each one's time."""
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: all((name, fact) in self.facts for name in names))
        except TimeoutError:
            missing = [name for name in names if (name, fact) not in self.facts]
            raise HarnessError(f"not {fact} within {within_s} s: {missing[:5]} of {len(missing)}") from None
        return [self.facts[name, fact][0] for name in names]
