"""T6 at the doors of sandboxes: a question is one however many ask it, and nothing passes for want of who waits."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.contract.test_two_gateways import Pair, pair
from tests.gateway_script import Operator, agent_at_work, ok, resolved, result, told
from tests.model_place import ANTHROPIC, PRICES, Place, place, script

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedApproval, ResolvedChildren, ResolvedParent
from moorage.core.approvals.consent import identity
from moorage.drivers.telling import journaled
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

__all__ = ["pair", "place", "script"]  # fixtures
pytestmark = pytest.mark.timeout(120)  # two gateways

SHELL = ResolvedApproval(name="shell", before="ToolCall", reject_after_ms=3_600_000)
SPEND = ResolvedApproval(name="spend", before="Cost", step_micros=10)
BUILTIN = ResolvedAgent(driver="builtin")
CONSENT, RECORDS = "/v1/self/consent", "/v1/self/records"
KEPT = 32  # answers about calls


@dataclass
class Ticking(StepClock):
    """No two readings of the wall clock are the same."""

    def now_ms(self) -> int:
        self.wall += 1
        return self.wall


@pytest.fixture
def clock() -> StepClock:
    return Ticking()


async def until(so: Callable[[], Awaitable[object]]) -> None:
    while not await so():  # noqa: ASYNC110  somebody else's doing
        await asyncio.sleep(0.01)


async def pending(operator: Operator) -> list[Any]:
    return [each for each in (await operator.state())["consents"] if each["status"] == "pending"]


async def named(operator: Operator, key: str, epoch: int = 0) -> bool:
    return any(each["key"] == key and each["epoch"] >= epoch for each in await pending(operator))


async def answer(operator: Operator, name: str, approval: str, kind: str = "Approve", question: str = "") -> Any:
    body = {"command_id": name, "type": kind, "approval": approval, "issuer": "ada", "question": question}
    return await ok(await operator.http.post(f"{operator.door}/commands", json=body))


def asking(runner: httpx.AsyncClient, key: str, epoch: int = 1, call: str = "") -> "asyncio.Task[httpx.Response]":
    asked = {"epoch": epoch, "key": key, "tool": "bash", "call": call}
    return asyncio.create_task(runner.post(CONSENT, json=asked))


async def at_work(gateway: LocalGateway, upstream: GitServer, **limits: int) -> tuple[Operator, httpx.AsyncClient]:
    spec = resolved(upstream, agent=BUILTIN, approvals=(SHELL,), limits=ResolvedLimits(**limits))
    operator = Operator(gateway, spec)
    return operator, await agent_at_work(gateway, operator)


@pytest.mark.rule("T6", "M5")
async def test_who_asks_side_by_side_at_two_gateways_asks_one_question(pair: Pair, upstream: GitServer) -> None:
    operator, here = await at_work(pair.one, upstream)
    _, there = pair.sandboxes("p1")
    asked = [asking(http, "1.0") for http in (here, there) * 4]
    await until(lambda: pending(operator))
    assert (await answer(operator, "a1", "shell"))["state"] == "Done"
    assert {(await ok(await each))["status"] for each in asked} == {"approved"}
    assert (await operator.types()).count("APPROVAL_REQUESTED") == 1


@pytest.mark.rule("T6", "M5")
async def test_a_call_that_comes_in_two_places_at_once_has_one_question(
    gateway: LocalGateway, upstream: GitServer
) -> None:
    """Each is judged by the state that its record follows, not by what was known as it came."""
    operator, runner = await at_work(gateway, upstream)
    run = await gateway.gate.ledger.open("u1")
    async with run.writing:  # both come before either is written down
        asked = [asking(runner, key, call="c:0") for key in ("1.0", "3.0")]
        while len(run.writing._waiters or ()) < len(asked):  # noqa: ASYNC110  other tasks' doing
            await asyncio.sleep(0.01)
    await until(lambda: pending(operator))
    assert (await answer(operator, "a1", "shell"))["state"] == "Done"
    assert sorted([(await ok(await each))["status"] for each in asked]) == ["approved", "pending"]
    for key in ("1.0", "3.0"):
        assert (await ok(await asking(runner, key, call="c:0")))["status"] == "approved"
    assert (await operator.types()).count("APPROVAL_REQUESTED") == 1


@pytest.mark.rule("T6")
async def test_a_question_whose_answer_was_forgotten_is_asked_and_answered_anew(
    gateway: LocalGateway, upstream: GitServer
) -> None:
    operator, runner = await at_work(gateway, upstream)
    for n in (*range(KEPT + 1), 0):
        asked = asking(runner, f"1.{n}")
        await until(lambda: pending(operator))
        offset = (await operator.state())["offset"]
        assert (await answer(operator, f"a{offset}", "shell"))["state"] == "Done"
        assert (await ok(await asked))["status"] == "approved"
    assert (await operator.state())["usage"]["human_approvals"] == KEPT + 2


@pytest.mark.rule("T6", "R1", "M5")
@pytest.mark.parametrize("early", [True, False], ids=["answered", "pending"])
async def test_a_call_that_comes_in_another_place_has_the_question_that_it_had(
    pair: Pair, upstream: GitServer, early: bool
) -> None:
    operator, runner = await at_work(pair.one, upstream)
    lost = asking(runner, "1.0", call="c:0")
    await until(lambda: pending(operator))
    if early:
        await answer(operator, "a1", "shell")
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    here, there = pair.sandboxes("p2")
    await ok(await here.post(RECORDS, json=told("AGENT_STARTED", {}, epoch=2)))
    other = asking(here, "3.1", 2, call="c:1")
    await until(lambda: named(operator, "tool:3.1"))
    asked = [asking(http, "3.0", 2, call="c:0") for http in (here, there) * 3]
    if not early:
        await until(lambda: named(operator, "tool:1.0", epoch=2))
        await answer(operator, "a1", "shell", question="tool:1.0")
    assert "approved" in [(await ok(await each))["status"] for each in asked]
    known = {each["key"]: (each["status"], each["epoch"]) for each in (await operator.state())["consents"]}
    assert known == {"tool:1.0": ("approved", 2), "tool:3.1": ("pending", 2)}, "the same call once more is another one"
    assert (await ok(await asking(there, "3.0", 2, call="c:0")))["status"] == "approved", "asked again it is no news"
    assert (await operator.types()).count("APPROVAL_REQUESTED") == 3
    assert (await operator.state())["usage"]["human_approvals"] == 1
    for each in (lost, other):
        each.cancel()
    await asyncio.gather(lost, other, return_exceptions=True)


@pytest.mark.rule("T6", "R4")
async def test_who_is_to_make_a_long_call_again_is_told_all_of_it(gateway: LocalGateway, upstream: GitServer) -> None:
    """By the journal, and only where that has the very call: of another one nobody has said anything."""
    operator, runner = await at_work(gateway, upstream)
    told_all = {"command": f"make {'x' * 300} && ./deploy", "note": "é"}
    past_json = {"command": "z" * 300, "n": 1 << 70, "half": "\ud800"}
    calls = ((told_all, told_all), ({"command": "y" * 300}, {}), (past_json, journaled(past_json)))
    for n, (arguments, kept) in enumerate(calls):
        tool, payload = "bash", {"tool": "bash", "arguments": kept, "bytes": 9}
        call = {"record_id": f"q{n}", "type": "TOOL_REQUEST", "payload": payload, "recorded_at": 7}
        report = {"epoch": 1, "records": [call | {"tool_call_id": f"1.{n}"}]}
        await ok(await runner.post(RECORDS, json=report))
        said = arguments["command"][:240]
        body = {"epoch": 1, "key": f"1.{n}:a", "tool": tool, "call": f"{identity(tool, arguments)}:0", "said": said}
        asked = asyncio.create_task(runner.post(CONSENT, json=body))
        await until(lambda n=n: named(operator, f"tool:1.{n}:a"))  # type: ignore[misc]
        await answer(operator, f"a{n}", "shell")
        assert (await ok(await asked))["status"] == "approved"
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    handoff = (await ok(await gateway.sandbox("p2", "team-a").get("/v1/self")))["handoff"]
    first, second, third = (line for line in handoff.splitlines() if line.startswith("ada was asked"))
    again = "allows that very call once. Make it again as it was, with these arguments: "
    assert json.loads(first.partition(again)[2]) == told_all
    assert second.endswith("allows that very call once. Make it again as it was.")
    assert json.loads(third.partition(again)[2]) == past_json


@pytest.mark.rule("T6", "R1")
async def test_a_new_attempt_comes_to_the_question_of_the_one_before(
    gateway: LocalGateway, upstream: GitServer
) -> None:
    operator, runner = await at_work(gateway, upstream)
    first = asking(runner, "1.0")
    await until(lambda: pending(operator))
    (before,) = await pending(operator)
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = gateway.sandbox("p2", "team-a")
    await ok(await second.post(RECORDS, json=told("AGENT_STARTED", {}, epoch=2)))
    assert (await operator.state())["phase"] == "Running"
    asked = asking(second, "1.0", 2)
    await until(lambda: _phase(operator, "AwaitingApproval"))
    assert await pending(operator) == [before | {"epoch": 2}]
    await answer(operator, "a1", "shell")
    assert (await ok(await asked))["status"] == "approved"
    await first


async def _phase(operator: Operator, phase: str) -> bool:
    return bool((await operator.state())["phase"] == phase)


@pytest.mark.rule("T6", "B3")
async def test_a_call_that_is_given_up_takes_its_questions_with_it(gateway: LocalGateway, upstream: GitServer) -> None:
    """However often an agent does that, and no safe point follows: none stays, and each may be asked."""
    operator, runner = await at_work(gateway, upstream, human_approvals_hard=2)
    for n in range(3):
        asked = [asking(runner, f"1.{n}:a"), asking(runner, f"1.{n}.1:b")]  # the second one as another tool
        await until(lambda n=n: named(operator, f"tool:1.{n}.1:b"))  # type: ignore[misc]
        await until(lambda n=n: named(operator, f"tool:1.{n}:a"))  # type: ignore[misc]
        for kind in ("TOOL_REQUEST", "TOOL_RESPONSE"):
            call = {"record_id": f"{kind}:{n}", "type": kind, "payload": {}, "recorded_at": 7, "tool_call_id": f"1.{n}"}
            await ok(await runner.post(RECORDS, json={"epoch": 1, "records": [call]}))
        assert [(await ok(await each))["status"] for each in asked] == ["pending", "pending"], "it hears of it at once"
        state = await operator.state()
        assert (state["consents"], state["phase"], state["violations"]) == ([], "Running", [])
    other = asking(runner, "1.30:a")
    await until(lambda: named(operator, "tool:1.30:a"))
    call = {"record_id": "r", "type": "TOOL_RESPONSE", "payload": {}, "recorded_at": 7, "tool_call_id": "1.3"}
    await ok(await runner.post(RECORDS, json={"epoch": 1, "records": [call]}))
    assert await named(operator, "tool:1.30:a"), "another call"
    assert (await operator.state())["phase"] == "AwaitingApproval"
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)


# --- a limit ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("B2", "B3", "T6")
async def test_of_fifty_questions_at_once_no_more_are_asked_than_the_limit(pair: Pair, upstream: GitServer) -> None:
    operator, here = await at_work(pair.one, upstream, human_approvals_hard=10)
    _, there = pair.sandboxes("p1")
    asked = [asking(http, f"{at}.{n}") for n in range(25) for at, http in enumerate((here, there))]
    assert {(await ok(await each))["status"] for each in asked} == {"pending"}, "the run is to pause"
    state = await operator.state()
    assert ((await operator.types()).count("APPROVAL_REQUESTED"), len(await pending(operator))) == (10, 10)
    assert [(v["constraint"], v["action"]) for v in state["violations"]] == [("humanApprovals", "GRACEFUL_EXIT")]
    assert (state["pause"]["reason"], state["pause"]["limit"]) == ("BudgetExhausted", "human_approvals_hard")
    assert state["pause"]["message"] == "the run's human approval limit of 10 is used up (10)"


@pytest.mark.rule("B2", "B3", "T6")
async def test_a_call_for_which_nobody_may_be_asked_is_asked_for_once_the_limit_is_raised(
    gateway: LocalGateway, upstream: GitServer
) -> None:
    operator, runner = await at_work(gateway, upstream, human_approvals_hard=1)
    first = asking(runner, "1.0")
    await until(lambda: pending(operator))
    await answer(operator, "a1", "shell")
    assert (await ok(await first))["status"] == "approved"
    assert (await operator.state())["violations"] == [], "all of it may be used"
    assert (await ok(await asking(runner, "1.1")))["status"] == "pending"
    assert await pending(operator) == []
    gateway.restart()
    assert (await ok(await asking(runner, "1.1")))["status"] == "pending"
    assert (await operator.types()).count("APPROVAL_REQUESTED") == 1, "nobody is shown what may not be asked"
    await ok(await operator.report(1, "PAUSED", {}))
    refused_to_go_on = await operator.http.post(
        f"{operator.door}/commands", json={"command_id": "r1", "type": "Resume", "issuer": "ada"}
    )
    assert "constraints" in (await ok(refused_to_go_on))["message"], "how to raise it"
    await ok(await operator.report(1, "LIMITS_RAISED", {"limits": {"human_approvals_hard": 2}, "by": "spec"}))
    await ok(await operator.report(1, "RESUMED", {}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = gateway.sandbox("p2", "team-a")
    await ok(await second.get("/v1/self"))
    await ok(await second.post(RECORDS, json=told("AGENT_STARTED", {}, epoch=2)))
    assert (await operator.state())["violations"] == []
    again = asking(second, "1.1", 2)
    await until(lambda: pending(operator))
    await answer(operator, "a2", "shell", "Reject")
    assert (await ok(await again))["status"] == "rejected"
    assert (await operator.state())["usage"]["human_approvals"] == 2


@pytest.mark.rule("B2", "T6", "R1")
async def test_a_question_that_the_next_attempt_comes_to_is_no_further_one(
    gateway: LocalGateway, upstream: GitServer
) -> None:
    operator, runner = await at_work(gateway, upstream, human_approvals_hard=1)
    first = asking(runner, "1.0")
    await until(lambda: pending(operator))
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = gateway.sandbox("p2", "team-a")
    await ok(await second.post(RECORDS, json=told("AGENT_STARTED", {}, epoch=2)))
    asked = asking(second, "1.0", 2)
    await until(lambda: _phase(operator, "AwaitingApproval"))
    await answer(operator, "a1", "shell")
    assert (await ok(await asked))["status"] == "approved"
    assert (await operator.state())["violations"] == []
    await first


@pytest.mark.rule("B3", "O2", "T6")
async def test_what_a_child_may_ask_is_not_its_parents_to_ask(gateway: LocalGateway, upstream: GitServer) -> None:
    operator, runner = await at_work(gateway, upstream, human_approvals_hard=3)
    base = (await operator.state())["workspace_base"]
    mine = {"name": "fix-u2", "parent": ResolvedParent(uid="u1", name="fix", commit=base), "delivery": None}
    limits = ResolvedLimits(human_approvals_hard=2)
    spec = resolved(upstream, "u2", agent=BUILTIN, approvals=(SHELL,), limits=limits, acceptance=(), **mine)
    child = Operator(gateway, spec)
    worker = await child.start(pod="p2")
    await ok(await worker.get("/v1/self"))
    await ok(await worker.post(RECORDS, json=told("AGENT_STARTED", {})))
    own, its = asking(runner, "1.0"), asking(worker, "1.0")
    for of, name in ((operator, "a1"), (child, "b1")):
        await until(lambda of=of: pending(of))  # type: ignore[misc]
        await answer(of, name, "shell")
    assert [(await ok(await each))["status"] for each in (own, its)] == ["approved", "approved"]
    assert (await ok(await asking(runner, "1.1")))["status"] == "pending"
    assert (await operator.state())["pause"]["limit"] == "human_approvals_hard"
    await ok(await child.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "", "commit": None}))
    body = {"gone": ["u2"], "over": []}
    state = (await ok(await gateway.operator.post("/v1/runs/u1/children", json=body)))["state"]
    assert (state["children_used"]["human_approvals"], state["usage"]["human_approvals"]) == (1, 1)
    assert state["pause"]["widened"], "its child has given one back"


# --- spending ---------------------------------------------------------------------------------------------------------


async def held(place: Place) -> tuple[Operator, "asyncio.Task[httpx.Response]"]:
    """A request to the model that waits for an answer, the first step being spent."""
    operator = await place.run(ANTHROPIC, prices=PRICES, approvals=(SPEND,))
    assert (await place.ask(ANTHROPIC)).status_code == 200
    asked = asyncio.create_task(place.ask(ANTHROPIC))
    await until(lambda: pending(operator))
    return operator, asked


@pytest.mark.rule("T6", "B3")
async def test_a_request_that_nobody_waits_for_is_not_sent_without_its_approval(place: Place, clock: StepClock) -> None:
    _, asked = await held(place)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    refusals = place.gateway.deps.metrics.model_requests.labels(ANTHROPIC.name, "NotAtWork")

    async def refused_it() -> bool:
        clock.advance(place.gateway.deps.settings.orders_wait_ms)
        await ok(
            await place.client().post(RECORDS, json=told("DRIFT_SAVED", {}, str(clock.steady)))
        )  # wakes whoever waits
        return bool(refusals._value.get())

    await until(refused_it)
    assert len(place.model.bodies) == 1


@pytest.mark.rule("T6", "B3")
async def test_a_step_of_cost_for_which_nobody_may_be_asked_is_not_spent(place: Place) -> None:
    limits = ResolvedLimits(human_approvals_hard=0)
    operator = await place.run(ANTHROPIC, prices=PRICES, approvals=(SPEND,), limits=limits)
    assert (await place.ask(ANTHROPIC)).status_code == 200
    answered = await place.ask(ANTHROPIC)
    assert answered.status_code == 400
    assert answered.json()["error"]["message"] == "BudgetExhausted: the run's human approval limit of 0 is used up (0)"
    assert (len(place.model.bodies), await pending(operator)) == (1, [])
    assert (await operator.state())["pause"]["limit"] == "human_approvals_hard"


@pytest.mark.rule("T6", "B3")
async def test_an_agent_that_has_ended_spends_no_more(place: Place) -> None:
    operator, asked = await held(place)
    ended = result(None, outcome="failed", reason="AgentFailed", exit_code=1)
    await ok(await place.client().post("/v1/self/result", json=ended))
    assert await pending(operator) == []
    answered = await asked
    assert (answered.status_code, len(place.model.bodies)) == (400, 1)
    assert (await answer(operator, "a1", "spend"))["reason"] == "NothingToApprove"


@pytest.mark.rule("T6", "B3")
async def test_what_children_may_spend_is_asked_for_like_the_runs_own(place: Place) -> None:
    """Each child counts its own steps from 0."""
    children = ResolvedChildren(max=9, concurrent=9)
    operator = await place.run(ANTHROPIC, prices=PRICES, approvals=(SPEND,), children=children)
    spawns = [{"epoch": 1, "key": f"1.{n}", "goal": "g", "cost_micros": 5} for n in range(3)]
    answers = [await place.client().post("/v1/self/children", json=body) for body in spawns]
    assert [each.status_code for each in answers] == [200, 200, 403]
    assert answers[2].json()["reason"] == "ParentBudget"
    asked = asyncio.create_task(place.ask(ANTHROPIC))
    await until(lambda: pending(operator))
    assert place.model.bodies == []
    assert "given to children" in (await pending(operator))[0]["subject"]
    await answer(operator, "a1", "spend")
    assert (await asked).status_code == 200
