"""N4, PRE_COMPLETE: what stands against an agent's end, found out in its own sandbox, before the end is accepted.

The acceptance commands run in a fresh checkout of the last checkpoint, beside the agent's worktree: what they leave is
never delivered, and what the agent left in ignored files helps nobody. It is `reported` and decides nothing; the last
word is the isolated verification's (V3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moorage.api.work import Assignment, CheckResult
from moorage.core.continuation.checks import Changes, Checked, failing_set, objection
from moorage.drivers.port import EndCheck
from moorage.drivers.watching import Circles
from moorage.points import Point, reached
from moorage.runner.checking import run_check, without_model
from moorage.runner.report import Reporter, plain
from moorage.runner.watch import background
from moorage.workspace.beside import beside, changes
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.worktree import RunWorktree

FOLDER = "end-check"
ALIVE_S = 10.0


class Completion:
    """The checks of one attempt: so many rounds, and after that none."""

    def __init__(
        self, assignment: Assignment, worktree: RunWorktree, scratch: Path, env: Mapping[str, str], reporter: Reporter
    ) -> None:
        self._assignment, self._worktree, self._reporter = assignment, worktree, reporter
        self._place, self._env = scratch / FOLDER, {**without_model(env), **worktree.agent_environment}
        self._rounds = assignment.agent.continuation.check_rounds
        self._done = 0

    async def check(self, circles: Circles) -> EndCheck:
        """What stands against the end; nothing once the rounds are used up, or where it can't be found out."""
        if self._done >= self._rounds:
            return EndCheck()
        self._done += 1
        reached(Point.END_CHECK_BEFORE)
        try:
            async with background(self._alive()):
                seen = await changes(self._worktree)
                results = [result async for result in self._results()]
        except (WorkspaceError, OSError) as error:  # no room for a second checkout, say: that is no fault of the work
            await self._tell((), "unchecked", plain(f"{type(error).__name__}: {error}"))
            return EndCheck()
        reached(Point.END_CHECK_WITHIN)
        checked = [_checked(result) for result in results]
        if checked:
            circles.verified(failing_set(checked))
        told = objection(checked, Changes(*seen), change_asked=change_asked(self._assignment))
        await self._tell(results, "objected" if told else "clear", plain(told or ""))
        reached(Point.END_CHECK_AFTER)
        return EndCheck(told, proved=bool(checked) and all(check.how is None for check in checked))

    async def _results(self) -> AsyncIterator[CheckResult]:
        """Every command, also after one that failed: an agent can mend more than one thing at once."""
        if not self._assignment.acceptance:
            return
        async with beside(self._worktree, self._place) as place:
            for check in self._assignment.acceptance:
                yield await run_check(check, place, self._env)

    async def _alive(self) -> None:
        """A command is limited by its own time, not by that of an agent that shows nothing."""
        while True:
            self._reporter.progress += 1
            await asyncio.sleep(ALIVE_S)

    async def _tell(self, results: Sequence[CheckResult], status: str, text: str) -> None:
        payload: dict[str, Any] = {
            "round": self._done,
            "status": status,
            "commit": self._worktree.last,
            "checks": [result.model_dump(mode="json", exclude={"output"}) for result in results],
            "text": text,
        }
        await self._reporter.emit("COMPLETION_CHECKED", payload, record_id=f"COMPLETION_CHECKED:{self._done}")


def _checked(result: CheckResult) -> Checked:
    how = None if result.passed else "timed out" if result.timed_out else f"ended with exit code {result.exit_code}"
    return Checked(result.name, plain(result.run), how, plain(result.output))


def change_asked(assignment: Assignment) -> bool:
    """Whether an end without a change is no success."""
    return assignment.delivery is not None and not assignment.delivery.allow_empty
