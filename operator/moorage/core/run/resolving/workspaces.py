"""Where a run works, and where its result goes (O6, W5)."""

from __future__ import annotations

from typing import Any

from moorage.api.agentrun import AgentRun
from moorage.api.names import digest
from moorage.api.quantity import Quantity
from moorage.api.wire import ResolvedDelivery, ResolvedWorkspace, SecretRef
from moorage.api.workspace import DEFAULT_BRANCH_PREFIX, ForgeApi, Workspace, WorkspaceSource
from moorage.core.run.merges import LACKING, pull_request
from moorage.core.run.resolving.references import Broken, Defaults, References, Unresolved, referenced


def resolved_workspace(run: AgentRun, refs: References, defaults: Defaults) -> tuple[ResolvedWorkspace, str]:
    """The workspace and the prefix of its branches."""
    if run.spec.workspace is not None:
        return _source(run, run.spec.workspace, defaults, None), DEFAULT_BRANCH_PREFIX
    name = run.spec.workspace_ref.name if run.spec.workspace_ref else ""
    found: Workspace = referenced("Workspace", name, refs.workspace)
    return _source(run, found.spec, defaults, found), found.spec.branch_prefix


def _source(run: AgentRun, source: WorkspaceSource, defaults: Defaults, named: Workspace | None) -> ResolvedWorkspace:
    storage = named.spec.storage if named else None
    common: dict[str, Any] = {
        "name": named.metadata.name if named else None,
        "storage": (storage.storage_class_name if storage else None) or defaults.storage_class,
    }
    git, local = source.remote_git, source.local
    if git is not None:
        if not git.url.startswith(("http://", "https://")):
            why = (
                "remoteGit.url: only http and https are supported by this version; give the repository's https address"
            )
            raise Unresolved("NotSupported", why, stalled=named is None)
        if git.lfs:
            why = "remoteGit.lfs isn't supported by this version: leave it out, and LFS files stay pointers"
            raise Unresolved("NotSupported", why, stalled=named is None)
        secret = git.credentials_secret_ref
        return ResolvedWorkspace(
            key=digest("remote_git", git.url, secret.name if secret else ""),
            kind="remote_git",
            url=git.url,
            ref=git.ref,
            credentials=SecretRef(name=secret.name, key=secret.key) if secret else None,
            depth=git.depth,
            filter=git.filter,
            sparse=git.sparse or (),
            submodules=git.submodules,
            lfs=git.lfs,
            **common,
        )
    if local is not None:
        if local.path is None:
            why = "local.claimName isn't supported by this version: use remoteGit or ephemeral"
            raise Unresolved("NotSupported", why, stalled=named is None)
        key = digest("local", local.path)
        return ResolvedWorkspace(key=key, kind="local", path=local.path, ref=local.ref, **common)
    return ResolvedWorkspace(key=digest("ephemeral", run.metadata.uid), kind="ephemeral", **common)


def resolved_delivery(
    run: AgentRun, prefix: str, workspace: ResolvedWorkspace, forge: ForgeApi | None
) -> ResolvedDelivery | None:
    """None where nothing is to be delivered. Raise Unresolved for a pull request at a place without an API."""
    asked, branch = run.spec.delivery, run.branch(prefix)
    if asked is None or branch is None:
        return None
    pull = pull_request(asked.pull_request, workspace, forge) if asked.pull_request else None
    if asked.pull_request and pull is None:
        raise Unresolved("NoForgeApi", LACKING, stalled=run.spec.workspace is not None)
    return ResolvedDelivery(
        branch=branch,
        push=asked.push,
        allow_empty=asked.allow_empty,
        message=asked.message,
        pull_request=pull,
    )


def volume_size(workspace: Workspace | Broken | None) -> Quantity | None:
    """How large a Workspace wants the volumes of its runs."""
    storage = workspace.spec.storage if isinstance(workspace, Workspace) else None
    return storage.size if storage else None
