import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.run_plans import running

from moorage.api import names
from moorage.core.run.attempts import BLAMELESS
from moorage.core.run.observed import SandboxPhase
from moorage.core.run.words import lost
from moorage.sandbox.podview import view_of
from moorage.sandbox.process import _last_words

STARTED = "2026-11-29T10:00:00Z"


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "uid": "u",
            "creationTimestamp": "2026-11-29T09:59:00Z",
            "labels": {names.EPOCH: "3", names.ROLE: "runner"},
        },
        "spec": {"nodeName": "n"},
        "status": status,
    }


def container(name: str = "runner", **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


SIDECAR = {"name": "sidecar", "state": {"running": {"startedAt": "2026-11-29T10:00:00Z"}}}
CREATING = {"name": "runner", "state": {"waiting": {"reason": "ContainerCreating"}}}
KILLED = {"terminated": {"reason": "OOMKilled"}}
WORD = '{"reason":"DiskFull","message":"no space"}'
ODD_WORD = '{"reason":"a b","message":"x"}'


def disrupted(reason: str) -> list[dict[str, Any]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


def ended(code: int = 1, name: str = "runner", **more: Any) -> dict[str, Any]:
    return container(name, terminated={"exitCode": code, "startedAt": STARTED, **more})


RUNNING = container(running={"startedAt": STARTED})


def test_what_is_known_without_a_status() -> None:
    view = view_of(pod())
    assert (view.name, view.uid, view.epoch, view.role, view.node) == ("p", "u", 3, "runner", "n")
    assert (view.phase, view.started_at, view.stopping) == (SandboxPhase.WAITING, None, False)


def test_where_it_runs_is_read_from_the_pod_and_its_own_container() -> None:
    image = "registry.example/base@sha256:e3b0"
    body = pod(phase="Running", containerStatuses=[SIDECAR | {"imageID": "other"}, RUNNING | {"imageID": image}])
    body["spec"]["runtimeClassName"] = "gvisor"
    view = view_of(body)
    assert (view.node, view.runtime, view.environment) == ("n", "gvisor", image)
    body["spec"] = {"nodeName": 7, "runtimeClassName": ["x"]}
    body["status"]["containerStatuses"][1]["imageID"] = ""
    odd = view_of(body)
    assert (odd.node, odd.runtime, odd.environment) == (None, None, None)


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ({"phase": "Pending"}, SandboxPhase.WAITING),
        (
            {"phase": "Running", "containerStatuses": [CREATING]},
            SandboxPhase.WAITING,
        ),
        ({"phase": "Running", "containerStatuses": [RUNNING]}, SandboxPhase.RUNNING),
        ({"phase": "Running", "containerStatuses": [SIDECAR, ended()]}, SandboxPhase.ENDED),
        ({"phase": "Running", "containerStatuses": [SIDECAR, container(waiting={})]}, SandboxPhase.WAITING),
        ({"phase": "Succeeded"}, SandboxPhase.ENDED),
        ({"phase": "Failed"}, SandboxPhase.ENDED),
    ],
)
def test_running_means_that_the_runners_container_has_started(status: dict[str, Any], phase: SandboxPhase) -> None:
    assert view_of(pod(**status)).phase is phase


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Failed", "containerStatuses": [ended(137, reason="OOMKilled")]}, "OOMKilled"),
        ({"phase": "Running", "containerStatuses": [ended(0), ended(137, "sidecar", reason="OOMKilled")]}, "OOMKilled"),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{**ended(1), "lastState": KILLED}],
            },
            "OOMKilled",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "node was low on memory"}, "Evicted"),
        ({"phase": "Failed", "reason": "Evicted", "message": "ephemeral local storage usage exceeds"}, "DiskFull"),
        ({"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "tmp" exceeds'}, "DiskFull"),
        ({"phase": "Failed", "reason": "Preempting"}, "Preempted"),
        ({"phase": "Failed", "reason": "NodeLost"}, "NodeLost"),
        ({"phase": "Failed", "reason": "OutOfcpu"}, "AdmissionRefused"),
        (
            {"phase": "Failed", "conditions": disrupted("PreemptionByScheduler")},
            "Preempted",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [RUNNING],
                "conditions": disrupted("DeletionByTaintManager"),
            },
            "NodeLost",
        ),
        ({"phase": "Failed", "containerStatuses": [ended(5, message=WORD)]}, "DiskFull"),
        ({"phase": "Failed", "containerStatuses": [ended(5, message=ODD_WORD)]}, "RunnerFailed"),
        ({"phase": "Failed", "containerStatuses": [ended(5, message="not json")]}, "RunnerFailed"),
        ({"phase": "Failed", "containerStatuses": [ended(143)]}, "RunnerFailed"),
        ({"phase": "Succeeded", "containerStatuses": [ended(0)]}, "SandboxEnded"),
    ],
)
def test_an_end_is_typed_by_its_most_telling_cause(status: dict[str, Any], reason: str) -> None:
    assert view_of(pod(**status)).reason == reason


