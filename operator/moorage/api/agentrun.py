"""AgentRun: one durable piece of work. Its spec says what is wanted; its status tells how far it is."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage.api.agent import AgentTemplate, Sandbox
from moorage.api.approvals import Approval
from moorage.api.constraints import Constraints
from moorage.api.meta import (
    OBJECT_NAME,
    KeyRef,
    Label,
    ObjectRef,
    Resource,
    SchedulingClass,
)
from moorage.api.names import hashed
from moorage.api.quantity import Duration
from moorage.api.rules import Fields, KeyedBy, Rule, exactly_one
from moorage.api.runstatus import AgentRunStatus
from moorage.api.transitions import raised_duration, raised_number, raised_quantity, unchanged, unchanged_at
from moorage.api.workspace import DEFAULT_BRANCH_PREFIX, BranchName, WorkspaceSource

MAX_GOAL_BYTES = 256 * 1024
_MAX_BRANCH_NAME = 140

Goal = Annotated[
    str,
    Field(max_length=1024 * 1024),
    Rule(
        "goal must not be empty: say what the agent is to do, or name a ConfigMap in goalFrom",
        "self.matches('[^\\\\s]')",
        lambda goal: bool(goal.strip()),
    ),
]


class GoalSource(Fields):
    """A goal kept elsewhere."""

    config_map_key_ref: KeyRef = Field(
        description="ConfigMap and key, in the same namespace. Read once, when the run is admitted."
    )


class AcceptanceCheck(Fields):
    """A command that decides whether the work is accepted."""

    name: Label = Field(description="Name of the check; unique in the run.")
    run: Annotated[
        str,
        Field(max_length=32_768),
        Rule(
            "run must not be empty: give the command that decides, such as pytest -q",
            "self.matches('[^\\\\s]')",
            lambda text: bool(text.strip()),
        ),
    ] = Field(
        description="Command for sh -c, in the root of a fresh checkout of the commit that would be delivered. Exit"
        " code 0 accepts it."
    )
    timeout: Duration = Field(default=Duration("10m"), description="Longest time that it may take.")


class PullRequest(Fields):
    """The pull request that asks for the delivered branch to be merged."""

    title: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None,
        description="Title. Default: the first line of delivery.message, of the agent's summary or the goal.",
    )
    body: Annotated[str, Field(max_length=8192)] | None = Field(
        default=None, description="Text. Default: the agent's summary, and which run it is."
    )
    base: BranchName | None = Field(
        default=None,
        description="Branch that it is to be merged into. Default: the branch that the run started from, where"
        " remoteGit.ref names it; else the default branch of the remote.",
    )
    draft: bool = Field(default=False, description="Whether it is made as a draft.")


class Delivery(Fields):
    """Where the result goes, once it has been accepted."""

    branch: BranchName | None = Field(
        default=None,
        description="Branch that the commit goes to, for example moorage/fix-login. It must not exist yet at"
        " the remote: a run has a branch of its own, and overwrites nothing. Default: the Workspace's branchPrefix"
        " (moorage/) and the run's name.",
    )
    push: bool = Field(
        default=True,
        description="Whether the branch is pushed to the remote. If false it stays in the gateway's git store.",
    )
    allow_empty: bool = Field(
        default=False, description="Whether a run that changed nothing may succeed. If false it fails with NoChange."
    )
    message: Annotated[str, Field(max_length=8192)] | None = Field(
        default=None, description="Message of the commit. Default: made from the goal's first line."
    )
    pull_request: PullRequest | None = Field(
        default=None,
        description="Pull request of the branch, made once it is pushed; the run succeeds with it. The Workspace's"
        " remoteGit.api says where.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "a pull request needs a pushed branch: set delivery.push, or leave delivery.pullRequest out",
            "!has(self.pullRequest) || self.push",
            lambda delivery: delivery.pull_request is None or delivery.push,
        ),
    )


class Scheduling(Fields):
    """When the run gets its turn."""

    class_: SchedulingClass = Field(
        default="interactive",
        alias="class",
        description="interactive: somebody waits for it; background: it stands in its namespace's queue where an"
        " interactive one would that came half an hour later.",
    )
    deadline: Duration | None = Field(
        default=None,
        description="Absolute limit, counted from the run's creation, for example 4h. Then it fails with"
        " DeadlineExceeded, wherever it stands.",
    )
    preemptible: bool = Field(
        default=False,
        description="Whether a background run may be stopped at a safe point, and go on later, to make room for an"
        " interactive one.",
    )


class Timeouts(Fields):
    """How long one thing may take; the run as a whole is limited by constraints.wallClock and scheduling.deadline."""

    schedule_to_start: Duration = Field(
        default=Duration("1h"), description="Longest wait for a sandbox that starts; then the run fails."
    )
    attempt: Duration = Field(
        default=Duration("2h"),
        description="Longest time of one attempt; then another begins, from the last checkpoint.",
    )
    no_progress: Duration = Field(
        default=Duration("10m"),
        description="Longest time in which a running agent may do nothing that is seen; then another attempt begins.",
    )
    delivery: Duration = Field(
        default=Duration("30m"),
        description="How long a remote that can't be reached is tried again before the run fails; its work is kept.",
    )
    settle: Duration = Field(
        default=Duration("1m"),
        description="How long a cancelled run waits to hear whether what was under way has happened; then it ends, and"
        " says that it isn't known.",
    )
    pause: Duration = Field(
        default=Duration("5m"),
        description="How long a run that is to pause may take to its next safe point; then its agent is stopped where"
        " it stands, and what it did since the last one is kept apart.",
    )


class Recovery(Fields):
    """What happens when an attempt is lost, or what it proposes isn't accepted."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        default=5,
        description="Attempts before the run fails with CrashLoop; at least 1. Those lost without a new"
        " checkpoint count twice.",
    )
    acceptance_rounds: Annotated[int, Field(ge=0, le=20)] | None = Field(
        default=None,
        description="How often the agent goes on, in a new attempt that is told what failed, after acceptance failed on"
        " what it proposed, while its limits allow. 0: the first failure ends the run. Default: 2, and 0 for the driver"
        " command.",
    )


