"""B3: the sum over calls is the run's is its namespace's, to the micro-dollar, over all protocols, with cached and
reasoning tokens, retries, cuts, and gateways that die at every boundary of a model request."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_killed import Killed, Patient, meeting
from tests.gateway_script import resolved
from tests.model_place import ANTHROPIC, CALL, CHAT, MODEL, PRICES, RESPONSES, USER, Spoken

from moorage.api.wire import NamespaceUsage, ResolvedModel, ResolvedRetries
from moorage.core.journal.export import parse_header, parse_record, read_lines, verify_export
from moorage.core.journal.record import Record, decode
from moorage.core.models.prices import cost_micros
from moorage.core.models.usage import KINDS
from moorage.gateway.facts import Facts, fold
from moorage.points import Point
from moorage.testing.gateway import OPERATOR_TOKEN
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Fault as Disturbance
from moorage.testing.killpoints import Shot, fired
from moorage.testing.models import Fault, Reply, Script, StandIn
from moorage.testing.models.script import Usage

pytestmark = pytest.mark.timeout(180)  # each case starts several gateways
ALL = pytest.mark.parametrize("spoken", [ANTHROPIC, RESPONSES, CHAT], ids=lambda spoken: spoken.name)
NAMES = (*KINDS, "reasoning_tokens", "cost_micros")
REPLIES = tuple(
    Reply(
        text="word " * 40,
        tools=(CALL,),
        usage=Usage(
            input_tokens=1_000 + number,
            output_tokens=300 + number,
            cache_read_input_tokens=5_000 + 7 * number,
            cache_creation_input_tokens=40,
            reasoning_tokens=250,
        ),
        faults=(Fault(kind="status", status=529, times=2),) if number else (),
    )
    for number in range(4)
)
POINTS = (Point.MODEL_BEFORE, Point.MODEL_WITHIN, Point.MODEL_AFTER, Point.MODEL_STREAM)


async def journal(operator: Patient) -> list[Record]:
    """As it is exported, whole."""
    lines = (await operator.answer("GET", "/v1/runs/u1/journal")).content
    assert verify_export([lines]).sound
    read = read_lines([lines])
    parse_header(next(read))
    return [decode(parse_record(line)) for line in read]


async def until_answered(runner: Patient, spoken: Spoken, body: dict[str, Any]) -> bytes:
    """As an agent does it that asks again until it has a whole answer."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            answer = await runner.http.post(spoken.path, json=body)
            if answer.is_success:
                return answer.content
        await asyncio.sleep(0.02)


def conversation(spoken: Spoken, step: int) -> dict[str, Any]:
    """The request after so many answered calls, streamed every other time."""
    calls = [item for number in range(step) for item in answered(spoken, f"call-{number}")]
    where = "input" if spoken is RESPONSES else "messages"
    return spoken.ask(stream=step % 2 == 0, **{where: [*USER, *calls]})


def answered(spoken: Spoken, call: str) -> list[dict[str, Any]]:
    if spoken is ANTHROPIC:
        use = {"type": "tool_use", "id": call, "name": "bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": call, "content": "ok"}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    if spoken is RESPONSES:
        said = {"type": "function_call", "call_id": call, "name": "bash", "arguments": "{}"}
        return [said, {"type": "function_call_output", "call_id": call, "output": "ok"}]
    use = {"id": call, "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    return [{"role": "assistant", "tool_calls": [use]}, {"role": "tool", "tool_call_id": call, "content": "ok"}]


@ALL
@pytest.mark.rule("B2", "B3", "I4", "K1", "R2")
async def test_calls_run_and_namespace_agree_to_the_micro_dollar_whatever_kills_the_gateway(
    spoken: Spoken, upstream: GitServer, tmp_path: Path
) -> None:
    shots = [Shot(point, number, Disturbance.KILL) for point, number in zip(POINTS, (2, 3, 2, 1), strict=True)]
    gateway, trace = Killed(tmp_path), tmp_path / "trace"
    operator, runner = Patient(gateway.port, OPERATOR_TOKEN), Patient(gateway.port, "token-of-p1")
    async with StandIn(Script(replies=REPLIES)).serving() as model:
        try:
            async with meeting(gateway, trace, shots):
                await begun(operator, runner, spoken, model, upstream)
                for step in range(len(REPLIES)):
                    await until_answered(runner, spoken, conversation(spoken, step))
                view = await operator("GET", "/v1/runs/u1")
                told = NamespaceUsage.model_validate(await operator("GET", "/v1/namespaces/team-a/usage"))
                records = await journal(operator)
        finally:
            await gateway.kill()
            await asyncio.gather(operator.http.aclose(), runner.http.aclose())
    assert all(fired(trace, shot) for shot in shots)
    assert_summed(records, view["state"]["usage"], told)
    assert view["state"]["usage"]["model_retries"] >= 1


async def begun(operator: Patient, runner: Patient, spoken: Spoken, model: StandIn, upstream: GitServer) -> None:
    chosen = ResolvedModel(
        provider="main",
        protocol=spoken.name,
        base_url=model.url,
        name=MODEL,
        prices=PRICES,
        retries=ResolvedRetries(max_attempts=4, budget=20),
    )
    spec = resolved(upstream)
    spec = spec.model_copy(update={"agent": spec.agent.model_copy(update={"model": chosen})})
    await operator("PUT", "/v1/runs/u1", spec.model_dump(mode="json"))
    await operator("POST", "/v1/runs/u1/fence", {"epoch": 1, "attempt": 1, "holder": "a"})
    pod = {"pod_uid": "p1", "pod_name": "p1", "epoch": 1, "role": "runner"}
    await operator("POST", "/v1/runs/u1/pods", pod)
    base = (await runner("GET", "/v1/self"))["git"]["base"]
    for kind, said in (("WORKSPACE_READY", {"base": base, "branch": "moorage/fix"}), ("AGENT_STARTED", {})):
        record = {"record_id": f"r:{kind}", "type": kind, "payload": said, "recorded_at": 1}
        await runner("POST", "/v1/self/records", {"epoch": 1, "records": [record]})


def assert_summed(records: list[Record], used: dict[str, int], told: NamespaceUsage) -> None:
    billed = [record.payload or {} for record in records if record.type == "MODEL_RESPONSE"]
    usages = [each["usage"] for each in billed]
    summed = {name: sum(usage.get(name, 0) for usage in usages) for name in NAMES}
    assert {name: used[name] for name in NAMES} == summed
    assert [{name: day.model_dump()[name] for name in NAMES} for day in told.days] == [summed]
    exact = [usage for each, usage in zip(billed, usages, strict=True) if usage and not each["estimated"]]
    assert len(exact) >= len(REPLIES)
    assert all(usage["cost_micros"] == cost_micros(usage, PRICES[MODEL]) for usage in exact)
    facts = Facts()
    for record in records:
        facts = fold(facts, record)
    assert facts.asked == {}, "nothing stays reserved"
