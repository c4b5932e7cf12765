"""The program and the chart's own test on a real cluster: as administrator, and as anybody else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from e2e.cluster.backend import Backend
from e2e.cluster.helm import NAMESPACE, RELEASE
from e2e.cluster.paths import cache_root
from e2e.cluster.programs import Programs
from e2e.system import Tenant, shell

pytestmark = pytest.mark.alone

PLUGIN = Path(sys.executable).parent / "kubectl-moorage"


def test_logs_follow_a_run_until_its_end_and_the_plugin_shows_what_happened(
    tenant: Tenant, moorage: Callable[..., str]
):
    tenant.run("talk", agent=shell("echo one; sleep 3; echo two > two; echo two"), acceptance=[], delivery=None)
    tenant.running("talk")
    assert "one\ntwo\n" in moorage("logs", "-f", "talk", "-n", tenant.namespace)
    assert tenant.ended("talk")["phase"] == "Succeeded"
    told = json.loads(moorage("timeline", "talk", "-n", tenant.namespace, "-o", "json"))
    types = [row["type"] for row in told]
    assert types[0] == "RUN_ADMITTED"
    assert types[-1] == "RUN_SUCCEEDED"
    assert "intact" in moorage("verify", "talk", "-n", tenant.namespace)
    assert "+two" in moorage("diff", "talk", "-n", tenant.namespace)
    moorage("logs", "nothing", "-n", tenant.namespace, code=3)


def test_doctor_finds_nothing_to_mend(cluster: Backend, tenant: Tenant, moorage: Callable[..., str]):
    checks = json.loads(moorage("doctor", "-n", tenant.namespace, "-o", "json"))
    assert {check["state"] for check in checks} == {"ok"}, checks


def test_a_stranger_reads_nothing_and_a_reader_only_their_own(
    cluster: Backend, tenant: Tenant, moorage: Callable[..., str], tmp_path: Path
):
    tenant.run("mine", agent=shell("echo 1 > x"), acceptance=[], delivery=None)
    tenant.ended("mine")
    moorage("timeline", "mine", "-n", tenant.namespace)  # as administrator: makes the reader
    tenant.kubectl("create", "serviceaccount", "dev")
    config = as_account(cluster, tenant, "dev", tmp_path)
    assert plugin(config, "timeline", "mine", "-n", tenant.namespace).returncode == 5
    tenant.kubectl("create", "rolebinding", "dev", "--clusterrole=edit", f"--serviceaccount={tenant.namespace}:dev")
    refused = plugin(config, "timeline", "mine", "-n", tenant.namespace)
    assert refused.returncode == 5, "edit in the run's namespace alone doesn't lead to the gateway"
    reach = ("--role=moorage-reach", f"--serviceaccount={tenant.namespace}:dev")
    cluster.kubectl("create", "rolebinding", f"reach-{tenant.namespace}", "-n", NAMESPACE, *reach)
    allowed = plugin(config, "timeline", "mine", "-n", tenant.namespace)
    assert allowed.returncode == 0, allowed.stderr
    assert plugin(config, "timeline", "mine", "-n", "default").returncode in {3, 5}
    cluster.kubectl("delete", "rolebinding", f"reach-{tenant.namespace}", "-n", NAMESPACE)


def test_the_charts_own_test_passes(cluster: Backend, tenant: Tenant):
    helm = Programs(cache_root()).path("helm")
    argv = [str(helm), "test", RELEASE, "-n", NAMESPACE, "--timeout=90s"]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig())}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Succeeded" in done.stdout


def as_account(cluster: Backend, tenant: Tenant, name: str, folder: Path) -> Path:
    """A kubeconfig of a service account of the tenant's."""
    token = tenant.kubectl("create", "token", name).strip()
    config = yaml.safe_load(Path(cluster.kubeconfig()).read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def plugin(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KUBECONFIG": str(config)}
    return subprocess.run([PLUGIN, *arguments], capture_output=True, text=True, env=env, check=False, timeout=60)