class Retention(Fields):
    """What is kept after the end. The journal and the evidence have a retention of their own."""

    ttl_after_finished: Duration = Field(
        default=Duration("168h"),
        description="When, after the end, the pod, the volume, the worktree and the refs are removed. The"
        " AgentRun stays.",
    )
    keep_worktree: Literal["Always", "OnFailure", "Never"] = Field(
        default="OnFailure",
        description="Whether the worktree's volume is kept until then: Always, OnFailure or Never.",
    )
    delete_object: bool = Field(
        default=False,
        description="Whether the AgentRun is removed as well. Not for runs that are kept in git: they would run again.",
    )


def _cluster_only(field: str, name: str, instead: str) -> Rule:
    return Rule(
        f"{field} needs a cluster; in a run without one, {instead}",
        holds=lambda spec: getattr(spec, name) is None,
        field=field,
        only="local",
    )


class ParentRef(ObjectRef):
    """The run that this one is a child of."""

    start: Literal["Checkpoint", "Base"] = Field(
        default="Checkpoint",
        description="Where the child's work begins: at the parent's last checkpoint (its base, while there is none), or"
        " at the parent's base.",
    )


class AgentRunSpec(Fields):
    """What is wanted. Fixed once created, but for suspend, cancel, retention, and limits that are raised."""

    workspace_ref: ObjectRef | None = Field(default=None, description="Workspace to work in. This or workspace.")
    workspace: WorkspaceSource | None = Field(
        default=None, description="Where to work, described here: remoteGit, local or ephemeral. This or workspaceRef."
    )
    goal: Goal | None = Field(
        default=None,
        description="What the agent is to do, in words. At most 256 KiB; over 200 KiB, use kubectl apply"
        " --server-side. This or goalFrom.",
    )
    goal_from: GoalSource | None = Field(default=None, description="Where the goal is kept. This or goal.")
    agent: AgentTemplate | None = Field(
        default=None, description="The program that works, described here: driver, image, model. This or agentRef."
    )
    agent_ref: ObjectRef | None = Field(default=None, description="Agent that works. This or agent.")
    acceptance: Annotated[tuple[AcceptanceCheck, ...], Field(max_length=32), KeyedBy("name")] | None = Field(
        default=None,
        description="Commands that decide whether the run succeeds, run in a sandbox of their own. All must exit 0; an"
        " agent's own word does not decide. Names are unique.",
    )
    sandbox: Sandbox | None = Field(
        default=None,
        description="Where the agent runs. A field that is left out is the Agent's, else the installation's.",
    )
    constraints: Constraints = Field(
        default=Constraints(),
        description="Limits that stop the run while it runs, until they are raised: all of them can be, at any time. A"
        " field that is left out is the Agent's.",
    )
    delivery: Delivery | None = Field(
        default=None,
        description="Where the result goes. Left out: the run delivers nothing, and its checkpoints remain.",
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="When the run gets its turn.")
    timeouts: Timeouts = Field(default=Timeouts(), description="How long one thing may take.")
    approvals: (
        Annotated[
            tuple[Approval, ...],
            Field(max_length=16),
            KeyedBy("name"),
        ]
        | None
    ) = Field(
        default=None,
        description="What a person must allow first, by a RunCommand Approve or Reject; who may is RBAC on"
        " agentruns/approve.",
    )
    recovery: Recovery = Field(
        default=Recovery(), description="What happens when an attempt is lost, or its result isn't accepted."
    )
    retention: Retention = Field(
        default=Retention(), description="What is kept after the end. It can be changed later."
    )
    parent_ref: ParentRef | None = Field(
        default=None,
        description="AgentRun that this one is a child of, on a worktree of its own of the same workspace: it uses part"
        " of that run's budget, is cancelled with it and never outlives its deadline.",
    )
    continue_from: ObjectRef | None = Field(
        default=None,
        description="Ended AgentRun of this namespace whose session this one goes on with: its conversation, its work"
        " as it stood at its end, what its agent hadn't heard yet, and its budget, of which what that run has used is"
        " used. The workspace and the driver must be the same. While that run has not ended, this one waits.",
    )
    suspend: bool = Field(
        default=False,
        description="While true, the run doesn't start, and one that works pauses at its next safe point: its sandbox"
        " is released. False again, it goes on from there.",
    )
    cancel: bool = Field(
        default=False,
        description="Set to true to cancel the run. It can't be taken back; cancelling twice does no harm.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            "set exactly one of workspaceRef (the name of a Workspace) and workspace (one described here)",
            "workspaceRef",
            "workspace",
        ),
        exactly_one(
            "set exactly one of goal (the text) and goalFrom (a ConfigMap's key that holds it)", "goal", "goalFrom"
        ),
        exactly_one(
            "set exactly one of agentRef (the name of an Agent) and agent (one described here)", "agentRef", "agent"
        ),
        _cluster_only("workspaceRef", "workspace_ref", "describe it in workspace: {local: {path: …}}"),
        _cluster_only("agentRef", "agent_ref", "describe it in agent"),
        _cluster_only("goalFrom", "goal_from", "write the text in goal"),
        Rule(
            "approvals before Delivery need a delivery: without one nothing leaves",
            "!has(self.approvals) || has(self.delivery) || self.approvals.all(a, a.before != 'Delivery')",
            lambda spec: spec.delivery is not None or all(a.before != "Delivery" for a in spec.approvals or ()),
            field="approvals",
        ),
        Rule(  # here and not at the goal, or the refusal would repeat the whole text
            "goal must be at most 256 KiB: put what is longer into a file of the repository, and name it in the goal",
            f"!has(self.goal) || size(bytes(self.goal)) <= {MAX_GOAL_BYTES}",
            lambda spec: spec.goal is None or len(spec.goal.encode()) <= MAX_GOAL_BYTES,
            field="goal",
        ),
        *unchanged(
            "workspaceRef",
            "workspace",
            "goal",
            "goalFrom",
            "agent",
            "agentRef",
            "acceptance",
            "sandbox",
            "delivery",
            "scheduling",
            "timeouts",
            "approvals",
            "recovery",
            "parentRef",
            "continueFrom",
        ),
        unchanged_at("constraints.custom"),
        Rule(
            "cancel can't be taken back: create a new AgentRun",
            "!oldSelf.cancel || self.cancel",
            field="cancel",
        ),
    )


