"""From a run's resolved workspace to a remote that git can talk to, the credential read at use (T2), and from git's
failures to the reasons that an AgentRun shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moorage.api.wire import ResolvedRun
from moorage.gateway.addresses import leads_to_metadata
from moorage.gateway.credentials import GIT_KEYS
from moorage.gateway.errors import Refusal, Unavailable, UpstreamRefused
from moorage.gateway.ports import SecretMissing, Secrets
from moorage.workspace.errors import (
    AuthFailed,
    BadRef,
    BadUrl,
    FormatUnsupported,
    HoldsConversation,
    NotFound,
    ProtectedBranch,
    RefMissing,
    WorkspaceError,
)
from moorage.workspace.git import Credential
from moorage.workspace.upstream import AnyUpstream, LocalUpstream, Upstream

TOKEN_USER = "git"  # noqa: S105  a user name
"""User name that goes with a bare token: hosts that take tokens as passwords ignore it."""

REASONS = {
    "AuthFailed": "GitAuthFailed",
    "NotFound": "GitNotFound",
    "RefMissing": "GitRefNotFound",
    "BadRef": "GitRefNotFound",
    "BadUrl": "GitBadUrl",
    "NetworkUnreachable": "GitUnreachable",
    "TimedOut": "GitUnreachable",
    "NonFastForward": "DeliveryConflict",
    "BranchExists": "BranchExists",
    "ProtectedBranch": "ProtectedBranch",
    "SubmodulesUnsupported": "SubmodulesUnsupported",
}
PASSING = {"GitUnreachable", "LockHeld", "DiskFull"}
"""Reasons that waiting may mend."""


REFUSALS = (AuthFailed, NotFound, BadUrl, BadRef, FormatUnsupported, HoldsConversation, ProtectedBranch, RefMissing)


def reason_of(error: WorkspaceError | str) -> str:
    """The stable reason for a failure of git."""
    name = error if isinstance(error, str) else error.reason
    return REASONS.get(name, name)


@dataclass(frozen=True)
class Trouble:
    """Why the remote could not be asked or reached. `passing`: waiting may mend it."""

    reason: str
    message: str
    passing: bool

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


def trouble_of(error: WorkspaceError | Refusal | OSError) -> Trouble:
    """What a failed try says. Only what the remote itself has refused is final: what has no name may pass."""
    if isinstance(error, WorkspaceError):
        return Trouble(reason_of(error), str(error), passing=not isinstance(error, REFUSALS))
    if isinstance(error, Refusal):
        return Trouble(error.reason, error.message, passing=error.status == 503)
    return Trouble("GitFailed", f"git could not be run: {error.strerror or type(error).__name__}", passing=True)


def refusal_of(error: WorkspaceError) -> Refusal:
    """What to answer where git failed: 503 where waiting may mend it, else 424."""
    reason = reason_of(error)
    if reason in PASSING or error.retryable:
        return Unavailable(str(error), reason=reason)
    return UpstreamRefused(str(error), reason=reason)


async def upstream_of(spec: ResolvedRun, secrets: Secrets) -> AnyUpstream | None:
    """The remote; None for an ephemeral workspace. Raise UpstreamRefused (the Secret is wrong), Unavailable."""
    space = spec.workspace
    if space.kind == "remote_git":
        if await leads_to_metadata(space.url or ""):
            raise UpstreamRefused("the remote's address is a metadata service's", reason="GitBadUrl")
        credential = await _credential(spec, secrets)
        return Upstream(space.url or "", space.ref, credential, space.depth)
    if space.kind == "local":
        return LocalUpstream(Path(space.path or ""), space.ref, space.depth)
    return None


async def _credential(spec: ResolvedRun, secrets: Secrets) -> Credential | None:
    ref = spec.workspace.credentials
    if ref is None:
        return None
    try:
        secret = await secrets.read(spec.tenant, ref)
        password = secret.text(ref.key) if ref.key else secret.text(*GIT_KEYS)
        username = TOKEN_USER if ref.key else secret.text("username") or TOKEN_USER
    except SecretMissing as error:
        raise UpstreamRefused(f"{error}; create it with what the remote asks for", reason="GitAuthFailed") from None
    except UnicodeDecodeError:
        raise UpstreamRefused(f"Secret {ref.name} holds bytes that are no text", reason="GitAuthFailed") from None
    if not password:
        raise UpstreamRefused(f"Secret {ref.name} has neither a password nor a token", reason="GitAuthFailed")
    return Credential(username, password)
