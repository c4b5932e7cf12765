"""K1, K2 on real pods: runner, verifier, gateway and operator die at named points, and each run ends once, as ever.

The judge is the one of `make torture`, over journals that `moorage export` brings out of the cluster.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import arming
from e2e.cluster.backend import Backend
from e2e.system import Installation, Tenant
from moorage.api import names
from moorage.core.journal.chain import Intact
from moorage.core.journal.export import parse_record, read_lines, verify_export
from moorage.core.journal.record import decode
from moorage.testing.judge import Journal, Outside, Reading, judge, outcome
from moorage.testing.killpoints import Shot

pytestmark = pytest.mark.alone

GATEWAY = (Shot.parse("registration/within:1:kill"), Shot.parse("push/within:2:kill"))
OPERATOR = (Shot.parse("volume/after:1:kill"), Shot.parse("sandbox/after:1:kill"))
FIRST, VERIFIER = "acceptance", Shot.parse("acceptance/within:1:kill")
"""The run whose begin operator and gateway die in, and what its verifier meets."""
RUNNERS = {"checkpoint": Shot.parse("checkpoint/within:1:kill"), "result": Shot.parse("result/before:1:kill")}
"""What the first sandboxes of two more meet, by their names; they begin when that one works."""


@dataclass(frozen=True)
class Ended:
    """A run that has ended, and what it left."""

    journal: Journal
    pushes: list[str]


def ended(tenant: Tenant, moorage: Callable[..., str], folder: Path, name: str) -> Ended:
    """Wait for its end and read its journal, whose chain is verified."""
    tenant.ended(name, within_s=240)
    path = folder / name
    moorage("export", name, "-n", tenant.namespace, "-o", str(path))
    content = path.read_bytes()
    verdict, reading = verify_export([content]).chain, Reading(tenant.get("ar", name)["metadata"]["uid"])
    for line in list(read_lines([content]))[1:]:
        reading.feed(decode(parse_record(line)))
    branch = f"refs/heads/moorage/{tenant.namespace}-{name}"
    pushes = [each["new"] for each in tenant.world.git_log()["updates"] if each["ref"] == branch]
    return Ended(reading.journal(None if isinstance(verdict, Intact) else str(verdict)), pushes)


def sandbox_name(tenant: Tenant, run: str, role: str, epoch: int = 1) -> str:
    """Of its first one of a role."""
    return names.sandbox_name(tenant.get("ar", run)["metadata"]["uid"], run, epoch, role, 0)


def let_begin(tenant: Tenant, *runs: str) -> None:
    for run in runs:
        tenant.kubectl("patch", "ar", run, "--type=merge", "-p", '{"spec":{"suspend":false}}')


BEGUN = {"Running", "Recovering", "Verifying", "Delivering", "Succeeded"}


@pytest.mark.timeout(900)  # four runs, with back-offs and rollouts between
@pytest.mark.rule("K1", "K2", "I1", "I2", "E6")
def test_killed_at_named_points_each_run_ends_once_as_if_undisturbed(
    tenant: Tenant, cluster: Backend, moorage: Callable[..., str], tmp_path: Path
) -> None:
    ours, runs = Installation(cluster), (FIRST, *RUNNERS)
    arming.disarm(ours, "gateway", "operator")  # where an earlier one was interrupted
    tenant.run("undisturbed")
    as_ever = outcome(ended(tenant, moorage, tmp_path, "undisturbed").journal.state)
    for run in runs:
        tenant.run(run, suspend=True)
    # an operator that dies after it made a Lease has the run begin under the next epoch
    verifiers = {sandbox_name(tenant, FIRST, "verifier", epoch): VERIFIER for epoch in (1, 2)}
    runners = {sandbox_name(tenant, run, "runner"): shot for run, shot in RUNNERS.items()}
    with (
        arming.armed_sandboxes(tenant, verifiers | runners),
        arming.armed(ours, {"gateway": GATEWAY, "operator": OPERATOR}),
    ):
        let_begin(tenant, FIRST)
        tenant.until(FIRST, lambda s: s.get("phase") in BEGUN)
        let_begin(tenant, *RUNNERS)
        found = {run: ended(tenant, moorage, tmp_path, run) for run in runs}
        assert arming.unmet(ours, "gateway", GATEWAY) == []
        assert arming.unmet(ours, "operator", OPERATOR) == []
    assert found[FIRST].journal.state.verifications_lost == 1
    assert {run: found[run].journal.state.attempt for run in runs} == {FIRST: 1, **dict.fromkeys(RUNNERS, 2)}
    for run, each in found.items():
        findings = judge([(each.journal,)], as_ever, Outside(each.pushes))
        assert findings == [], f"{run}: {findings}"
