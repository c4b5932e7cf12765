"""Public failures of neighbours that this operator is immune to: strangers, races, restarts, outages."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.operator_world import OperatorWorld, install_crds, own_world

from moorage.api import names
from moorage.sandbox.kube import ApiUnavailable, Body, KubeApi
from moorage.sandbox.pods import PodSubstrate
from moorage.sandbox.port import RunKey
from moorage.sandbox.spec import lease

pytestmark = pytest.mark.integration


# --- strangers and races ----------------------------------------------------------------------------------------------


def strangers_pod(name: str, namespace: str) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }


async def test_a_strangers_pod_of_the_same_name_is_neither_adopted_nor_removed(world: OperatorWorld) -> None:
    made = await world.apply_run("fix")
    name = names.sandbox_name(made["metadata"]["uid"], "fix", 1, "runner", 0)
    await world.api.create(world.path("pods"), strangers_pod(name, world.namespace))
    await world.start()
    status = await world.until_reason("fix", "NameTaken")
    assert name in status["message"]
    assert status["phase"] == "Provisioning"
    await world.api.delete(world.run_path("fix"), made["metadata"]["uid"])
    await world.until_released(made["metadata"]["uid"])
    assert await world.api.get(world.path("pods", name)) is not None


async def test_a_strangers_lease_of_the_same_name_is_left_alone(world: OperatorWorld) -> None:
    made = await world.apply_run("fix")
    key = RunKey(made["metadata"]["uid"], world.namespace, "fix")
    body = lease(key, 1, "somebody", "2026-01-01T00:00:00.000000Z")
    body["metadata"].pop("ownerReferences")
    path = world.path("leases", version="coordination.k8s.io/v1")
    await world.api.create(path, body)
    await world.start()
    await world.until_reason("fix", "NameTaken")
    assert await world.pods() == []


async def test_a_slow_create_whose_answer_is_lost_makes_one_pod(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, lost = KubeApi.create, []

    async def slow(self: KubeApi, path: str, body: Body) -> Body:
        made = await create(self, path, body)
        if path.endswith("/pods") and not lost:
            lost.append(path)
            await asyncio.sleep(0.5)
            raise ApiUnavailable(0, "NoAnswer", "the connection broke")
        return made

    monkeypatch.setattr(KubeApi, "create", slow)
    await world.start()
    status = await world.succeed("fix")
    assert (len(await world.pods()), status["epoch"], lost != []) == (1, 1, True)


@pytest.mark.rule("F7", "I2")
async def test_two_operators_at_once_make_one_run(world: OperatorWorld, tmp_path: Path) -> None:
    """As when a deposed one has not noticed yet: every write of the slower one is harmless."""
    other = OperatorWorld(world.server, world.namespace, world.gateway, world.api, world.configuration)
    await asyncio.gather(world.start(), other.start())
    try:
        for at in range(5):
            await world.apply_run(f"fix-{at}")

        async def five() -> bool:
            return len(await world.pods()) >= 5

        await world.until(five, "five pods")
        pods = await world.pods()
        for pod in pods:
            await world.work(pod)
            await world.end_pod(pod)
        for at in range(5):
            status = await world.until_phase(f"fix-{at}", "Succeeded")
            assert (status["epoch"], status["attempt"]) == (1, 1)
        seen = {pod["metadata"]["uid"] for pod in [*pods, *await world.pods()]}
        assert len(seen) == 5
    finally:
        await other.stop()


@pytest.mark.rule("F7", "I2")
async def test_a_pod_that_the_other_operator_makes_between_two_reads_is_not_lost(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one reads what stands, the faster one creates and registers the pod, the slower one reads on."""
    start, observe = PodSubstrate.start, PodSubstrate.observe
    starting, looked, made = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_start(self: PodSubstrate, *args: Any) -> Any:
        first = not starting.is_set()
        starting.set()
        if first:
            await asyncio.wait_for(looked.wait(), 40)
        view = await start(self, *args)
        made.set()
        return view

    async def slow_observe(self: PodSubstrate, *args: Any, **how: Any) -> Any:
        children = await observe(self, *args, **how)
        if starting.is_set() and not looked.is_set() and not children.sandboxes:
            looked.set()
            await asyncio.wait_for(made.wait(), 40)
            await asyncio.sleep(0.5)  # by then it is registered
        return children

    monkeypatch.setattr(PodSubstrate, "start", slow_start)
    monkeypatch.setattr(PodSubstrate, "observe", slow_observe)
    other = OperatorWorld(world.server, world.namespace, world.gateway, world.api, world.configuration)
    await world.start()
    await world.apply_run("fix")
    await asyncio.wait_for(starting.wait(), 40)
    await other.start()
    try:
        pod = await world.until_pod()
        await asyncio.sleep(1.5)
        assert looked.is_set()
        await world.work(pod)
        await world.end_pod(pod)
        status = await world.until_phase("fix", "Succeeded")
        assert (status["epoch"], status["attempt"], len(await world.pods())) == (1, 1, 1)
    finally:
        await other.stop()