class AgentRun(Resource):
    """AgentRun is one durable piece of work: a goal, an agent, a workspace, and what decides whether it is done.

    It gets a sandbox, a worktree, an owner with a fencing epoch, a budget and a journal; whatever dies on the way, it
    finishes once.
    """

    api_version: Literal["moorage.dev/v1alpha1"] = "moorage.dev/v1alpha1"
    kind: Literal["AgentRun"] = "AgentRun"
    spec: AgentRunSpec = Field(description="What is wanted.")
    status: AgentRunStatus | None = Field(default=None, description="How far it is; written by the operator.")

    rules: ClassVar[tuple[Rule, ...]] = (
        raised_duration("constraints.wallClock"),
        raised_number("constraints.maxIterations"),
        *(
            raised_quantity(f"constraints.{of}.{limit}")
            for of in ("tokens", "cost", "egress", "disk")
            for limit in ("soft", "hard")
        ),
        *(
            raised_number(f"constraints.{of}.{limit}")
            for of in ("toolCalls", "effects", "humanApprovals")
            for limit in ("soft", "hard")
        ),
        Rule(
            "give the run a name: lower case letters, digits, '-' and '.', at most 253 characters",
            holds=lambda run: re.fullmatch(OBJECT_NAME, run.metadata.name) is not None,
            field="metadata.name",
            only="local",
        ),
    )

    def branch(self, prefix: str = DEFAULT_BRANCH_PREFIX) -> str | None:
        """The branch to deliver to: the one asked for, else prefix and name; None where nothing is delivered."""
        if self.spec.delivery is None:
            return None
        return self.spec.delivery.branch or f"{prefix}{_branch_name(self.metadata.name)}"


def _branch_name(run_name: str) -> str:
    """A run's name where git takes it as a file of its ref store, else a likeness of it."""
    legal = len(run_name) <= _MAX_BRANCH_NAME and not run_name.endswith(".lock")
    return run_name if legal else hashed(run_name, run_name)
