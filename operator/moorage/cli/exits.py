"""How a command ends: exit codes that scripts can rely on, and errors that say what to do."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command (documented in docs/cli.md; a code is never reused)."""

    OK = 0
    FAILED = 1  # the run did not succeed, the journal is not intact, a check failed
    USAGE = 2  # the command line, or the manifest, is wrong
    NOT_FOUND = 3  # no such run, namespace, context or file
    UNREACHABLE = 4  # cluster, gateway or store can't be reached now; trying again may help
    DENIED = 5  # known, but not allowed
    PAUSED = 6  # the run stopped where it can go on, such as at a limit
    INTERRUPTED = 130  # Ctrl-C


class CliError(Exception):
    """Ends a command. `message` says what is wrong, `hint` what to do about it."""

    code = Exit.FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = message, hint
        super().__init__(message)


class Usage(CliError):
    """What was asked can't be meant."""

    code = Exit.USAGE


class NotFound(CliError):
    """What was named isn't there."""

    code = Exit.NOT_FOUND


class Unreachable(CliError):
    """Something between here and the answer is away."""

    code = Exit.UNREACHABLE


class Denied(CliError):
    """Rights are missing."""

    code = Exit.DENIED
