"""Errors of the harness: each says what failed and what to do."""


class HarnessError(Exception):
    """The harness can't go on; the message tells a person what to do."""


class CommandFailedError(HarnessError):
    """A program of the harness exited with an error; the message carries the end of its output."""


class NotReadyError(HarnessError):
    """Something didn't become ready in time; the message names it and its log."""
