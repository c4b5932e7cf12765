"""A Pod as a SandboxView: pure reading of whatever the API server holds, typed reasons out, no trust in its shape.

Reasons: OOMKilled, Evicted, Preempted, DiskFull, DeadlineExceeded, NodeLost, ImagePullFailed, InvalidImageName,
CreateContainerError, Unschedulable, VolumeUnreachable, AdmissionRefused, RunnerFailed, SandboxEnded, and whatever typed
reason a runner left as its last word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from moorage.api import names
from moorage.api.meta import bounded, parse_time
from moorage.core.run.observed import SandboxPhase, SandboxView
from moorage.core.run.words import self_told

Body = Mapping[str, Any]
MAX_MESSAGE = 512
IMAGE_REASONS = {
    "ErrImagePull": "ImagePullFailed",
    "ImagePullBackOff": "ImagePullFailed",
    "ErrImageNeverPull": "ImagePullFailed",
    "RegistryUnavailable": "ImagePullFailed",
    "InvalidImageName": "InvalidImageName",
    "ImageInspectError": "InvalidImageName",
    "CreateContainerError": "CreateContainerError",
    "CreateContainerConfigError": "CreateContainerError",
    "RunContainerError": "CreateContainerError",
}
POD_REASONS = {
    "Evicted": "Evicted",
    "Preempting": "Preempted",
    "Preempted": "Preempted",
    "NodeLost": "NodeLost",
    "NodeShutdown": "NodeLost",
    "Terminated": "NodeLost",
    "Shutdown": "NodeLost",
    "DeadlineExceeded": "DeadlineExceeded",
    "NodeAffinity": "AdmissionRefused",
    "UnexpectedAdmissionError": "AdmissionRefused",
    "OutOfcpu": "AdmissionRefused",
    "OutOfmemory": "AdmissionRefused",
    "OutOfpods": "AdmissionRefused",
}
DISRUPTIONS = {
    "PreemptionByScheduler": "Preempted",
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",
}
_VOLUME_NOT_SEEN = re.compile(r'persistentvolumeclaim "[^"]*" not found')  # created a moment ago: it waits, no more
_VOLUME_UNREACHABLE = re.compile(
    r"volume node affinity|PersistentVolume's node affinity|no available volume zone|bound to non-existent pv"
)
"""The scheduler's words: of earlier versions, of 1.37, of volumes in a zone, of volumes that are gone."""
_TYPED = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")


def view_of(pod: Body) -> SandboxView:
    """Read one pod of ours."""
    meta, status = _map(pod.get("metadata")), _map(pod.get("status"))
    labels = _map(meta.get("labels"))
    phase = _phase(status)
    reason, message = _why(status, phase)
    runner = _runner(status)
    return SandboxView(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        epoch=_int(labels.get(names.EPOCH)) or 0,
        role=str(labels.get(names.ROLE, "")),
        phase=phase,
        reason=reason,
        message=bounded(message, MAX_MESSAGE),
        exit_code=_int(_state(runner, "terminated").get("exitCode")),
        node=_word(_map(pod.get("spec")).get("nodeName")),
        runtime=_word(_map(pod.get("spec")).get("runtimeClassName")),
        environment=_word(runner.get("imageID")),
        created_at=_time(meta.get("creationTimestamp")),
        started_at=_started(runner),
        stop_by=_time(meta.get("deletionTimestamp")),
        unprepared=_unprepared(status),
    )


def _phase(status: Body) -> SandboxPhase:
    """`Running` only where the runner's container has started; ended where the pod is, or its runner is."""
    if str(status.get("phase")) in {"Succeeded", "Failed"}:
        return SandboxPhase.ENDED
    runner = _runner(status)
    if _state(runner, "terminated"):
        return SandboxPhase.ENDED
    return SandboxPhase.RUNNING if _state(runner, "running") else SandboxPhase.WAITING


