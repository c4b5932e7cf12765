"""What the gateway and a sandbox say to each other about the work: what it is for, what is asked of it, what became of
it. The doors are those of `moorage.api.wire`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from moorage.api.budget import Budget, ResolvedLimits
from moorage.api.wire import (
    ResolvedAgent,
    ResolvedApproval,
    ResolvedCheck,
    ResolvedDelivery,
    ResolvedTimeouts,
    Role,
    Sha,
)
from moorage.api.wirebase import Wire


class ResumePoint(Wire):
    """Where a recovered attempt goes on (R1): the last safe point."""

    commit: Sha
    iteration: int
    epoch: int


class GitAssignment(Wire):
    """The run's repository as the sandbox sees it, below the relay's address."""

    path: str = "/git/run.git"
    base: Sha
    branch: str
    depth: int | None = None
    filter: str | None = None
    sparse: tuple[str, ...] = ()
    submodules: bool = False
    lfs: bool = False
    resume: ResumePoint | None = None
    commit: Sha | None = None  # verifier: exactly this one


class RecordedDecision(Wire):
    """R2: an earlier attempt's model has answered in an iteration that nobody completed. Asked the same again, under
    the same iteration, the model door gives that answer.
    """

    iteration: int
    request_id: str


class Assignment(Wire):
    """What a sandbox is for. No credential is in it."""

    run_uid: str
    tenant: str
    name: str
    epoch: int
    attempt: int
    role: Role
    goal: str
    agent: ResolvedAgent
    acceptance: tuple[ResolvedCheck, ...]
    delivery: ResolvedDelivery | None
    limits: ResolvedLimits
    timeouts: ResolvedTimeouts
    git: GitAssignment
    next_iteration: int = 1
    iterations_used: int | None = None  # B3: how many are complete; their numbers may have gaps (E2)
    recorded: RecordedDecision | None = None
    handoff: str | None = None
    continues: bool = False  # O2: it begins where another run of its session ended, and nobody has told it the goal yet
    conversation: bool = False  # what the model was asked last is to be had: that run's, else an earlier attempt's
    tokens_used: int = 0
    budget: Budget | None = None
    approvals: tuple[ResolvedApproval, ...] = ()  # T6: of tool calls
    egress: tuple[str, ...] = ()  # hosts that lie behind the relay, for an agent's proxy settings


class CallResult(Wire):
    """What a tool call came to, as its driver told it: `index` is its place among the calls of its decision."""

    index: int
    ok: bool
    content: str
    exit_code: int | None = None
    timed_out: bool = False
    truncated: bool = False


class Conversation(Wire):
    """O2, R4: what the model was asked last, word by word, what it answered, and what came of the calls in that; empty
    where it is kept no more.
    """

    request: str
    answer: str = ""
    results: tuple[CallResult, ...] = ()


class Heartbeat(Wire):
    """F4, at most 1 KiB. Alive is `observed_at`, progress is `progress_seq`. `pauses`: the runner knows that order; one
    of the last release doesn't (R8).
    """

    work_id: str
    epoch: int
    progress_seq: int
    last_checkpoint: int | None = None
    observed_at: int
    pauses: bool = False


class Orders(Wire):
    """What the gateway asks of a runner. `seq` rises with each change; `stop` is never taken back. `waiting` is the
    offset of the newest message to the agent that isn't delivered (M3); -1 where there is none.
    """

    seq: int
    waiting: int = -1
    stop: Literal["pause", "cancel", "fenced", "deadline", "terminal"] | None = None
    reason: str | None = None
    message: str | None = None
    grace_ms: int = 30_000
    budget: Budget | None = None  # C7: as it is now


class CheckpointReport(Wire):
    """P2, P5: pushed already; counted when the gateway has seen the objects synced. One per changed iteration.

    `changed`: there is a new checkpoint; `tree_changed`: not only of the agent's conversation (None: an older runner,
    which keeps none). `held_ms`: P6, how long a request of the agent's to its model has waited for this safe point.
    """

    epoch: int
    iteration: int = Field(ge=1)
    changed: bool
    tree_changed: bool | None = None
    commit: Sha | None = None
    tree: Sha | None = None
    left_out: tuple[str, ...] = ()
    recorded_at: int
    usage: dict[str, int] = {}
    held_ms: int | None = Field(default=None, ge=0)
    disk_bytes: int | None = Field(default=None, ge=0)


class ResultReport(Wire):
    """The agent's end. `outcome` unknown is an end of output without a final event: never success. `left_out`: the
    first of what stands in the tree and not in the commit, each with its reason; `left_out_count` is of all."""

    epoch: int
    outcome: Literal["completed", "failed", "cancelled", "exhausted", "paused", "unknown"]
    reason: str
    message: str = Field(default="", max_length=4096)
    summary: str = Field(default="", max_length=4096)
    exit_code: int | None = None
    commit: Sha | None = None
    tree: Sha | None = None
    base: Sha | None = None
    empty: bool = True
    files: int = 0
    left_out: tuple[str, ...] = ()
    left_out_count: int = Field(default=0, ge=0)
    recorded_at: int


class CheckResult(Wire):
    """One acceptance command's end; `output` is its tail, bounded."""

    name: str
    run: str
    exit_code: int | None
    timed_out: bool = False
    duration_ms: int
    output: str = Field(default="", max_length=65_536)

    @property
    def passed(self) -> bool:
        """Exit 0 within its time."""
        return self.exit_code == 0 and not self.timed_out


class VerificationReport(Wire):
    """V3: what a verifier saw on exactly `commit`.

    `key` is the secret whose SHA-256 the verifier told (VERIFICATION_STARTED, `key_sha256`) before its first command:
    what that runs can read the token, and could otherwise tell a verdict of its own.
    """

    epoch: int
    commit: Sha
    key: str = Field(default="", max_length=256, repr=False)
    checks: tuple[CheckResult, ...]
    environment: dict[str, str] = {}
    problem: str | None = None  # the verifier itself could not do its work
    recorded_at: int
