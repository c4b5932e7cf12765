"""C5: a tenant that floods the API server, and what our Leases wait there: with the chart's levels and without them."""

import json
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPSConnection

import pytest
import yaml
from tests.integration.test_chart_installs import CHART, helm_program

from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.shell import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FEW = ("--max-requests-inflight=10", "--max-mutating-requests-inflight=5")
"""So few requests at once that a dozen clients are a flood."""

OURS, NOISY = "moorage-system", "team-noisy"
OBJECTS, CLIENTS, RENEWALS = 400, 12, 60
FLOW = ("FlowSchema", "PriorityLevelConfiguration")
WAITED = "apiserver_flowcontrol_request_wait_duration_seconds"
UNAWARE = {
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "kind": "FlowSchema",
    "metadata": {"name": "unaware-leases"},
    "spec": {
        "priorityLevelConfiguration": {"name": "workload-low"},
        "matchingPrecedence": 8999,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [
            {
                "subjects": [
                    {"kind": "ServiceAccount", "serviceAccount": {"name": "moorage-gateway", "namespace": OURS}}
                ],
                "resourceRules": [
                    {
                        "verbs": ["*"],
                        "apiGroups": ["coordination.k8s.io"],
                        "resources": ["leases"],
                        "namespaces": ["*"],
                    }
                ],
            }
        ],
    },
}
"""Where service accounts are without us, by a name of its own, so that our share of the level's waits can be read."""


@dataclass(frozen=True)
class Client:
    """A service account at the API server."""

    server: ApiServer
    token: str

    def connect(self) -> HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.server.ca_file))
        return HTTPSConnection("127.0.0.1", self.server.port, timeout=60, context=context)

    def ask(self, connection: HTTPSConnection, method: str, path: str, body: object = None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in {200, 403, 429}, text[:500]  # no right, or a queue that is full
        return {name.lower(): value for name, value in answer.getheaders()}


def client(server: ApiServer, namespace: str, account: str) -> Client:
    return Client(server, server.kubectl("create", "token", account, "-n", namespace).strip())


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with api_server(extra=FEW) as made:
        for namespace, account in ((OURS, "moorage-gateway"), (NOISY, "noisy")):
            made.kubectl("create", "namespace", namespace)
            made.kubectl("create", "serviceaccount", account, "-n", namespace)
        made.kubectl(
            "create", "rolebinding", "noisy", "-n", NOISY, "--clusterrole=admin", f"--serviceaccount={NOISY}:noisy"
        )
        made.kubectl("create", "clusterrole", "leases", "--verb=*", "--resource=leases.coordination.k8s.io")
        made.kubectl(
            "create", "clusterrolebinding", "leases", "--clusterrole=leases", f"--serviceaccount={OURS}:moorage-gateway"
        )
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "run", "namespace": NOISY},
        }
        made.kubectl("apply", "-f", "-", stdin=json.dumps(lease))
        fill = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"filler-{n}", "namespace": NOISY},
                "data": {"text": "x" * 2000},
            }
            for n in range(OBJECTS)
        ]
        made.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": fill}))
        yield made


def rendered(server: ApiServer) -> str:
    argv = [helm_program(), "template", "moorage", str(CHART), "-n", OURS, "--kube-version", "1.34.0"]
    argv += ["--show-only", "templates/flowcontrol.yaml"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert {each["kind"] for each in found} == set(FLOW)
    return done.stdout


@contextmanager
def flood(noisy: Client) -> Iterator[None]:
    """Lists without a pause, each several seats wide, from clients that wait for each answer."""
    over = threading.Event()

    def one() -> None:
        connection = noisy.connect()
        while not over.is_set():
            noisy.ask(connection, "GET", f"/api/v1/namespaces/{NOISY}/configmaps")
        connection.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(one) for _ in range(CLIENTS)]
        try:
            yield
        finally:
            over.set()
        for each in running:
            each.result()


def waited(server: ApiServer, schema: str) -> tuple[float, int]:
    """Seconds that requests of that FlowSchema have waited so far, and how many there were."""
    text = server.get("/metrics")

    def total(name: str) -> float:
        found = re.findall(rf'^{WAITED}_{name}{{[^}}]*flow_schema="{schema}"[^}}]*}} (\S+)$', text, re.MULTILINE)
        return sum(float(each) for each in found)

    return total("sum"), int(total("count"))


def renewals(server: ApiServer, schema: str) -> float:
    """Milliseconds that a renewal waits in flow control, on average over those that are made now."""
    gateway = client(server, OURS, "moorage-gateway")
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NOISY}/leases/run"
    uid = server.kubectl("get", "flowschema", schema, "-o", "jsonpath={.metadata.uid}")
    connection = gateway.connect()

    def taken() -> bool:
        return gateway.ask(connection, "GET", path)["x-kubernetes-pf-flowschema-uid"] == uid

    wait_until(taken, f"requests of FlowSchema {schema}", timeout_s=60)
    seconds, count = waited(server, schema)
    for n in range(RENEWALS):
        gateway.ask(connection, "PATCH", path, {"spec": {"holderIdentity": f"attempt-{n}"}})
    connection.close()
    after, now = waited(server, schema)
    assert now - count == RENEWALS
    return (after - seconds) * 1000 / RENEWALS


@pytest.mark.rule("C5")
def test_a_flood_delays_no_renewal_where_the_charts_levels_stand(server: ApiServer) -> None:
    noisy = client(server, NOISY, "noisy")
    server.kubectl("apply", "-f", "-", stdin=json.dumps(UNAWARE))
    with flood(noisy):
        without = renewals(server, "unaware-leases")
    server.kubectl("apply", "-f", "-", stdin=rendered(server))  # precedes the other one
    quiet = renewals(server, "moorage-leases")
    with flood(noisy):
        beside = renewals(server, "moorage-leases")
    told = f"a renewal waited {without:.3f} ms without our levels, {beside:.3f} ms with them, {quiet:.3f} ms when quiet"
    assert without > 10 * beside, told


@pytest.mark.rule("C5")
def test_each_request_goes_to_its_level(server: ApiServer) -> None:
    server.kubectl("apply", "-f", "-", stdin=rendered(server))
    listed = json.loads(server.kubectl("get", "flowschemas", "-l", "app.kubernetes.io/part-of=moorage", "-o", "json"))
    names = {each["metadata"]["uid"]: each["metadata"]["name"] for each in listed["items"]}
    gateway, noisy = client(server, OURS, "moorage-gateway"), client(server, NOISY, "noisy")
    runs = f"/apis/moorage.dev/v1alpha1/namespaces/{NOISY}/agentruns"
    level_of(gateway, f"/apis/coordination.k8s.io/v1/namespaces/{NOISY}/leases/run", names, "moorage-leases")
    level_of(gateway, "/version", names, "moorage-control")
    level_of(gateway, runs, names, "moorage-control")
    level_of(noisy, runs, names, "moorage-tenants-background")
    level_of(
        noisy, f"/api/v1/namespaces/{NOISY}/configmaps", names, None
    )  # not listed in flowControl.tenants.namespaces


def level_of(who: Client, path: str, names: dict[str, str], expected: str | None) -> None:
    """Wait until it is that one (None: none of ours): the server takes a FlowSchema up within seconds."""
    connection = who.connect()

    def found() -> bool:
        return names.get(who.ask(connection, "GET", path)["x-kubernetes-pf-flowschema-uid"]) == expected

    wait_until(found, f"{path} in {expected}", timeout_s=60)
    connection.close()
