"""Moorage on the cluster, as the cases use it: installed with Helm, with a git remote, a model and a tenant."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

from e2e import upstream
from e2e.cluster.backend import Backend
from e2e.cluster.errors import NotReadyError
from e2e.cluster.paths import CHECKOUT
from e2e.upstream import Upstream

SYSTEM = "moorage-system"
MANIFESTS = CHECKOUT / "e2e" / "manifests"
SANDBOX_IMAGE = "localhost/moorage/sandbox-base:dev"


@contextlib.contextmanager
def cordoned(cluster: Backend, node: str) -> Iterator[None]:
    """Schedule nothing on a node meanwhile; nothing happens where the cluster has no such node."""
    if not cluster.kubectl("get", "node", node, "--ignore-not-found", "-o", "name"):
        yield
        return
    cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)


@dataclass(frozen=True)
class Installation:
    """One release of the chart; its processes are `operator` and `gateway`."""

    cluster: Backend
    namespace: str = SYSTEM

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the release's namespace."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def kill(self, app: str) -> None:
        """Kill a process, with its pod."""
        self.kubectl("delete", "pod", "-l", f"app.kubernetes.io/component={app}", "--grace-period=0", "--force")

    def ended(self, app: str) -> None:
        """Wait until nothing is left of a process that goes."""
        self.kubectl("wait", "pod", "-l", f"app.kubernetes.io/component={app}", "--for=delete", "--timeout=120s")

    def settled(self, app: str) -> None:
        """Wait until a process is ready."""
        self.kubectl("rollout", "status", f"deploy/moorage-{app}", "--timeout=120s")

    @contextlib.contextmanager
    def without(self, app: str) -> Iterator[None]:
        """Have a process away for a while; it begins to go, and is ready again at the end."""
        self.kubectl("scale", f"deploy/moorage-{app}", "--replicas=0")
        try:
            yield
        finally:
            self.kubectl("scale", f"deploy/moorage-{app}", "--replicas=1")
            self.settled(app)


@dataclass(frozen=True)
class Tenant:
    """One namespace with a Workspace on the git remote and a ModelProvider for the stand-in model."""

    cluster: Backend
    world: Upstream
    namespace: str

    @classmethod
    def create(cls, cluster: Backend, world: Upstream, namespace: str) -> "Tenant":
        """Apply the tenant's manifests (the namespace too)."""
        tenant = cls(cluster, world, namespace)
        text = Template((MANIFESTS / "team.yaml").read_text()).substitute(
            namespace=namespace,
            password=upstream.PASSWORD,
            model_key=upstream.MODEL_KEY,
            model_url=world.model_url,
            git_url=world.git_url,
        )
        cluster.kubectl("apply", "-f", "-", stdin=text)
        return tenant

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in this namespace."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def get(self, kind: str, name: str | None = None, *, labels: str = "") -> Any:
        """Return an object, or the list of items of a kind."""
        if name is None:
            selector = [f"--selector={labels}"] if labels else []
            return json.loads(self.kubectl("get", kind, *selector, "-o", "json"))["items"]
        return json.loads(self.kubectl("get", kind, name, "-o", "json"))

    def apply(self, body: Mapping[str, Any]) -> None:
        """Apply one object."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def run(self, name: str, **spec: Any) -> None:
        """Apply an AgentRun; `spec` replaces whole top-level fields of the usual one."""
        self.apply(self.manifest(name, **spec))

    def manifest(self, name: str, **spec: Any) -> dict[str, Any]:
        """An AgentRun with the `command` driver whose agent mends the demo's repository."""
        usual: dict[str, Any] = {
            "workspaceRef": {"name": "demo"},
            "goal": "Make the tests of slugify pass without touching them.",
            "agent": shell("sh agent.sh"),
            "acceptance": [{"name": "tests", "run": "python3 -m unittest -q", "timeout": "2m"}],
            "sandbox": {"runtimeClassName": "gvisor", "resources": {"cpu": "500m", "memory": "512Mi", "disk": "1Gi"}},
            "delivery": {"branch": f"moorage/{self.namespace}-{name}"[:100], "push": True},
        }
        merged = {key: value for key, value in {**usual, **spec}.items() if value is not None}
        meta = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "moorage.dev/v1alpha1", "kind": "AgentRun", "metadata": meta, "spec": merged}

    def status(self, name: str) -> dict[str, Any]:
        """Return the run's status."""
        found: dict[str, Any] = self.get("ar", name).get("status", {})
        return found

    def until(self, name: str, holds: Callable[[dict[str, Any]], bool], *, within_s: float = 120) -> dict[str, Any]:
        """Wait until the run's status holds.

        Raises:
            NotReadyError: it didn't in time; the message shows the status and the sandboxes.
        """
        deadline = time.monotonic() + within_s
        while True:
            status = self.status(name)
            if holds(status):
                return status
            if time.monotonic() > deadline:
                pods = self.kubectl("get", "pods", "-o", "wide")
                raise NotReadyError(f"run {name} after {within_s} s: {json.dumps(status, indent=1)}\n{pods}")
            time.sleep(0.25)

    def ended(self, name: str, *, within_s: float = 180) -> dict[str, Any]:
        """Wait for the end and return the final status."""
        return self.until(name, lambda s: s.get("phase") in {"Succeeded", "Failed", "Cancelled"}, within_s=within_s)

    def running(self, name: str, *, within_s: float = 90) -> dict[str, Any]:
        """Wait until the agent works."""
        return self.until(name, lambda s: s.get("phase") == "Running", within_s=within_s)

    def secret(self, name: str, **data: str) -> None:
        """Apply a Secret."""
        meta = {"name": name, "namespace": self.namespace}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})

    def workspace(self, name: str, **remote: Any) -> None:
        """Apply a Workspace; `remote` replaces fields of the usual one's remoteGit."""
        usual = {"url": self.world.git_url, "ref": "main", "credentialsSecretRef": {"name": "git"}}
        meta = {"name": name, "namespace": self.namespace}
        spec = {"remoteGit": usual | remote}
        self.apply({"apiVersion": "moorage.dev/v1alpha1", "kind": "Workspace", "metadata": meta, "spec": spec})

    def sandboxes(self, name: str, role: str = "runner") -> list[dict[str, Any]]:
        """Return the run's sandbox pods of a role, by epoch."""
        uid = self.get("ar", name)["metadata"]["uid"]
        pods = [
            pod
            for pod in self.get("pods")
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", []))
            and pod["metadata"]["labels"].get("moorage.dev/role") == role
        ]
        return sorted(pods, key=lambda pod: int(pod["metadata"]["labels"]["moorage.dev/epoch"]))

    def sandbox(self, name: str, role: str = "runner") -> dict[str, Any]:
        """Return the run's newest sandbox pod of a role."""
        return self.sandboxes(name, role)[-1]


def shell(script: str) -> dict[str, Any]:
    """An agent that is a shell script in the worktree."""
    return {"driver": "command", "image": SANDBOX_IMAGE, "command": ["sh", "-euc", script]}


def condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return one condition of a status; an empty one when it isn't there."""
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})
