"""A run's life with the operator, the API server and the gateway real, and a test in place of kubelet and agent."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.integration.operator_world import OperatorWorld, container, now

from moorage.api import names
from moorage.controller import handlers

pytestmark = pytest.mark.integration
CHECKS = [{"name": "tests", "run": "true"}]


def truths(status: dict[str, object]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status["conditions"]}  # type: ignore[index,attr-defined]


@pytest.mark.rule("F1", "F2", "S2")
async def test_a_simple_run_costs_six_writes_and_ends_well(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    pod = await world.until_pod()
    await asyncio.sleep(0.5)
    assert world.count("agentruns/status") == 0, "a start that goes well is told with the agent's"
    await world.work(pod, finish=False)
    running = await world.until_phase("fix", "Running")
    assert running["epoch"] == 1
    assert truths(running)["Owned"] == "True"
    await world.finish(pod)
    ended = await world.until_phase("fix", "Succeeded")
    assert truths(ended)["Ready"] == "True"
    assert truths(ended)["Reconciling"] == "False"
    assert ended["observedGeneration"] == 1
    await world.end_pod(pod)
    await world.until(lambda: _released(world), "the claim's removal")
    await asyncio.sleep(0.5)
    assert Counter(write for write in world.writes if write[1] != "events") == {
        ("create", "serviceaccounts"): 1,  # once for the namespace
        ("create", "networkpolicies"): 1,
        ("create", "leases"): 1,
        ("create", "persistentvolumeclaims"): 1,
        ("create", "pods"): 1,
        ("patch", "agentruns/status"): 2,
        ("delete", "persistentvolumeclaims"): 1,
    }


async def _released(world: OperatorWorld) -> bool:
    return ("delete", "persistentvolumeclaims") in world.writes


async def test_a_run_that_no_operator_has_seen_is_pending_and_in_progress(world: OperatorWorld) -> None:
    made = await world.apply_run("fix")
    for status in (made["status"], await world.status("fix")):
        assert status["phase"] == "Pending"
        assert "observedGeneration" not in status
        assert truths(status) == {"Ready": "False", "Reconciling": "True", "Stalled": "False"}


async def test_a_start_that_lasts_is_told(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    await world.until_pod()
    status = await world.until_phase("fix", "Provisioning")
    assert (status["epoch"], truths(status)["Reconciling"]) == (1, "True")
    assert world.count("agentruns/status") == 1


@pytest.mark.rule("O4")
async def test_where_a_run_was_placed_is_in_its_status_and_its_journal(world: OperatorWorld) -> None:
    await world.start()
    made = await world.apply_run("fix", acceptance=CHECKS)
    runner = await world.until_pod()
    image = "registry.example/base@sha256:e3b0"
    state = container({"running": {"startedAt": now()}}) | {"imageID": image}
    await world.work(runner, finish=False)
    await world.set_pod(runner, {"phase": "Running", "containerStatuses": [state]})

    async def told() -> bool:
        return (await world.status("fix")).get("placement", {}).get("environment") == image

    await world.until(told, "the environment in status")
    await world.finish(runner)
    verifier = await world.until_pod("verifier")
    await world.set_pod(verifier, {"phase": "Running", "containerStatuses": [state]})
    await world.judge(verifier, exit_code=0)
    status = await world.until_phase("fix", "Succeeded")
    assert status["placement"] == {"kind": "cluster", "node": "node-1", "environment": image}
    view = await world.view(made["metadata"]["uid"])
    assert [(p["role"], p["environment"]) for p in view["state"]["placements"]] == [
        ("runner", image),
        ("verifier", image),
    ]


async def test_running_is_not_told_before_the_agent_has_started(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    pod = await world.until_pod()
    await world.start_pod(pod)
    await asyncio.sleep(0.5)
    assert (await world.status("fix"))["phase"] in {"Pending", "Provisioning"}
    await world.work(pod, finish=False)
    await world.until_phase("fix", "Running")


async def test_an_idle_run_costs_no_writes(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    await world.work(await world.until_pod(), finish=False)
    await world.until_phase("fix", "Running")

    async def quiet() -> bool:
        """What was held back comes first."""
        before = len(world.writes)
        await asyncio.sleep(3.0)
        return world.writes[before:] == []

    await world.until(quiet, "three seconds without a write")
    before = len(world.writes)
    await asyncio.sleep(12.0)  # longer than a heartbeat, and than what a status is held back for
    assert world.writes[before:] == []


async def proposed(world: OperatorWorld, **spec: Any) -> dict[str, Any]:
    """A run whose agent is done; its verifier's pod."""
    await world.start()
    await world.apply_run("fix", acceptance=CHECKS, **spec)
    runner = await world.until_pod()
    await world.work(runner)
    await world.end_pod(runner)
    return await world.until_pod("verifier")


