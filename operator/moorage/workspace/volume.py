"""What lies on a run's volume, and making it fit for use whatever was left there (W4).

<root>/.moorage/repo.git     bare; objects and refs; one worktree of it, `tree`
<root>/.moorage/index        the private index that checkpoints are taken with
<root>/.moorage/aside/       what a reset would have destroyed and no commit could hold
<root>/.moorage/lock         held by the one live runner and its git processes
<root>/tree                  where the agent works, on the run's branch
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from moorage.workspace.statefiles import StateFiles

DEFAULT_CAP = 256 << 20
# What killed git processes left: locks, half-written objects. None of them lives where the volume's lock is held.
_LEFTOVERS = ("index.lock", "repo.git/**/*.lock", "repo.git/objects/pack/tmp_*", "repo.git/objects/*/tmp_obj_*")


@dataclass(frozen=True, slots=True)
class WorktreeOptions:
    """How much to bring. `alternates`: a repository on the same disk to borrow objects from, never pruned (local runs).
    `submodules`: go on although there are some, their folders left empty. `state`: where the agent's program keeps its
    conversation, which goes with the tree."""

    depth: int | None = None
    filter: str | None = None
    sparse: tuple[str, ...] = ()
    submodules: bool = False
    alternates: Path | None = None
    size_cap_bytes: int = DEFAULT_CAP
    state: StateFiles = field(default_factory=StateFiles)


@dataclass(frozen=True, slots=True)
class Volume:
    """The places below `root`."""

    root: Path

    @property
    def state(self) -> Path:
        """What is ours and not the agent's."""
        return self.root / ".moorage"

    @property
    def repo(self) -> Path:
        """The bare repository."""
        return self.state / "repo.git"

    @property
    def admin(self) -> Path:
        """The record of the worktree in the repository: its HEAD and the agent's index."""
        return self.repo / "worktrees" / "tree"

    @property
    def index(self) -> Path:
        """The private index."""
        return self.state / "index"

    @property
    def tree(self) -> Path:
        """The agent's folder."""
        return self.root / "tree"

    def aside(self, epoch: int) -> Path:
        """Where an attempt puts what it must not destroy."""
        return self.state / "aside" / str(epoch)

    def make_fit(self, remote_url: str, options: WorktreeOptions) -> None:
        """Folders, configuration, a HEAD that git can read, and no locks. Everything here may be done again."""
        if self.tree.is_symlink():  # a predecessor's agent may have led us elsewhere
            self.tree.unlink()
        self.tree.mkdir(parents=True, exist_ok=True)
        for folder in ("objects/info", "objects/pack", "refs/heads", "info"):
            (self.repo / folder).mkdir(parents=True, exist_ok=True)
        self._remove(*_LEFTOVERS)
        self.configure(remote_url, options)
        if options.alternates:
            self._borrow(options.alternates)
        write_sparse(self.repo, options.sparse)

    def _borrow(self, source: Path) -> None:
        """Read objects from there, and know where its history ends: what is beyond is missing, and not damaged."""
        (self.repo / "objects/info/alternates").write_text(f"{source / 'objects'}\n")
        ends = [file.read_text() for file in (self.repo / "shallow", source / "shallow") if file.is_file()]
        if ends:
            (self.repo / "shallow").write_text("".join(f"{end}\n" for end in sorted({*"".join(ends).split()})))

    def configure(self, remote_url: str, options: WorktreeOptions) -> None:
        """Configuration and HEAD that git can read, whatever the agent made of them."""
        head = self.repo / "HEAD"
        if not head.is_file() or not re.match(rb"ref: refs/|[0-9a-f]{40}", head.read_bytes()):
            head.write_text("ref: refs/heads/none\n")
        (self.repo / "config").write_text(_config(remote_url, options))
        (self.repo / "config.worktree").unlink(missing_ok=True)

    def break_own_locks(self) -> None:
        """The locks of what only we write, left by a git of ours that was cancelled. The agent's own are left alone."""
        self._remove("index.lock", "repo.git/HEAD.lock", "repo.git/refs/moorage/**/*.lock")

    def put_repository_aside(self, epoch: int) -> bool:
        """Move a damaged repository away, once in an attempt: commits of the agent's may still be read from it."""
        aside = self.aside(epoch)
        if (aside / "repo.git").exists() or not self.repo.exists():
            return False
        aside.mkdir(parents=True, exist_ok=True)
        self.repo.rename(aside / "repo.git")
        self.index.unlink(missing_ok=True)
        return True

    def clear_git_file(self, epoch: int) -> None:
        """Make room for the worktree's .git; a repository that the agent put there instead is kept aside."""
        found, aside = self.tree / ".git", self.aside(epoch)
        if found.is_dir() and not found.is_symlink():
            aside.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside / ".git", ignore_errors=True)
            found.rename(aside / ".git")
        else:
            found.unlink(missing_ok=True)

    def _remove(self, *patterns: str) -> None:
        for pattern in patterns:
            for path in self.state.glob(pattern):
                if path.is_file():
                    path.unlink(missing_ok=True)


def write_sparse(git_dir: Path, folders: tuple[str, ...]) -> None:
    """The files at the top and these folders; none: everything."""
    target = git_dir / "info" / "sparse-checkout"
    if not folders:
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(["/*", "!/*/", *(f"/{folder.strip('/')}/" for folder in folders)]) + "\n")


def _config(remote_url: str, options: WorktreeOptions) -> str:
    """The repository's configuration, in full: what a predecessor or its agent wrote there is gone."""
    lines = [
        "[core]",
        f"\trepositoryformatversion = {int(bool(options.filter))}",
        "\tbare = true",
        "\tfilemode = true",
        "\tlogallrefupdates = true",
        f"\tsparseCheckout = {str(bool(options.sparse)).lower()}",
        "\tsparseCheckoutCone = false",
        "[gc]",
        "\tauto = 0",
        "[log]",
        "\texcludeDecoration = refs/moorage",
        "[user]",
        "\tname = Moorage agent",
        "\temail = noreply@moorage.dev",
        '[remote "origin"]',
        f"\turl = {_quoted(remote_url)}",
        "\tfetch = +refs/heads/*:refs/remotes/origin/*",
    ]
    if options.filter:
        lines += ["\tpromisor = true", f"\tpartialclonefilter = {_quoted(options.filter)}"]
        lines += ["[extensions]", "\tpartialClone = origin"]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
