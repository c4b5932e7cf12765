import json

import pytest

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.kwok import fake_node, kwok

pytestmark = pytest.mark.integration


def test_pods_on_a_fake_node_run_without_a_kubelet(api_server: ApiServer, namespace: str) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pretender", "namespace": namespace},
        "spec": {
            "nodeName": "fake",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    with kwok(api_server.kubeconfig, api_server.programs, api_server.folder):
        api_server.kubectl("create", "-f", "-", stdin=json.dumps(fake_node("fake")))
        api_server.kubectl("create", "-f", "-", stdin=json.dumps(pod))
        api_server.kubectl("wait", "-n", namespace, "pod/pretender", "--for=condition=Ready", "--timeout=30s")
    api_server.kubectl("delete", "node", "fake")
