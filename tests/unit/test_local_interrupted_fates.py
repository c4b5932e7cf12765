"""What becomes of an interrupted local run when another is started, and who owns one (R7, W2)."""

import asyncio
import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.property.run_world import a_spec

from moorage.api.agentrun import AgentRun
from moorage.api.budget import ResolvedLimits
from moorage.api.parse import parse_agent_run
from moorage.api.wire import ResolvedDelivery, ResolvedRun
from moorage.app.interrupted import Fate, Interrupted, fate, lost_attempt
from moorage.app.owners import Owned, Owner, Owners, clear_socket
from moorage.core.journal.record import RunIdentity
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import AgentEnd, Proposal, RunState, SandboxRef, Verification
from moorage.store.port import Execution, ExecutionStatus

OLD, NEW = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"


def manifest(**constraints: str) -> AgentRun:
    spec = {"workspace": {"ephemeral": {}}, "goal": "g", "agent": {"driver": "command", "command": ["true"]}}
    body: dict[str, Any] = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": "fix", "namespace": "local", "uid": NEW},
        "spec": {**spec, "constraints": constraints},
    }
    parsed = parse_agent_run(body, "local", "refuse")
    assert isinstance(parsed, AgentRun), parsed
    return parsed


def resolved(uid: str = NEW, **changes: Any) -> ResolvedRun:
    changes.setdefault("delivery", ResolvedDelivery(branch="b"))
    spec = a_spec(uid=uid, placement="local").model_copy(update={"session_id": uid, **changes})
    return spec.model_copy(update={"retention": spec.retention.model_copy(update={"ttl_ms": 168 * 3_600_000})})


def found(spec: ResolvedRun | None = None, status: ExecutionStatus = ExecutionStatus.RUNNING) -> Interrupted:
    spec = spec or resolved(OLD)
    identity = RunIdentity(tenant="local", run_uid=OLD, session_id=OLD)
    row = Execution(identity=identity, name="fix", spec_hash="f" * 64, created_at=1, status=status)
    return Interrupted(Owned(OLD, Path("/nowhere"), None), row, spec)


OTHER_BRANCH = ResolvedDelivery(branch="c")
KEPT = ResolvedDelivery(branch="b", push=False)


@pytest.mark.rule("R7", "W2")
@pytest.mark.parametrize(
    ("left", "asked", "fresh", "expected"),
    [
        (found(), resolved(), False, Fate.GO_ON),
        (found(), resolved(), True, Fate.CLOSE),
        (found(), resolved(goal="another"), False, Fate.IN_THE_WAY),
        (found(), resolved(goal="another"), True, Fate.CLOSE),
        (found(), resolved(delivery=OTHER_BRANCH), False, Fate.LEAVE),
        (found(), resolved(delivery=OTHER_BRANCH), True, Fate.LEAVE),
        (found(), resolved(delivery=KEPT), False, Fate.LEAVE),
        (found(), resolved(delivery=None), False, Fate.LEAVE),
        (found(), None, False, Fate.LEAVE),
        (found(status=ExecutionStatus.COMPLETED), resolved(), False, Fate.GO_ON),
        (found(status=ExecutionStatus.COMPLETED), resolved(), True, Fate.FORGET),
        (found(status=ExecutionStatus.FAILED), resolved(), False, Fate.FORGET),
        (found(status=ExecutionStatus.COMPLETED), resolved(goal="another"), False, Fate.LEAVE),
    ],
)
def test_the_same_manifest_goes_on_and_nothing_is_given_up_unasked(
    left: Interrupted, asked: ResolvedRun | None, fresh: bool, expected: Fate
) -> None:
    assert fate(left, asked, manifest(), fresh=fresh) is expected


@pytest.mark.rule("R7")
@pytest.mark.parametrize(
    ("asked", "fates"),
    [
        ({"tokens_hard": 10, "max_iterations": 3}, Fate.GO_ON),
        ({"tokens_hard": 11, "max_iterations": 3}, Fate.GO_ON),
        ({"tokens_hard": 9, "max_iterations": 4}, Fate.IN_THE_WAY),
        ({"tokens_hard": 10}, Fate.IN_THE_WAY),
        ({"tokens_hard": 10, "max_iterations": 3, "cost_hard_micros": 1}, Fate.IN_THE_WAY),
    ],
)
def test_a_run_with_raised_limits_is_the_same_run_and_with_others_it_is_not(asked: dict[str, int], fates: Fate) -> None:
    left = found(resolved(OLD, limits=ResolvedLimits(tokens_hard=10, max_iterations=3)))
    assert fate(left, resolved(limits=ResolvedLimits(**asked)), manifest(), fresh=False) is fates


def test_a_wall_clock_that_was_widened_is_the_same_run() -> None:
    left = found(resolved(OLD, limits=ResolvedLimits(wall_clock_ms=60_000)))
    asked = resolved(limits=ResolvedLimits(wall_clock_ms=600_000))
    assert fate(left, asked, manifest(wallClock="10m"), fresh=False) is Fate.GO_ON


WORKING = RunState(phase=RunPhase.RUNNING, epoch=2, sandboxes=(SandboxRef("u", "p", 2, "runner"),))
DONE = AgentEnd("completed", "Completed", "", "", 0, 1)


