"""O2, O7, B3: a run that goes on with an ended one: its work and conversation, its account, what its agent hadn't
heard; once, whoever asks at the same time and whatever dies in between.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_script import (
    BRANCH,
    Operator,
    agent_at_work,
    checkpoint,
    commit,
    git,
    ok,
    push,
    refused,
    resolved,
    result,
    told,
    worktree,
)

from moorage.api.budget import ResolvedLimits
from moorage.api.meta import ObjectRef
from moorage.api.wire import ResolvedAgent, ResolvedDelivery, ResolvedOrigin, ResolvedRun
from moorage.core.journal.record import RecordType
from moorage.core.run.family import Share
from moorage.core.run.parents import Parent
from moorage.core.run.sessions import next_of
from moorage.core.run.view import RUN_VIEW
from moorage.store.errors import StoreUnavailable
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.workspace.statefiles import TITLE

AGENT = ResolvedAgent(driver="codex", image="agent")
LIMITS = ResolvedLimits(tokens_hard=1_000, tool_calls_hard=5)
FAILED = {"reason": "AgentFailed", "message": "it gave up", "commit": None}


@dataclass
class Line:
    """A run that has failed after a checkpoint with a conversation, and those that go on with it."""

    gateway: LocalGateway
    upstream: GitServer
    first: Operator
    base: str
    point: str
    said: str

    def next(self, uid: str = "u2", after: str = "u1", **changes: Any) -> Operator:
        mine: dict[str, Any] = {
            "name": f"fix-{uid}",
            "session_id": "u1",
            "origin": ResolvedOrigin(uid=after, name="fix"),
            "agent": AGENT,
            "limits": LIMITS,
            "goal": "and now the docs",
            "acceptance": (),
            "delivery": ResolvedDelivery(branch=f"moorage/{uid}"),
        }
        return Operator(self.gateway, resolved(self.upstream, uid, **mine | changes))

    async def row(self) -> Any:
        return await self.gateway.deps.store.get_session("team-a", "u1")


def point_of(tree: Path) -> tuple[str, str]:
    """A checkpoint of HEAD's tree, as a runner makes it, and the conversation that is its parent."""
    said = git(tree, "commit-tree", "HEAD^{tree}", "-m", TITLE)
    told = f"Checkpoint 1\n\nMoorage-Head: {git(tree, 'rev-parse', 'HEAD^')}\nMoorage-State: {said}\n"
    return git(tree, "commit-tree", "HEAD^{tree}", "-p", "HEAD^", "-p", said, "-m", told), said


async def calls(runner: httpx.AsyncClient, *names: str) -> None:
    for call in names:
        for kind in ("TOOL_REQUEST", "TOOL_RESPONSE"):
            record = {"record_id": f"{kind}:{call}", "type": kind, "payload": {}, "recorded_at": 7}
            report = {"epoch": 1, "records": [record | {"tool_call_id": call}]}
            await ok(await runner.post("/v1/self/records", json=report))


async def say(operator: Operator, name: str, kind: str = "FollowUp") -> Any:
    asked = {"command_id": name, "type": kind, "text": f"do {name}", "issuer": "ada"}
    return await ok(await operator.http.post(f"{operator.door}/commands", json=asked))


async def waiting(runner: httpx.AsyncClient) -> list[str]:
    return [each["text"] for each in (await ok(await runner.get("/v1/self/messages")))["messages"]]


async def at_work(gateway: LocalGateway, upstream: GitServer, tmp_path: Path) -> tuple[Line, httpx.AsyncClient, str]:
    first = Operator(gateway, resolved(upstream, agent=AGENT, limits=LIMITS, acceptance=()))
    runner = await agent_at_work(gateway, first)
    base = (await first.state())["workspace_base"]
    tree = await worktree(gateway, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    point, said = await asyncio.to_thread(point_of, tree)
    await push(tree, f"{point}:refs/moorage/runs/u1/1/checkpoints", f"HEAD:refs/heads/{BRANCH}")
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, point)))
    await calls(runner, "1.1", "1.2")
    return Line(gateway, upstream, first, base, point, said), runner, head


@pytest.fixture
async def line(gateway: LocalGateway, upstream: GitServer, tmp_path: Path) -> Line:
    found, _, _ = await at_work(gateway, upstream, tmp_path)
    await say(found.first, "m1")
    await say(found.first, "m2")
    await ok(await found.first.report(1, "RUN_FAILED", FAILED))
    return found


