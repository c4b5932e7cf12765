"""A tenant's contract against a real API server: rendered, put back, removed, and kept at admission."""

from typing import Any

import pytest
from tests.integration.operator_world import OperatorWorld

from moorage.api import names
from moorage.store.allowances import Allowance, Ask

pytestmark = pytest.mark.integration
NAME = "moorage-contract"


def constraints(world: OperatorWorld, name: str | None = None) -> str:
    return world.path("resourceconstraints", name, names.API_VERSION)


async def constrain(world: OperatorWorld, name: str = "team", **spec: Any) -> dict[str, Any]:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "ResourceConstraint",
        "metadata": {"name": name, "namespace": world.namespace},
        "spec": spec,
    }
    return await world.api.create(constraints(world), body)


async def until_ready(world: OperatorWorld, name: str = "team", status: str = "True") -> dict[str, Any]:
    async def told() -> dict[str, Any] | None:
        body = await world.api.get(constraints(world, name)) or {}
        ready = [c for c in body.get("status", {}).get("conditions", ()) if c["type"] == "Ready"]
        current = body["metadata"]["generation"] == body.get("status", {}).get("observedGeneration")
        return {**body["status"], "ready": ready[0]} if current and ready and ready[0]["status"] == status else None

    found: dict[str, Any] = await world.until(told, f"rcon/{name} is ready: {status}")
    return found


async def until_hard(world: OperatorWorld, hard: dict[str, str] | None) -> None:
    async def stands() -> bool:
        found = await world.api.get(world.path("resourcequotas", NAME))
        return (found or {}).get("spec", {}).get("hard") == hard if hard else found is None

    await world.until(stands, f"a quota of {hard}")


