"""W1: what a workspace is, whoever provides it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class WorkspaceKind(StrEnum):
    """Where the files come from."""

    LOCAL = "local"
    REMOTE_GIT = "remote_git"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder to work in. Metadata of git kinds: `git.remote`, `git.branch`, `git.commit` (the base)."""

    id: str
    root: Path
    kind: WorkspaceKind
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkspaceRequest:
    """What is wanted. `remote` is an http(s) address without a credential, `base` a full commit id, `resume` the
    checkpoint to go on from under `epoch`."""

    id: str
    kind: WorkspaceKind
    remote: str | None = None
    base: str | None = None
    branch: str | None = None
    resume: str | None = None
    epoch: int = 1


class WorkspaceProvider(Protocol):
    """Gives workspaces and takes them back; both calls may be repeated."""

    async def acquire(self, request: WorkspaceRequest) -> Workspace:
        """The workspace of that id, made or found. Raises a `WorkspaceError`."""

    async def release(self, workspace_id: str) -> None:
        """Nothing of it is left; harmless when it is gone."""