@pytest.mark.rule("O2", "R4")
async def test_the_next_run_begins_where_the_last_one_failed_with_its_conversation(line: Line, tmp_path: Path) -> None:
    second = line.next()
    runner = await second.start(pod="p2")
    told_first = await ok(await runner.get("/v1/self"))
    place = told_first["git"]
    assert (place["base"], place["resume"]["commit"]) == (line.base, line.point)
    assert told_first["continues"] is True
    assert "fix before it has failed" in told_first["handoff"]
    assert "it gave up" in told_first["handoff"]
    assert (told_first["goal"], told_first["next_iteration"]) == ("and now the docs", 1)
    tree = await worktree(line.gateway, tmp_path, "p2", "next")
    await asyncio.to_thread(git, tree, "fetch", "-q", "origin", line.point)
    assert git(tree, "show", f"{line.point}:b.txt") == "two"
    assert git(tree, "cat-file", "-t", line.said) == "commit"


@pytest.mark.rule("O2")
async def test_the_next_run_begins_at_what_was_delivered_and_delivers_what_is_its_own(
    gateway: LocalGateway, upstream: GitServer, tmp_path: Path
) -> None:
    line, runner, head = await at_work(gateway, upstream, tmp_path)
    await ok(await runner.post("/v1/self/result", json=result(head)))
    await ok(await line.first.deliver(1, head))
    await ok(await line.first.report(1, "RUN_SUCCEEDED", {"reason": "Delivered", "message": "", "commit": head}))
    second = line.next()
    place = (await ok(await (await second.start(pod="p2")).get("/v1/self")))["git"]
    assert place["base"] == head
    begun = place["resume"]["commit"]
    assert begun not in {head, line.point}
    tree = await worktree(gateway, tmp_path, "p2", "next")
    await asyncio.to_thread(git, tree, "fetch", "-q", "origin", begun)
    assert git(tree, "log", "-1", "--format=%P", begun) == f"{head} {line.said}"
    assert f"Moorage-Head: {head}" in git(tree, "log", "-1", "--format=%B", begun)
    own = await asyncio.to_thread(_on_top, tree, head)
    await push(tree, "HEAD:refs/heads/moorage/u2")
    second_runner = gateway.sandbox("p2", "team-a")
    for kind, said in (("WORKSPACE_READY", {"base": head, "branch": "moorage/u2"}), ("AGENT_STARTED", {})):
        await ok(await second_runner.post("/v1/self/records", json=told(kind, said)))
    await ok(await second_runner.post("/v1/self/result", json=result(own)))
    view = await ok(await second.deliver(1, own))
    assert view["state"]["effects"][0]["status"] == "confirmed", view["state"]["effects"]
    subjects = git(upstream.root / "shop.git", "log", "--format=%s", "moorage/u2").splitlines()
    assert subjects[:2] == ["c.txt", "b.txt"]
    assert TITLE not in subjects


def _on_top(tree: Path, head: str) -> str:
    git(tree, "checkout", "-q", head)
    return commit(tree, "c.txt", "three\n")


@pytest.mark.rule("B3", "I4", "O7")
async def test_what_the_session_has_used_counts_against_the_next_run(line: Line) -> None:
    second = line.next()
    runner = await second.start(pod="p2")
    assignment = await ok(await runner.get("/v1/self"))
    assert assignment["budget"]["used"]["toolCalls"] == 2
    assert assignment["budget"]["left"]["toolCalls"] == 3
    assert assignment["iterations_used"] == 1
    for kind, said in (("WORKSPACE_READY", {"base": line.base, "branch": "moorage/u2"}), ("AGENT_STARTED", {})):
        await ok(await runner.post("/v1/self/records", json=told(kind, said)))
    await calls(runner, "1.1", "1.2", "1.3")
    record = {"record_id": "more", "type": "TOOL_REQUEST", "payload": {}, "recorded_at": 7, "tool_call_id": "1.4"}
    await runner.post("/v1/self/records", json={"epoch": 1, "records": [record]})
    state = await second.state()
    assert state["pause"]["reason"] == "BudgetExhausted"
    assert "tool call limit of 5 is used up (5)" in state["pause"]["message"]
    assert (state["usage"]["tool_calls"], state["carried"]["tool_calls"]) == (3, 2)
    assert dict((await line.row()).budget) == {"iterations": 1, "tool_calls": 2}
    line.gateway.restart()
    assert (await second.state())["carried"] == state["carried"]