def lines(status: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {line["name"]: (line["limit"], line.get("used"), line.get("stricterIn")) for line in status["lines"]}


@pytest.mark.rule("C5")
async def test_a_contract_is_rendered_and_put_back_and_goes_with_the_last_of_its_authors(world: OperatorWorld) -> None:
    await world.start()
    resources = {"cpu": 4, "memory": "8Gi", "storage": "20Gi"}
    made = await constrain(world, resources=resources, perSandbox={"cpu": "1500m", "disk": "5Gi"})
    hard = {"limits.cpu": "4", "limits.memory": "8Gi", "requests.storage": "20Gi"}
    await until_hard(world, hard)
    await until_ready(world)

    async def ranged() -> bool:
        found = await world.api.get(world.path("limitranges", NAME)) or {}
        most = {each["type"]: each["max"] for each in found.get("spec", {}).get("limits", ())}
        return most == {"Container": {"cpu": "1500m"}, "PersistentVolumeClaim": {"storage": "5Gi"}}

    await world.until(ranged, "a LimitRange")
    quota = await world.api.get(world.path("resourcequotas", NAME)) or {}
    assert [owner["uid"] for owner in quota["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    drift = {"spec": {"hard": {"limits.cpu": "400", "pods": "1", "limits.memory": None}}}
    await world.api.patch(world.path("resourcequotas", NAME), drift)
    await until_hard(world, hard)
    limits = await world.api.get(world.path("limitranges", NAME)) or {}
    await world.api.delete(world.path("limitranges", NAME), limits["metadata"]["uid"])
    await world.until(ranged, "the LimitRange again")
    writes = world.count("resourcequotas", "limitranges")
    await world.api.patch(constraints(world, "team"), {"spec": {"resources": {"cpu": 6}}})
    await until_hard(world, {**hard, "limits.cpu": "6"})
    assert world.count("resourcequotas", "limitranges") == writes + 1
    await world.api.delete(constraints(world, "team"), made["metadata"]["uid"])
    await until_hard(world, None)


@pytest.mark.rule("C5")
async def test_of_two_contracts_the_stricter_line_counts_and_both_say_which(world: OperatorWorld) -> None:
    await constrain(world, "a", resources={"cpu": 4, "memory": "8Gi"}, concurrency={"sandboxes": 3})
    await world.start()
    made = await constrain(world, "b", resources={"cpu": 2, "memory": "9Gi"})
    await until_hard(world, {"limits.cpu": "2", "limits.memory": "8Gi"})

    async def told() -> bool:
        a, b = [await until_ready(world, name) for name in "ab"]
        expected_a = {"resources.cpu": ("4", "0", "b"), "resources.memory": ("8Gi", "0", None)}
        expected_a["concurrency.sandboxes"] = ("3", "0", None)
        expected_b = {"resources.cpu": ("2", "0", None), "resources.memory": ("9Gi", "0", "a")}
        return (lines(a), lines(b), a.get("sandboxes")) == (expected_a, expected_b, "0/3")

    await world.until(told, "use against limit, and who is stricter")
    await world.api.delete(constraints(world, "b"), made["metadata"]["uid"])
    await until_hard(world, {"limits.cpu": "4", "limits.memory": "8Gi"})


@pytest.mark.rule("C5")
async def test_a_strangers_quota_of_that_name_is_left_alone_and_told(world: OperatorWorld) -> None:
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": NAME}, "spec": {"hard": {"pods": "7"}}}
    stranger = await world.api.create(world.path("resourcequotas"), body)
    await world.start()
    await constrain(world, resources={"cpu": 4})
    status = await until_ready(world, status="False")
    assert status["ready"]["reason"] == "NameTaken"
    assert f"ResourceQuota {NAME}" in status["ready"]["message"]
    await until_hard(world, {"pods": "7"})
    await world.api.delete(world.path("resourcequotas", NAME), stranger["metadata"]["uid"])
    await until_hard(world, {"limits.cpu": "4"})
    await until_ready(world)


# --- at admission -----------------------------------------------------------------------------------------------------

EGRESS = {"sandbox": {"egress": [{"host": "a.example.com"}]}}
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("HostNotAllowed", {"allowed": {"hosts": []}}, {"allowed": {"hosts": ["a.example.com"]}}, EGRESS),
    ("SandboxTooLarge", {"perSandbox": {"cpu": "500m"}}, {"perSandbox": {"cpu": 1}}, {}),
]


@pytest.mark.rule("C6")
async def test_what_isnt_allowed_is_held_until_it_is(world: OperatorWorld) -> None:
    """One operator for all of them: each is raised in its turn."""
    await world.start()
    for n, (reason, narrow, wide, spec) in enumerate(REFUSED):
        made = await constrain(world, **narrow)
        await until_ready(world)
        name = f"fix-{n}"
        await world.apply_run(name, timeouts={"scheduleToStart": "5s"}, **spec)
        status = await world.until_reason(name, reason)
        assert status["phase"] == "Pending"
        assert "rcon/team" in status["message"]
        assert await world.standing() == [], "nothing is reserved"
        await world.api.patch(constraints(world, "team"), {"spec": wide})
        pod = await world.until_pod()
        await world.work(pod)
        await world.end_pod(pod)
        assert (await world.until_phase(name, "Succeeded"))["attempt"] == 1
        run = await world.run(name)
        await world.api.delete(world.run_path(name), run["metadata"]["uid"])
        await world.until_released(run["metadata"]["uid"])
        await world.api.delete(constraints(world, "team"), made["metadata"]["uid"])


@pytest.mark.rule("C4")
async def test_a_run_is_judged_by_the_stricter_limit_and_goes_on_when_its_contract_is_raised(
    world: OperatorWorld,
) -> None:
    await constrain(world, constraints={"maxIterations": 3})
    await world.start()
    await world.apply_run("fix", constraints={"maxIterations": 9, "toolCalls": {"hard": 2}})
    await world.until_pod()
    uid = (await world.run("fix"))["metadata"]["uid"]
    limits = (await world.view(uid))["spec"]["limits"]
    assert (limits["max_iterations"], limits["tool_calls_hard"]) == (3, 2)
    await world.api.patch(constraints(world, "team"), {"spec": {"constraints": {"maxIterations": 7}}})

    async def raised() -> bool:
        state = (await world.view(uid))["state"]
        return [(each["limit"], each["to"]) for each in state["raised"]] == [("max_iterations", 7)]

    await world.until(raised, "the contract's raise in the journal")


# --- within a quota ---------------------------------------------------------------------------------------------------


async def ended(world: OperatorWorld, pod: dict[str, Any]) -> None:
    await world.work(pod)
    await world.end_pod(pod)


async def pods_of(world: OperatorWorld, name: str) -> list[dict[str, Any]]:
    return [pod for pod in await world.pods() if pod["metadata"]["annotations"][names.RUN_NAME] == name]


@pytest.mark.rule("C6")
async def test_over_quota_is_queued_with_nothing_made_and_begins_in_order(world: OperatorWorld) -> None:
    """Three at once and room for one: each next one begins when there is room, or the quota is raised."""
    await constrain(world, resources={"cpu": 1, "memory": "1Gi", "storage": "5Gi"})
    await world.start()
    await until_ready(world)
    for name in ("a", "b", "c"):
        await world.apply_run(name)
    pod = await world.until_pod()
    first = pod["metadata"]["annotations"][names.RUN_NAME]
    waiting = sorted({"a", "b", "c"} - {first})
    for name in waiting:
        status = await world.until_reason(name, "Queued")
        assert status["phase"] == "Queued"
        assert status.get("epoch") is None
    told = (await world.status(waiting[0]))["message"]
    assert "quota moorage-contract has" in told
    assert "rcon/team is raised" in told
    assert len(await world.standing()) == 3, "pod, volume and Lease of the one that runs"
    await world.api.patch(constraints(world, "team"), {"spec": {"resources": {"cpu": 2, "memory": "2Gi"}}})

    async def second() -> bool:
        return bool(await pods_of(world, waiting[0]))

    await world.until(second, "the next one, now that the quota is raised")
    assert await pods_of(world, waiting[1]) == []
    await ended(world, pod)
    await world.until_phase(first, "Succeeded")

    async def third() -> bool:
        return bool(await pods_of(world, waiting[1]))

    await world.until(third, "the last one, in the room of the first")
    epochs = [pod["metadata"]["labels"][names.EPOCH] for pod in await world.pods()]
    assert epochs == ["1"] * 3, "nobody has used up an attempt"


@pytest.mark.rule("C6")
async def test_what_the_quota_can_never_hold_keeps_nobody_else_waiting(world: OperatorWorld) -> None:
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "theirs"}}
    theirs = await world.api.create(world.path("resourcequotas"), {**body, "spec": {"hard": {"limits.memory": "1Gi"}}})
    await world.start()
    await world.apply_run("big", sandbox={"resources": {"memory": "2Gi"}})
    status = await world.until_reason("big", "QuotaTooSmall")
    assert "quota theirs allows 1Gi of limits.memory in all" in status["message"]
    await world.apply_run("small")
    await world.until_pod()
    path = world.path("resourcequotas", theirs["metadata"]["name"])
    await world.api.patch(path, {"spec": {"hard": {"limits.memory": "4Gi"}}})

    async def begun() -> bool:
        return bool(await pods_of(world, "big"))

    await world.until(begun, "the big one")


