"""A run's result as a git bundle, and looking at one on a machine that has nothing but the bundle.

Its pack holds every commit from the base on with whole trees, the base included, so that each hash up to the result's
can be computed again. Its header names the base as needed: a clone that has it fetches the result from the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from moorage.workspace.errors import WorkspaceError
from moorage.workspace.git import Git

SIGNATURE = b"# v2 git bundle\n"
MAX_HEADER = 4096
REF = "refs/heads/result"
_STEADY = ("--threads=1", "--no-reuse-delta", "--no-reuse-object", "--quiet")


class NotTheResult(ValueError):
    """The bundle doesn't hold what it should; the message says what."""


async def packed(git: Git, base: str, commit: str) -> AsyncIterator[bytes]:
    """The bundle of `commit` down to `base`; the same commits give the same bytes. Raises WorkspaceError."""
    yield SIGNATURE + f"-{base} base\n{commit} {REF}\n\n".encode()
    wanted = f"--shallow {base}\n{commit}\n".encode()
    async for chunk in git.stream("pack-objects", "--revs", "--stdout", *_STEADY, stdin=_fed([wanted])):
        yield chunk


async def tree_in(chunks: Iterable[bytes], base: str, commit: str) -> str:
    """The tree of `commit`, all of whose objects were hashed and found complete. Raises NotTheResult."""
    with tempfile.TemporaryDirectory(prefix="moorage-result-") as folder:
        git = Git(Path(folder), {"GIT_DIR": folder})
        kind = "sha256" if len(commit) == 64 else "sha1"
        await git.run("init", "--quiet", "--bare", "--template=", f"--object-format={kind}", folder)
        (Path(folder) / "shallow").write_text(f"{base}\n")
        try:
            await git.run("index-pack", "--stdin", stdin=_fed(_pack(iter(chunks), base, commit)))
            await git.run("rev-list", "--objects", "--quiet", "--end-of-options", commit)
            if not await git.test("merge-base", "--is-ancestor", base, commit):
                raise NotTheResult(f"{commit} does not build on {base}")
            return await git.text("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")
        except WorkspaceError as error:
            raise NotTheResult(f"git can't make {commit} of it: {error}") from None


def _pack(chunks: Iterable[bytes], base: str, commit: str) -> Iterable[bytes]:
    """What follows the header, which names `base` and `commit`. Raise NotTheResult."""
    begun = b""
    source = iter(chunks)
    while b"\n\n" not in begun and len(begun) < MAX_HEADER and (chunk := next(source, b"")):
        begun += chunk
    header, _, rest = begun.partition(b"\n\n")
    if header + b"\n\n" != SIGNATURE + f"-{base} base\n{commit} {REF}\n\n".encode():
        raise NotTheResult(f"its header doesn't name {commit} on {base}")
    yield rest
    yield from source


async def _fed(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
