"""What runs of a folder left on this machine: processes, mounts, and temporary files that nobody will remove.

A process belongs to a folder if its command line, its environment or its working directory lies in it: that stays so
wherever the process hangs in the tree after its parent died.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from moorage.procfs import processes
from moorage.runner.processes import send

LOOK_S = 0.02


def running(root: Path) -> list[int]:
    """Live processes that belong to the folder, this one left out."""
    mark, own = os.fsencode(root) + b"/", os.getpid()
    alive = (pid for pid, entry in processes().items() if not entry.zombie and pid != own)
    return sorted(pid for pid in alive if mark in _told(pid))


def _told(pid: int) -> bytes:
    """Nothing of a process that is gone by now, or is somebody else's."""
    proc, told = Path("/proc") / str(pid), b""
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            told += (proc / name).read_bytes()
    with contextlib.suppress(OSError):
        told += os.fsencode((proc / "cwd").readlink()) + b"/"
    return told


async def still_running(root: Path, patience_s: float) -> list[int]:
    """Those that haven't ended by themselves after so many seconds."""
    left = await asyncio.to_thread(running, root)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while left:
                await asyncio.sleep(LOOK_S)
                left = await asyncio.to_thread(running, root)
    return left


async def end(root: Path) -> None:
    """SIGKILL all of them, also what they start meanwhile."""
    while left := await asyncio.to_thread(running, root):
        send(left, signal.SIGKILL)
        await asyncio.sleep(LOOK_S)


def mounted(root: Path) -> list[str]:
    """Mount points below the folder, as this process sees them."""
    table = Path("/proc/self/mountinfo")
    lines = table.read_text().splitlines() if table.is_file() else []
    places = [line.split()[4].replace("\\040", " ") for line in lines]
    return [place for place in places if place.startswith(f"{root}/")]


def entries(folder: Path) -> list[str]:
    """Names of what lies in it; none where there is no such folder."""
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
