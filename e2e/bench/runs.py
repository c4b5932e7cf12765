"""Part `runs`: simple AgentRuns beside bare pods of the same sandbox, in turn, one at a time, on the real cluster."""

import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.bench.client import AGENTRUNS, Board, Body, Kube, token
from e2e.bench.figures import Aim, Figure, Report
from e2e.bench.system import System
from e2e.cluster.errors import HarnessError
from e2e.pods import RESTRICTED, UNPRIVILEGED
from e2e.system import SANDBOX_IMAGE, Tenant, shell
from moorage.core.journal.export import parse_record, read_lines, verify_export
from moorage.core.journal.record import decode

ROUNDS, FULL = 15, 3
SETTLE_S = 2.0  # before each sample, whatever it is of: the last pod's sandbox is still being taken down
NAMESPACE = "moorage-bench"
ENDS = {"Succeeded", "Failed", "Cancelled"}
# Both say when their first and their last instruction ran; the shell starts `date` in the same way in both.
BARE = "first=$(date +%s%N); echo 1 > /tmp/bench; echo $first $(date +%s%N) > /dev/termination-log"
AGENT = (
    "first=$(date +%s%N); echo 1 > bench.txt; "
    """printf '{"moorage": {"event": "summary", "text": "%s %s"}}\\n' "$first" "$(date +%s%N)" """
)
EMPTY: Body = {"name": "tmp", "emptyDir": {}}
LIMITS = {"cpu": "500m", "memory": "512Mi"}
STAGES = ("RUN_ADMITTED", "POD_REGISTERED", "ATTEMPT_STARTED", "WORKSPACE_READY", "AGENT_STARTED", "AGENT_FINISHED")


@dataclass
class Times:
    """Seconds from the request on, by one monotonic clock."""

    pod: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)  # from the last instruction to the watch's word of the end
    sent: dict[str, float] = field(default_factory=dict)


@dataclass
class Found:
    """All that a part's run came to. `clock`: how far the sandboxes' wall clock is ahead of ours."""

    clock: float
    board: Board = field(default_factory=Board)
    pods: Counter[str] = field(default_factory=Counter)  # by run and role
    ours: Times = field(default_factory=Times)
    bare: Times = field(default_factory=Times)
    claimed: Times = field(default_factory=Times)  # bare pods with a new volume, as a run's sandbox has
    simple: Counter[str] = field(default_factory=Counter)  # writes, by verb and resource
    full: Counter[str] = field(default_factory=Counter)
    journals: dict[str, "Journal"] = field(default_factory=dict)
    levels: list[str] = field(default_factory=list)
    stepped: float = 0.0

    def pod_heard(self, at: float, kind: str, body: Body) -> None:
        """A pod exists once the watch tells it; a bare one has ended when its status says so."""
        meta, status = body["metadata"], body.get("status") or {}
        owner = next((each["name"] for each in meta.get("ownerReferences") or []), None)
        name = owner or meta["name"]
        if kind == "ADDED":
            self.pods[f"{name}/{meta['labels'].get('moorage.dev/role', 'bare')}"] += 1
            self.board.tell(at, name, "pod")
        if owner is None and status.get("phase") in {"Succeeded", "Failed"}:
            terminated = status["containerStatuses"][0]["state"]["terminated"]
            self.board.tell(at, name, "ended", terminated.get("message") or "")

    def run_heard(self, at: float, _kind: str, body: Body) -> None:
        """A run is terminal once its status says so."""
        status = body.get("status") or {}
        if status.get("phase") in ENDS:
            self.board.tell(at, body["metadata"]["name"], "ended", status)

    def told_s(self) -> list[float]:
        """From the runner's report of the result to the watch's word of the end."""
        ended = {name: self.board.facts[name, "ended"][0] for name in self.journals}
        return [ended[name] - (j.at["AGENT_FINISHED"] / 1e3 - self.clock) for name, j in self.journals.items()]

    def stage_ms(self, stage: str) -> list[float]:
        """From the request to the first record of a type."""
        there = [(name, j.at[stage]) for name, j in self.journals.items() if stage in j.at]
        return [(at / 1e3 - self.clock - self.ours.sent[name]) * 1e3 for name, at in there]


def measure(system: System) -> Report:
    """Bring a tenant up, measure, take it away."""
    cluster = system.cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=90s")
    tenant = Tenant.create(cluster, system.world(), NAMESPACE)
    try:
        return asyncio.run(_measure(system, tenant))
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