@pytest.mark.rule("C5")
async def test_the_gateway_keeps_what_models_may_take_and_a_removed_contract_is_taken_back(
    world: OperatorWorld,
) -> None:
    await world.start()
    made = await constrain(world, perDay={"tokens": "1M", "cost": "20"}, concurrency={"models": 3})
    status = await until_ready(world)
    assert lines(status) == {
        "concurrency.models": ("3", "0", None),
        "perDay.tokens": ("1000000", "0", None),
        "perDay.cost": ("$20.00", "$0.00", None),
    }
    store = world.gateway.deps.store
    assert await store.allowances() == {world.namespace: Allowance(1_000_000, 20_000_000, 3)}
    asked = Ask(world.namespace, "r1", world.gateway.gate.allowances.today(), "g", 5_000, 5_600_000)
    assert await store.take(asked) is None
    await store.settle(asked, 1_234, 5_600_000)

    async def shown() -> bool:
        told = await world.api.get(constraints(world, "team")) or {}
        return lines(told["status"])["perDay.tokens"][1] == "1234"

    await world.until(shown, "what was used today", 30)
    await world.stop()
    await world.api.delete(constraints(world, "team"), made["metadata"]["uid"])
    await world.start()

    async def taken_back() -> bool:
        return await store.allowances() == {}

    await world.until(taken_back, "the allowance goes, though nobody saw the contract go")
