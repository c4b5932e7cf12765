"""What the processes say to each other, once: request, response and record payload models.

The operator, the gateway and the runner exchange JSON over HTTP. Every body is one of the models below or of
`moorage.api.work`, `commands` and `budget`, and so is the `payload` of each journal record that the reducer reads.
Field names on the wire are snake_case; times are integer milliseconds since the epoch (UTC) unless a name ends in
`_ms`, which is a duration.

Doors of the gateway (who may call: the role found by authentication):

    operator  PUT  /v1/runs/{uid}                 Admission -> RunView                admit, idempotent on spec hash
    operator  PUT  …/as-child, …/as-next          the same of a child, and of a run that goes on with another one
    operator  GET  /v1/runs/{uid}                 -> RunView
    operator  GET  /v1/runs?pending=true          -> RunList
    operator  POST /v1/runs/{uid}/fence           FenceRequest -> RunView             raise the epoch, never lower it
    operator  POST /v1/runs/{uid}/pods            PodRegistration -> RunView
    operator  POST /v1/runs/{uid}/records         ReportRequest -> RunView            facts that the operator saw
    operator  POST /v1/runs/{uid}/deliver         DeliverRequest -> RunView           push upstream, intent and receipt
    operator  POST /v1/runs/{uid}/children        SettleRequest -> RunView            settle what ended children used
    operator  GET  /v1/runs/{uid}/children/{name} -> ChildOrder                       what the agent asked for
    operator  POST /v1/runs/{uid}/release         -> Released                         refs away, journal sealed
    operator  GET  /v1/changes?after=N            -> NDJSON of Change, held open      wakes the operator
    reader    GET  /v1/runs/{uid}/journal         -> exported journal (JSON lines)
    reader    GET  /v1/runs/{uid}/diff            -> text/x-diff of the run's candidate against its base
    reader    GET  /v1/runs/{uid}/logs            -> agent output so far (text), ?follow=true holds it open
    reader    GET  …/logs/stream, …/timeline/stream, /v1/namespaces/{ns}/runs/stream -> moorage.api.streaming
    reader    GET  /v1/runs/{uid}/blobs           -> tar of what the journal cites
    reader    GET  /v1/runs/{uid}/result          -> git bundle of the proposed commit
    both      those of moorage.api.commands
    anybody   GET  /v1/keys/head                  -> public key that heads are signed with (PEM)
    runner    GET  /v1/self                       -> Assignment (425 until the pod is registered)
    runner    GET  /v1/self/decision              -> the model request whose answer is recorded (Assignment.recorded)
    runner    GET  /v1/self/conversation          -> Conversation (Assignment.conversation)
    runner    POST /v1/self/records               ReportRequest -> Reported
    runner    POST /v1/self/heartbeat             Heartbeat -> Orders
    runner    GET  /v1/self/orders?after=N&heard=M   -> Orders (long poll, at most 25 s)
    runner    POST /v1/self/children              SpawnRequest -> ChildAnswer         durable before its answer
    runner    GET  /v1/self/children              -> ChildList
    runner    GET  /v1/self/children/{name}       -> ChildAnswer (long poll until it has ended)
    runner    POST /v1/self/checkpoint            CheckpointReport -> Reported        counted once its objects are here
    runner    POST /v1/self/result                ResultReport -> Reported
    verifier  POST /v1/self/verification          VerificationReport -> Reported
    runner    POST /model/v1/messages             Anthropic Messages, credential injected
    runner    POST /model/v1/messages/count_tokens   the provider's count of a request's tokens
    runner    POST /model/v1/responses            OpenAI Responses, the same
    runner    POST /model/v1/chat/completions     OpenAI Chat Completions, the same
    runner    GET  /model/v1/models[/{name}]      the models that the run may use, in the provider's shape
    runner    *    /egress/{scheme}/{host}/…      a request to an allowed host, credential and key added
    runner    POST /tunnel/{host}:{port}          bytes both ways, to an allowed host
    both      GET|POST /git/run.git/…             smart HTTP of the run's mirror; receive for runners only
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from moorage.api.budget import Budget, ResolvedLimits
from moorage.api.meta import SchedulingClass
from moorage.api.wirebase import MAX_USER, Wire

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


class Role(StrEnum):
    """What a registered sandbox pod may do at the gateway."""

    RUNNER = "runner"
    VERIFIER = "verifier"


class SecretRef(Wire):
    """A key of a Secret in the run's namespace; resolved by the gateway at use and by nobody else."""

    name: str
    key: str | None = None


