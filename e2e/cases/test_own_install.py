"""An installation for named namespaces alone, with no right beyond them: two operators, and two gateways whose journal
is in PostgreSQL, whose blobs are in a bucket, and which keep nothing of their own.

It takes the place of the cluster-wide operator meanwhile: two installations over the same runs would fence each other
off.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from e2e.cluster import postgres
from e2e.cluster.backend import Backend
from e2e.cluster.current import LABEL
from e2e.cluster.postgres import Database
from e2e.cluster.source import SourceCluster
from e2e.system import Installation, Tenant, shell
from e2e.upstream import Upstream
from moorage.core.journal.heads import SigningKey
from moorage.testing.s3 import S3Server

pytestmark = pytest.mark.alone

ITERATION = 'echo \'{"moorage": {"event": "iteration"}}\''
SLOW = f"echo 1 > step-1; {ITERATION}; sleep 12; {ITERATION}; sh agent.sh"
RECORDS = "SELECT e.body FROM execution_events e JOIN executions x ON x.run = e.run WHERE x.run_uid = %s ORDER BY e.seq"


@dataclass(frozen=True)
class Outside:
    """What the gateways keep all in: a database and a bucket on this machine, outside of the cluster."""

    database: Database
    bucket: S3Server


@dataclass(frozen=True)
class Own:
    """The installation, a team that it serves, and one that it doesn't."""

    moorage: Installation
    team: Tenant
    stranger: Tenant
    outside: Outside | None


@pytest.fixture(scope="module")
def outside(cluster: Backend) -> Iterator[Outside | None]:
    """None where pods don't reach this machine."""
    if not isinstance(cluster, SourceCluster):
        yield None
        return
    postgres.ensure_postgres(cluster.console, cluster.programs.cache)
    address = cluster.layout.host_address
    with postgres.database(address) as database, S3Server(address) as bucket:
        yield Outside(database, bucket)


@pytest.fixture(scope="module")
def own(cluster: Backend, system: Upstream, outside: Outside | None) -> Iterator[Own]:
    """All of it, and nothing of it afterwards."""
    tag = uuid4().hex[:8]
    names = [f"{part}-{tag}" for part in ("own", "team", "stranger")]
    wide = Installation(cluster)
    other = "policies.installations[0]"  # its policies are the cluster's, and so guard against this one, too
    cluster.deploy(f"{other}.namespace={names[0]}", f"{other}.name=moorage")
    with wide.without("operator"):
        wide.ended("operator")
        try:
            team, stranger = (Tenant.create(cluster, system, name) for name in names[1:])
            made = Own(Installation(cluster, names[0]), team, stranger, outside)
            install(made)
            yield made
            cluster.helm(names[0]).uninstall()
        finally:
            cluster.kubectl("delete", "namespace", *names, "--ignore-not-found", "--timeout=180s")
    cluster.deploy()


def install(own: Own) -> None:
    cluster, namespace = own.moorage.cluster, own.moorage.namespace
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("label", "namespace", namespace, f"{LABEL}=true", "pod-security.kubernetes.io/enforce=restricted")
    settings = ["crds.install=false", "tenancy.namespaced=true", f"tenancy.namespaces={{{own.team.namespace}}}"]
    if own.outside:
        settings += keep_outside(own.moorage, own.outside)
    cluster.helm(namespace).install([*settings, "operator.replicas=2"])


def keep_outside(moorage: Installation, outside: Outside) -> list[str]:
    """Give the installation its Secrets; return the values that name them."""
    secrets = {
        "journals": {"dsn": outside.database.dsn},
        "blobs": {"access-key": "any", "secret-key": "any"},
        "heads": {"key.pem": SigningKey.new().pem.decode()},
    }
    for name, data in secrets.items():
        literals = [f"--from-literal={key}={value}" for key, value in data.items()]
        moorage.kubectl("create", "secret", "generic", name, *literals)
    return [
        "gateway.replicas=2",
        "gateway.headKeySecretRef.name=heads",
        "store.postgres.dsnSecretRef.name=journals",
        "store.blobs.s3.secretRef.name=blobs",
        f"store.blobs.s3.bucket={outside.bucket.bucket()}",
        f"store.blobs.s3.endpoint={outside.bucket.url}",
    ]


@pytest.mark.rule("T7")
def test_a_run_in_a_watched_namespace_succeeds_and_one_elsewhere_is_not_touched(own: Own, moorage: Callable[..., str]):
    system = ("--system-namespace", own.moorage.namespace)
    own.stranger.run("waits")
    own.team.run("works")
    status = own.team.ended("works")
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert own.team.world.branch(f"moorage/{own.team.namespace}-works") == status["result"]["commit"]
    assert "intact" in moorage("verify", "works", "-n", own.team.namespace, *system)
    assert "observedGeneration" not in own.stranger.status("waits"), "nobody has told anything of it"
    assert "observedGeneration" not in own.stranger.get("ws", "demo").get("status", {})
    kinds = "pods,persistentvolumeclaims,leases,networkpolicies,roles,rolebindings"
    assert own.stranger.kubectl("get", kinds, "-o", "name") == ""
    moorage("timeline", "waits", "-n", own.stranger.namespace, *system, code=3)


