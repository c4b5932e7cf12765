"""What can be reached and found from inside a sandbox, beside what a pod under no policy reaches."""

import json
from typing import Any

import pytest

from e2e import canary, upstream
from e2e.cluster.layout import METADATA_ADDRESS, PUBLIC_ADDRESS
from e2e.system import SANDBOX_IMAGE, Tenant, shell

PROBE = """
import json, os, socket, sys
found = {}
for name, host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), timeout=3).close()
        found[name] = "reached"
    except OSError as error:
        found[name] = type(error).__name__
print("PROBE " + json.dumps(found), flush=True)
"""

LOOK = """
import json, os, pathlib
tokens = [str(p) for p in pathlib.Path("/var/run").rglob("*token*") if p.is_file()]
env = {k: v for k, v in os.environ.items() if "KEY" in k or "TOKEN" in k or "PASS" in k or "SECRET" in k}
print("LOOK " + json.dumps({"tokens": tokens, "env": env, "uid": os.getuid()}), flush=True)
"""


def targets(tenant: Tenant) -> str:
    cluster_ip = tenant.cluster.kubectl(
        "-n", "default", "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"
    )
    pod_ip = tenant.cluster.kubectl("-n", tenant.world.namespace, "get", "pod", "git", "-o", "jsonpath={.status.podIP}")
    addresses = [
        ("api server", cluster_ip, 443),
        ("pod", pod_ip, 8000),
        ("public", PUBLIC_ADDRESS, 80),
        ("metadata", METADATA_ADDRESS, 80),
    ]
    return json.dumps(addresses)


def line(text: str, mark: str) -> dict:
    found = next(each for each in text.splitlines() if mark in each)
    return json.loads(found[found.index(mark) + len(mark) :])


