"""Commits that the gateway makes itself, for runs to start from. Whoever makes one again gets the same id."""

from __future__ import annotations

from moorage.workspace.git import Git
from moorage.workspace.refs import UPSTREAM
from moorage.workspace.statefiles import TITLE, recorded_state, trailer

_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Moorage"), ("EMAIL", "noreply@moorage.dev"))
}


async def seed(git: Git) -> None:
    """The empty root commit of an ephemeral workspace, on its branch `main`."""
    if await git.test("show-ref", "--verify", "--quiet", f"{UPSTREAM}heads/main"):
        return
    tree = await git.text("hash-object", "-w", "-t", "tree", "--stdin")
    commit = await _made(git, tree, (), "Empty workspace", "0")
    await git.run("update-ref", f"{UPSTREAM}heads/main", commit)
    await git.run("symbolic-ref", "HEAD", f"{UPSTREAM}heads/main")


async def begun(git: Git, point: str, base: str, run: str) -> str:
    """O2: the tree of `run`'s checkpoint `point`, on the commit that it started from and on nothing else: a checkpoint
    has its run's conversation for an ancestor. The base itself where nothing has changed. Raises RefMissing.
    """
    asked = [f"{commit}^{{tree}}" for commit in (point, base)]
    tree, unchanged = (await git.text("rev-parse", "--end-of-options", *asked)).splitlines()[-2:]
    if tree == unchanged:
        return base
    at = await git.text("log", "-1", "--no-show-signature", "--format=%ct", "--end-of-options", point)
    return await _made(git, tree, (base,), f"The work of run {run} so far", at)


async def gone_on(git: Git, point: str, base: str, run: str) -> str | None:
    """O2: a checkpoint for another run to begin at: `base`, which holds all that `run` did, with the conversation of
    that run's checkpoint `point`; None where that has none. Raises RefMissing.

    A sandbox wrote its message: what that names is the conversation only where it is a parent of the checkpoint, too.
    Anything else in the mirror may be another run's.
    """
    raw = await git.run("cat-file", "commit", point)
    state = recorded_state(raw.stdout)
    if state is None or f"parent {state}".encode() not in raw.stdout.partition(b"\n\n")[0].splitlines():
        return None
    tree = await git.text("rev-parse", "--verify", "--end-of-options", f"{base}^{{tree}}")
    at = await git.text("log", "-1", "--no-show-signature", "--format=%ct", "--end-of-options", point)
    message = f"Where run {run} ended\n\nMoorage-Head: {base}\n{trailer(state)}"
    return await _made(git, tree, (base, state), message, at)


async def _made(git: Git, tree: str, parents: tuple[str, ...], message: str, at: str) -> str:
    dates = {f"GIT_{who}_DATE": f"@{at} +0000" for who in ("AUTHOR", "COMMITTER")}
    on = [option for parent in parents for option in ("-p", parent)]
    return await git.with_(**_IDENTITY, **dates).text("commit-tree", *on, "-m", message, tree)


async def tells(git: Git, commit: str) -> bool:
    """Whether the commit has the conversation of a checkpoint for an ancestor, beyond what upstream has."""
    roots = ("--max-parents=0", "--no-show-signature", "--format=%s", commit, "--not")
    return TITLE in (await git.text("log", *roots, f"--glob={UPSTREAM}*")).splitlines()
