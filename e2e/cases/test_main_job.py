"""The main job: kubectl apply, a gVisor sandbox, a verdict on a commit, and that commit pushed."""

import json
from pathlib import Path
from string import Template

import pytest

from e2e import upstream
from e2e.system import MANIFESTS, Tenant, condition, shell


@pytest.mark.rule("V3", "E1", "T2", "L4", "O4")
def test_an_agent_mends_the_repository_and_the_accepted_commit_is_pushed(tenant: Tenant, moorage, tmp_path: Path):
    branch = f"moorage/{tenant.namespace}"
    text = (MANIFESTS / "agentrun.yaml").read_text()
    tenant.kubectl(
        "apply",
        "-f",
        "-",
        stdin=Template(text).substitute(
            name="fix", namespace=tenant.namespace, branch=branch, image=tenant.cluster.image("sandbox-base")
        ),
    )
    ready = ("workspace/demo", "modelprovider/stand-in", "--for=condition=Ready", "--timeout=30s")
    tenant.kubectl("wait", *ready)
    status = tenant.ended("fix")
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert condition(status, "Accepted")["status"] == "True"
    assert condition(status, "Delivered")["status"] == "True"
    assert tenant.world.branch(branch) == status["result"]["commit"]
    placement = status["placement"]
    assert (placement["kind"], placement["runtimeClass"], placement["node"]) == ("cluster", "gvisor", status["node"])
    assert "sha256:" in placement["environment"]
    diff = tenant.world.git("diff", "--name-only", "main", branch).split()
    assert diff == ["slugify.py"]
    keys = {entry["api_key"] for entry in tenant.world.model_log()}
    assert keys == {upstream.MODEL_KEY}, "the model must see the real key, and only that"

    exported = tmp_path / "fix.journal"
    moorage("-n", tenant.namespace, "export", "fix", "-o", str(exported))
    assert upstream.PASSWORD.encode() not in exported.read_bytes()
    assert upstream.MODEL_KEY.encode() not in exported.read_bytes()
    assert "intact" in moorage("verify", "-f", str(exported))


@pytest.mark.rule("J5", "J4")
def test_one_changed_byte_is_named(tenant: Tenant, moorage, tmp_path: Path):
    tenant.run("fix")
    assert tenant.ended("fix")["phase"] == "Succeeded"
    exported = tmp_path / "fix.journal"
    moorage("-n", tenant.namespace, "export", "fix", "-o", str(exported))
    content = exported.read_bytes()
    at = content.index(b"AGENT_STARTED")
    exported.write_bytes(content[:at] + b"B" + content[at + 1 :])
    told = moorage("verify", "-f", str(exported), code=1)
    assert "AGENT_STARTED".replace("A", "B", 1) in told or "record" in told


@pytest.mark.rule("N4")
def test_an_agent_that_exits_0_with_red_tests_has_failed(tenant: Tenant):
    tenant.run("red", agent=shell("echo '# nothing mended' >> slugify.py"))
    status = tenant.ended("red")
    assert (status["phase"], status["reason"]) == ("Failed", "AcceptanceFailed")
    assert tenant.world.branch(f"moorage/{tenant.namespace}-red") is None


@pytest.mark.rule("N4")
def test_no_change_is_no_success(tenant: Tenant):
    tenant.run("idle", agent=shell("true"), acceptance=[])
    status = tenant.ended("idle")
    assert (status["phase"], status["reason"]) == ("Failed", "NoChange")


def test_an_agent_that_exits_with_an_error_has_failed(tenant: Tenant):
    tenant.run("broken", agent=shell("echo 1 > x; exit 7"))
    status = tenant.ended("broken")
    assert (status["phase"], status["reason"]) == ("Failed", "AgentFailed")
    assert "7" in status["message"]


def test_applying_twice_is_one_run(tenant: Tenant):
    tenant.run("twice")
    tenant.run("twice")
    assert tenant.ended("twice")["phase"] == "Succeeded"
    tenant.run("twice")
    status = tenant.status("twice")
    assert (status["phase"], status["attempt"], status["epoch"]) == ("Succeeded", 1, 1)


@pytest.mark.rule("X1", "X3")
def test_cancel_stops_the_agent_and_says_so(tenant: Tenant):
    tenant.run("long", agent=shell("echo 1 > half; sleep 600"))
    tenant.running("long")
    tenant.kubectl("patch", "ar", "long", "--type=merge", "-p", '{"spec":{"cancel":true}}')
    status = tenant.ended("long", within_s=60)
    assert status["phase"] == "Cancelled"
    assert condition(status, "EffectsClosed")["status"] == "True"