class ResolvedWorkspace(Wire):
    """Where the work happens, resolved once at admission (O6). `key` names the mirror within its tenant."""

    key: str
    name: str | None = None
    kind: Literal["remote_git", "local", "ephemeral"]
    url: str | None = None
    path: str | None = None
    ref: str | None = None
    credentials: SecretRef | None = None
    depth: int | None = None
    filter: str | None = None
    sparse: tuple[str, ...] = ()
    submodules: bool = False
    lfs: bool = False
    storage: str | None = None


class ResolvedPrices(Wire):
    """What a million tokens of each kind cost, in micro-dollars. Reasoning is part of the output."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_1h: int


class ResolvedRetries(Wire):
    """How often a request that its provider didn't answer is sent again: `budget` times in a run, all in all. What was
    resolved by an older version has none.
    """

    max_attempts: int = 1
    budget: int = 0
    max_wait_ms: int = 60_000


class ResolvedModel(Wire):
    """Which model behind which endpoint; the credential stays a reference. `prices` by the name of the model;
    `max_output_tokens` likewise, where the provider says how long its answers may be. `capture`: what is asked and
    answered is kept readable.
    """

    provider: str
    protocol: str
    base_url: str
    name: str
    credentials: SecretRef | None = None
    allowed: tuple[str, ...] = ()
    prices: dict[str, ResolvedPrices] = {}
    max_output_tokens: dict[str, int] = {}
    context_window: int = 200_000  # of the run's own model, tokens
    max_concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    retries: ResolvedRetries = ResolvedRetries()
    capture: bool = False


class ResolvedContinuation(Wire):
    """N1, N4: what happens when the agent says that it is done. An older run asks for nothing."""

    check_rounds: int = 0
    nudges: bool = False
    plan: bool = False


class ResolvedChildren(Wire):
    """How many children the agent may start, and how many of them may live at a time."""

    max: int
    concurrent: int


class ResolvedAgent(Wire):
    """The program that works."""

    driver: str
    image: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    model: ResolvedModel | None = None
    continuation: ResolvedContinuation = ResolvedContinuation()
    children: ResolvedChildren | None = None


class ResolvedCheck(Wire):
    """One acceptance command, run by `sh -c` in the worktree."""

    name: str
    run: str
    timeout_ms: int = 600_000


class ResolvedPullRequest(Wire):
    """W5: the pull request of the delivered branch, at the API `api` of that kind. None is the forge's default branch,
    or what the agent says."""

    kind: Literal["github", "gitlab", "gitea"]
    api: str
    project: str
    base: str | None = None
    title: str | None = None
    body: str | None = None
    draft: bool = False
    credentials: SecretRef | None = None


class ResolvedDelivery(Wire):
    """Where the result goes. With `push` false the branch stays in the gateway's mirror (or the local repository)."""

    branch: str
    push: bool = True
    allow_empty: bool = False
    message: str | None = None
    pull_request: ResolvedPullRequest | None = None


class ResolvedTimeouts(Wire):
    """F5: timeouts are apart."""

    schedule_to_start_ms: int = 3_600_000
    attempt_ms: int = 7_200_000
    no_progress_ms: int = 600_000
    delivery_ms: int = 1_800_000
    settle_ms: int = 60_000
    pause_ms: int = 300_000
    deadline_ms: int | None = None