@pytest.mark.rule("T3")
def test_only_the_gateway_can_be_reached(tenant: Tenant, moorage):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "free", "namespace": tenant.world.namespace},
        "spec": {
            "restartPolicy": "Never",
            "runtimeClassName": "gvisor",
            "containers": [{"name": "c", "image": SANDBOX_IMAGE, "command": ["python3", "-c", PROBE, targets(tenant)]}],
        },
    }
    tenant.cluster.kubectl("-n", tenant.world.namespace, "delete", "pod", "free", "--ignore-not-found")
    tenant.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    wait = ("wait", "pod/free", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    tenant.cluster.kubectl("-n", tenant.world.namespace, *wait)
    free = line(tenant.cluster.kubectl("-n", tenant.world.namespace, "logs", "free"), "PROBE ")
    assert set(free.values()) == {"reached"}, f"the refusals below must be able to fail: {free}"

    agent = {"driver": "command", "image": SANDBOX_IMAGE, "command": ["python3", "-c", PROBE, targets(tenant)]}
    tenant.run("probe", agent=agent, acceptance=[], delivery=None)
    tenant.ended("probe")
    inside = line(moorage("-n", tenant.namespace, "logs", "probe"), "PROBE ")
    assert "reached" not in inside.values(), inside


@pytest.mark.rule("T2", "T4", "L4")
def test_the_only_token_is_the_gateways_and_the_key_is_a_dummy(tenant: Tenant, moorage):
    agent = {"driver": "command", "image": SANDBOX_IMAGE, "command": ["python3", "-c", LOOK]}
    tenant.run("look", agent=agent, acceptance=[], delivery=None)
    tenant.ended("look")
    inside = line(moorage("-n", tenant.namespace, "logs", "look"), "LOOK ")
    assert inside["uid"] == 1000
    assert inside["tokens"], "the gateway's token is there"
    assert all(path.startswith("/var/run/moorage/") for path in inside["tokens"]), inside
    assert inside["env"]["ANTHROPIC_API_KEY"] == "moorage-dummy"
    assert not any(secret in json.dumps(inside["env"]) for secret in (upstream.MODEL_KEY, upstream.PASSWORD))
    pod = tenant.sandbox("look")
    mounts = [m for c in pod["spec"]["containers"] for m in c["volumeMounts"]]
    assert not any("serviceaccount" in m["mountPath"] for m in mounts)


PLANTED = "no-process-but-one-has-this"
HUNT = r"""
echo 'no-image-planted' > /tmp/planted
grep -rhoE 'no-image-(holds|planted)|sk-upstream-only' / --exclude-dir=proc --exclude-dir=sys 2>/dev/null | sort -u
token=$(cat /var/run/moorage/token)
echo "TOKEN-LENGTH ${#token}"
grep -rlF --exclude-dir=proc --exclude-dir=sys -e "$token" / 2>/dev/null | sed 's/^/TOKEN-IN /'
env
cat .git/config ../.moorage/repo.git/config 2>/dev/null || true
git remote -v
python3 -c "$1" "$2"
"""

PROCESSES = """
import json, os, pathlib, subprocess, sys
needles = {name: [each[::-1].encode() for each in spelled] for name, spelled in json.loads(sys.argv[1]).items()}
needles["token"] = [pathlib.Path("/var/run/moorage/token").read_bytes().strip()]
env = os.environ | {"PLANTED": needles["planted"][0].decode()}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
read, found = {"cmdline": [], "environ": []}, []
for process in pathlib.Path("/proc").glob("[0-9]*"):
    for what in read:
        try:
            data = (process / what).read_bytes()
        except OSError:  # it has gone
            continue
        read[what] += [int(process.name)] if data else []
        found += [f"{name} in {process / what}" for name, those in needles.items() if any(e in data for e in those)]
child.kill()
pids = {"runner": 1, "shell": os.getppid(), "me": os.getpid(), "child": child.pid}
print("PROCESSES " + json.dumps({"read": read, "found": found, "pids": pids}), flush=True)
"""
"""Looks for secrets in what each process was started with. They are handed to it spelled backwards: else it would find
them in its own command line.
"""


def hunting() -> dict[str, Any]:
    """An agent that looks for all that it must not find."""
    spelled = {"key": canary.spellings(upstream.MODEL_KEY), "password": canary.spellings(upstream.PASSWORD)}
    backwards = {name: [each[::-1] for each in those] for name, those in {**spelled, "planted": [PLANTED]}.items()}
    agent = shell(HUNT)
    return agent | {"command": [*agent["command"], "hunt", PROCESSES, json.dumps(backwards)]}


@pytest.mark.rule("T2", "T5")
def test_key_password_and_token_are_nowhere_but_where_they_belong(tenant: Tenant, moorage, tmp_path):
    """In the sandbox, in whatever is told of the run, on the gateway's disk, and in the objects of the cluster."""
    tenant.run("hunt", agent=hunting(), acceptance=[], delivery=None)
    tenant.ended("hunt")
    places = canary.told(tenant, moorage, "hunt", tmp_path)
    inside = places["logs"].decode()
    assert "no-image-planted" in inside, "the search must be able to find"
    assert "no-image-holds" not in inside
    assert "sk-upstream-only" not in inside
    length = int(line_of(inside, "TOKEN-LENGTH "))
    assert length > 100, "it is a token"
    held = {each.partition("TOKEN-IN ")[2].strip() for each in inside.splitlines() if "TOKEN-IN " in each}
    assert held, "the search must be able to find"
    assert all(path.startswith(("/var/run/moorage/", "/run/moorage/")) for path in held), held
    processes = line(inside, "PROCESSES ")
    for what in ("cmdline", "environ"):
        assert set(processes["pids"].values()) <= set(processes["read"][what]), "the search must have looked at all"
    planted = f"planted in /proc/{processes['pids']['child']}/environ"
    assert processes["found"] == [planted], "it must be able to find, and finds that alone"
    canary.assert_nowhere(places, canary.SECRETS)
    canary.assert_gateway_keeps_none(tenant, canary.SECRETS)


def line_of(text: str, mark: str) -> str:
    return next(each.partition(mark)[2].split()[0] for each in text.splitlines() if mark in each)
