"""Watching runs from other terminals while what carries them dies."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.pods import eventually
from e2e.system import Installation, Tenant, shell

pytestmark = pytest.mark.alone

MOORAGE = Path(sys.executable).parent / "moorage"
LAST = 60
TALKS = f"""
if [ ! -e step-1 ]; then
    echo step-1 > step-1; echo '{{"moorage": {{"event": "iteration"}}}}'
    n=0; while true; do echo "first $n"; n=$((n + 1)); sleep 0.2; done
fi
n=0; while [ $n -lt {LAST} ]; do echo "second $n"; n=$((n + 1)); sleep 0.2; done
"""


class Terminal:
    """A command that goes on; what it prints goes to a file, which can be looked at meanwhile."""

    def __init__(self, tenant: Tenant, folder: Path, *argv: str) -> None:
        self.out, self.err = folder / f"{argv[0]}.out", folder / f"{argv[0]}.err"
        env = {**os.environ, "KUBECONFIG": str(tenant.cluster.kubeconfig())}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            command = [str(MOORAGE), *argv, "-n", tenant.namespace]
            self.process = subprocess.Popen(command, env=env, stdout=out, stderr=err)

    def told(self) -> list[dict[str, Any]]:
        """What it has printed so far, of objects a line."""
        return [json.loads(line) for line in self.out.read_text().split("\n")[:-1]]

    def ended(self) -> int:
        return self.process.wait(timeout=300)


@pytest.fixture
def terminals(tenant: Tenant, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def begin(*argv: str) -> Terminal:
        opened.append(Terminal(tenant, tmp_path, *argv))
        return opened[-1]

    yield begin
    for each in opened:
        each.process.kill()
        each.process.wait()


def written(told: list[dict[str, Any]]) -> list[str]:
    """The lines of a log that was printed as objects."""
    return "".join(each["text"] for each in told if "text" in each).splitlines()


@pytest.mark.timeout(480)
@pytest.mark.rule("M4", "M5")
def test_a_log_is_followed_over_the_death_of_the_sandbox_and_of_the_gateway_each_line_once(
    tenant: Tenant, terminals: Callable[..., Terminal], moorage: Callable[..., str]
):
    tenant.run("talk", agent=shell(TALKS), acceptance=[], delivery=None)
    logs, timeline = (terminals(door, "-f", "talk", "-o", "json") for door in ("logs", "timeline"))
    tenant.running("talk")
    top = terminals("top", "--watch", "-o", "json")
    assert eventually(lambda: "first 5" in written(logs.told()), within_s=120), logs.err.read_text()
    assert "talk" in moorage("top", "-n", tenant.namespace)
    everywhere = [line.split()[:3] for line in moorage("top", "-A").splitlines()]
    assert [tenant.namespace, "talk", "Running"] in everywhere
    pod = tenant.sandbox("talk")["metadata"]["name"]
    tenant.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    assert eventually(lambda: "second 5" in written(logs.told()), within_s=180), logs.err.read_text()
    gateway = Installation(tenant.cluster)
    gateway.kill("gateway")
    status = tenant.ended("talk", within_s=180)
    gateway.settled("gateway")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 2)
    assert (logs.ended(), timeline.ended()) == (0, 0), logs.err.read_text() + timeline.err.read_text()
    told, lines = logs.told(), written(logs.told())
    second = lines.index("second 0")
    assert lines[:second] == [f"first {n}" for n in range(second)]
    assert lines[second:] == [f"second {n}" for n in range(LAST)]
    cursors = [each["cursor"] for each in told]
    assert cursors == sorted(set(cursors))
    assert told[-1]["end"]["phase"] == "Succeeded"
    kept = [line for line in moorage("logs", "talk", "-n", tenant.namespace).splitlines() if line]
    assert kept == lines, "what was followed is what is kept"
    rows = timeline.told()[:-1]
    seqs = [row["seq"] for row in rows]
    assert seqs == sorted(set(seqs))
    assert [row["type"] for row in rows].count("RUN_SUCCEEDED") == 1
    assert rows == [
        row
        for row in json.loads(moorage("timeline", "talk", "-n", tenant.namespace, "-o", "json"))
        if row["seq"] <= seqs[-1]
    ]
    assert eventually(lambda: "Succeeded" in {each["phase"] for each in top.told()}, within_s=60), top.err.read_text()
