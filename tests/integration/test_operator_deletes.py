"""`kubectl delete` never waits for us, and leaves nothing behind: with the operator up, down, or without a gateway."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.operator_world import OperatorWorld, install_crds, operator_world

from e2e.cluster.apiserver import DEFAULT_CONTROLLERS, api_server
from moorage.api import names

pytestmark = pytest.mark.integration


async def running(world: OperatorWorld) -> str:
    """A run in the middle of its work; its UID."""
    made = await world.apply_run("fix")
    await world.work(await world.until_pod(), finish=False)
    await world.until_phase("fix", "Running")
    return str(made["metadata"]["uid"])


async def delete(world: OperatorWorld) -> None:
    """As a user does it, who waits for it."""
    await asyncio.to_thread(
        world.server.kubectl, "delete", "ar", "fix", "-n", world.namespace, "--wait=true", "--timeout=60s"
    )


@pytest.mark.rule("W5", "X1")
async def test_a_delete_in_the_middle_closes_the_journal_and_leaves_nothing(world: OperatorWorld) -> None:
    await world.start()
    uid = await running(world)
    await delete(world)
    await world.until_nothing_stands()
    view = await world.until_released(uid)
    assert (view["state"]["phase"], view["state"]["end"]["reason"]) == ("Cancelled", "ObjectDeleted")
    assert view["state"]["cancel_stage"] == "reconciled"


async def test_a_delete_with_the_operator_down_is_finished_by_the_scan(world: OperatorWorld) -> None:
    await world.start()
    uid = await running(world)
    await world.stop()
    await delete(world)
    await world.until_nothing_stands()
    await world.start()
    view = await world.until_released(uid)
    assert view["state"]["end"]["reason"] == "ObjectDeleted"


async def test_a_delete_with_the_gateway_down_goes_through_and_is_closed_later(world: OperatorWorld) -> None:
    await world.start()
    uid = await running(world)
    mend = world.lose_gateway()
    await delete(world)
    await world.until_nothing_stands()
    mend()
    assert (await world.until_released(uid))["state"]["phase"] == "Cancelled"


async def test_a_finished_run_that_is_deleted_is_released_and_keeps_its_end(world: OperatorWorld) -> None:
    await world.start()
    uid = await running(world)
    pod = (await world.pods())[0]
    await world.finish(pod)
    await world.end_pod(pod)
    await world.until_phase("fix", "Succeeded")
    await delete(world)
    assert (await world.until_released(uid))["state"]["phase"] == "Succeeded"
    await world.until_nothing_stands()


async def test_a_namespace_goes_in_one_piece(tmp_path: Path) -> None:
    """Claims are protected by Kubernetes until no pod uses them; that controller runs here as in any cluster."""
    protection = "persistentvolumeclaim-protection-controller"
    with api_server(controllers=(*DEFAULT_CONTROLLERS, protection)) as own:
        install_crds(own)
        own.kubectl("create", "namespace", "team")
        async with operator_world(own, "team", tmp_path) as world:
            await world.start()
            uid = await running(world)
            await asyncio.to_thread(own.kubectl, "delete", "namespace", "team", "--timeout=30s")
            assert (await world.until_released(uid))["state"]["phase"] == "Cancelled"


async def test_a_run_of_the_same_name_afterwards_is_another_run(world: OperatorWorld) -> None:
    await world.start()
    first = await running(world)
    await delete(world)
    await world.until_nothing_stands()
    made = await world.apply_run("fix")
    pod = await world.until_pod()
    assert made["metadata"]["uid"] != first
    await world.work(pod)
    await world.end_pod(pod)
    assert (await world.until_phase("fix", "Succeeded"))["epoch"] == 1


@pytest.mark.rule("W5")
async def test_what_a_delete_leaves_without_an_owner_goes_with_the_run(world: OperatorWorld) -> None:
    """As `kubectl delete --cascade=orphan` leaves it: no object names its owner any more."""
    await world.start()
    uid = await running(world)
    await world.stop()
    leases = world.path("leases", version="coordination.k8s.io/v1")
    for path in (world.path("pods"), world.path("persistentvolumeclaims"), leases):
        (each,) = await world.api.items(path, labels=f"{names.RUN}={names.label_value(uid)}")
        await world.api.patch(f"{path}/{each['metadata']['name']}", {"metadata": {"ownerReferences": None}})
    await delete(world)
    await world.start()
    await world.until_released(uid)
    await world.until_nothing_stands()
