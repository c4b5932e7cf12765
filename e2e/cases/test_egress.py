"""A sandbox in gVisor reaches an allowed host by the gateway's door, and that host by no other way."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.cluster.backend import Backend
from e2e.system import SANDBOX_IMAGE, Tenant, condition
from e2e.upstream import Upstream

pytestmark = pytest.mark.alone

HOST = "shop.example.com"
SECRET = "sk-of-the-shop-only-the-gateway-may-know"
AGENT = """
import json, os, pathlib, socket, sys, time, urllib.error, urllib.request

address, again = sys.argv[1], sys.argv[2] == "again"
told = {"secret": any(sys.argv[3] in value for value in os.environ.values())}

def direct(host):
    try:
        socket.create_connection((host, 80), timeout=3).close()
        return "reached"
    except OSError as error:
        return type(error).__name__

def ask(url, data=None):
    try:
        with urllib.request.urlopen(url, data, timeout=60) as answer:
            return [answer.status, answer.headers.get("x-moorage-replayed"), answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, None, error.read().decode()]

def tunnel():
    proxy = urllib.request.getproxies()["https"].rpartition(":")[2]
    with socket.create_connection(("127.0.0.1", int(proxy)), timeout=30) as carried:
        carried.sendall(b"CONNECT shop.example.com:80 HTTP/1.1\\r\\n\\r\\n")
        first = carried.recv(65536).split(b"\\r\\n")[0].decode()
        carried.sendall(b"GET /tunnelled HTTP/1.1\\r\\nhost: shop.example.com\\r\\n\\r\\n")
        return [first, carried.recv(65536).split(b"\\r\\n")[0].decode()]

told["order"] = ask("http://shop.example.com/v1/orders", b"one order")
if again and told["order"][1] is None:
    time.sleep(3600)
told["read"] = ask("http://shop.example.com/v1/orders")
told["elsewhere"] = ask("http://other.example.com/")
told["tunnel"] = tunnel()
told["direct"] = [direct(address), direct("shop.example.com")]
print("TOLD " + json.dumps(told), flush=True)
"""


@dataclass(frozen=True)
class Shop:
    """A service with effects, in the world outside, that the gateway knows by name."""

    cluster: Backend
    namespace: str
    address: str

    def log(self) -> list[dict[str, Any]]:
        """Every request that came."""
        said = self.cluster.kubectl("-n", self.namespace, "logs", "shop")
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    def orders(self) -> list[dict[str, Any]]:
        """Requests that have an effect."""
        return [each for each in self.log() if each["method"] == "POST"]


def pod(cluster: Backend, namespace: str) -> dict[str, Any]:
    container = {
        "name": "server",
        "image": cluster.image("control"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "moorage.testing.authority", "--host", "0.0.0.0", "--port", "8000"],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "shop", "namespace": namespace, "labels": {"app": "shop"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }


@pytest.fixture(scope="module")
def shop(cluster: Backend, system: Upstream) -> Iterator[Shop]:
    """The service, and a gateway that may go there."""
    space = system.namespace
    ports = [{"name": "http", "port": 80, "targetPort": 8000}]
    meta = {"name": "shop", "namespace": space}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {"selector": {"app": "shop"}, "ports": ports},
    }
    for each in (pod(cluster, space), service):
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(each))
    cluster.kubectl("-n", space, "wait", "pod/shop", "--for=condition=Ready", "--timeout=60s")
    address = cluster.kubectl("-n", space, "get", "service", "shop", "-o", "jsonpath={.spec.clusterIP}")
    cluster.deploy(
        f"gateway.egress.privateNetworks={{{address}/32}}",
        f"gateway.hostAliases[0].ip={address}",
        f"gateway.hostAliases[0].hostnames={{{HOST}}}",
    )
    yield Shop(cluster, space, address)
    cluster.deploy()
    cluster.kubectl("-n", space, "delete", "pod/shop", "service/shop", "--wait=false")


def sent_to(tenant: Tenant, shop: Shop, name: str, effects: str, mode: str) -> None:
    """A run that may reach the shop and nothing else."""
    tenant.secret("shop", token=SECRET)
    host = {
        "host": HOST,
        "scheme": "http",
        "effects": effects,
        "credentialsSecretRef": {"name": "shop", "key": "token"},
    }
    sandbox = {"runtimeClassName": "gvisor", "resources": {"cpu": "500m", "memory": "512Mi", "disk": "1Gi"}}
    command = ["python3", "-c", AGENT, shop.address, mode, SECRET[:12]]
    agent = {"driver": "command", "image": SANDBOX_IMAGE, "command": command}
    tenant.run(name, agent=agent, acceptance=[], delivery=None, sandbox=sandbox | {"egress": [host]})


def told(text: str) -> dict[str, Any]:
    line = next(each for each in text.splitlines() if "TOLD " in each)
    found: dict[str, Any] = json.loads(line[line.index("TOLD ") + 5 :])
    return found


@pytest.mark.rule("T3", "T2", "E8", "E2")
def test_an_allowed_host_is_reached_by_the_door_alone(tenant: Tenant, shop: Shop, moorage: Callable[..., str]) -> None:
    before = len(shop.log())
    sent_to(tenant, shop, "order", "keyed", "once")
    status = tenant.ended("order")
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    found = told(moorage("-n", tenant.namespace, "logs", "order"))
    assert found["order"][0] == 201, found
    assert found["read"][0] == 200, found
    assert (found["elsewhere"][0], json.loads(found["elsewhere"][2])["reason"]) == (403, "EgressForbidden")
    assert found["tunnel"] == ["HTTP/1.1 200 Connection established", "HTTP/1.1 200 -"]
    assert "reached" not in found["direct"], found
    assert found["secret"] is False
    seen = shop.log()[before:]
    assert [(each["method"], each["target"]) for each in seen] == [
        ("POST", "/v1/orders"),
        ("GET", "/v1/orders"),
        ("GET", "/tunnelled"),
    ]
    assert [each["headers"].get("authorization") for each in seen] == [f"Bearer {SECRET}"] * 2 + [None]
    assert len(seen[0]["headers"]["idempotency-key"]) == 64
    timeline = moorage("-n", tenant.namespace, "timeline", "order")
    assert "http://shop.example.com/v1/orders" in timeline
    assert SECRET not in timeline


@pytest.mark.rule("E2", "E3", "R1")
def test_an_attempt_that_dies_after_its_order_orders_nothing_twice(
    tenant: Tenant, shop: Shop, moorage: Callable[..., str]
) -> None:
    before = len(shop.orders())
    sent_to(tenant, shop, "twice", "opaque", "again")
    deadline = time.monotonic() + 120
    while len(shop.orders()) == before:
        assert time.monotonic() < deadline, tenant.status("twice")
        time.sleep(0.5)
    tenant.kubectl("delete", "pod", tenant.sandbox("twice")["metadata"]["name"], "--grace-period=0", "--force")
    status = tenant.ended("twice")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 2), json.dumps(status, indent=1)
    assert condition(status, "EffectsClosed")["status"] == "True"
    found = told(moorage("-n", tenant.namespace, "logs", "twice"))
    assert found["order"][:2] == [201, "true"], found
    assert len(shop.orders()) == before + 1