@pytest.mark.rule("T7")
def test_it_is_bound_to_roles_where_it_works_and_to_nothing_cluster_wide(own: Own):
    assert {each["metadata"]["namespace"] for each in bindings(own, "rolebindings")} == {
        own.moorage.namespace,
        own.team.namespace,
    }
    assert bindings(own, "clusterrolebindings") == []
    refs = {each["roleRef"]["kind"] for each in bindings(own, "rolebindings")}
    assert refs == {"Role"}


def bindings(own: Own, kind: str) -> list[dict[str, Any]]:
    """What binds the installation's service accounts."""
    found = json.loads(own.moorage.cluster.kubectl("get", kind, "-A", "-o", "json"))["items"]
    return [
        each
        for each in found
        if any(who.get("namespace") == own.moorage.namespace for who in each.get("subjects") or [])
    ]


def test_doctor_and_the_charts_own_test_find_nothing_to_mend(own: Own, moorage: Callable[..., str]):
    own.moorage.cluster.helm(own.moorage.namespace).test()
    system = ("--system-namespace", own.moorage.namespace)
    checks = json.loads(moorage("doctor", "-n", own.team.namespace, *system, "-o", "json"))
    assert {check["state"] for check in checks} == {"ok"}, checks


def kill(own: Own, outside: Outside, what: str) -> None:
    """One of them, or one after the other."""
    match what:
        case "gateways":
            for pod in pods(own, "gateway"):
                kill_pod(own, pod)
                own.moorage.settled("gateway")
        case "leader":
            kill_pod(own, leader(own))
        case "database":
            outside.database.server.kill()
            outside.database.server.start()


def pods(own: Own, app: str) -> list[str]:
    """Names of a process's pods."""
    listed = own.moorage.kubectl("get", "pods", "-l", f"app.kubernetes.io/component={app}", "-o", "name").split()
    return [name.removeprefix("pod/") for name in listed]


def kill_pod(own: Own, name: str) -> None:
    own.moorage.kubectl("delete", "pod", name, "--grace-period=0", "--force")


def leader(own: Own) -> str:
    """The pod that leads."""
    return own.moorage.kubectl("get", "lease", "moorage-operator", "-o", "jsonpath={.spec.holderIdentity}")


@pytest.mark.rule("R7", "E6", "F7")
@pytest.mark.parametrize("killed", ["gateways", "leader", "database"])
def test_a_run_ends_once_though_its_gateways_their_postgresql_or_the_leading_operator_are_killed(
    own: Own, moorage: Callable[..., str], killed: str
):
    outside = own.outside
    if outside is None:
        pytest.skip("pods reach a server on this machine only in a network of the harness's: docs/not-run-here.md")
    team, name, led = own.team, f"slow-{killed}", leader(own)
    assert led in pods(own, "operator")
    team.run(name, agent=shell(SLOW))
    team.until(name, lambda s: s.get("iteration", 0) >= 1)
    kill(own, outside, killed)
    status = team.ended(name)
    own.moorage.settled("gateway")
    if killed == "leader":
        assert leader(own) != led
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1)
    branch = f"moorage/{team.namespace}-{name}"
    assert team.world.branch(branch) == status["result"]["commit"]
    assert [each["ref"] for each in team.world.git_log()["updates"]].count(f"refs/heads/{branch}") == 1
    records = journal(outside.database, team.get("ar", name)["metadata"]["uid"])
    assert records[0] == "RUN_ADMITTED"
    assert (records.count("EFFECT_DISPATCHED"), records.count("RUN_SUCCEEDED")) == (1, 1)
    system = ("--system-namespace", own.moorage.namespace)
    assert "intact" in moorage("verify", name, "-n", team.namespace, *system)
    held = own.moorage.kubectl("exec", "deploy/moorage-gateway", "--", "ls", "/var/lib/moorage").split()
    assert not {"moorage.db", "blobs"} & set(held), held
    assert own.moorage.kubectl("get", "pvc", "-o", "name") == ""
    assert outside.database.password not in own.moorage.kubectl("logs", "deploy/moorage-gateway")


def journal(database: Database, uid: str) -> list[str]:
    """Types of a run's records, as PostgreSQL has them."""
    with psycopg.connect(database.inside) as db:
        return [json.loads(body)["type"] for (body,) in db.execute(RECORDS, (uid,))]
