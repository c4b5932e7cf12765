"""How the runner's process ends, and what it leaves in the termination log for whoever types the reason.

The operator reads the log first and the code second; a code without a log is still told apart from an agent's own.
"""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path

MAX_LOG_BYTES = 4096


class Exit(IntEnum):
    """Codes of our own begin at 80, where neither a shell nor a signal has one."""

    DONE = 0
    FAULT = 80  # a fault of ours: the attempt is lost
    FENCED = 81  # another attempt owns the run
    NOT_WANTED = 82  # the run has ended or is being cancelled: nothing to do
    GATEWAY_LOST = 83  # the gateway could not be reached for too long
    WORKSPACE = 84  # the worktree could not be prepared, for a passing reason
    DISK_FULL = 85  # the volume is full
    ORPHANED = 86  # whoever we worked for has died (local runs)
    TERMINATED = 143  # SIGTERM from outside: the attempt gives up without a result


def leave(log: Path | None, reason: str, message: str) -> None:
    """Write the termination log, bounded; a place that can't be written is nobody's fault here."""
    if log is None:
        return
    while len(text := json.dumps({"reason": reason, "message": message})) > MAX_LOG_BYTES:
        message = message[: len(message) // 2]
    try:
        log.write_text(text)
    except OSError:
        return
