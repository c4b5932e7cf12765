"""The outside world of the demo and of the cases: a git remote and a stand-in model, as pods of the cluster.

They run in the cluster, so that the same code serves every back end, and are reached by ClusterIP.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Protocol, TypedDict

from e2e.cluster.paths import CHECKOUT

NAMESPACE = "moorage-upstream"
PASSWORD = "no-image-holds-this-one"
MODEL_KEY = "sk-upstream-only-the-gateway-may-know"
REPOSITORY = "/srv/git/demo.git"


_GIT_LOG = """
import base64, pathlib, urllib.request
password = pathlib.Path("/secret/password").read_text()
headers = {"authorization": "Basic " + base64.b64encode(f"demo:{password}".encode()).decode()}
asked = urllib.request.Request("http://127.0.0.1:8000/.control/log", headers=headers)
print(urllib.request.urlopen(asked).read().decode())
"""


class GitLog(TypedDict):
    """Every request that the git remote got, and every ref that a push moved there (moorage.testing.gitserver)."""

    requests: list[dict[str, Any]]
    updates: list[dict[str, str]]


class Kubectl(Protocol):
    """What is needed of a cluster."""

    def image(self, name: str) -> str:
        """Name under which the nodes know one of the project's images."""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as admin and return its output."""


@dataclass(frozen=True)
class Upstream:
    """A running git remote and model."""

    cluster: Kubectl
    namespace: str
    git_url: str
    model_url: str

    def git(self, *arguments: str) -> str:
        """Run git in the remote's repository."""
        return self.cluster.kubectl(
            "-n", self.namespace, "exec", "git", "-c", "server", "--",
            "git", "-c", "safe.directory=*", "-C", REPOSITORY, *arguments,
        )  # fmt: skip

    def shell(self, script: str) -> str:
        """Run a script beside the remote's repository, whose path is $REPOSITORY."""
        return self.cluster.kubectl(
            "-n", self.namespace, "exec", "git", "-c", "server", "--",
            "env", f"REPOSITORY={REPOSITORY}", "sh", "-euc", script,
        )  # fmt: skip

    def branch(self, name: str) -> str | None:
        """Return the commit of a branch; None when there is none."""
        listed = self.git("for-each-ref", "--format=%(objectname)", f"refs/heads/{name}").strip()
        return listed or None

    def git_log(self) -> GitLog:
        """Return what the remote has logged since it was started."""
        shown = self.cluster.kubectl(
            "-n", self.namespace, "exec", "git", "-c", "server", "--", "python3", "-c", _GIT_LOG
        )
        found: GitLog = json.loads(shown)
        return found

    def model_log(self) -> list[dict[str, object]]:
        """Return every request that the model saw."""
        shown = self.cluster.kubectl(
            "-n", self.namespace, "exec", "model", "--",
            "python3", "-c", "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/_log').read().decode())",
        )  # fmt: skip
        loaded: list[dict[str, object]] = json.loads(shown)
        return loaded


def start(
    cluster: Kubectl, *, namespace: str = NAMESPACE, files: Mapping[str, str] | None = None, more: Path | None = None
) -> Upstream:
    """Bring both up (afresh, where they stand already) and wait until they are ready. `more`: further conversations."""
    cluster.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=true", "--timeout=60s")
    cluster.kubectl("create", "namespace", namespace)
    _config_map(cluster, namespace, "demo-files", files if files is not None else demo_files())
    scripts = [CHECKOUT / "e2e" / "manifests" / "model-script.yaml", *([more] if more else [])]
    text = "\n".join(path.read_text() for path in scripts)
    _config_map(cluster, namespace, "model-script", {"script.yaml": text})
    template = Template((CHECKOUT / "e2e" / "manifests" / "upstream.yaml").read_text())
    manifest = template.substitute(namespace=namespace, password=PASSWORD, image=cluster.image("control"))
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    cluster.kubectl("-n", namespace, "wait", "pod/git", "pod/model", "--for=condition=Ready", "--timeout=90s")
    git, model = (_address(cluster, namespace, service) for service in ("git", "model"))
    return Upstream(cluster, namespace, f"http://{git}/demo.git", f"http://{model}")


def demo_files() -> dict[str, str]:
    """Return the demo's repository: a small module and its failing tests."""
    folder = CHECKOUT / "examples" / "demo"
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def _address(cluster: Kubectl, namespace: str, service: str) -> str:
    return cluster.kubectl("-n", namespace, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}")


def _config_map(cluster: Kubectl, namespace: str, name: str, data: Mapping[str, str]) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": dict(data),
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