async def _measure(system: System, tenant: Tenant) -> Report:
    found = Found(clock=_wall_ahead())
    async with Kube(system.cluster.kubeconfig(), token(system.cluster, NAMESPACE)) as kube:
        pods, runs = f"/api/v1/namespaces/{NAMESPACE}/pods", f"{AGENTRUNS}/namespaces/{NAMESPACE}/agentruns"
        async with kube.watching(pods, found.pod_heard), kube.watching(runs, found.run_heard):
            await _rounds(system, _Load(kube, found, tenant))
        found.levels = await kube.level_names(system.cluster)
    found.stepped = abs(_wall_ahead() - found.clock)
    names = [f"run-{n:02}" for n in range(ROUNDS)]
    found.journals = await asyncio.to_thread(_journals, tenant, names)
    _prove(found)
    return _report(found)


async def _rounds(system: System, load: "_Load") -> None:
    """The first of each is left out: it makes the tenant's ServiceAccount and NetworkPolicy, and the mirror."""
    found, acceptance = load.found, load.tenant.manifest("x")["spec"]["acceptance"]
    await load.run("warm", Times())
    await load.bare("warm-bare", Times())
    before = system.writes()
    for n in range(ROUNDS):
        await load.bare(f"bare-{n:02}", found.bare)
        if n % 3 == 0:
            await load.bare(f"claimed-{n:02}", found.claimed, claimed=True)
        await load.run(f"run-{n:02}", found.ours)
    between = system.writes()
    for n in range(FULL):
        await load.run(f"full-{n}", Times(), acceptance=acceptance, push=True)
    found.simple, found.full = between - before, system.writes() - between


def _wall_ahead() -> float:
    """How far the wall clock, which sandboxes read, is ahead of this process's monotonic clock; seconds."""
    return (time.time_ns() - time.monotonic_ns()) / 1e9