@pytest.mark.rule("M3", "M2", "O2")
async def test_messages_that_nobody_has_heard_go_to_the_first_that_goes_on(line: Line) -> None:
    second = line.next()
    runner = await second.start(pod="p2")
    await ok(await runner.get("/v1/self"))
    assert await waiting(runner) == ["do m1", "do m2"]
    assert [c["state"] for c in (await line.first.state())["commands"]] == ["Expired", "Expired"]
    assert (await say(second, "m1"))["state"] == "Accepted", "the same id is the same message"
    await ok(await runner.post("/v1/self/records", json=told("COMMAND_DELIVERED", {"command_id": "m1"})))
    await ok(await second.report(1, "RUN_FAILED", FAILED))
    again = line.next("u3")
    other = await again.start(pod="p3")
    await ok(await other.get("/v1/self"))
    assert await waiting(other) == []
    await ok(await again.report(1, "RUN_FAILED", FAILED))
    third = line.next("u4", after="u2")
    last = await third.start(pod="p4")
    await ok(await last.get("/v1/self"))
    assert await waiting(last) == ["do m2"]


@pytest.mark.rule("B3", "O7")
async def test_of_many_that_go_on_at_once_one_does_and_the_others_wait(line: Line) -> None:
    """The account is taken over by one alone."""
    many = [line.next(f"n{number}") for number in range(8)]
    bodies = [(each.door, each.spec.model_dump_json()) for each in many]
    answers = await asyncio.gather(*(line.gateway.operator.put(f"{door}/as-next", content=b) for door, b in bodies))
    taken = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    assert len(taken) == 1
    for answer in answers[: taken[0]] + answers[taken[0] + 1 :]:
        assert "goes on with this session already" in refused(answer, 403, "SessionBusy")
    assert (await line.row()).lineage == ("u1", many[taken[0]].spec.uid)
    mine = many[taken[0]]
    await ok(await mine.fence(1))
    await ok(await mine.report(1, "RUN_FAILED", FAILED))
    other = many[(taken[0] + 1) % 8]
    await other.admit()
    assert (await line.row()).lineage == ("u1", mine.spec.uid, other.spec.uid)


