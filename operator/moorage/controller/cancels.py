"""Runs that a command is to cancel and that no journal knows yet: a word from the commands to the passes over runs.

Held in memory alone: the commands stand in their objects, and say it again to whoever leads next.
"""

from __future__ import annotations


class Cancels:
    """Which command cancels which run, by the run's UID."""

    def __init__(self) -> None:
        self._asked: dict[str, str] = {}

    def ask(self, run_uid: str, command: str) -> bool:
        """That command cancels that run; whether that is news."""
        news = not self.asked(run_uid)
        self._asked[command] = run_uid
        return news

    def withdraw(self, command: str) -> None:
        """Nothing more is to come of it: it has its answer, or is gone."""
        self._asked.pop(command, None)

    def asked(self, run_uid: str) -> bool:
        """Whether any command cancels that run."""
        return run_uid in self._asked.values()