@pytest.mark.rule("V3")
async def test_acceptance_runs_in_a_sandbox_of_its_own_and_decides(world: OperatorWorld) -> None:
    verifier = await proposed(world)
    assert [v["name"] for v in verifier["spec"]["volumes"] if "persistentVolumeClaim" in v] == []
    await world.start_pod(verifier)
    await world.judge(verifier, exit_code=1)
    status = await world.until_phase("fix", "Failed")
    assert status["reason"] == "AcceptanceFailed"
    assert truths(status)["Accepted"] == "False"
    assert truths(status)["Stalled"] == "True"
    assert truths(status)["Succeeded"] == "False"


@pytest.mark.rule("N4", "F2")
async def test_a_rejected_result_is_gone_on_from_by_another_attempt_that_is_told_why(world: OperatorWorld) -> None:
    verifier = await proposed(world, recovery={"acceptanceRounds": 1})
    await world.start_pod(verifier)
    await world.judge(verifier, exit_code=1)
    second = await world.until_pod(epoch=2)
    await world.start_pod(second)
    handoff = (await world.assignment(world.sandbox(second)))["handoff"]
    assert "what the last one proposed was not accepted" in handoff
    await world.work(second)
    await world.end_pod(second)
    judged = await world.until_pod("verifier", epoch=2)
    await world.start_pod(judged)
    await world.judge(judged, exit_code=0)
    status = await world.until_phase("fix", "Succeeded")
    assert (status["attempt"], status["epoch"]) == (2, 2)
    assert truths(status)["Accepted"] == "True"


async def test_a_passed_acceptance_is_success(world: OperatorWorld) -> None:
    verifier = await proposed(world)
    await world.start_pod(verifier)
    await world.judge(verifier, exit_code=0)
    status = await world.until_phase("fix", "Succeeded")
    assert truths(status)["Accepted"] == "True"
    await world.end_pod(verifier)


