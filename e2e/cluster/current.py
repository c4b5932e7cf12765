"""The cluster of the user's current context: used on request alone, and left as it was found.

What the harness makes there carries a label, and only what carries it is removed again.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import helm, images
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT, cache_root
from e2e.cluster.shell import run

LABEL = "moorage.dev/harness"
_CRDS = CHECKOUT / "crds"


@dataclass(frozen=True)
class CurrentCluster:
    """The cluster of the user's current context.

    MOORAGE_REGISTRY names where images are pushed and its nodes pull them (``registry.example.com/team``);
    MOORAGE_HELM_SET adds chart values (``key=value,key=value``).
    """

    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    console: Console = field(default_factory=Console)

    def up(self, nodes: int = 1) -> None:
        """Check that it answers, has enough nodes, and no Moorage but ours.

        Raises:
            HarnessError: it can't be used; the message says what to do.
        """
        if lacking := [name for name in ("kubectl", "helm") if not shutil.which(name)]:
            raise HarnessError(f"the current context needs {' and '.join(lacking)} on PATH")
        ready = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        if len(ready) < nodes:
            raise HarnessError(f"the current context has {len(ready)} nodes, {nodes} are asked for")
        if self._namespaces(helm.NAMESPACE) - self._labelled():
            raise HarnessError(
                f"the namespace {helm.NAMESPACE} is there already and not ours: this would replace a Moorage that is "
                "in use; take another cluster (MOORAGE_CLUSTER=source builds one)"
            )

    def down(self) -> None:
        """Remove what the harness made, if anything: runs, release, definitions, namespaces, volumes."""
        ours = self._labelled()
        tenants = sorted(ours - {helm.NAMESPACE})
        if tenants:
            self.kubectl("delete", "namespace", *tenants, "--timeout=180s")
        if helm.NAMESPACE in ours:
            helm.Helm(Path("helm")).uninstall()
            self.kubectl("delete", "--ignore-not-found", "--timeout=60s", "-f", str(_CRDS))
            self.kubectl("delete", "namespace", helm.NAMESPACE, "--timeout=180s")
        if volumes := self._volumes_of(ours):
            self.kubectl("delete", "persistentvolume", *volumes, "--ignore-not-found", "--timeout=60s")

    def kubeconfig(self) -> Path:
        """The first file of KUBECONFIG, or the usual one."""
        first = self.env.get("KUBECONFIG", "").split(":")[0]
        return Path(first) if first else Path.home() / ".kube" / "config"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the user's kubectl."""
        return run(self.kubectl_argv(*arguments), stdin=stdin)

    def kubectl_argv(self, *arguments: str) -> list[str]:
        """Name the user's kubectl; its context is the user's."""
        return ["kubectl", *arguments]

    def image(self, name: str) -> str:
        """Name of one of the project's images as built last, in the user's registry.

        Raises:
            HarnessError: no registry is named.
        """
        registry = self.env.get("MOORAGE_REGISTRY")
        if not registry:
            raise HarnessError(
                "nodes that aren't ours pull images from a registry: set MOORAGE_REGISTRY=registry.example.com/team to "
                "one that you may push to and they may pull from"
            )
        return images.name_in(registry, name, images.built_tag(cache_root(self.env), name))

    def build_images(self, wanted: Sequence[images.Image] = images.IMAGES) -> list[Path]:
        """Build the images; return their archives."""
        self.image("control")
        cache = cache_root(self.env)
        return images.build_all(images.builder(cache, self.console), cache, self.console, wanted)

    def load_images(self, archives: Sequence[Path]) -> None:
        """Push them to the user's registry."""
        cache = cache_root(self.env)
        images.push_all(images.builder(cache, self.console), archives, self.image, cache / "logs" / "push.log")

    def deploy(self, *settings: str) -> None:
        """Install the chart with the user's helm, into a namespace that says whose it is."""
        namespace = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": helm.NAMESPACE, "labels": {LABEL: "true"}},
        }
        self.kubectl("apply", "-f", "-", stdin=json.dumps(namespace))
        self.helm().install(settings)

    def helm(self, namespace: str = helm.NAMESPACE) -> helm.Helm:
        """The user's helm, with the values that the user adds."""
        more = [each for each in self.env.get("MOORAGE_HELM_SET", "").split(",") if each]
        values = (*helm.image_settings(self.image), *more)
        return helm.Helm(Path("helm"), namespace=namespace, values=values)

    def _namespaces(self, *arguments: str) -> set[str]:
        return set(
            self.kubectl("get", "namespace", *arguments, "--ignore-not-found", "-o=name")
            .replace("namespace/", "")
            .split()
        )

    def _labelled(self) -> set[str]:
        return self._namespaces(f"--selector={LABEL}=true")

    def _volumes_of(self, namespaces: set[str]) -> list[str]:
        """Volumes that outlive their claims (reclaim policy Retain)."""
        volumes = json.loads(self.kubectl("get", "persistentvolume", "-o", "json"))["items"]
        claims = [(each["metadata"]["name"], each["spec"].get("claimRef", {}).get("namespace")) for each in volumes]
        return [name for name, namespace in claims if namespace in namespaces]