class ResolvedEgress(Wire):
    """E8: a host that the agent may reach through the gateway. `methods` and `paths`: empty is all."""

    host: str
    effects: Literal["none", "keyed", "opaque"] = "opaque"
    scheme: Literal["https", "http"] = "https"
    port: int = 443
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    credentials: SecretRef | None = None
    credential_header: str = "Authorization"
    key_header: str = "Idempotency-Key"


class ResolvedSandbox(Wire):
    """The sandbox as asked for; quantities in Kubernetes notation."""

    runtime_class: str | None = None
    cpu: str | None = None
    memory: str | None = None
    disk: str | None = None
    egress: tuple[ResolvedEgress, ...] = ()


class ResolvedApproval(Wire):
    """T6: what a person must allow first. `tools` and `hosts` are patterns of names (empty: all). Without
    `reject_after_ms` it waits.
    """

    name: str
    before: Literal["Delivery", "ToolCall", "Egress", "Cost"]
    tools: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    step_micros: int | None = None
    reject_after_ms: int | None = None


class ResolvedRetention(Wire):
    """W5: what happens after the end; None keeps."""

    ttl_ms: int | None = None
    keep_worktree: Literal["Always", "OnFailure", "Never"] = "OnFailure"
    delete_object: bool = False


class ResolvedParent(Wire):
    """The run that this one is a child of, and the commit that it starts from. `depth`: how many are above it."""

    uid: str
    name: str
    commit: str
    depth: int = 1


class ResolvedOrigin(Wire):
    """O2: the ended run that this one goes on with, in whose session it is."""

    uid: str
    name: str


class ResolvedContract(Wire):
    """C4: what the ResourceConstraints of its namespace took from a run's limits as it was admitted.

    own: its limits without them. limits: theirs; set_by: which constraint said each, by how a user writes it.
    """

    own: ResolvedLimits
    limits: ResolvedLimits
    set_by: dict[str, str] = {}


class ResolvedRun(Wire):
    """An AgentRun with every reference followed, as it was at admission. Its canonical hash is the spec hash (O6)."""

    uid: str
    tenant: str
    name: str
    session_id: str
    placement: Literal["local", "cluster"]
    goal: str
    workspace: ResolvedWorkspace
    agent: ResolvedAgent
    acceptance: tuple[ResolvedCheck, ...] = ()
    delivery: ResolvedDelivery | None = None
    limits: ResolvedLimits = ResolvedLimits()
    timeouts: ResolvedTimeouts = ResolvedTimeouts()
    sandbox: ResolvedSandbox = ResolvedSandbox()
    retention: ResolvedRetention = ResolvedRetention()
    approvals: tuple[ResolvedApproval, ...] = ()
    max_attempts: int = 5
    acceptance_rounds: int = 0  # N4: attempts that may follow a failed acceptance
    parent: ResolvedParent | None = None
    origin: ResolvedOrigin | None = Field(default=None, exclude_if=lambda origin: origin is None)
    contract: ResolvedContract | None = Field(default=None, exclude_if=lambda contract: contract is None)
    scheduling_class: SchedulingClass = Field(default="interactive", exclude_if=lambda kind: kind == "interactive")

    def contends_with(self, other: ResolvedRun) -> bool:
        """W2: both deliver to one branch of one repository, which has one writer."""
        if self.workspace.key != other.workspace.key or self.delivery is None or other.delivery is None:
            return False
        return self.delivery.push and other.delivery.push and self.delivery.branch == other.delivery.branch


class FenceRequest(Wire):
    """F1, F2: the Lease's epoch has been raised; raise the gateway's."""

    epoch: int = Field(ge=1)
    attempt: int = Field(ge=1)
    holder: str
    lease: str | None = None
    reason: str = "Start"


class Admission(ResolvedRun):
    """F2: a run and, where it is given, the fence of its first attempt, raised in the same step."""

    fence: FenceRequest | None = None

    @property
    def run(self) -> ResolvedRun:
        """What is admitted."""
        return ResolvedRun.model_construct(**{name: getattr(self, name) for name in ResolvedRun.model_fields})


