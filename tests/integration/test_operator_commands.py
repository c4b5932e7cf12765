"""RunCommands against a real API server: taken on once by whoever leads, with a receipt, and gone with their run."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.operator_world import OperatorWorld

from moorage.api import names

pytestmark = pytest.mark.integration
BUILTIN = {"driver": "builtin", "model": {"providerRef": {"name": "models"}, "name": "m"}}
PROVIDER = {"protocol": "anthropic-messages", "baseURL": "http://127.0.0.1:9"}
TEXT = {"Steer": {"text": "use tabs"}, "FollowUp": {"text": "now the docs"}}


def place(world: OperatorWorld, name: str | None = None) -> str:
    return world.path("runcommands", name, names.API_VERSION)


async def ask(world: OperatorWorld, name: str, kind: str = "Steer", run: str = "fix", **more: Any) -> None:
    spec = {"runRef": {"name": run}, "type": kind, "issuer": "ada", **TEXT.get(kind, {}), **more}
    meta = {"name": name, "namespace": world.namespace}
    body = {"apiVersion": names.API_VERSION, "kind": "RunCommand", "metadata": meta, "spec": spec}
    await world.api.create(place(world), body)


async def command(world: OperatorWorld, name: str) -> dict[str, Any]:
    return await world.api.get(place(world, name)) or {}


async def until_state(world: OperatorWorld, name: str, state: str, reason: str = "") -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        status: dict[str, Any] = (await command(world, name)).get("status") or {}
        return status if status.get("state") == state and reason in (status.get("reason") or "") else None

    found: dict[str, Any] = await world.until(there, f"{name} {state} {reason}")
    return found


async def at_work(world: OperatorWorld) -> Any:
    """A run of the builtin driver whose agent has started; its sandbox's client."""
    meta = {"name": "models", "namespace": world.namespace}
    provider = {"apiVersion": names.API_VERSION, "kind": "ModelProvider", "metadata": meta, "spec": PROVIDER}
    await world.api.create(world.path("modelproviders", version=names.API_VERSION), provider)
    await world.apply_run("fix", agent=BUILTIN)
    pod = await world.until_pod()
    await world.work(pod, finish=False)
    return pod