@pytest.mark.rule("R6")
@pytest.mark.parametrize("told", sorted(BLAMELESS | {"DiskFull"}))
def test_a_sandbox_names_itself_blameless_only_where_it_can_know(told: str, tmp_path: Path) -> None:
    """On a cluster by its termination message, on a machine by its log, and by its agent's end."""
    word = json.dumps({"reason": told, "message": "m"})
    (tmp_path / "termination.log").write_text(word)
    world = running()
    world.finish("unknown")
    assert world.state.agent_end is not None
    said = replace(world.state, agent_end=replace(world.state.agent_end, reason=told))
    expected = told if told in {"DiskFull", "GatewayLost", "Terminated"} else "RunnerFailed"
    assert view_of(pod(phase="Failed", containerStatuses=[ended(5, message=word)])).reason == expected
    assert _last_words(tmp_path / "termination.log", 5)[0] == expected
    assert lost(said, "runner", None).payload["reason"] == expected


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        ("ErrImagePull", "ImagePullFailed"),
        ("ImagePullBackOff", "ImagePullFailed"),
        ("ErrImageNeverPull", "ImagePullFailed"),
        ("InvalidImageName", "InvalidImageName"),
        ("CreateContainerConfigError", "CreateContainerError"),
        ("ContainerCreating", ""),
        ("PodInitializing", ""),
    ],
)
def test_a_wait_is_typed_where_it_is_a_trouble(waiting: str, reason: str) -> None:
    view = view_of(pod(phase="Pending", containerStatuses=[container(waiting={"reason": waiting, "message": "m"})]))
    assert (view.phase, view.reason) == (SandboxPhase.WAITING, reason)


GONE = "VolumeUnreachable"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("0/3 nodes are available: insufficient cpu", "Unschedulable"),
        ('0/1 nodes are available: persistentvolumeclaim "fix-7b4e3dd45f62" not found. not found', ""),
        ("0/3 nodes are available: 1 node(s) had volume node affinity conflict", GONE),
        (
            "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, "
            "1 node(s) had untolerated taint(s).",
            GONE,
        ),
        ("0/2 nodes are available: 2 node(s) had no available volume zone", GONE),
        ("0/1 nodes are available: 1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)", GONE),
    ],
)
def test_a_pod_that_fits_nowhere(message: str, reason: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    assert view_of(pod(phase="Pending", conditions=[condition])).reason == reason


def test_a_pod_that_is_being_removed_says_until_when() -> None:
    body = pod(phase="Running", containerStatuses=[RUNNING])
    body["metadata"]["deletionTimestamp"] = STARTED
    view = view_of(body)
    assert view.stopping
    assert view.stop_by == view.started_at


KEYS = [
    "metadata",
    "labels",
    "status",
    "phase",
    "containerStatuses",
    "state",
    "running",
    "terminated",
    "waiting",
    "reason",
    "message",
    "conditions",
    "type",
    "name",
    "startedAt",
    "creationTimestamp",
    "deletionTimestamp",
    "exitCode",
    "lastState",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@example({"status": {"phase": []}})
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_no_shape_of_a_pod_crashes_the_reading(body: dict[str, Any]) -> None:
    view_of(body)


@pytest.mark.parametrize(("status", "unprepared"), [("False", True), ("True", False), (7, False)])
def test_a_node_says_whether_it_has_set_the_pod_up(status: Any, unprepared: bool) -> None:
    condition = {"type": "PodReadyToStartContainers", "status": status}
    assert view_of(pod(phase="Pending", conditions=[condition])).unprepared is unprepared
    assert view_of(pod(phase="Pending")).unprepared is False
