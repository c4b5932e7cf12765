"""W1 in the sandbox: workspaces by id below one folder, each a run's own worktree."""

from __future__ import annotations

import shutil
from pathlib import Path

from moorage.workspace.errors import BadUrl, RefMissing
from moorage.workspace.port import Workspace, WorkspaceRequest
from moorage.workspace.refs import check_run
from moorage.workspace.worktree import RunWorktree, WorktreeOptions


class WorktreeProvider:
    """A `WorkspaceProvider` over volumes in `folder`. All three kinds come through the gateway's relay: what differs is
    what the gateway's mirror is fed from."""

    def __init__(self, folder: Path, options: WorktreeOptions) -> None:
        self._folder = folder
        self._options = options
        self._held: dict[str, RunWorktree] = {}

    async def acquire(self, request: WorkspaceRequest) -> Workspace:
        """The worktree of that id, at the request's base or resume point. Raises a `WorkspaceError`."""
        if request.remote is None:
            raise BadUrl("a worktree comes from the gateway's relay: give its address")
        if request.base is None or request.branch is None:
            raise RefMissing("give the base commit and the branch to work on")
        self._let_go(check_run(request.id))
        self._held[request.id] = worktree = await RunWorktree.prepare(
            self._folder / request.id,
            request.remote,
            run=request.id,
            epoch=request.epoch,
            base=request.base,
            branch=request.branch,
            resume=request.resume,
            options=self._options,
        )
        facts = {"git.remote": request.remote, "git.branch": request.branch, "git.commit": request.base}
        return Workspace(request.id, worktree.tree, request.kind, facts)

    def worktree(self, workspace_id: str) -> RunWorktree:
        """The worktree behind an acquired workspace. Raises KeyError."""
        return self._held[workspace_id]

    async def release(self, workspace_id: str) -> None:
        """Remove the volume's folder; harmless when it is gone."""
        check_run(workspace_id)
        self._let_go(workspace_id)
        shutil.rmtree(self._folder / workspace_id, ignore_errors=True)

    def _let_go(self, workspace_id: str) -> None:
        held = self._held.pop(workspace_id, None)
        if held:
            held.close()
