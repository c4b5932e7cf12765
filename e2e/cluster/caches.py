"""What can be built again: where half-made things are put, how large it all is, and how to be rid of it."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.cluster.cleanup import unmount_below
from e2e.cluster.errors import HarnessError
from e2e.cluster.locks import held

_PARTIAL = "partial-"
# every name that the harness gives to something in the cache folder itself: nothing else there is ever deleted
FOR_BUILDING = ("go",)
PARTS = (
    "programs",
    "images",
    "buildah",
    "wheels",
    "npm",
    "tools",
    "logs",
    "apt.lock",
    "installed-packages",
    *FOR_BUILDING,
)


@contextmanager
def workplace(parent: Path, name: str) -> Iterator[Path]:
    """A folder below `parent` for what is half made; the caller holds the lock of all that works under this name.

    What a killed harness left there goes first, so that kills don't fill the disk.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(f"{_PARTIAL}{name}-*"):
        unmount_below(stale)
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f"{_PARTIAL}{name}-") as folder:
        yield Path(folder)


def size(cache: Path) -> int:
    """Bytes on disk below the cache folder."""
    return sum(path.lstat().st_blocks * 512 for path in cache.rglob("*")) if cache.is_dir() else 0


def remove(cache: Path, names: Sequence[str] = PARTS) -> None:
    """Delete what the harness keeps in the cache folder, and the folder when nothing else is in it.

    Raises:
        HarnessError: another harness builds into it at this moment.
    """
    locks = [*cache.glob("*.lock"), *cache.glob("*/*.lock"), *cache.glob("*/lock")]
    if busy := [path for path in locks if held(path)]:
        raise HarnessError(f"another harness is at work ({busy[0]} is locked): try again when it has ended")
    for part in (cache / name for name in names):
        unmount_below(part)
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
    with suppress(OSError):
        cache.rmdir()
