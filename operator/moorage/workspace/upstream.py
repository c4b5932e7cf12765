"""The far end: what a mirror is fed from and delivers to, and how a push to it ended (E5)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from moorage.workspace.errors import (
    AuthFailed,
    BadUrl,
    BranchExists,
    DeliveryRejected,
    NetworkUnreachable,
    NonFastForward,
    NotFound,
    ProtectedBranch,
    WorkspaceError,
    classify,
)
from moorage.workspace.git import Credential, Git, Output
from moorage.workspace.refs import HEADS, check_branch, check_url, is_sha

_ASK_SECONDS = 45.0
# A repository on this machine may belong to another user, and its hooks are not ours to run.
_LOCAL = "git -c safe.directory=* -c core.hooksPath=/dev/null -c uploadpack.allowAnySHA1InWant=true"


@dataclass(frozen=True, slots=True)
class Upstream:
    """A repository behind http(s). `ref`: branch, tag or commit wanted (None: its default branch)."""

    url: str
    ref: str | None = None
    credential: Credential | None = None
    depth: int | None = None

    def reach(self, git: Git) -> Git:
        """Git, ready to talk to it. Raises BadUrl."""
        return git.authenticated(check_url(self.url), self.credential)

    def address(self, verb: str) -> tuple[str, ...]:
        """The arguments that name it, options first."""
        del verb
        return ("--", self.url)


@dataclass(frozen=True, slots=True)
class LocalUpstream:
    """A repository on this machine's disk, for local runs."""

    path: Path
    ref: str | None = None
    depth: int | None = None

    def reach(self, git: Git) -> Git:
        """Git, with the file transport that nothing else may use. Raises NotFound, BadUrl."""
        if not self.path.is_absolute():
            raise BadUrl("the path of a local repository is absolute")
        if not self.path.is_dir():
            raise NotFound(str(self.path))
        return replace(git.with_(("protocol.file.allow", "always")), transports="file")

    def address(self, verb: str) -> tuple[str, ...]:
        """The arguments that name it, options first."""
        option = "--receive-pack" if verb == "push" else "--upload-pack"
        return (f"{option}={_LOCAL} {option[2:]}", "--", str(self.path))


AnyUpstream = Upstream | LocalUpstream


def _asking(upstream: AnyUpstream, git: Git) -> Git:
    """For small questions: a remote that swallows packets is told within the minute."""
    return replace(upstream.reach(git), timeout=min(git.timeout, _ASK_SECONDS))


async def default_branch(git: Git, upstream: AnyUpstream) -> str | None:
    """The ref that HEAD names there; None when it names none. One request, and the first to find a wrong address."""
    out = await _asking(upstream, git).text("ls-remote", "--symref", *upstream.address("ls-remote"), "HEAD")
    match = re.search(r"^ref: (refs/heads/\S+)\tHEAD$", out, re.MULTILINE)
    return match[1] if match else None


async def head(git: Git, upstream: AnyUpstream) -> str | None:
    """The commit that is checked out there, on a branch or not; None in an empty repository."""
    out = await _asking(upstream, git).text("ls-remote", *upstream.address("ls-remote"), "HEAD")
    sha = out.partition("\t")[0]
    return sha if is_sha(sha) else None


@dataclass(frozen=True, slots=True)
class Seen:
    """A branch upstream, now. `at` None: it isn't there. `obstacle`: another one beside which it can't be made, since
    refs are files there: a branch is no folder of branches."""

    at: str | None
    obstacle: str | None = None


def taken(branch: str, seen: Seen) -> str:
    """What is in the branch's way."""
    if seen.at:
        return f"{branch} is at {seen.at}"
    return f"{branch} can't be made beside {seen.obstacle}, which is there already"