@pytest.mark.rule("B2", "B3", "O7")
async def test_what_a_gateway_asked_that_dies_after_the_end_is_counted_as_the_next_run_joins(
    gateway: LocalGateway, upstream: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but the next run comes by: the operator doesn't wait for what nobody else does."""
    line, _, _ = await at_work(gateway, upstream, tmp_path)
    dead: set[str] = set()

    async def gone(name: str) -> bool:
        return name in dead

    monkeypatch.setattr(gateway.deps.peers, "gone", gone)
    told = {"bytes_hash": "x", "reserved": {"input_tokens": 5}, "gateway": "other"}
    ledger = gateway.gate.ledger
    asked = ledger.observed(RecordType.MODEL_REQUEST, told, "q", request_id="q", attempt=1)
    await ledger.append(await ledger.open("u1"), 1, [asked])
    await ok(await line.first.report(1, "RUN_FAILED", FAILED))
    found = RUN_VIEW.validate_python(await line.first.view())
    assert found.reserved == Share(tokens=5)
    elder = Parent(found.spec, found.state, 0, found.iterations or 0, found.reserved or Share(), found.released)
    second = line.next()
    assert isinstance(next_of(second.spec, LIMITS, ObjectRef(name="fix"), elder), ResolvedRun)
    busy = await gateway.operator.put(f"{second.door}/as-next", content=_spec(line, "u2"))
    assert "still being counted" in refused(busy, 403, "SessionBusy")
    dead.add("other")
    await second.admit()
    assert (await second.state())["carried"]["tokens"] == 5


@pytest.mark.rule("O7", "J3")
async def test_a_run_that_joined_and_whose_journal_hadnt_begun_begins_the_same(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, store = line.next(), line.gateway.deps.store
    with monkeypatch.context() as broken:

        async def away(*_: object, **__: object) -> None:
            raise StoreUnavailable("away")

        broken.setattr(store, "admit", away)
        assert (
            await line.gateway.operator.put(f"{second.door}/as-next", content=second.spec.model_dump_json())
        ).is_error
    assert (await line.row()).lineage == ("u1", "u2")
    refused(await line.gateway.operator.put("/v1/runs/u3/as-next", content=_spec(line, "u3")), 403, "SessionBusy")
    line.gateway.restart()
    await second.admit()
    await second.admit()
    assert await second.types() == ["RUN_ADMITTED", "SESSION_JOINED", "COMMAND_ACCEPTED", "COMMAND_ACCEPTED"]
    assert (await line.row()).lineage == ("u1", "u2")
    assert (await second.state())["carried"]["tool_calls"] == 2


@pytest.mark.rule("B3", "O7")
async def test_what_the_row_says_counts_where_another_gateway_had_the_same_run_join(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one had counted more: the journal begins with what the next run of the line will be told, too."""
    store = line.gateway.deps.store
    persist = store.persist

    async def late(new: Any, session: Any) -> Any:
        await persist(new, replace(session, budget={"iterations": 1, "tool_calls": 4}))
        return await persist(new, session)

    monkeypatch.setattr(store, "persist", late)
    second = line.next()
    await second.admit()
    assert (await second.state())["carried"]["tool_calls"] == 4


def _spec(line: Line, uid: str) -> str:
    return line.next(uid).spec.model_dump_json()


@pytest.mark.rule("O7", "W5")
async def test_what_was_released_is_gone_on_with_by_nobody_and_its_account_is_kept(line: Line) -> None:
    second = line.next()
    await second.start(pod="p2")
    await ok(await second.report(1, "RUN_FAILED", FAILED))
    await ok(await line.gateway.operator.post("/v1/runs/u2/release"))
    row = await line.row()
    assert (row.state, dict(row.budget), row.end) == ("idle", {"iterations": 1, "tool_calls": 2}, None)
    third = line.next("u3")
    await third.admit()
    assert (await third.state())["carried"]["tool_calls"] == 2
    answer = await line.gateway.operator.put(
        "/v1/runs/u4/as-next", content=line.next("u4", "u2").spec.model_dump_json()
    )
    refused(answer, 403, "ContinuedReleased")
    await ok(await third.report(0, "RUN_FAILED", FAILED))
    for uid in ("u3", "u1"):
        await ok(await line.gateway.operator.post(f"/v1/runs/{uid}/release"))
    assert (await line.row()).end["reason"] == "Released"


async def test_a_run_before_that_never_had_a_worktree_leaves_its_budget_and_its_goal(
    gateway: LocalGateway, upstream: GitServer
) -> None:
    first = Operator(gateway, resolved(upstream, agent=AGENT, limits=LIMITS, goal="the first thing"))
    await first.admit()
    await ok(await first.report(0, "RUN_FAILED", FAILED))
    second = Line(gateway, upstream, first, "", "", "").next()
    told = await ok(await (await second.start(pod="p2")).get("/v1/self"))
    assert told["git"]["base"] == git(upstream.root / "shop.git", "rev-parse", "main")
    assert (told["git"]["resume"], told["continues"]) == (None, True)
    assert "Its goal was: the first thing\nIt had no worktree yet." in told["handoff"]


@pytest.mark.rule("O2", "R4")
async def test_a_run_between_that_never_had_a_worktree_loses_nothing(line: Line) -> None:
    second = line.next()
    await second.admit()
    await ok(await second.fence(1))
    await ok(await second.report(1, "RUN_FAILED", FAILED))
    third = line.next("u3", after="u2")
    told = await ok(await (await third.start(pod="p3")).get("/v1/self"))
    assert (told["git"]["base"], told["git"]["resume"]["commit"]) == (line.base, line.point)
    assert "It had no worktree yet.\nThe worktree is as run fix's last safe point" in told["handoff"]


@pytest.mark.rule("O2", "O7", "W5")
async def test_what_is_released_behind_a_run_that_never_had_a_worktree_is_told_as_the_next_is_admitted(
    line: Line,
) -> None:
    second = line.next()
    await second.admit()
    await ok(await second.report(0, "RUN_FAILED", FAILED))
    await ok(await line.gateway.operator.post("/v1/runs/u1/release"))
    answer = await line.gateway.operator.put(
        "/v1/runs/u3/as-next", content=line.next("u3", "u2").spec.model_dump_json()
    )
    why = refused(answer, 403, "ContinuedReleased")
    assert why.startswith("AgentRun fix-u2 never had a worktree to go on with, and before it AgentRun fix was released")
    assert (await line.row()).lineage == ("u1", "u2")


@pytest.mark.rule("I10")
@pytest.mark.parametrize("told", [{"after": "u0"}, {"tenant": "team-b"}], ids=["unknown", "of another tenant"])
async def test_what_is_not_known_in_its_namespace_is_gone_on_with_by_nobody(line: Line, told: dict[str, Any]) -> None:
    line.gateway.secrets.give("team-b", "git", username="ada", password="x")
    spec = line.next(**told).spec.model_dump_json()
    refused(await line.gateway.operator.put("/v1/runs/u2/as-next", content=spec), 403, "ContinuedNotFound")
    assert (await line.gateway.operator.get("/v1/runs/u2")).status_code == 404
