"""T1-T6: one tenant's sandbox against another tenant's live run, on all seven faces at once; and what is counted of it.

Each attack has a control: what it tries does succeed for whom it is meant.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from e2e.cluster.backend import Backend
from e2e.cluster.layout import METADATA_ADDRESS, PUBLIC_ADDRESS
from e2e.pods import eventually
from e2e.system import SANDBOX_IMAGE, Installation, Tenant, shell
from e2e.upstream import Upstream

SECRET_GOAL = "Nobody else may read of project nightingale."
LASTING = "while [ ! -e /tmp/never ] && [ $((n += 1)) -lt 240 ]; do sleep 0.5; done; sh agent.sh"
REFUSED = frozenset({401, 403, 404, 405})

ATTACKS = r"""
import ctypes, json, os, pathlib, resource, socket, sys, urllib.error, urllib.request
him = json.loads(sys.argv[1])
token = pathlib.Path("/var/run/moorage/token").read_text().strip()
web = urllib.request.build_opener(urllib.request.ProxyHandler({}))
out = {"doors": {}, "network": {}, "kernel": {}, "leaks": []}

def ask(name, method, path, with_token=token, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(him["gateway"] + path, data=data, method=method)
    request.add_header("Content-Type", "application/json")
    if with_token is not None:
        request.add_header("Authorization", "Bearer " + with_token)
    try:
        with web.open(request, timeout=10) as answer:
            status, text = answer.status, answer.read(65536)
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read(65536)
    except OSError as error:
        status, text = type(error).__name__, b""
    out["doors"][name] = status
    out["leaks"] += [name] if him["backwards"][::-1].encode() in text else []

run = "/v1/runs/" + him["uid"]
records = {"epoch": 1, "records": [{"record_id": "x:1", "type": "AGENT_FINISHED", "payload": {}, "recorded_at": 1}]}
ask("own", "GET", "/v1/self")
ask("nobody", "GET", "/v1/self", None)
ask("forged", "GET", "/v1/self", token[:-2] + ("AA" if token[-2:] != "AA" else "BB"))
ask("his view", "GET", run)
ask("his journal", "GET", run + "/journal")
ask("his logs", "GET", run + "/logs/stream?follow=false")
ask("his timeline", "GET", run + "/timeline/stream?follow=false")
ask("his diff", "GET", run + "/diff")
ask("his fence", "POST", run + "/fence", body={"epoch": 9, "attempt": 9, "holder": "me", "lease": "mine"})
ask("his records", "POST", run + "/records", body=records)
ask("his pods", "POST", run + "/pods", body={"pod_uid": "x", "pod_name": "x", "epoch": 1, "role": "runner"})
ask("his commands", "POST", run + "/commands", body={"kind": "cancel"})
ask("his delivery", "POST", run + "/deliver", body={"epoch": 1, "commit": "0" * 40})
ask("his release", "POST", run + "/release")
ask("his effects", "GET", run + "/effects")
ask("all runs", "GET", "/v1/runs?pending=true")
ask("all changes", "GET", "/v1/changes?after=0")
ask("his namespace", "GET", "/v1/namespaces/" + him["namespace"] + "/runs/stream")
ask("his spending", "GET", "/v1/namespaces/" + him["namespace"] + "/usage")
ask("his allowance", "PUT", "/v1/namespaces/" + him["namespace"] + "/allowance", body={"tokens": 0})
ask("a new run", "PUT", "/v1/runs/" + him["uid"][:-4] + "0000", body={})
ask("metrics", "GET", "/metrics")
ask("up the tree", "GET", "/v1/self/../runs/" + him["uid"])

for name, host, port in him["targets"]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tcp:
            tcp.settimeout(3)
            tcp.connect((host, port))
        out["network"][name] = "reached"
    except OSError as error:
        out["network"][name] = type(error).__name__
try:
    out["network"]["dns"] = socket.gethostbyname("kubernetes.default.svc.cluster.local")
except OSError as error:
    out["network"]["dns"] = type(error).__name__

def tried(name, work):
    try:
        work()
        out["kernel"][name] = "done"
    except (OSError, ValueError) as error:
        out["kernel"][name] = type(error).__name__

libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)

tried("root is written", lambda: pathlib.Path("/usr/local/planted").write_text("x"))
tried("token is replaced", lambda: pathlib.Path("/var/run/moorage/token").write_text("x"))
tried("mount", lambda: call("mount", b"none", b"/mnt", b"tmpfs", 0, None))
tried("root again", lambda: os.setuid(0))
tried("cgroups", lambda: pathlib.Path("/sys/fs/cgroup/mine").mkdir())
tried("host's disk", lambda: os.close(os.open("/dev/vda", os.O_RDONLY)))
tried("kernel's memory", lambda: os.close(os.open("/dev/kmem", os.O_RDONLY)))
tried("limits are raised", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 30, 1 << 30)))
volumes = [p for p in pathlib.Path("/").glob("*/*") if him["uid"] in str(p)]
out["kernel"]["others' volumes"] = [str(p) for p in volumes]
print("FACES " + json.dumps(out), flush=True)
for _ in range(20000):
    print("flood " * 16)
