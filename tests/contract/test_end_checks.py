"""N6 with N4: what the checks before an end find is told to the loop detector, too."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from tests.workspace_place import BRANCH, RUN, Place

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import (
    ResolvedAgent,
    ResolvedCheck,
    ResolvedContinuation,
    ResolvedDelivery,
    ResolvedTimeouts,
    Role,
)
from moorage.api.work import Assignment, GitAssignment
from moorage.core.continuation.loops import Finding, Thresholds
from moorage.drivers.watching import Circles
from moorage.runner.completion import Completion
from moorage.runner.report import Reporter

ROUNDS = 8
CHECK = ResolvedCheck(name="tests", run="cat a.txt; ! grep FAIL a.txt")


@dataclass
class Telling:
    """What a reporter is to the checks."""

    progress: int = 0
    told: list[dict[str, Any]] = field(default_factory=list)

    async def emit(self, _: str, payload: dict[str, Any], **ids: Any) -> None:  # noqa: ARG002  the reporter's
        self.told.append(payload)


def assignment(place: Place) -> Assignment:
    return Assignment(
        run_uid=RUN,
        tenant="team-a",
        name="fix",
        epoch=1,
        attempt=1,
        role=Role.RUNNER,
        goal="make it pass",
        agent=ResolvedAgent(driver="pi", continuation=ResolvedContinuation(check_rounds=ROUNDS)),
        acceptance=(CHECK,),
        delivery=ResolvedDelivery(branch=BRANCH),
        limits=ResolvedLimits(),
        timeouts=ResolvedTimeouts(),
        git=GitAssignment(base=place.base, branch=BRANCH),
    )


@pytest.mark.rule("N4", "N6")
async def test_failures_that_get_no_fewer_are_a_circle_and_fewer_ones_are_none(place: Place, tmp_path: Path) -> None:
    worktree = await place.prepare()
    circles, telling = Circles(Thresholds(verifications=3)), Telling()
    env = {"PATH": os.environ["PATH"]}
    checks = Completion(assignment(place), worktree, tmp_path / "scratch", env, cast("Reporter", telling))
    found: list[Finding | None] = []
    for number, failing in enumerate(("FAIL: a\nFAIL: b", "FAIL: a", "FAIL: a\nand more", "FAIL: a\nand more still")):
        (worktree.tree / "a.txt").write_text(f"{failing}\n")
        await worktree.checkpoint(number + 1, 1)
        assert "Acceptance `tests` failed" in str((await checks.check(circles)).objection)
        found.append(circles.news())
    assert [each is not None for each in found] == [False, False, False, True], "the second has one fewer"
    assert found[-1] is not None
    assert (found[-1].kind, found[-1].last) == ("FailingSet", False)
    assert [each["status"] for each in telling.told] == ["objected"] * 4