@dataclass
class _Load:
    kube: Kube
    found: "Found"
    tenant: Tenant

    async def bare(self, name: str, times: Times, *, claimed: bool = False) -> None:
        """A bare pod with the sandbox's image, RuntimeClass and limits; `claimed`: with a new volume too."""
        await asyncio.sleep(SETTLE_S)
        times.sent[name] = time.monotonic()
        if claimed:
            await self.kube.call("POST", f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims", claim(name))
        await self.kube.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", bare_pod(name, claimed=claimed))
        end, said = await self.found.board.wait(name, "ended")
        self._keep(times, name, end, said)

    async def run(self, name: str, times: Times, *, acceptance: list[Any] | None = None, push: bool = False) -> None:
        """An AgentRun whose agent writes one file; without acceptance and push unless told otherwise."""
        delivery = {"branch": f"moorage/bench-{name}", "push": push}
        sandbox = {"runtimeClassName": "gvisor", "resources": {**LIMITS, "disk": "1Gi"}}
        agent = shell("sh agent.sh" if acceptance else AGENT)
        body = self.tenant.manifest(name, agent=agent, acceptance=acceptance or [], delivery=delivery, sandbox=sandbox)
        await asyncio.sleep(SETTLE_S)
        times.sent[name] = time.monotonic()
        await self.kube.call("POST", f"{AGENTRUNS}/namespaces/{NAMESPACE}/agentruns", body)
        end, status = await self.found.board.wait(name, "ended")
        if status["phase"] != "Succeeded":
            raise HarnessError(f"run {name} ended {status['phase']}: {status.get('message')}")
        self._keep(times, name, end, (status.get("result") or {}).get("summary") or "")

    def _keep(self, times: Times, name: str, end: float, said: str) -> None:
        sent = times.sent[name]
        times.pod.append(self.found.board.facts[name, "pod"][0] - sent)
        told = re.fullmatch(r"(\d{19}) (\d{19})\s*", said)
        if told is not None:
            first, last = (int(text) / 1e9 - self.found.clock for text in told.groups())
            times.first.append(first - sent)
            times.end.append(end - last)


def claim(name: str) -> Body:
    """A volume as a run's."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def bare_pod(name: str, *, claimed: bool = False) -> Body:
    """A pod as a sandbox is, without anything of ours."""
    container = {
        "name": "bare",
        "image": SANDBOX_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-euc", BARE],
        "resources": {"limits": LIMITS, "requests": {"cpu": "50m", "memory": "256Mi"}},
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "runtimeClassName": "gvisor",
        "securityContext": UNPRIVILEGED,
        "containers": [container],
        "volumes": [{"name": "tmp", "persistentVolumeClaim": {"claimName": name}} if claimed else EMPTY],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "bare"}}, "spec": spec}


@dataclass(frozen=True)
class Journal:
    """What is read of one exported journal: is it whole, how often each type, when each first came (ms, wall clock)."""

    whole: bool
    types: Counter[str]
    at: dict[str, int]


def _journals(tenant: Tenant, names: list[str]) -> dict[str, Journal]:
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
        return {name: _journal(tenant, name, Path(folder) / name) for name in names}


def _journal(tenant: Tenant, name: str, path: Path) -> Journal:
    program = str(Path(sys.executable).parent / "moorage")
    where = ["--kubeconfig", str(tenant.cluster.kubeconfig()), "-n", tenant.namespace]
    subprocess.run([program, *where, "export", name, "-o", str(path)], check=True, capture_output=True)
    content = path.read_bytes()
    records = [decode(parse_record(line)) for line in list(read_lines([content]))[1:]]
    at: dict[str, int] = {}
    for record in records:
        at.setdefault(record.type, record.recorded_at)
    whole = type(verify_export([content]).chain).__name__ == "Intact"
    return Journal(whole, Counter(record.type for record in records), at)


def _prove(found: Found) -> None:
    """Raises HarnessError where anything happened twice or got lost: no figure counts then."""
    once = ("AGENT_STARTED", "AGENT_FINISHED", "RUN_SUCCEEDED")
    bad = [name for name, j in found.journals.items() if not j.whole or any(j.types[each] != 1 for each in once)]
    twice = [name for name, count in found.pods.items() if count != 1]
    if bad or twice:
        raise HarnessError(f"journals with a gap or an effect twice: {bad}; more than one pod: {twice}")


def _report(found: Found) -> Report:
    bare_end = _ms(found.bare.end)
    stages = {stage: found.stage_ms(stage) for stage in STAGES}
    told = ", ".join(f"{stage} {statistics.median(at):,.0f}" for stage, at in stages.items() if at)
    same = "bare pod, same RuntimeClass"
    ends = "bare pod, last instruction → its end in the API"
    return Report(
        "runs",
        [
            Figure("AgentRun applied → its pod exists", "ms", _ms(found.ours.pod), _ms(found.bare.pod), same, Aim(30)),
            Figure("… → first instruction", "s", found.ours.first, found.bare.first, same, Aim(1.1, "ratio")),
            Figure("… → first instruction", "s", found.ours.first, found.claimed.first, f"{same}, and a new volume"),
            Figure("agent's result told → AgentRun terminal", "ms", _ms(found.told_s()), bare_end, ends, Aim(100)),
            Figure("agent's last instruction → AgentRun terminal", "ms", _ms(found.ours.end), bare_end, ends),
            Figure("operator's API writes, a simple run (Events apart)", "", [_own(found.simple) / ROUNDS], aim=Aim(6)),
            Figure("… a run with acceptance and push", "", [_own(found.full) / FULL]),
        ],
        [
            f"{ROUNDS + FULL} runs with one pod for each role; {ROUNDS} journals whole, each with one start, one end "
            "and one terminal record: 0 duplicate effects, 0 acknowledged records lost",
            f"the wall clock moved by {found.stepped * 1e3:.2f} ms against the monotonic one",
        ],
        [
            f"Priority level of the client's requests: {', '.join(found.levels)}.",
            f"Writes of a simple run: {_listed(found.simple, ROUNDS)}; of a full one: {_listed(found.full, FULL)}.",
            f"Medians of the journal's stages in ms after the request: {told}.",
        ],
        {"simple_writes": dict(found.simple), "full_writes": dict(found.full), "stages_ms": stages},
    )


def _ms(seconds: list[float]) -> list[float]:
    return [each * 1e3 for each in seconds]


def _own(writes: Counter[str]) -> int:
    return sum(count for key, count in writes.items() if "events" not in key)


def _listed(writes: Counter[str], runs: int) -> str:
    return ", ".join(f"{key} {count / runs:.2g}" for key, count in sorted(writes.items()))
