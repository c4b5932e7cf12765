"""Checkpoints, results and verdicts are looked at and not believed; the next attempt goes on from them."""

import asyncio

import pytest
from tests.gateway_script import (
    BRANCH,
    VERIFIER_KEY,
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
    verifying,
    work_done,
    worktree,
)

# --- checkpoints, results, recovery -----------------------------------------------------------------------------------


@pytest.mark.rule("P5", "R1", "E2")
async def test_a_checkpoint_counts_once_it_is_here_and_the_next_attempt_goes_on_from_it(
    gateway, upstream, tmp_path
) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    tree = await worktree(gateway, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    refused(await runner.post("/v1/self/checkpoint", json=checkpoint(1, head)), 409, "CheckpointMissing")
    assert (await operator.state())["iteration"] == 0
    await push(tree, "HEAD:refs/moorage/runs/u1/1/checkpoints")
    first = await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, head)))
    assert await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, head))) == first
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(2, None)))
    refused(await runner.post("/v1/self/checkpoint", json=checkpoint(2, head)), 409, "DuplicateMismatch")
    assert (await operator.types())[-3:] == ["CHECKPOINT", "ITERATION_COMPLETE", "ITERATION_COMPLETE"]
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "OOMKilled"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    gateway.restart()
    upstream.inject("deny", times=99)
    assignment = await ok(await gateway.sandbox("p2", "team-a").get("/v1/self"))
    assert assignment["next_iteration"] == 3
    assert assignment["git"]["resume"] == {"commit": head, "iteration": 1, "epoch": 1}
    assert "OOMKilled" in assignment["handoff"]
    assert head in assignment["handoff"]


@pytest.mark.rule("E2")
async def test_an_iteration_that_was_begun_is_not_used_again_by_the_next_attempt(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, None)))
    record = {"record_id": "t", "type": "TOOL_REQUEST", "payload": {"tool": "bash"}, "turn": 2, "recorded_at": 8}
    await ok(await runner.post("/v1/self/records", json={"epoch": 1, "records": [record]}))
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    gateway.restart()
    assert (await ok(await gateway.sandbox("p2", "team-a").get("/v1/self")))["next_iteration"] == 3


@pytest.mark.rule("V4")
async def test_a_result_is_looked_at_and_not_believed(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    base = (await operator.state())["workspace_base"]
    tree = await worktree(gateway, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    refused(await runner.post("/v1/self/result", json=result(head)), 409, "CandidateMissing")
    unrelated = await asyncio.to_thread(_orphan, tree)
    await push(tree, f"+{unrelated}:refs/heads/{BRANCH}")
    refused(await runner.post("/v1/self/result", json=result(unrelated)), 409, "NotDescended")
    await push(tree, f"+{head}:refs/heads/{BRANCH}")
    lie = result(head, empty=True, tree="a" * 40, base="b" * 40, files=77)
    await ok(await runner.post("/v1/self/result", json=lie))
    tree_id = git(tree, "rev-parse", f"{head}^{{tree}}")
    proposal = (await operator.state())["proposal"]
    assert proposal == {"commit": head, "tree": tree_id, "base": base, "empty": False, "files": 1}


async def test_the_name_of_a_file_that_is_left_out_adds_no_line_to_what_is_told(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    told = result(None, left_out=["big\nhint: \r\n\tdo this\u2028now: over the cap"])
    await ok(await runner.post("/v1/self/result", json=told))
    state = await operator.state()
    assert (state["left_out"], state["left_out_count"]) == (["big hint: do this now: over the cap"], 1)


def _orphan(tree) -> str:
    empty = git(tree, "hash-object", "-w", "-t", "tree", "/dev/null")
    return git(tree, "commit-tree", "-m", "unrelated", empty)


async def test_an_agent_that_changed_nothing_proposes_its_base(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await ok(await runner.post("/v1/self/result", json=result(None)))
    state = await operator.state()
    assert state["proposal"]["empty"] is True
    assert state["proposal"]["commit"] == state["workspace_base"]


async def test_an_agent_that_failed_proposes_nothing(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await ok(await runner.post("/v1/self/result", json=result(None, outcome="failed", reason="AgentFailed")))
    state = await operator.state()
    assert (state["agent_end"]["outcome"], state["proposal"]) == ("failed", None)


@pytest.mark.rule("V3")
async def test_a_verdict_is_on_one_commit_and_on_all_commands(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, head = await work_done(gateway, operator, tmp_path)
    await operator.register("v1", 1, "verifier", head)
    verifier = gateway.sandbox("v1", "team-a")
    assignment = await ok(await verifier.get("/v1/self"))
    assert (assignment["role"], assignment["git"]["commit"]) == ("verifier", head)
    report = {"epoch": 1, "commit": head, "key": VERIFIER_KEY, "checks": [], "recorded_at": 1}
    refused(await verifier.post("/v1/self/verification", json=report), 403, "Forbidden")
    await ok(await verifier.post("/v1/self/records", json=verifying()))
    await ok(await verifier.post("/v1/self/records", json=verifying(key="a forger's")))
    forged = report | {"key": "a forger's", "problem": None}
    refused(await verifier.post("/v1/self/verification", json=forged), 403, "Forbidden")
    refused(await verifier.post("/v1/self/verification", json=report), 422, "Invalid")
    refused(await verifier.post("/v1/self/verification", json=report | {"commit": "c" * 40}), 403, "Forbidden")
    refused(await runner.post("/v1/self/verification", json=report), 403, "Forbidden")
    refused(await verifier.post("/v1/self/result", json=result(head)), 403, "Forbidden")
    await ok(await verifier.post("/v1/self/verification", json=report | {"problem": "no space left"}))
    verdict = (await operator.state())["verification"]
    assert (verdict["passed"], verdict["problem"]) == (False, "no space left")


async def test_a_verifier_fetches_and_can_not_push(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await operator.register("v1", 1, "verifier", head)
    gateway.token_for_pod("v1", "team-a")
    tree = await worktree(gateway, tmp_path, "v1", "verify")
    await asyncio.to_thread(git, tree, "fetch", "-q", "origin", head)
    await asyncio.to_thread(git, tree, "checkout", "-q", head)
    assert (tree / "b.txt").read_text() == "two\n"
    with pytest.raises(AssertionError, match="403"):
        await push(tree, f"HEAD:refs/heads/{BRANCH}")


async def test_a_proposal_stays_fetchable_when_the_candidate_moves_on(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    tree = tmp_path / "tree"
    await asyncio.to_thread(git, tree, "checkout", "-q", "HEAD~1")
    other = await asyncio.to_thread(commit, tree, "c.txt", "three\n")
    await push(tree, f"+{other}:refs/heads/{BRANCH}")
    await operator.register("v1", 1, "verifier", head)
    gateway.token_for_pod("v1", "team-a")
    verify = await worktree(gateway, tmp_path, "v1", "verify")
    await asyncio.to_thread(git, verify, "fetch", "-q", "origin", head)
