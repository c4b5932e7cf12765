import json
from contextlib import AbstractContextManager

import pytest

from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.errors import CommandFailedError

pytestmark = pytest.mark.integration


def test_two_servers_run_at_once_and_know_nothing_of_each_other(api_server: ApiServer, namespace: str) -> None:
    with _bare() as other:
        assert namespace in api_server.kubectl("get", "namespaces", "-o", "name")
        assert namespace not in other.kubectl("get", "namespaces", "-o", "name")


def test_children_go_with_their_owner(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("create", "configmap", "owner", "-n", namespace)
    uid = json.loads(api_server.kubectl("get", "configmap", "owner", "-n", namespace, "-o", "json"))["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    child = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "child", "namespace": namespace, "ownerReferences": [reference]},
    }
    api_server.kubectl("create", "-f", "-", stdin=json.dumps(child))
    api_server.kubectl("delete", "configmap", "owner", "-n", namespace)
    api_server.kubectl("wait", "--for=delete", "secret/child", "-n", namespace, "--timeout=60s")


def test_data_outlives_an_outage_and_old_versions_are_gone_after_compaction() -> None:
    with _bare() as server:
        version = json.loads(server.get("/api/v1/configmaps"))["metadata"]["resourceVersion"]
        server.kubectl("create", "configmap", "kept")
        server.compact()
        server.stop()
        with pytest.raises(CommandFailedError):
            server.kubectl("get", "configmap", "kept")
        server.start()
        assert "kept" in server.kubectl("get", "configmap", "kept", "-o", "name")
        watched = server.get(f"/api/v1/configmaps?watch=1&timeoutSeconds=2&resourceVersion={version}")
        assert json.loads(watched)["object"]["code"] == 410


def _bare() -> AbstractContextManager[ApiServer]:
    return api_server(controllers=())
