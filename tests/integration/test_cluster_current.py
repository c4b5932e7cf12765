"""What the demo does to a cluster that isn't ours: nothing where Moorage is in use, and it takes back all it made."""

import json
import os
from collections.abc import Callable, Iterator

import pytest

from e2e.cluster import helm
from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.current import LABEL, CurrentCluster
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT, cache_root
from e2e.cluster.programs import GROUPS, Programs
from e2e.cluster.shell import run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An API server that is the current context, with kubectl and helm on PATH."""
    programs = Programs(cache_root())
    folders = [str(programs.folder(GROUPS[name])) for name in ("kubernetes", "helm")]
    with api_server(controllers=CONTROLLERS) as running:
        monkeypatch.setenv("PATH", ":".join([*folders, os.environ["PATH"]]))
        monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig))
        monkeypatch.setenv("HOME", str(running.folder))
        yield running


@pytest.fixture
def namespace(server: ApiServer) -> Callable[..., None]:
    def make(name: str, *, ours: bool) -> None:
        server.kubectl("create", "namespace", name)
        if ours:
            server.kubectl("label", "namespace", name, f"{LABEL}=true")

    return make


def names(server: ApiServer, kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in json.loads(server.kubectl("get", kind, "-o", "json"))["items"]}


def test_a_moorage_that_is_in_use_is_not_replaced(server: ApiServer, namespace: Callable[..., None]) -> None:
    cluster = CurrentCluster()
    cluster.up(nodes=0)
    namespace(helm.NAMESPACE, ours=False)
    with pytest.raises(HarnessError, match="there already and not ours"):
        cluster.up(nodes=0)
    cluster.down()
    assert helm.NAMESPACE in names(server, "namespace")


def test_all_that_was_made_is_taken_back_and_nothing_else(server: ApiServer, namespace: Callable[..., None]) -> None:
    namespace("neighbour", ours=False)
    before = {kind: names(server, kind) for kind in ("namespace", "crd", "clusterrole", "clusterrolebinding")}
    for name in (helm.NAMESPACE, "moorage-demo"):
        namespace(name, ours=True)
    for name, owner in (("kept-by-retain", "moorage-demo"), ("neighbours", "neighbour")):
        server.kubectl("apply", "-f", "-", stdin=volume(name, owner))
    install()  # no node runs its pods, so that it can't be waited for
    assert names(server, "crd") > before["crd"]
    CurrentCluster().down()
    assert {kind: names(server, kind) for kind in before} == before
    assert names(server, "persistentvolume") == {"neighbours"}
    CurrentCluster().down()


def install() -> None:
    run(["helm", "install", helm.RELEASE, CHECKOUT / "charts" / "moorage", f"--namespace={helm.NAMESPACE}"])


def volume(name: str, namespace: str) -> str:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/nowhere"},
        "claimRef": {"namespace": namespace, "name": "claim"},
    }
    return json.dumps({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
