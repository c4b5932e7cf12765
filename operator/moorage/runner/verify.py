"""Role verifier (V3): exactly the proposed commit, in a sandbox without an agent, and the commands that decide."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import secrets
from dataclasses import dataclass

from moorage.api.wire import ReportedRecord, ReportRequest
from moorage.api.work import Assignment, CheckResult, VerificationReport
from moorage.points import Point, reached
from moorage.runner.checking import run_check, without_model
from moorage.runner.client import GatewayClient
from moorage.runner.disk import disk_named
from moorage.runner.host import AgentPaths
from moorage.runner.processes import forbid_inspection
from moorage.runner.relay import Relay
from moorage.runner.report import now_ms, plain
from moorage.runner.settings import RunnerSettings
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.worktree import RunWorktree, WorktreeOptions

BRANCH = "moorage/verify"


@dataclass
class Verification:
    """One verdict."""

    settings: RunnerSettings
    client: GatewayClient
    assignment: Assignment
    relay: Relay

    async def run(self) -> None:
        """Check the commit out, run every command, report. A fault of ours is a problem, never a failed check."""
        commit = self.assignment.git.commit
        if commit is None:
            raise ValueError("a verifier's assignment names a commit")
        checks: list[CheckResult] = []
        problem = None
        key = await self._begin(commit)
        reached(Point.ACCEPTANCE_BEFORE)
        try:
            with disk_named():
                await self._check(commit, checks)
        except (WorkspaceError, OSError, ValueError) as error:  # ValueError: a NUL byte in a command
            problem = plain(f"{type(error).__name__}: {error}")[:2000]
        reached(Point.ACCEPTANCE_WITHIN)
        await self.client.verification(
            VerificationReport(
                epoch=self.assignment.epoch,
                commit=commit,
                key=key,
                checks=tuple(checks),
                environment=_environment(),
                problem=problem,
                recorded_at=now_ms(),
            )
        )
        reached(Point.ACCEPTANCE_AFTER)

    async def _begin(self, commit: str) -> str:
        """Tell the hash of a key that only this process knows, before anything of the repository's runs beside it."""
        forbid_inspection()
        key = secrets.token_hex(32)
        digest = hashlib.sha256(key.encode()).hexdigest()
        record = ReportedRecord(
            record_id=f"verifying:{digest[:16]}",
            type="VERIFICATION_STARTED",
            payload={"commit": commit, "key_sha256": digest},
            recorded_at=now_ms(),
        )
        await self.client.records(ReportRequest(epoch=self.assignment.epoch, records=(record,)))
        return key

    async def _check(self, commit: str, checks: list[CheckResult]) -> None:
        """Run the commands one after the other, until one fails; results go to `checks` as they come."""
        worktree = await self.client.patiently(lambda: self._checkout(commit))
        paths = AgentPaths(self.settings.volume, self.relay.url, "")
        await asyncio.to_thread(paths.prepare, "")
        env = {**without_model(paths.environment()), **worktree.agent_environment}
        for check in self.assignment.acceptance:
            checks.append(await run_check(check, worktree.tree, env))
            if not checks[-1].passed:
                break

    async def _checkout(self, commit: str) -> RunWorktree:
        git = self.assignment.git
        options = WorktreeOptions(
            depth=1, sparse=git.sparse, submodules=git.submodules, alternates=self.settings.alternates
        )
        return await RunWorktree.prepare(
            self.settings.volume,
            self.relay.url + git.path,
            run=self.assignment.run_uid,
            epoch=self.assignment.epoch,
            base=commit,
            branch=BRANCH,
            options=options,
        )


def _environment() -> dict[str, str]:
    """What the verdict was reached in; the image's digest is in the sandbox spec."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "uid": str(os.getuid()),
    }
