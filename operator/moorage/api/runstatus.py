"""What an AgentRun tells of itself: a projection of its journal, bounded so that no list of runs grows large."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moorage.api.meta import UNDATED, Bounded, Conditions, Time, kstatus
from moorage.api.rules import Told

Phase = Literal[
    "Pending",
    "Queued",
    "Provisioning",
    "Running",
    "AwaitingApproval",
    "AwaitingInput",
    "Paused",
    "Verifying",
    "Delivering",
    "Recovering",
    "Cancelling",
    "Succeeded",
    "Failed",
    "Cancelled",
]


class Usage(Told):
    """What was used, as far as it is settled; it never falls."""

    input_tokens: int = Field(default=0, description="Input tokens that were not cached.")
    output_tokens: int = Field(default=0, description="Output tokens, reasoning included.")
    cache_read_tokens: int = Field(default=0, description="Input tokens read from the provider's cache.")
    cache_write_tokens: int = Field(default=0, description="Input tokens written to the provider's cache.")
    reasoning_tokens: int = Field(default=0, description="Of the output tokens, those of reasoning.")
    tokens: int = Field(default=0, description="All tokens that count against constraints.tokens.")
    cost_micros: int = Field(default=0, description="Cost in micro-dollars.")
    cost: Annotated[str, Bounded(32)] = Field(default="0.00", description="Cost in US dollars.")
    model_requests: int = Field(default=0, description="Model requests.")
    tool_calls: int = Field(default=0, description="Tool calls.")
    model_retries: int = Field(
        default=0, description="Model requests that were sent again to their provider, out of its retry budget."
    )
    effects: int = Field(default=0, description="Effects that count against constraints.effects.")
    egress_bytes: int = Field(default=0, description="Bytes to and from the hosts of sandbox.egress.")
    disk_bytes: int = Field(default=0, description="Bytes on disk, as measured at the last safe point.")
    human_approvals: int = Field(default=0, description="Answers of people to what the run asked by spec.approvals.")


class SessionStatus(Told):
    """The session of a run that goes on with another one, and what all of its runs have used: that is limited."""

    id: Annotated[str, Bounded(64)] = Field(description="UID of the session's first run.")
    continues: Annotated[str, Bounded(253)] = Field(description="The run that this one goes on with.")
    iterations: int = Field(default=0, description="Iterations of all runs of the session.")
    tokens: int = Field(default=0, description="Tokens, of all kinds.")
    cost_micros: int = Field(default=0, description="Cost in micro-dollars.")
    cost: Annotated[str, Bounded(32)] = Field(default="0.00", description="Cost in US dollars.")
    tool_calls: int = Field(default=0, description="Tool calls.")
    effects: int = Field(default=0, description="Effects.")
    egress_bytes: int = Field(default=0, description="Bytes to and from the hosts of sandbox.egress.")
    human_approvals: int = Field(default=0, description="Answers of people.")


class QueueStatus(Told):
    """Why the run waits."""

    position: int = Field(default=0, description="Place among those of its namespace that wait, from 1.")
    reason: Annotated[str, Bounded(384)] = Field(default="", description="What is short, and who would unblock it.")
    since: Time | None = Field(
        default=None,
        description="When it was stopped to make room for another run: from then on its age counts for its place. Left "
        "out: from its creation on.",
    )


class JournalStatus(Told):
    """The head of the run's journal."""

    offset: int = Field(description="Offset of the last record, from 0.")
    hash: Annotated[str, Bounded(64)] = Field(description="Hash of the last record: the end of the chain.")
    signature: Annotated[str, Bounded(256)] | None = Field(
        default=None, description="The gateway's signature of this head: `moorage verify` holds the journal against it."
    )


class RunWorkspaceStatus(Told):
    """Commits and branch of the run."""

    base: Annotated[str, Bounded(64)] | None = Field(default=None, description="Commit that the work started from.")
    head: Annotated[str, Bounded(64)] | None = Field(
        default=None, description="Commit of the last checkpoint or result."
    )
    branch: Annotated[str, Bounded(256)] | None = Field(default=None, description="The run's branch.")


class PlacementStatus(Told):
    """Where the agent's newest sandbox runs."""

    kind: Literal["local", "cluster"] = Field(description="local: on the machine of whoever started it; or cluster.")
    node: Annotated[str, Bounded(253)] | None = Field(default=None, description="Node of the sandbox.")
    runtime_class: Annotated[str, Bounded(253)] | None = Field(
        default=None, description="RuntimeClass, or the kind of isolation of a local run. Left out: the node's own."
    )
    environment: Annotated[str, Bounded(512)] | None = Field(
        default=None, description="Digest of what it runs in: that of its image, or of the machine."
    )


class RunResult(Told):
    """What came out of it."""

    summary: Annotated[str, Bounded(2048)] | None = Field(default=None, description="What the agent says that it did.")
    commit: Annotated[str, Bounded(64)] | None = Field(default=None, description="Commit that was accepted.")
    pull_request: Annotated[str, Bounded(512)] | None = Field(default=None, description="URL of the pull request.")


class AgentRunStatus(Told):
    """How far the run is: a projection of its journal. Conditions are the truth, phase is their summary."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")
    phase: Phase | None = Field(default=None, description="Summary of where the run stands.")
    reason: Annotated[str, Bounded(64)] | None = Field(default=None, description="Why, as one word for programs.")
    message: Annotated[str, Bounded(1024)] | None = Field(
        default=None, description="Why, for people, and what can be done."
    )
    conditions: Conditions = ()
    attempt: int | None = Field(default=None, description="Number of the attempt, from 1.")
    epoch: int | None = Field(default=None, description="Fencing epoch of the attempt; it never falls.")
    iteration: int | None = Field(default=None, description="Last complete iteration: the last safe point.")
    usage: Usage | None = Field(default=None, description="What was used.")
    session: SessionStatus | None = Field(
        default=None, description="The session that the run goes on with; left out where it goes on with none."
    )
    queue: QueueStatus | None = Field(default=None, description="Why the run waits, while it does.")
    journal: JournalStatus | None = Field(default=None, description="Head of the run's journal.")
    workspace: RunWorkspaceStatus | None = Field(default=None, description="Commits and branch of the run.")
    result: RunResult | None = Field(default=None, description="What came out of it.")
    recovery_grade: Literal["R0", "R1", "R2", "R3", "R4"] | None = Field(
        default=None, description="What the last recovery proved: R0 nothing, to R4 everything up to verification."
    )
    spec_hash: Annotated[str, Bounded(64)] | None = Field(
        default=None, description="Hash of the spec with all references followed, as it was admitted."
    )
    node: Annotated[str, Bounded(253)] | None = Field(default=None, description="Node of the sandbox.")
    placement: PlacementStatus | None = Field(default=None, description="Where the agent's newest sandbox runs.")
    started_at: Time | None = Field(default=None, description="When the agent first started.")
    finished_at: Time | None = Field(default=None, description="When the run ended.")


BORN = AgentRunStatus(
    phase="Pending",
    reason="Accepted",
    message="accepted by the API server; the operator tells what becomes of it",
    conditions=tuple(
        condition.model_copy(update={"last_transition_time": UNDATED})
        for condition in kstatus("InProgress", "Accepted", "the operator has told nothing yet", 0)
    ),
)
"""What a run says before anybody has worked on it: the definition's default, which costs no write. Without it kstatus
would take a run without conditions for one that is in order."""
