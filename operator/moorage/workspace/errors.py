"""What can go wrong with git, each by a name a user can act on.

`reason` is stable and fit for a condition or an `ErrorBody`; the message says what to do. Git's own words follow, with
every credential scrubbed before they come here.
"""

from __future__ import annotations

import re
from typing import ClassVar


class WorkspaceError(RuntimeError):
    """Base of all errors of this room. `advice` is what to do, `detail` is git's own last words (bounded, scrubbed)."""

    reason: ClassVar[str] = "WorkspaceError"
    advice: ClassVar[str] = "see the message of git"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str = "") -> None:
        self.detail = detail.strip()[-2000:]
        super().__init__(f"{self.advice}: {self.detail}" if self.detail else self.advice)


class BadUrl(WorkspaceError):
    """The remote's address can't be used."""

    reason = "BadUrl"
    advice = "give an http:// or https:// address with a host and without user or password"


class BadRef(WorkspaceError):
    """A branch, tag or run name that git would refuse or read as an option."""

    reason = "BadRef"
    advice = "use a name that `git check-ref-format --branch` accepts"


class AuthFailed(WorkspaceError):
    """The remote refuses the credential, or wants one."""

    reason = "AuthFailed"
    advice = "check the Secret named by the Workspace's credentials: the remote refused it, or asks for one"


class NotFound(WorkspaceError):
    """No such repository."""

    reason = "NotFound"
    advice = "check the repository's address: nothing is there, or this credential may not see it"


class NetworkUnreachable(WorkspaceError):
    """The remote did not answer as a git server; worth another try."""

    reason = "NetworkUnreachable"
    advice = "check that the remote can be reached from the gateway; it did not answer as a git server"
    retryable = True


class BeingFetched(NetworkUnreachable):
    """The gateway is there and fetches the repository itself; it says so for as long as that takes."""

    advice = "the gateway is fetching the repository; ask again"


class RefMissing(WorkspaceError):
    """No such branch, tag or commit."""

    reason = "RefMissing"
    advice = "name a branch, tag or commit that the remote has"


class NonFastForward(WorkspaceError):
    """The branch moved meanwhile, or the commit does not build on it."""

    reason = "NonFastForward"
    advice = "the branch moved on; rebase the work on its new head"


class BranchExists(WorkspaceError):
    """The branch is there already and is not this run's."""

    reason = "BranchExists"
    advice = "name a branch that does not exist yet, or delete it first"


class ProtectedBranch(WorkspaceError):
    """The remote's own rules refuse the push."""

    reason = "ProtectedBranch"
    advice = "the remote protects this branch or a hook of its own declined; deliver to another branch"


class HoldsConversation(WorkspaceError):
    """The history of what is to be pushed has the conversation of a checkpoint in it (P2)."""

    reason = "HoldsConversation"
    advice = "what an agent was told and said would be delivered; its commits must build on the base"


class DeliveryRejected(WorkspaceError):
    """The remote could not make or move the branch, for a reason of its own."""

    reason = "DeliveryRejected"
    advice = "the remote did not take the branch: mend there what its words say"


class DiskFull(WorkspaceError):
    """No space left, or over quota."""

    reason = "DiskFull"
    advice = "make the volume larger or free space"


class LockHeld(WorkspaceError):
    """Another git process holds a lock, or one that died left it."""

    reason = "LockHeld"
    advice = "another git process works on this repository, or one that died left its lock"
    retryable = True


class Corrupt(WorkspaceError):
    """The repository on disk is damaged."""

    reason = "Corrupt"
    advice = "the local repository is damaged and has to be fetched afresh"


class Refused(WorkspaceError):
    """The gateway's git door does not take it (foreign ref, bad objects, too large)."""

    reason = "Refused"
    advice = "the gateway does not take this push"


class ContentRefused(Refused):
    """Git's own checks refuse what was to be pushed: the same content is refused again."""

    reason = "ContentRefused"
    advice = "git refuses such content; it has to be taken out of the work, and of the commits that have it"


class SubmodulesUnsupported(WorkspaceError):
    """The repository has submodules and the Workspace doesn't say to go on without them."""

    reason = "SubmodulesUnsupported"
    advice = "set `submodules: true` on the Workspace to work with the submodules' folders left empty"


class FormatUnsupported(WorkspaceError):
    """The repository's object ids are of another kind than ours."""

    reason = "FormatUnsupported"
    advice = "use a repository with SHA-1 object ids: SHA-256 is not supported by this version"


class TimedOut(WorkspaceError):
    """Git was killed at its time limit."""

    reason = "TimedOut"
    advice = "git did not end within its time limit"
    retryable = True


class TooLarge(WorkspaceError):
    """Git said more than its reader is ready to hold."""

    reason = "TooLarge"
    advice = "narrow what is asked for: git's answer is over the limit"


class PathRefused(WorkspaceError):
    """A path that leaves the workspace or touches what is git's."""

    reason = "PathRefused"
    advice = "use a relative path inside the workspace"


class GitFailed(WorkspaceError):
    """Git failed in a way that has no name here."""

    reason = "GitFailed"
    advice = "git failed"


# Ordered: the first that matches wins, so the more telling ones stand first.
_SIGNS: tuple[tuple[re.Pattern[str], type[WorkspaceError]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), error)
    for pattern, error in (
        (r"mismatched algorithms", FormatUnsupported),
        (r"(^|\n)remote: WorkspaceFetching: ", BeingFetched),
        (r"no space left on device|out of diskspace|disk quota exceeded|file too large", DiskFull),
        (r"unable to create '[^']*\.lock'|cannot lock ref .*file exists|could not lock config", LockHeld),
        (r"protected branch|GH006|hook declined|refusing to allow|not allowed to push", ProtectedBranch),
        (
            r"authentication failed|could not read (username|password)|terminal prompts disabled|error: 40[13]\b|"
            r"invalid credentials",
            AuthFailed,
        ),
        (r"couldn't find remote ref|not our ref|did not send all necessary objects|does not allow request", RefMissing),
        (r"unadvertised object|no such ref was fetched|bad revision|unknown revision|needed a single rev", RefMissing),
        (r"non-fast-forward|fetch first|stale info|not a simple fast-forward", NonFastForward),
        (r"error: 409\b", Refused),
        (r"error: 404|repository '[^']*' not found|repository not found|info/refs not valid", NotFound),
        (
            r"could not resolve|failed to connect|couldn't connect|connection (refused|reset|timed out)|timed out|"
            r"\bssl[ _:]|certificate|error: (425|429|5\d\d)|unexpected disconnect|early eof|hung up|empty reply|"
            r"rpc failed|network is unreachable|no route to host|operation too slow",
            NetworkUnreachable,
        ),
        (r"transport '[^']*' not allowed|url (using|rejected)|malformed|bad/illegal format|port number", BadUrl),
        (r"does not appear to be a git repository", NotFound),
        (
            r"not a git repository|corrupt|bad object|is empty|unable to read|missing (blob|tree|commit)|bad signature|"
            r"bad config|index file|invalid object|inflate|not a (valid|tree|commit|blob) object|dubious ownership",
            Corrupt,
        ),
    )
)


def classify(stderr: str) -> WorkspaceError:
    """The typed error for what git wrote (with LC_ALL=C)."""
    for sign, error in _SIGNS:
        if sign.search(stderr):
            return error(stderr)
    return GitFailed(stderr)
