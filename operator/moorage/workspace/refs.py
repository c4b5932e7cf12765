"""Names: where Moorage's refs live, and what a user's branch or run may be called (W3)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from moorage.workspace.errors import BadRef, BadUrl

UPSTREAM = "refs/upstream/"
RUNS = "refs/moorage/runs/"
DRIFT = "refs/moorage/drift/"
HEADS = "refs/heads/"

_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")


def is_sha(text: str) -> bool:
    """A full object id."""
    return _SHA.fullmatch(text) is not None


def check_branch(name: str) -> str:
    """The name, if git would take it as a branch (the rules of git-check-ref-format). Raises BadRef."""
    parts = name.split("/")
    bad = (
        not name
        or len(name.encode("utf-8", "replace")) > 244
        or name.startswith(("-", "refs/"))
        or name.endswith(".")
        or name in {"@", "HEAD"}
        or _BAD_IN_REF.search(name)
        or any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    )
    if bad:
        raise BadRef(f"{name[:300]!r} is no branch name")
    return name


def check_run(run: str) -> str:
    """The run's id, if it can stand in a ref as one part. Raises BadRef."""
    if not _RUN.fullmatch(run) or ".." in run or run.endswith((".lock", ".")):
        raise BadRef(f"{run[:300]!r} is no run id")
    return run


def check_url(url: str) -> str:
    """The address, if git may be sent there. Raises BadUrl, without repeating what may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadUrl(str(error)) from None
    if any(ord(sign) <= 32 or ord(sign) == 127 for sign in url):
        raise BadUrl("there is a space or control character in it")
    if parts.scheme not in {"http", "https"}:
        raise BadUrl(f"{parts.scheme + '://' if parts.scheme else 'a bare path'} is not served")
    if not parts.hostname or port == 0:
        raise BadUrl("it has no host")
    if parts.username is not None or parts.password is not None:
        raise BadUrl("it holds a user or password; put them into the Secret named by `credentials`")
    return url


def checkpoint_ref(run: str, epoch: int) -> str:
    """The moving ref of one attempt's checkpoints; each has its predecessor as first parent."""
    return f"{RUNS}{check_run(run)}/{epoch}/checkpoints"


def candidate_ref(run: str, epoch: int) -> str:
    """What one attempt proposes for delivery."""
    return f"{RUNS}{check_run(run)}/{epoch}/candidate"


def pin_ref(run: str, name: str) -> str:
    """A ref by which the gateway keeps a commit for a run, whatever becomes of the branch it was on."""
    return f"{RUNS}{check_run(run)}/pins/{name}"


def drift_ref(run: str, epoch: int) -> str:
    """R3: what stood in the worktree and in no checkpoint when the attempt of that epoch began."""
    return f"{DRIFT}{check_run(run)}/{epoch}"


@dataclass(frozen=True, slots=True)
class MirrorKey:
    """Which mirror: one per tenant and workspace, so that no object is shared between tenants."""

    tenant: str
    workspace: str

    def folder(self) -> str:
        """A relative path, bounded, readable, and hashed so that no two keys meet."""
        return f"{_slug(self.tenant)}/{_slug(self.workspace)}.git"


def own_ref(ref: str, run: str, epoch: int) -> bool:
    """Whether a pushed ref, by its name in the store, is one that this attempt may write."""
    return ref.startswith(f"{RUNS}{check_run(run)}/{epoch}/") or ref == drift_ref(run, epoch)


def _slug(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    readable = re.sub(r"[^a-z0-9-]+", "-", text.casefold()).strip("-")[:40]
    return f"{readable}-{digest}" if readable else digest
