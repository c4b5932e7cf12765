"""J3, J8: the disk was told before the caller was. Seen from outside, in the system calls of a writing process."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source
from moorage.store.blobs import FileBlobs
from moorage.store.port import NewExecution, Pod
from moorage.store.sqlite import SqliteStore

ROUNDS = 5
CALLS = "fsync,fdatasync,write,rename,renameat,renameat2"

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows the order of system calls")


async def journal(folder: Path) -> None:
    """Every kind of write, each followed by a word to the outside."""
    store = SqliteStore(folder / "journal.db")
    identity = RunIdentity(tenant="t", run_uid="run-1", session_id="s")
    await store.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=1))
    tell("persist")
    await store.raise_fence("run-1", 1)
    tell("fence")
    await store.register_pod(Pod(pod_uid="p", run_uid="run-1", epoch=1, role="runner", pod_name="p"))
    tell("pod")
    for n in range(ROUNDS):
        draft = Draft(record_id=f"r{n}", type=RecordType.AGENT_OUTPUT, recorded_at=1, source=Source.RUNNER,
                      assurance=Assurance.REPORTED, payload={"n": n})  # fmt: skip
        await store.append("run-1", 1, [draft])
        tell(f"append-{n}")
    await store.delete("run-1", at=1, reason="gone")
    tell("delete")


async def blobs(folder: Path) -> None:
    store = FileBlobs(folder / "blobs", lambda: 1)
    for n in range(ROUNDS):
        await store.put("t", f"content {n}".encode())
        tell(f"put-{n}")


def tell(what: str) -> None:
    os.write(1, f"TOLD {what}\n".encode())


def system_calls(tmp_path: Path, what: str) -> list[str]:
    """Names of the calls in order, with `TOLD …` where the process spoke."""
    log = tmp_path / "strace.log"
    command = [
        "strace",
        "-f",
        "-qq",
        "-e",
        f"trace={CALLS}",
        "-o",
        str(log),
        sys.executable,
        __file__,
        what,
        str(tmp_path),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Operation not permitted" in ran.stderr:
        pytest.skip("tracing is not permitted here")
    assert ran.returncode == 0, ran.stderr
    calls = []
    for line in log.read_text(errors="replace").splitlines():
        if told := re.search(r'write\(1, "(TOLD [\w-]+)', line):
            calls.append(told[1])
        elif call := re.search(r"\b(fsync|fdatasync|rename\w*)\(", line):
            calls.append(call[1])
    return calls


def between(calls: list[str]) -> dict[str, list[str]]:
    """What happened before each word, since the one before it."""
    found: dict[str, list[str]] = {}
    since: list[str] = []
    for call in calls:
        if call.startswith("TOLD "):
            found[call.removeprefix("TOLD ")], since = since, []
        else:
            since.append(call)
    return found


@needs_strace
@pytest.mark.rule("J3")
def test_every_write_of_the_store_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    synced = between(system_calls(tmp_path, "journal"))
    assert len(synced) == 4 + ROUNDS
    assert {what for what, calls in synced.items() if not {"fsync", "fdatasync"} & set(calls)} == set()


@needs_strace
@pytest.mark.rule("J8")
def test_a_blob_is_synced_then_named_then_its_folder_is_synced(tmp_path: Path) -> None:
    synced = between(system_calls(tmp_path, "blobs"))
    assert len(synced) == ROUNDS
    for calls in synced.values():
        text = " ".join(calls)
        assert re.search(r"fsync rename\w* fsync$", text), text


if __name__ == "__main__":
    asyncio.run({"journal": journal, "blobs": blobs}[sys.argv[1]](Path(sys.argv[2])))