async def test_one_operator_for_all_namespaces_sees_a_runtime_class_appear(tmp_path: Path) -> None:
    async with own_world(tmp_path, install_crds) as world:  # it would meet other tests' runs, and they its class
        await world.start(watch_namespaces=())
        await world.apply_run("fix", sandbox={"runtimeClassName": "kata"})
        await world.until_reason("fix", "RuntimeClassNotFound")
        about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}}
        await world.api.create("/apis/node.k8s.io/v1/runtimeclasses", about | {"handler": "kata"})
        pod = await world.until_pod()
        assert pod["spec"]["runtimeClassName"] == "kata"


@pytest.mark.rule("F1")
async def test_a_deleted_lease_restarts_nothing(world: OperatorWorld) -> None:
    await world.start()
    made = await world.apply_run("fix")
    pod = await world.until_pod()
    await world.work(pod, finish=False)
    await world.until_phase("fix", "Running")
    name = names.lease_name(made["metadata"]["uid"], "fix")
    path = world.path("leases", name, "coordination.k8s.io/v1")
    found = await world.api.get(path)
    assert found is not None
    await world.api.delete(path, found["metadata"]["uid"])

    async def back() -> bool:
        again = await world.api.get(path)
        return again is not None and again["metadata"]["uid"] != found["metadata"]["uid"]

    await world.until(back, "the Lease is put back")
    again = await world.api.get(path)
    assert again is not None
    assert again["metadata"]["annotations"][names.EPOCH] == "1"
    assert (await world.status("fix"))["epoch"] == 1
    assert len(await world.pods()) == 1


# --- restarts ---------------------------------------------------------------------------------------------------------


async def test_a_restart_runs_no_finished_work_again_and_writes_nothing(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    pod = await world.until_pod()
    await world.work(pod)
    await world.end_pod(pod)
    before = await world.until_phase("fix", "Succeeded")
    await asyncio.sleep(0.5)
    await world.stop()
    await world.api.delete(world.path("pods", pod["metadata"]["name"]), pod["metadata"]["uid"], grace_s=0)
    world.writes.clear()
    await world.start()
    await asyncio.sleep(2.0)
    assert await world.status("fix") == before
    assert await world.pods() == []
    assert [w for w in world.writes if w[1] != "events"] == []


async def test_a_result_that_came_while_the_operator_was_down_is_kept_though_the_pod_is_gone(
    world: OperatorWorld,
) -> None:
    await world.start()
    await world.apply_run("fix")
    pod = await world.until_pod()
    await world.work(pod, finish=False)
    await world.until_phase("fix", "Running")
    await world.stop()
    await world.finish(pod)
    await world.api.delete(world.path("pods", pod["metadata"]["name"]), pod["metadata"]["uid"], grace_s=0)
    await world.start()
    status = await world.until_phase("fix", "Succeeded")
    assert (status["attempt"], status["usage"]["cost"]) == (1, "0.00")


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 5, 6])
@pytest.mark.rule("F2")
async def test_an_operator_killed_after_any_write_ends_in_the_same_result(world: OperatorWorld, writes: int) -> None:
    await world.start()
    await world.apply_run("fix")

    async def so_far() -> bool:
        return len([w for w in world.writes if w[1] != "events"]) >= writes

    await world.until(so_far, f"{writes} writes")
    await world.stop()
    await world.start()
    pod = (await world.until(world.pods, "a pod"))[0]
    await world.work(pod)
    await world.end_pod(pod)
    status = await world.until_phase("fix", "Succeeded")
    assert status["attempt"] == 1
    assert len(await world.pods()) == 1


async def test_a_run_that_the_gateway_forgot_is_not_begun_again(world: OperatorWorld, tmp_path: Path) -> None:
    await world.start()
    await world.apply_run("fix")
    await world.work(await world.until_pod(), finish=False)
    await world.until_phase("fix", "Running")
    await world.stop()
    status = {**await world.status("fix")}
    await world.api.delete(world.run_path("fix"), (await world.run("fix"))["metadata"]["uid"])
    await world.until_nothing_stands()
    await world.apply_run("fix")
    uid = (await world.run("fix"))["metadata"]["uid"]
    await world.api.patch(f"{world.run_path('fix')}/status", {"metadata": {"uid": uid}, "status": status})
    await world.start()
    told = await world.until_reason("fix", "JournalLost")
    assert "restore the gateway's store" in told["message"]
    assert await world.pods() == []


async def test_the_api_server_may_go_away_in_the_middle(tmp_path: Path) -> None:
    async with own_world(tmp_path, install_crds) as world:
        await world.start()
        await world.apply_run("fix")
        pod = await world.until_pod()
        await world.work(pod, finish=False)
        await world.until_phase("fix", "Running")
        await asyncio.to_thread(world.server.stop)
        await world.finish(pod)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(world.server.start)
        assert (await world.until_phase("fix", "Succeeded"))["attempt"] == 1


async def test_a_gateway_that_is_away_is_told_and_waited_for(world: OperatorWorld) -> None:
    await world.start(gateway_url="http://127.0.0.1:9")
    mend = world.lose_gateway()
    await world.apply_run("fix")
    status = await world.until_reason("fix", "GatewayUnavailable")
    assert status["phase"] == "Pending"
    mend()
    await world.until_phase("fix", "Provisioning")


async def test_a_gateway_that_refuses_the_operator_is_told_with_its_reason(world: OperatorWorld) -> None:
    await world.start(token="wrong")
    await world.apply_run("fix")
    status = await world.until_reason("fix", "GatewayUnavailable")
    assert "Unauthenticated" in status["message"]
