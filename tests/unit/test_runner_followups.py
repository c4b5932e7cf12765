"""N3 for programs that know nothing of it: one that says it is done while children live hears of them first."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from moorage.api.budget import ResolvedLimits
from moorage.api.children import SpawnRequest
from moorage.api.wire import ResolvedAgent, ResolvedChildren
from moorage.drivers.port import Outcome, Task
from moorage.runner.followups import FollowUps
from moorage.runner.host import RunnerHost
from moorage.testing.host import LocalHost, task_for

DONE = Outcome("completed", "Completed", summary="All done.")
PARENTAL = ResolvedAgent(driver="pi", children=ResolvedChildren(max=3, concurrent=3))


@dataclass
class Between(LocalHost):
    """A host between two programs of an attempt."""

    used: tuple[int, int] = (1, 10)
    next_iteration: int = 2
    busy: int = 0
    decided: list[tuple[str, str, str]] = field(default_factory=list)

    def has_worked(self) -> bool:
        return True

    async def tell_decision(self, decision: str, kind: str, text: str) -> None:
        self.decided.append((decision, kind, text))


@pytest.fixture
def host(tmp_path: Path) -> Between:
    (tmp_path / "tree").mkdir()
    return Between(tmp_path / "tree")


def going(host: Between, agent: ResolvedAgent, limits: ResolvedLimits | None = None) -> tuple[FollowUps, Task]:
    task = task_for(host, agent, limits=limits)
    return FollowUps(task, cast("RunnerHost", host)), task


async def with_child(host: Between) -> None:
    await host.child_runs.spawn(SpawnRequest(epoch=1, key="1.0", goal="the parser"))


@pytest.mark.rule("N3")
async def test_a_program_that_is_done_hears_once_of_the_children_that_still_work(host: Between) -> None:
    await with_child(host)
    follows, task = going(host, PARENTAL)
    onward = await follows.after(task, DONE)
    assert isinstance(onward, Task)
    assert "These still work: child-1" in str(onward.go_on_with)
    assert [(decision, kind) for decision, kind, _ in host.decided] == [("nudge", "PendingBackgroundTask")]
    assert await follows.after(onward, DONE) == DONE


@pytest.mark.rule("N3")
@pytest.mark.parametrize(
    ("agent", "limits", "outcome"),
    [
        (ResolvedAgent(driver="pi"), None, DONE),
        (PARENTAL, ResolvedLimits(max_iterations=1), DONE),
        (PARENTAL, None, Outcome("failed", "AgentFailed", "no")),
    ],
)
async def test_nobody_waits_for_children_who_may_have_none_or_cannot_go_on(
    host: Between, agent: ResolvedAgent, limits: ResolvedLimits | None, outcome: Outcome
) -> None:
    await with_child(host)
    follows, task = going(host, agent, limits)
    after = await follows.after(task, outcome)
    assert isinstance(after, Outcome)
    assert not any(kind == "PendingBackgroundTask" for _, kind, _ in host.decided)