async def look(git: Git, upstream: AnyUpstream, branch: str) -> Seen:
    """Ask for the branch, for those that its name passes through, and for those below it: one request."""
    ref = HEADS + check_branch(branch)
    steps = ref.split("/")
    above = ["/".join(steps[:n]) for n in range(3, len(steps))]
    out = await _asking(upstream, git).text("ls-remote", *upstream.address("ls-remote"), ref, *above, f"{ref}/*")
    there = {name: sha for sha, _, name in (line.partition("\t") for line in out.splitlines()) if is_sha(sha)}
    obstacles = sorted(name for name in there if name in above or name.startswith(f"{ref}/"))
    return Seen(there.get(ref), obstacles[0].removeprefix(HEADS) if obstacles else None)


class PushKind(StrEnum):
    """How a push ended. `unknown` is neither success nor failure: ask the remote (see `closure`)."""

    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PushOutcome:
    """The receipt. `old` None: the branch was to be new. `reason` is the typed error's name unless confirmed."""

    kind: PushKind
    branch: str
    old: str | None
    new: str
    reason: str = ""
    message: str = ""


class Closure(StrEnum):
    """E5: what a look at the remote says about a push with no receipt."""

    RECOVERED = "recovered"
    AGAIN = "again"
    CONFLICT = "conflict"


def closure(found: str | None, *, target: str, expected_old: str | None) -> Closure:
    """Ref at the target: it happened. Ref where it was: it did not, push again. Else somebody else moved it."""
    if found == target:
        return Closure.RECOVERED
    return Closure.AGAIN if found == expected_old else Closure.CONFLICT


async def push(git: Git, upstream: AnyUpstream, commit: str, branch: str, expected_old: str | None) -> PushOutcome:
    """Compare-and-swap of the branch from `expected_old` (None: not there) to `commit`. Never raises for what the
    remote says or fails to say; that is the outcome. The caller has checked ancestry: a lease alone permits rewriting.
    """
    ref = HEADS + check_branch(branch)
    lease = f"--force-with-lease={ref}:{expected_old or ''}"
    try:
        there = upstream.reach(git)
        out = await there.run(
            "push", "--porcelain", "--no-verify", lease, *upstream.address("push"), f"{commit}:{ref}", ok=(0, 1, 128)
        )
    except WorkspaceError as failure:
        return PushOutcome(PushKind.UNKNOWN, branch, expected_old, commit, failure.reason, str(failure))
    kind, error = judge(replace(out, stdout=os.fsencode(there.scrub(out.text))), expected_old)
    return PushOutcome(kind, branch, expected_old, commit, error.reason if error else "", str(error) if error else "")


def judge(out: Output, expected_old: str | None) -> tuple[PushKind, WorkspaceError | None]:
    """Read `git push --porcelain` of one ref. Git says "Everything up-to-date" also after a cut connection, so that
    only a line about the ref counts."""
    line = next((x for x in out.text.splitlines() if re.match(r"[ +*=!-]?\t\S+:refs/", x) or x[1:2] == "\t"), None)
    if out.code == 0 and line and line[0] in "*= \t":
        return PushKind.CONFIRMED, None
    if line and line[0] == "!":
        return _refusal(line.split("\t")[-1], out.stderr, expected_old)
    error = classify(out.stderr or out.text)
    refused = isinstance(error, AuthFailed | NotFound | BadUrl | ProtectedBranch)
    return (PushKind.REJECTED if refused else PushKind.UNKNOWN), error


def _refusal(summary: str, stderr: str, expected_old: str | None) -> tuple[PushKind, WorkspaceError]:
    moved = NonFastForward if expected_old else BranchExists
    if re.search(r"stale info|fetch first|non-fast-forward", summary):
        return PushKind.CONFLICT, moved(summary)
    if "remote failure" in summary:
        return PushKind.UNKNOWN, NetworkUnreachable(f"{summary}\n{stderr}")
    if re.search(r"cannot lock ref|already exists|failed to update", summary):
        # libcurl sends a request again when a connection dies under it: what is in the way may be this very push.
        return PushKind.UNKNOWN, DeliveryRejected(f"{summary}\n{_remote_words(stderr)}")
    return PushKind.REJECTED, ProtectedBranch(f"{summary}\n{_remote_words(stderr)}")


def _remote_words(stderr: str) -> str:
    return "\n".join(line for line in stderr.splitlines() if line.startswith("remote:"))