@pytest.mark.rule("M2", "M3", "O8")
async def test_a_message_is_accepted_delivered_and_told(world: OperatorWorld) -> None:
    await world.start(command_authority="ValidatingAdmissionPolicy")
    pod = await at_work(world)
    await ask(world, "tabs")
    accepted = await until_state(world, "tabs", "Accepted")
    run = await world.run("fix")
    assert accepted["runUid"] == run["metadata"]["uid"]
    records = list(await world.gateway.deps.store.read(run["metadata"]["uid"]))
    record = records[accepted["offset"]]
    assert (record.type, record.actor, record.surface_id) == ("COMMAND_ACCEPTED", "ada", "kubernetes")
    assert record.payload is not None
    assert record.payload["authority"] == "ValidatingAdmissionPolicy"
    (owner,) = (await command(world, "tabs"))["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("AgentRun", run["metadata"]["uid"])
    client = world.sandbox(pod)
    assert [each["text"] for each in (await client.get("/v1/self/messages")).json()["messages"]] == ["use tabs"]
    await world.report(client, 1, "COMMAND_DELIVERED", {"command_id": "tabs", "iteration": 1})
    delivered = await until_state(world, "tabs", "Delivered")
    assert delivered["offset"] == accepted["offset"]
    ready = {c["type"]: c["status"] for c in delivered["conditions"]}
    assert (ready["Ready"], ready["Reconciling"], ready["Stalled"]) == ("True", "False", "False")


@pytest.mark.rule("M2")
async def test_a_rejection_stays_whatever_becomes_of_the_run(world: OperatorWorld) -> None:
    await world.start()
    await at_work(world)
    await ask(world, "yes", "Approve", approval="push")
    rejected = await until_state(world, "yes", "Rejected", "NothingToApprove")
    await ask(world, "stop", "Cancel")
    await until_state(world, "stop", "Accepted")
    await world.stop()
    await world.start()
    assert (await command(world, "yes"))["status"] == rejected


@pytest.mark.rule("M2", "R7")
async def test_what_is_asked_while_nobody_leads_is_taken_on_later_and_once(world: OperatorWorld) -> None:
    await world.start()
    await at_work(world)
    await world.stop()
    await ask(world, "tabs")
    assert (await command(world, "tabs"))["status"]["state"] == "Pending"
    await world.start()
    accepted = await until_state(world, "tabs", "Accepted")
    await world.stop()
    await world.start()
    await ask(world, "docs", "FollowUp")
    await until_state(world, "docs", "Accepted")
    assert (await command(world, "tabs"))["status"]["offset"] == accepted["offset"]
    uid = (await world.run("fix"))["metadata"]["uid"]
    types = [record.type for record in await world.gateway.deps.store.read(uid)]
    assert types.count("COMMAND_ACCEPTED") == 2


async def test_a_gateway_that_is_away_is_waited_for(world: OperatorWorld) -> None:
    await world.start()
    await at_work(world)
    mend = world.lose_gateway()
    await ask(world, "tabs")
    await until_state(world, "tabs", "Pending", "GatewayUnavailable")
    mend()
    await until_state(world, "tabs", "Accepted")


@pytest.mark.rule("X3")
async def test_a_run_that_has_not_begun_keeps_its_commands_and_is_cancelled_at_once(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix", suspend=True)
    await world.until_reason("fix", "Suspended")
    await ask(world, "tabs")
    await until_state(world, "tabs", "Pending", "RunNotStarted")
    await ask(world, "stop", "Cancel")
    await world.until_phase("fix", "Cancelled")
    assert (await until_state(world, "stop", "Done"))["reason"] == "Cancelled"
    await until_state(world, "tabs", "Rejected", "RunEnded")
    await world.apply_run("fix-again")  # nobody has cancelled that one
    await world.until_pod()


async def test_a_command_may_come_before_its_run(world: OperatorWorld) -> None:
    await world.start()
    await ask(world, "stop", "Cancel", run="later")
    await until_state(world, "stop", "Pending", "UnknownRun")
    await world.apply_run("later")
    await world.until_phase("later", "Cancelled")
    await until_state(world, "stop", "Done")


async def program(world: OperatorWorld, *argv: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, receipt and standard error of the real program, as the administrator."""
    moorage = Path(sys.executable).parent / "moorage"
    where = ("-n", world.namespace, "--kubeconfig", str(world.server.kubeconfig), "-o", "json")
    call = [str(moorage), *argv, *where]
    done = await asyncio.to_thread(subprocess.run, call, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.mark.rule("M2")
async def test_the_program_sends_once_and_tells_the_receipt(world: OperatorWorld) -> None:
    await world.start()
    await at_work(world)
    code, receipt, err = await program(world, "steer", "fix", "use tabs", "--id", "s1")
    assert (code, receipt["state"]) == (0, "Accepted"), err
    assert (await command(world, "s1"))["spec"]["issuer"] == receipt["issuer"] != ""
    assert await program(world, "steer", "fix", "use tabs", "--id", "s1") == (0, receipt, "")
    code, _, err = await program(world, "steer", "fix", "use spaces", "--id", "s1")
    assert (code, "s1 is the id of another command" in err) == (1, True)
    code, receipt, _ = await program(world, "approve", "fix", "push")
    assert (code, receipt["reason"]) == (1, "NothingToApprove")
    code, receipt, err = await program(world, "cancel", "fix", "--id", "c1")
    assert (code, receipt["state"]) == (0, "Accepted"), err


async def test_the_program_says_that_it_has_no_receipt_yet(world: OperatorWorld) -> None:
    code, receipt, err = await program(world, "pause", "fix", "--id", "p1", "--timeout", "0")
    assert (code, receipt) == (4, {})
    assert "--id p1" in err
    assert (await command(world, "p1"))["spec"]["type"] == "Pause"