async def test_no_change_where_one_was_asked_is_no_success(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", delivery={"branch": "moorage/fix", "push": False})
    await world.work(await world.until_pod())
    assert (await world.until_phase("fix", "Failed"))["reason"] == "NoChange"


async def test_the_same_manifest_twice_is_one_run(world: OperatorWorld) -> None:
    await world.start()
    manifest = f"""
apiVersion: moorage.dev/v1alpha1
kind: AgentRun
metadata: {{name: fix, namespace: {world.namespace}}}
spec: {{workspace: {{ephemeral: {{}}}}, goal: Mend it., agent: {{driver: command, command: ["true"]}}}}
"""
    for _ in range(2):
        world.server.kubectl("apply", "-f", "-", stdin=manifest)
    pod = await world.until_pod()
    world.server.kubectl("apply", "-f", "-", stdin=manifest)
    await world.work(pod)
    await world.end_pod(pod)
    await world.until_phase("fix", "Succeeded")
    world.server.kubectl("apply", "-f", "-", stdin=manifest)
    await asyncio.sleep(0.5)
    assert len(await world.pods()) == 1


@pytest.mark.parametrize("name", ["a" * 63, "a" * 64, "b" * 253, "with.dots.in.it", ".".join(["c" * 20] * 12)], ids=len)
async def test_names_of_any_length_get_a_sandbox(world: OperatorWorld, name: str) -> None:
    await world.start()
    await world.apply_run(name)
    pod = await world.until_pod()
    assert len(pod["metadata"]["name"]) <= 63
    assert pod["metadata"]["annotations"][names.RUN_NAME] == name
    assert pod["metadata"]["labels"][names.EPOCH] == "1"


@pytest.mark.rule("R6", "R1")
async def test_a_pod_deleted_from_outside_is_told_and_followed_by_the_next_epoch(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    pod = await world.until_pod()
    await world.work(pod, finish=False)
    await world.until_phase("fix", "Running")
    await world.api.delete(world.path("pods", pod["metadata"]["name"]), pod["metadata"]["uid"], grace_s=0)
    second = await world.until_pod(epoch=2)
    assert second["metadata"]["name"] != pod["metadata"]["name"]
    status = await world.until_phase("fix", "Provisioning")
    assert (status["epoch"], status["attempt"]) == (2, 2)
    await world.work(second)
    await world.end_pod(second)
    assert (await world.until_phase("fix", "Succeeded"))["attempt"] == 2


async def test_a_killed_agent_behind_a_living_sidecar_is_seen(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", recovery={"maxAttempts": 1})
    pod = await world.until_pod()
    await world.work(pod, finish=False)
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    sidecar = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    await world.set_pod(
        pod, {"phase": "Running", "containerStatuses": [container(sidecar, "sidecar"), container(killed)]}
    )
    status = await world.until_phase("fix", "Failed")
    assert status["reason"] == "CrashLoop"
    assert "OOMKilled" in status["message"]


@pytest.mark.rule("X1", "X3")
async def test_cancel_reaches_the_runner_and_ends_once(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    pod = await world.until_pod()
    await world.work(pod, finish=False)
    await world.until_phase("fix", "Running")
    for _ in range(2):
        await world.api.patch(world.run_path("fix"), {"spec": {"cancel": True}})
    await world.until_phase("fix", "Cancelling")
    orders = (await world.sandbox(pod).get("/v1/self/orders?after=0")).json()
    assert orders["stop"] == "cancel"
    await world.end_pod(pod, exitCode=3)
    status = await world.until_phase("fix", "Cancelled")
    assert truths(status)["EffectsClosed"] == "True"
    await asyncio.sleep(0.3)
    assert (await world.status("fix"))["journal"] == status["journal"]


async def test_cancel_before_admission_and_after_the_end_do_no_harm(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("early", suspend=True)
    await world.until_reason("early", "Suspended")
    await world.api.patch(world.run_path("early"), {"spec": {"cancel": True}})
    await world.until_phase("early", "Cancelled")
    await world.succeed("late")
    await world.api.patch(world.run_path("late"), {"spec": {"cancel": True}})
    await asyncio.sleep(0.5)
    assert (await world.status("late"))["phase"] == "Succeeded"


async def test_suspend_holds_a_run_until_it_is_lifted(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", suspend=True)
    await world.until_reason("fix", "Suspended")
    assert await world.pods() == []
    await world.api.patch(world.run_path("fix"), {"spec": {"suspend": False}})
    await world.until_pod()


@pytest.mark.rule("C3", "Q5", "F1")
async def test_a_run_that_works_is_paused_and_gone_on_with_by_its_spec(world: OperatorWorld) -> None:
    """Another run takes its slot meanwhile, and gives it back."""
    await world.start(max_live_runs=1)
    await world.apply_run("fix")
    pod = await world.until_pod()
    await world.work(pod, finish=False)
    await world.apply_run("second")
    await world.until_phase("second", "Queued")
    await world.api.patch(world.run_path("fix"), {"spec": {"suspend": True}})
    await world.until_reason("fix", "Pausing")
    await world.finish(pod, "paused")
    await world.end_pod(pod)
    status = await world.until_phase("fix", "Paused")
    assert (status["reason"], truths(status)["Owned"], truths(status)["Stalled"]) == ("Suspended", "False", "False")

    async def let_go() -> bool:
        return pod["metadata"]["uid"] not in {each["metadata"]["uid"] for each in await world.pods()}

    await world.until(let_go, "the end of the sandbox")
    second = await world.until_pod()
    await world.api.patch(world.run_path("fix"), {"spec": {"suspend": False}})
    assert (await world.until_reason("fix", "Queued"))["phase"] == "Paused"
    await world.work(second)
    await world.end_pod(second)
    await world.until_phase("second", "Succeeded")
    again = await world.until_pod(epoch=2)
    await world.work(again)
    await world.end_pod(again)
    status = await world.until_phase("fix", "Succeeded")
    assert (status["attempt"], status["epoch"]) == (2, 2)


@pytest.mark.rule("C3", "B3")
async def test_a_limit_that_is_raised_lets_a_run_go_on_that_it_has_paused(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", constraints={"maxIterations": 1})
    pod = await world.until_pod()
    await world.work(pod, finish=False)
    await world.finish(pod, "exhausted")
    await world.end_pod(pod)
    status = await world.until_phase("fix", "Paused")
    assert (status["reason"], truths(status)["WithinBudget"]) == ("BudgetExhausted", "False")
    await world.api.patch(world.run_path("fix"), {"spec": {"constraints": {"maxIterations": 5}}})
    again = await world.until_pod(epoch=2)
    await world.work(again)
    await world.end_pod(again)
    assert (await world.until_phase("fix", "Succeeded"))["attempt"] == 2


async def test_what_is_over_the_cap_waits_with_its_place_and_follows(world: OperatorWorld) -> None:
    await world.start(max_live_runs=1)
    await world.apply_run("first")
    pod = await world.until_pod()
    await world.apply_run("second")
    queued = await world.until_phase("second", "Queued")
    assert queued["queue"]["position"] == 1
    await world.work(pod)
    await world.end_pod(pod)
    await world.until_phase("first", "Succeeded")
    assert "queue" not in await world.until_phase("second", "Provisioning")


async def test_retention_takes_pod_volume_and_refs_but_not_the_object(world: OperatorWorld) -> None:
    await world.start()
    await world.succeed("fix", retention={"ttlAfterFinished": "1s", "keepWorktree": "Always"})

    await world.until_nothing_stands()
    view = await world.until_released((await world.run("fix"))["metadata"]["uid"])
    assert view["released"]
    assert (await world.status("fix"))["phase"] == "Succeeded"


async def test_the_object_goes_only_where_its_author_says_so(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", retention={"ttlAfterFinished": "1s", "deleteObject": True})
    pod = await world.until_pod()
    await world.work(pod)
    await world.end_pod(pod)

    async def gone() -> bool:
        return not await world.run("fix")

    await world.until(gone, "the object's removal")


async def test_a_later_word_on_retention_is_taken_note_of_once(world: OperatorWorld) -> None:
    await world.start()
    await world.succeed("fix")
    await asyncio.sleep(0.3)
    world.writes.clear()
    await world.api.patch(world.run_path("fix"), {"spec": {"retention": {"ttlAfterFinished": "2h"}}})

    async def noticed() -> bool:
        return (await world.status("fix"))["observedGeneration"] == 2

    await world.until(noticed, "the new generation is observed")
    await asyncio.sleep(0.5)
    assert world.count("agentruns/status") == 1


async def test_the_queue_goes_on_when_its_head_is_deleted_and_drains_one_by_one(world: OperatorWorld) -> None:
    await world.start(max_live_runs=2)
    for name in ("a", "b", "c", "d", "e"):
        await world.apply_run(name)
    pods = await world.until(lambda: _many(world, 2), "two pods")
    await world.until_phase("e", "Queued")
    head = await world.run("c")
    await world.api.delete(world.run_path("c"), head["metadata"]["uid"])
    for pod in pods:
        await world.work(pod)
        await world.end_pod(pod)
    for name in ("d", "e"):
        await world.until_phase(name, "Provisioning")


@pytest.mark.rule("Q1")
async def test_a_restart_grants_no_slot_before_it_knows_who_has_one(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live run comes last in every list, and its status doesn't say yet that it is."""
    monkeypatch.setattr(handlers, "PAGE", 1)
    await world.start(max_live_runs=1)
    await world.apply_run("zz-live")
    await world.until_pod()
    await world.stop()
    assert "phase" not in await world.status("zz-live") or (await world.status("zz-live"))["phase"] == "Pending"
    waiting = [f"a-{n:02}" for n in range(20)]
    for name in waiting:
        await world.apply_run(name)
    await world.start(max_live_runs=1)
    for name in waiting:
        assert "epoch" not in await world.until_phase(name, "Queued")
    assert len(await world.pods()) == 1


async def _many(world: OperatorWorld, count: int) -> list[dict[str, object]] | None:
    pods = await world.pods()
    return pods if len(pods) >= count else None


# --- what runs refer to -----------------------------------------------------------------------------------------------


async def reference(world: OperatorWorld, kind: str, name: str, **spec: object) -> None:
    meta = {"name": name, "namespace": world.namespace}
    body = {"apiVersion": names.API_VERSION, "kind": kind, "metadata": meta, "spec": spec}
    await world.api.create(world.path(f"{kind.lower()}s", version=names.API_VERSION), body)


async def test_whether_runs_can_use_it_is_in_the_status_of_what_they_refer_to(world: OperatorWorld) -> None:
    path = world.path("workspaces", "web", names.API_VERSION)

    async def ready(status: str, generation: int) -> dict[str, object] | None:
        told = ((await world.api.get(path)) or {}).get("status") or {}
        found = next((c for c in told.get("conditions", []) if c["type"] == "Ready"), None)
        return found if found and found["status"] == status and told["observedGeneration"] == generation else None

    await world.start()
    await reference(world, "Workspace", "web", remoteGit={"url": "https://git.example.test/web.git"})
    await reference(world, "Agent", "fixer", driver="nobody")
    await reference(world, "ModelProvider", "models", protocol="openai-chat", baseURL="https://models.example.test")
    await world.until(lambda: ready("True", 1), "the Workspace is ready")
    for kind, condition in (("agent/fixer", "Stalled"), ("modelprovider/models", "Ready")):
        told = (f"--for=condition={condition}", "--timeout=60s", "-n", world.namespace)
        await asyncio.to_thread(world.server.kubectl, "wait", kind, *told)
    await world.api.patch(path, {"spec": {"remoteGit": {"url": "ssh://git@git.example.test/web.git"}}})
    found = await world.until(lambda: ready("False", 2), "the Workspace isn't any more")
    assert (found["reason"], "https" in found["message"]) == ("NotSupported", True)
    before = world.count("workspaces/status", "agents/status", "modelproviders/status")
    assert before == 4
    await world.stop()
    await world.start()
    await asyncio.sleep(1.0)
    assert world.count("workspaces/status", "agents/status", "modelproviders/status") == before, (
        "it stands there already"
    )


async def test_a_run_with_the_longest_goal_ends_well_and_carries_nothing_of_kopf(world: OperatorWorld) -> None:
    """kopf's last-handled annotation would copy the spec, and outgrow what an object's annotations may hold."""
    await world.start()
    await world.succeed("fix", goal="g" * (250 * 1024))
    meta = (await world.run("fix"))["metadata"]
    assert meta.get("annotations", {}) == {}
    assert meta.get("finalizers", []) == []
