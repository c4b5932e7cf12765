"""What tests of git's two ends share: git as a user would call it, and pictures of a tree that owe nothing to git."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

ENV = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "GIT_TERMINAL_PROMPT": "0",
}


def git(cwd: Path, *args: str, check: bool = True, stdin: str = "") -> str:
    """Stdout; with `check` off, stdout and stderr of whatever became of it."""
    done = subprocess.run(
        ["git", *args],
        cwd=cwd,
        env=ENV,
        input=os.fsencode(stdin),
        capture_output=True,
        check=False,
        start_new_session=True,  # Ctrl-C at a terminal is for whoever asks: it ends what it began
    )
    if check and done.returncode:
        raise AssertionError(f"git {args}: {done.stderr!r}")
    return os.fsdecode(done.stdout if check else done.stdout + done.stderr).strip()


def snapshot(tree: Path) -> dict[str, tuple[str, bytes]]:
    """Every file and link below a folder but those named .git: path to kind (`-`, `x`, `link`) and content."""
    found = {}
    for folder, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if name != ".git"]
        for name in (*files, *folders):
            path = Path(folder) / name
            kept = _content(path) if name != ".git" else None
            if kept:
                found[str(path.relative_to(tree))] = kept
    return found


def _content(path: Path) -> tuple[str, bytes] | None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link", os.fsencode(path.readlink())
    if stat.S_ISREG(mode):
        return ("x" if mode & 0o100 else "-"), path.read_bytes()
    return None