def _why(status: Body, phase: SandboxPhase) -> tuple[str, str]:
    if phase is SandboxPhase.ENDED:
        return _why_ended(status)
    disrupted = _disruption(status)
    if disrupted is not None:
        return disrupted
    return _why_waiting(status) if phase is SandboxPhase.WAITING else ("", "")


def _why_ended(status: Body) -> tuple[str, str]:
    """The most telling cause first: a kill of any container outranks the runner's own exit code."""
    for name, ended in _terminations(status):
        if ended.get("reason") == "OOMKilled":
            return "OOMKilled", f"container {name} went over its memory limit: raise sandbox.resources.memory"
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if "ephemeral" in message.lower() or "emptydir" in message.lower():
        return "DiskFull", message
    if reason in POD_REASONS:
        return POD_REASONS[reason], message or reason
    disrupted = _disruption(status)
    if disrupted is not None:
        return disrupted
    return _last_word(_state(_runner(status), "terminated"))


def _last_word(ended: Body) -> tuple[str, str]:
    """What the runner left as JSON, else its exit code."""
    code = _int(ended.get("exitCode"))
    try:
        word = json.loads(str(ended.get("message") or ""))
    except ValueError:
        word = None
    if isinstance(word, dict) and _TYPED.fullmatch(str(word.get("reason", ""))):
        return self_told(str(word["reason"]), str(word.get("message", "")))
    if code is None or code == 0:
        return "SandboxEnded", "the sandbox ended without a result"
    signal = f" (signal {code - 128})" if code > 128 else ""
    return "RunnerFailed", f"the runner ended with exit code {code}{signal}"


def _why_waiting(status: Body) -> tuple[str, str]:
    for container in _containers(status):
        waiting = _state(container, "waiting")
        reason = IMAGE_REASONS.get(str(waiting.get("reason")))
        if reason is not None:
            advice = "" if reason == "CreateContainerError" else ": check agent.image and the pull secret"
            return reason, f"{waiting.get('message') or waiting.get('reason')}{advice}"
    for condition in _list(status.get("conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("reason") in {"Unschedulable", "SchedulerError"}:
            message = str(condition.get("message") or "")
            if _VOLUME_NOT_SEEN.search(message):
                return "", ""
            return ("VolumeUnreachable" if _VOLUME_UNREACHABLE.search(message) else "Unschedulable"), message
    return "", ""


def _unprepared(status: Body) -> bool:
    told = (c for c in _list(status.get("conditions")) if c.get("type") == "PodReadyToStartContainers")
    return any(c.get("status") == "False" for c in told)


def _disruption(status: Body) -> tuple[str, str] | None:
    for condition in _list(status.get("conditions")):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = DISRUPTIONS.get(str(condition.get("reason")))
            if reason is not None:
                return reason, str(condition.get("message") or "")
    return None


# --- reading what may be anything -------------------------------------------------------------------------------------


def _containers(status: Body) -> list[Body]:
    return [*_list(status.get("initContainerStatuses")), *_list(status.get("containerStatuses"))]


def _runner(status: Body) -> Body:
    """The runner's container; others are sidecars that somebody injected."""
    found = _list(status.get("containerStatuses"))
    return next((c for c in found if c.get("name") == "runner"), found[0] if len(found) == 1 else {})


def _terminations(status: Body) -> Iterator[tuple[str, Body]]:
    for container in _containers(status):
        for key in ("state", "lastState"):
            ended = _map(_map(container.get(key)).get("terminated"))
            if ended:
                yield str(container.get("name", "")), ended


def _state(container: Body, kind: str) -> Body:
    return _map(_map(container.get("state")).get(kind))


def _started(runner: Body) -> int | None:
    return _time((_state(runner, "running") or _state(runner, "terminated")).get("startedAt"))


def _word(value: Any) -> str | None:
    return value[:MAX_MESSAGE] if isinstance(value, str) and value else None


def _map(value: Any) -> Body:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Body]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _int(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _time(value: Any) -> int | None:
    try:
        return parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None
