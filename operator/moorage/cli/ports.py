"""What the program asks of the composition root (`moorage.app`), and what it is told.

The commands know neither stores nor gateways: a run on this machine is handed over whole, and past runs are read
through the same doors as on a cluster, by an HTTP client that happens to end in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from moorage.api.commands import CommandRequest, Receipt

STDIN = Path("-")  # as a manifest: what standard input holds


@dataclass(frozen=True)
class Progress:
    """Where a local run stands. Told whenever one of the fields changed, and at the end."""

    phase: str
    reason: str = ""
    message: str = ""
    iteration: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Truth:
    """One condition of a run's status."""

    type: str
    status: str
    reason: str
    message: str = ""


@dataclass(frozen=True)
class LocalResult:
    """The end of a local run. `commit` is what it came to; `branch` is None where it was delivered nowhere, and
    `repository` where there is no folder to look at it. `pull_request` is a URL.

    `sandbox` is the grade of what kept the agent in (W8).
    """

    name: str
    uid: str
    phase: str
    reason: str
    message: str = ""
    summary: str = ""
    branch: str | None = None
    commit: str | None = None
    repository: Path | None = None
    tokens: int = 0
    cost_micros: int = 0
    journal_offset: int = -1
    journal_hash: str = ""
    sandbox: str = ""
    conditions: tuple[Truth, ...] = ()
    pull_request: str | None = None

    @property
    def succeeded(self) -> bool:
        """Only this is exit code 0."""
        return self.phase == "Succeeded"

    @property
    def paused(self) -> bool:
        """It can go on, and waits for somebody."""
        return self.phase == "Paused"


@dataclass(frozen=True)
class LocalRun:
    """A run that this machine's store knows."""

    name: str
    uid: str
    created_at: int


@dataclass(frozen=True)
class ListedRun(LocalRun):
    """What a list of runs shows. `phase` is an AgentRun's, or Interrupted where nobody pushes it on; `branch` is what
    it delivers to, None where that is nothing or isn't known any more.
    """

    phase: str
    branch: str | None


@dataclass(frozen=True)
class InterruptedRun:
    """A run whose process died before its end. `manifest` is what it was started from, where that is known; `trouble`
    says why this version can't go on with it, and is empty where it can.
    """

    name: str
    uid: str
    since: str
    manifest: Path | None
    trouble: str = ""


class ManifestRefused(ValueError):
    """The manifest isn't a run that can be started here; the message says what to change. Raised by `run_local`."""


class SettingsRefused(ValueError):
    """A process isn't set up to start; the message says what is wrong. Raised by `run_operator`, `run_gateway`."""


class RunRefused(RuntimeError):
    """The run can't be started now; `hint` says what to do. Raised by `run_local`."""

    def __init__(self, message: str, hint: str) -> None:
        self.message, self.hint = message, hint
        super().__init__(message)


class OwnerSilent(RunRefused):
    """The process that pushes the run on is there and doesn't answer: it begins, or it is about to end."""


class Listener(Protocol):
    """Who watches a local run."""

    def progress(self, seen: Progress) -> None:
        """Something changed."""

    def note(self, text: str) -> None:
        """Something beside the result that a person should know."""


class LocalRuns(Protocol):
    """The past runs of one state folder. `client` speaks to the gateway's reader doors."""

    @property
    def client(self) -> httpx.AsyncClient:
        """A client of the reader doors."""

    @property
    def namespace(self) -> str:
        """What runs of this machine have for one, at those doors."""

    async def runs(self) -> Sequence[LocalRun]:
        """All runs that the store knows, newest first."""

    async def listed(self) -> Sequence[ListedRun]:
        """The same, with where each stands and what it delivers to."""

    async def interrupted(self) -> Sequence[InterruptedRun]:
        """Those that nobody pushes on and that have not ended (R7), oldest first."""

    async def abandoned(self, uid: str) -> bool:
        """Whether that run has not ended, and nobody pushes it on."""

    async def command(self, uid: str, asked: CommandRequest) -> Receipt:
        """Ask something of the process that pushes that run on. Raises RunRefused where there is none, or it won't;
        OwnerSilent where it doesn't answer now.
        """


class App(Protocol):
    """The module `moorage.app`, as this room sees it."""

    async def run_local(
        self,
        manifest: Path,
        *,
        state: Path,
        listener: Listener,
        tell: Callable[[LocalResult], None],
        fresh: bool = False,
    ) -> LocalResult:
        """Run the manifest's AgentRun on this machine to its end, or go on with it where it was interrupted; `fresh`
        closes an interrupted one instead. A run that has ended is done with once `tell` has returned, not sooner.
        Raises ManifestRefused, RunRefused, and what `tell` raises.
        """

    def open_local(self, state: Path) -> AbstractAsyncContextManager[LocalRuns]:
        """Open the store of past runs for reading."""

    async def torture(
        self, manifest: Path, *, kills: int, seed: int, shots: str, same_tree: bool, tell: Callable[[str], None]
    ) -> bool:
        """Run the manifest on clones, killed so often, or once by `shots` where there are any: was nothing found?

        Raises ManifestRefused.
        """

    def run_operator(self) -> None:
        """Be the operator until told to stop; settings come from MOORAGE_* variables. Raises SettingsRefused."""

    def run_gateway(self) -> None:
        """Be the gateway until told to stop; settings come from MOORAGE_* variables. Raises SettingsRefused."""