class PodRegistration(Wire):
    """F2: this pod UID is that run's attempt. TokenReview names the pod, never the epoch."""

    pod_uid: str
    pod_name: str
    epoch: int
    role: Role
    commit: Sha | None = None  # what a verifier verifies


class ReportedRecord(Wire):
    """A fact as its observer saw it. `record_id` makes a repeated report harmless (within an epoch).

    The payload of TOOL_REQUEST, TOOL_RESPONSE, CONTEXT_COMPACTED, COMPLETION_CHECKED, CONTINUATION_DECIDED and
    AGENT_OUTPUT is content: the gateway keeps it as
    an erasable blob and leaves measures (exit_code, duration_ms, bytes, stream, …) in the record. AGENT_OUTPUT is
    `{"stream": "stdout" | "stderr", "text": …}`, or `"data"` in base64 where the bytes are no UTF-8.
    """

    record_id: str = Field(min_length=1, max_length=128)
    type: str
    payload: dict[str, Any] = {}
    turn: int | None = None
    step: int | None = None
    tool_call_id: str | None = None
    request_id: str | None = None
    recorded_at: int


class ReportRequest(Wire):
    """Facts, in the order in which they happened. `epoch` is the writer's; an older one is refused (409 Fenced)."""

    epoch: int
    records: tuple[ReportedRecord, ...]


class Reported(Wire):
    """Durable now: the journal's head after the append."""

    offset: int
    hash: str
    budget: Budget | None = None


class DeliverRequest(Wire):
    """Settle the run's effects of unknown end (E4) and, where a commit is given, push it to the run's branch upstream
    (E5). Repeating it under the same epoch repeats no effect.
    """

    epoch: int
    commit: Sha | None = None


class RepairRequest(Wire):
    """I1: a person wants a broken journal to go on in a new generation, and says why.

    `user` is who the client says is asking; whose token it was is recorded beside it.
    """

    reason: str = Field(min_length=1, max_length=500)
    user: str = Field(default="", max_length=MAX_USER)


class Repaired(Wire):
    """Offsets `first` to `last` were dropped, `unreadable` of them for good; a new generation begins at `offset`."""

    generation: int
    first: int
    last: int
    offset: int
    unreadable: int
    why: str


class Change(Wire):
    """Something about this run was journaled; `cursor` resumes the feed."""

    cursor: int
    tenant: str
    name: str
    run_uid: str


class Released(Wire):
    """Refs and worktree state outside Kubernetes are gone."""

    refs: int


class DayUsage(Wire):
    """B3: what a namespace's models took on one day (UTC, `2026-11-30`), in so many runs."""

    day: str
    runs: int
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_micros: int = 0
    model_requests: int = 0
    model_retries: int = 0


class NamespaceUsage(Wire):
    """Days with any usage, oldest first. `unread`: runs whose journals can't be read, and whose usage is missing."""

    namespace: str
    days: tuple[DayUsage, ...] = ()
    unread: int = 0


class AllowanceRequest(Wire):
    """C5: what a namespace may take of models: in a day (UTC), and requests at once. None is unlimited."""

    tokens: int | None = Field(default=None, ge=0, le=2**53 - 1)
    cost_micros: int | None = Field(default=None, ge=0, le=2**53 - 1)
    models: int | None = Field(default=None, ge=0, le=2**53 - 1)


class AllowanceUse(Wire):
    """What it has taken today, since it has an allowance, and what requests under way may still come to."""

    tokens: int = 0
    cost_micros: int = 0
    reserved_tokens: int = 0
    reserved_cost_micros: int = 0
    requests: int = 0


class AllowanceList(Wire):
    """The namespaces that have an allowance."""

    namespaces: tuple[str, ...] = ()


class ErrorBody(Wire):
    """Every refusal: a stable reason and what to do."""

    reason: str
    message: str