"""


@pytest.fixture
def neighbour(cluster: Backend, system: Upstream) -> Iterator[Tenant]:
    """Another tenant."""
    name = f"case-{uuid4().hex[:10]}"
    yield Tenant.create(cluster, system, name)
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def refusals(cluster: Backend) -> Counter[str]:
    """How often each door refused for who asked, as the gateway counts."""
    look = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8082/metrics').read().decode())"
    text = Installation(cluster).kubectl("exec", "deploy/moorage-gateway", "--", "python", "-c", look)
    found: Counter[str] = Counter()
    for door, count in re.findall(r'moorage_gateway_refusals_total\{door="([^"]+)"[^}]*\} (\S+)', text):
        found[door] += int(float(count))
    return found


def violations(cluster: Backend) -> float:
    look = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8082/metrics').read().decode())"
    text = Installation(cluster).kubectl("exec", "deploy/moorage-gateway", "--", "python", "-c", look)
    return sum(float(count) for count in re.findall(r"moorage_violations_total\{[^}]*\} (\S+)", text))


def aims(tenant: Tenant, pod: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Addresses that a sandbox has no business at."""
    cluster = tenant.cluster
    api = cluster.kubectl("-n", "default", "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
    services = cluster.kubectl("-n", "kube-system", "get", "service", "-o", "jsonpath={.items[*].spec.clusterIP}")
    gateway = Installation(cluster).kubectl(
        "get", "pod", "-l", "app.kubernetes.io/component=gateway", "-o", "jsonpath={.items[0].status.podIP}"
    )
    return [
        ("his sandbox", pod["status"]["podIP"], 8000),
        ("the node's kubelet", pod["status"]["hostIP"], 10250),
        ("the API server", api, 443),
        *((f"service {number} of kube-system", ip, 53) for number, ip in enumerate(services.split())),
        ("metadata", METADATA_ADDRESS, 80),
        ("the internet", PUBLIC_ADDRESS, 80),
        ("IPv6", "2001:db8::1", 80),
        ("the gateway's metrics", gateway, 8082),
    ]


@pytest.mark.rule("T1", "T2", "T3", "T4", "T5", "T6")
def test_a_tenants_sandbox_crosses_into_no_other_tenants_run(
    cluster: Backend, tenant: Tenant, neighbour: Tenant, moorage
) -> None:
    tenant.run("target", agent=shell(LASTING), goal=SECRET_GOAL)
    tenant.running("target")
    pod, uid = tenant.sandbox("target"), tenant.get("ar", "target")["metadata"]["uid"]
    env = {each["name"]: each.get("value") for c in pod["spec"]["containers"] for each in c.get("env", ())}
    him = {
        "uid": uid,
        "namespace": tenant.namespace,
        "gateway": env["MOORAGE_GATEWAY_URL"],
        "targets": aims(tenant, pod),
        "backwards": "nightingale"[::-1],  # his own assignment holds these words
    }
    before, never = refusals(cluster), violations(cluster)
    agent = {"driver": "command", "image": SANDBOX_IMAGE, "command": ["python3", "-c", ATTACKS, json.dumps(him)]}
    neighbour.run("attacker", agent=agent, acceptance=[], delivery=None)
    assert neighbour.ended("attacker")["phase"] == "Succeeded"
    text = moorage("-n", neighbour.namespace, "logs", "attacker")
    told = next(line for line in text.splitlines() if "FACES " in line)
    found = json.loads(told[told.index("FACES ") + 6 :])

    doors = found["doors"]
    assert doors.pop("own") == 200, "his own door opens: the others can"
    assert {name: status for name, status in doors.items() if status not in REFUSED} == {}, "identity, data, secrets"
    assert found["leaks"] == [], "no refusal tells what it guards"
    assert {name for name, how in found["network"].items() if how == "reached" or how[:1].isdigit()} == set(), "network"
    kernel = found["kernel"]
    assert {name for name, how in kernel.items() if how == "done"} == set(), "execution, resources"
    assert kernel["others' volumes"] == []

    assert (refusals(cluster) - before).total() >= len(doors) // 2, "attempts are counted"
    assert violations(cluster) == never
    assert eventually(lambda: tenant.status("target")["phase"] == "Running"), "his run is none the worse for it"
    assert "intact" in moorage("-n", tenant.namespace, "verify", "target")
    assert tenant.ended("target", within_s=240)["phase"] == "Succeeded"
    assert tenant.status("target")["attempt"] == 1
