"""W5: which pull request a run wants, from what its author says of it and of the remote."""

from __future__ import annotations

import re

from moorage.api.agentrun import AgentRun, PullRequest
from moorage.api.wire import ResolvedPullRequest, ResolvedWorkspace, SecretRef
from moorage.api.workspace import ForgeApi, Workspace
from moorage.core.effects.pulls import FORGES, default_api, project_of

LACKING = "delivery.pullRequest needs remoteGit.api of its workspace: say which kind of API the remote's host has"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def forge_of(run: AgentRun, named: object) -> ForgeApi | None:
    """The API of the workspace's remote; `named`: the Workspace that the run refers to, if it is there."""
    source = run.spec.workspace or (named.spec if isinstance(named, Workspace) else None)
    return source.remote_git.api if source and source.remote_git else None


def pull_request(
    asked: PullRequest, workspace: ResolvedWorkspace, forge: ForgeApi | None
) -> ResolvedPullRequest | None:
    """With every default filled in that is known by now; None where there is nobody to ask."""
    if forge is None or workspace.url is None:
        return None
    secret = forge.credentials_secret_ref
    api = (forge.url or default_api(forge.kind, workspace.url)).rstrip("/")
    return ResolvedPullRequest(
        kind=forge.kind,
        api=api,
        project=project_of(workspace.url, api, FORGES[forge.kind].api),
        base=asked.base or branch_of(workspace.ref),
        title=asked.title,
        body=asked.body,
        draft=asked.draft,
        credentials=SecretRef(name=secret.name, key=secret.key) if secret else workspace.credentials,
    )


def branch_of(ref: str | None) -> str | None:
    """The branch that a ref names by itself; a tag or commit is none that can be merged into."""
    name = (ref or "").removeprefix("refs/heads/")
    return None if not name or name.startswith("refs/") or _COMMIT.fullmatch(name) else name