@pytest.mark.rule("R6", "R7")
def test_only_an_agent_that_was_at_work_loses_its_attempt_and_once() -> None:
    record = lost_attempt(WORKING, 5)
    assert record is not None
    assert (record.payload["epoch"], record.payload["counts_double"]) == (2, False)
    assert lost_attempt(replace(WORKING, agent_end=DONE), 5) is None, "what it told stands"
    assert lost_attempt(replace(WORKING, sandboxes=()), 5) is None
    assert lost_attempt(replace(WORKING, phase=RunPhase.RECOVERING), 5) is None


VERIFIER = SandboxRef("v", "p-v", 2, "verifier", "c0ffee")
VERIFYING = RunState(
    phase=RunPhase.VERIFYING,
    epoch=2,
    agent_end=DONE,
    proposal=Proposal("c0ffee", "t", "b", False, 1),
    sandboxes=(WORKING.sandboxes[0], VERIFIER),
)


@pytest.mark.rule("R6", "R7", "V3")
def test_a_verifier_that_died_with_its_owner_is_none_of_the_three() -> None:
    record = lost_attempt(VERIFYING, 5)
    assert record is not None
    assert (record.payload["role"], record.payload["interrupted"]) == ("verifier", "v")
    assert lost_attempt(replace(VERIFYING, sandboxes=WORKING.sandboxes), 5) is None, "none was at work"
    assert lost_attempt(replace(VERIFYING, verifications_lost=1), 5) is None, "it was told of already"
    passed = Verification("c0ffee", True, True, "")
    assert lost_attempt(replace(VERIFYING, verification=passed), 5) is None, "it has judged"
    assert lost_attempt(replace(VERIFYING, verification=replace(passed, problem="no disk")), 5) == record


OWNER = Owner(1, Path("/there/run.yaml"), Path("/nowhere/moorage-x"))


def test_a_run_has_one_owner_and_a_successor_hears_what_it_left(tmp_path: Path) -> None:
    owners = Owners(tmp_path / "owners")
    first = owners.new(OLD, OWNER)
    assert owners.take(OLD) is None
    assert owners.known() == [OLD]
    first.let_go()
    second = owners.take(OLD)
    assert second is not None
    assert second.last == OWNER
    second.done()
    second.let_go()
    assert owners.known() == []


def test_nobody_who_looks_finds_a_run_before_its_owner_has_locked_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, seen = Owners(tmp_path / "owners"), []
    lock = fcntl.flock

    def slow(descriptor: int, how: int) -> None:
        seen.append(owners.known())
        lock(descriptor, how)

    monkeypatch.setattr("moorage.app.owners.fcntl.flock", slow)
    owned = owners.new(OLD, OWNER)
    assert seen == [[]]
    assert owners.known() == [OLD]
    assert owners.take(OLD) is None
    owned.done()
    assert list((tmp_path / "owners").iterdir()) == []


def test_what_died_before_its_run_was_owned_is_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    owners = Owners(tmp_path)
    dead = tmp_path / f".{NEW}"
    dead.touch()
    living = owners.take(".living")
    owners.new(OLD, OWNER).let_go()
    owners.clear_unborn()
    assert living is not None
    assert sorted(each.name for each in tmp_path.iterdir()) == [".living", OLD]


def test_who_is_cleared_away_while_it_begins_begins_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, lock = Owners(tmp_path), fcntl.flock

    def cleared_first(descriptor: int, how: int) -> None:
        monkeypatch.setattr("moorage.app.owners.fcntl.flock", lock)
        owners.clear_unborn()
        lock(descriptor, how)

    monkeypatch.setattr("moorage.app.owners.fcntl.flock", cleared_first)
    owned = owners.new(OLD, OWNER)
    assert owners.known() == [OLD]
    assert owners.take(OLD) is None
    owned.done()
    assert list(tmp_path.iterdir()) == []


def test_half_a_word_of_a_dead_owner_is_none(tmp_path: Path) -> None:
    owners = Owners(tmp_path)
    (tmp_path / OLD).write_text('{"pid": 1, "mani')
    taken = owners.take(OLD)
    assert taken is not None
    assert taken.last is None
    clear_socket(taken)
    taken.done()


def test_only_a_folder_that_holds_nothing_but_a_socket_is_cleared(tmp_path: Path) -> None:
    for name, files, left in (("dead", ["gateway.sock"], False), ("strange", ["gateway.sock", "thesis.tex"], True)):
        folder = tmp_path / name
        folder.mkdir()
        for each in files:
            (folder / each).touch()
        clear_socket(Owned(OLD, tmp_path, None, replace(OWNER, socket=folder)))
        assert folder.exists() is left


async def test_looks_come_one_after_the_other(tmp_path: Path) -> None:
    owners, order = Owners(tmp_path / "owners"), []

    async def look(name: str) -> None:
        async with owners.alone():
            order.append(name)
            await asyncio.sleep(0.05)
            order.append(name)

    await asyncio.gather(look("a"), look("b"))
    assert order[0] == order[1]
    assert order[2] == order[3]
