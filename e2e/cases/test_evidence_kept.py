"""What is left of a finished run: on the cluster when its AgentRun is gone, and in a file on a machine without one."""

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.system import Tenant

MOORAGE = Path(sys.executable).parent / "moorage"


def finished(tenant: Tenant, name: str) -> str:
    """UID of a new run that has succeeded."""
    tenant.run(name)
    assert tenant.ended(name)["phase"] == "Succeeded"
    return str(tenant.get("ar", name)["metadata"]["uid"])


def offline(home: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`moorage …` on a machine that has neither a cluster nor a run."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": os.devnull}
    return subprocess.run([MOORAGE, *arguments], capture_output=True, text=True, env=env, check=False, timeout=60)


@pytest.mark.rule("W5", "J5")
def test_a_deleted_runs_journal_is_found_by_its_uid_and_intact(tenant: Tenant, moorage: Callable[..., str]):
    uid, where = finished(tenant, "gone"), ("-n", tenant.namespace)
    tenant.kubectl("delete", "ar", "gone", "--timeout=60s")
    assert "intact" in moorage("verify", uid, *where)
    deadline = time.monotonic() + 120
    while (told := types(moorage("timeline", uid, *where, "-o", "json")))[-1] != "TOMBSTONE":
        assert time.monotonic() < deadline, told
        time.sleep(1)
    assert told[0] == "RUN_ADMITTED"
    assert "RUN_SUCCEEDED" in told
    assert "intact" in moorage("verify", uid, *where)
    assert "UID" in moorage("verify", "gone", *where, code=3), "by its name it isn't found, and that says how it is"


def types(timeline: str) -> list[str]:
    return [row["type"] for row in json.loads(timeline)]


@pytest.mark.rule("V1", "J5")
def test_a_bundle_proves_the_run_where_there_is_no_cluster_and_one_changed_byte_is_named(
    tenant: Tenant, moorage: Callable[..., str], tmp_path: Path
):
    uid, bundle = finished(tenant, "proved"), tmp_path / "bundle.tar"
    commit = tenant.status("proved")["result"]["commit"]
    moorage("evidence", "proved", "-n", tenant.namespace, "-o", str(bundle))
    sound = offline(tmp_path, "verify", bundle, "-o", "json")
    assert sound.returncode == 0, sound.stderr
    told = json.loads(sound.stdout)
    assert (told["runUid"], told["sound"], told["withheld"]) == (uid, True, 0)
    assert (told["verdict"]["phase"], told["verdict"]["commit"]) == ("Succeeded", commit)
    with tarfile.open(bundle) as tar:
        members = {member.name: member.offset_data + member.size // 2 for member in tar if member.size}
    assert {"journal.jsonl", "verdict.json", "spec.json", "published.json", "result.bundle"} < set(members)
    for name, middle in members.items():
        refused = offline(tmp_path, "verify", changed(bundle, middle))
        assert refused.returncode == 1, name
        assert name in refused.stderr, refused.stderr


def changed(bundle: Path, at: int) -> Path:
    """A copy of a bundle with one byte changed."""
    content = bytearray(bundle.read_bytes())
    content[at] ^= 1
    copy = bundle.with_name("changed.tar")
    copy.write_bytes(content)
    return copy
