"""Killed, failing, held up and stopped on the way to a pause and back from it."""

import asyncio
import sys
from collections.abc import Sequence

import pytest
import yaml
from tests.contract.killpoint_places import elsewhere
from tests.contract.killpoints.test_killpoints_endings import KILLED, Armed
from tests.contract.local_machine import Machine

from moorage.cli.exits import Exit
from moorage.points import Point
from moorage.testing.killpoints import Fault
from moorage.testing.models import Reply, Script, StandIn
from moorage.testing.models.script import Usage

pytestmark = pytest.mark.timeout(300)


@pytest.mark.rule("K1", "C3", "I4")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_a_pause_it_is_finished_and_the_run_goes_on_from_there")
)
def test_whatever_befalls_a_pause_it_is_finished_and_the_run_goes_on_from_there(
    machine: Machine, fault: Fault, points: Sequence[Point]
) -> None:
    """Whoever dies on the way back was told of the raised limit, or is told again."""
    armed = Armed(machine, fault, points)
    machine.write(constraints={"maxIterations": 2})
    codes = [armed.ended(machine.start())]
    while codes[-1] != Exit.PAUSED:
        codes.append(armed.ended(machine.start()))
    assert machine.told("ITERATION_COMPLETE") == 2
    machine.write(constraints={"maxIterations": 100})
    codes.append(armed.ended(machine.start()))
    while codes[-1] != 0:
        codes.append(armed.ended(machine.start()))
    assert armed.met
    assert codes.count(KILLED) == (len(points) if fault is Fault.KILL else 0)
    assert machine.told("PAUSE_REQUESTED") == machine.told("RESUMED") == machine.told("LIMITS_RAISED") == 1
    assert machine.told("RUN_SUCCEEDED") == 1
    machine.armed = {}
    machine.whole()


@pytest.mark.rule("K1", "Q5")
@pytest.mark.parametrize(("fault", "points"), elsewhere("test_whatever_befalls_a_runner_that_pauses_the_run_is_paused"))
async def test_whatever_befalls_a_runner_that_pauses_the_run_is_paused(
    machine: Machine, fault: Fault, points: Sequence[Point]
) -> None:
    """An agent that knows nothing of limits, and doesn't go when its model is refused to it."""
    async with StandIn(
        Script(replies=(Reply(text="Yes.", usage=Usage(input_tokens=10, output_tokens=1)),) * 9)
    ).serving() as model:
        asking(machine, model, hard=5)
        armed = Armed(machine, fault, points)
        assert await asyncio.to_thread(armed.ended, machine.start()) == Exit.PAUSED
        assert armed.met
        assert machine.told("PAUSE_REQUESTED", "BudgetExhausted") == machine.told("PAUSED", '"type":"PAUSED"') == 1
        assert machine.told("ATTEMPT_ENDED") == 0
        machine.armed = {}
        asking(machine, model, hard=1000)
        code, result, err = await asyncio.to_thread(machine.run)
        assert (code, result["phase"]) == (0, "Succeeded"), err
        assert machine.told("MODEL_RESPONSE", '"complete":true') == 2


ASK = """
import os, urllib.request
body = b'{"model":"stand-in","max_tokens":1,"messages":[{"role":"user","content":"?"}]}'
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})).read()
"""


def asking(machine: Machine, model: StandIn, hard: int) -> None:
    """A manifest whose agent asks its model once in each of two iterations, and goes on without where it is refused."""
    (machine.root / "ask.py").write_text(ASK)
    ask = f"{sys.executable} {machine.root}/ask.py"
    tell = """echo '{"moorage": {"event": "iteration"}}'"""
    refused = f"while :; do {tell}; sleep 0.2; done"
    agent = f"test -e first || {{ {ask}; touch first; {tell}; }}; {ask} || {refused}; touch second; {tell}"
    machine.write(agent=agent, check="test -e second", constraints={"tokens": {"hard": hard}})
    body = yaml.safe_load(machine.manifest.read_text())
    body["spec"]["agent"]["model"] = {"providerRef": {"name": "models"}, "name": "stand-in"}
    provider = {"protocol": "anthropic-messages", "baseURL": model.url}
    models = {
        "apiVersion": body["apiVersion"],
        "kind": "ModelProvider",
        "metadata": {"name": "models"},
        "spec": provider,
    }
    machine.manifest.write_text(yaml.safe_dump_all([models, body]))
