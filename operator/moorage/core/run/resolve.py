"""O6: every reference of a run is followed once, at admission. What comes out is what the run is, whatever changes.

`resolve` returns the run as it will be journaled, or the first problem that keeps it from being admitted. A problem
says what to do; `stalled` ones only the author can mend, the others may be mended by somebody else meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from moorage.api.agent import Agent, AgentTemplate, Continuation, EgressHost, ModelChoice, Sandbox
from moorage.api.agentrun import MAX_GOAL_BYTES, AgentRun
from moorage.api.budget import ResolvedConstraint, ResolvedLimits
from moorage.api.constraints import BytesLimit, Constraints, CostLimit, CountLimit, CustomConstraint, TokenLimit
from moorage.api.modelprovider import ModelProvider, Prices, ProviderRetries
from moorage.api.names import digest
from moorage.api.parse import InvalidSpec, parse_agent_run
from moorage.api.quantity import Quantity
from moorage.api.wire import (
    ResolvedAgent,
    ResolvedApproval,
    ResolvedCheck,
    ResolvedChildren,
    ResolvedContinuation,
    ResolvedDelivery,
    ResolvedEgress,
    ResolvedModel,
    ResolvedPrices,
    ResolvedRetention,
    ResolvedRetries,
    ResolvedRun,
    ResolvedSandbox,
    ResolvedTimeouts,
    ResolvedWorkspace,
    SecretRef,
)
from moorage.api.workspace import DEFAULT_BRANCH_PREFIX, ForgeApi, Workspace, WorkspaceSource
from moorage.core.approvals.consent import COST
from moorage.core.approvals.resolving import resolved as resolved_approvals
from moorage.core.approvals.resolving import unenforceable
from moorage.core.constraints.cel import BadExpression, Expression
from moorage.core.constraints.judging import Context, Snapshot
from moorage.core.models.anthropic import MESSAGES
from moorage.core.models.responses import RESPONSES
from moorage.core.models.spoken import PROTOCOLS
from moorage.core.run.merges import LACKING, forge_of, pull_request
from moorage.core.run.observed import Problem
from moorage.core.run.parents import Parent, child_of

NATIVE, UNHEARING = "builtin", "command"  # drivers: our own loop, and programs that can be told nothing
PARENTAL = frozenset({NATIVE, "acp", "claude-code", "codex", "pi"})  # drivers whose agents may start children
ACCEPTANCE_ROUNDS = 2
WINDOW = 200_000  # tokens of a model whose provider doesn't say
Placement = Literal["local", "cluster"]
SPEAKS = MappingProxyType({"claude-code": frozenset({MESSAGES.name}), "codex": frozenset({RESPONSES.name})})
"""Protocols that a driver's program speaks; what isn't named here may speak any."""


@dataclass(frozen=True)
class Broken:
    """A referenced object that is there and can't be read; the message says why."""

    message: str


@dataclass(frozen=True)
class References:
    """What the run's references led to: None where nothing was found, or nothing is named.

    parent: the run that spec.parentRef names. goal: text of the ConfigMap's key. runtime_classes: None where they may
    not be listed (namespaced mode); then the pod's admission decides. drivers: those that the installed runner knows;
    constraints: entry points of the gateway.
    """

    workspace: Workspace | Broken | None = None
    agent: Agent | Broken | None = None
    provider: ModelProvider | Broken | None = None
    parent: Parent | None = None
    goal: str | None = None
    runtime_classes: frozenset[str] | None = None
    drivers: frozenset[str] = frozenset()
    constraints: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Defaults:
    """What an installation fills in. Quantities in Kubernetes notation; None leaves the choice to the cluster."""

    placement: Placement = "cluster"
    image: str | None = None
    runtime_class: str | None = None
    cpu: str | None = None
    memory: str | None = None
    disk: str | None = None
    storage_class: str | None = None


class Unresolved(Exception):
    """Carries the problem up to `resolve`; never seen outside this module."""

    def __init__(self, reason: str, message: str, *, stalled: bool = False) -> None:
        self.problem = Problem(reason, message, stalled)
        super().__init__(message)


def read_run(body: Mapping[str, Any], placement: Placement = "cluster") -> AgentRun | Problem:
    """Parse an AgentRun as it is stored. One that can't be read is a problem of its author's, never a crash; what this
    version doesn't know is passed over."""
    run = parse_agent_run(body, placement)
    if isinstance(run, InvalidSpec):
        return Problem(
            "InvalidSpec", f"{run.message}; the spec can't be changed: delete the run and create it anew", True
        )
    return run


def resolve(run: AgentRun, refs: References, defaults: Defaults) -> ResolvedRun | Problem:
    """Follow everything, or say what is missing."""
    try:
        found = _resolve(run, refs, defaults)
    except Unresolved as error:
        return error.problem
    ref = run.spec.parent_ref
    return found if ref is None else child_of(found, ref, run.metadata.created_at, refs.parent)


def _resolve(run: AgentRun, refs: References, defaults: Defaults) -> ResolvedRun:
    spec, meta = run.spec, run.metadata
    _refuse_unsupported(run, defaults.placement)
    template, agent = _template(run, refs)
    workspace, prefix = _workspace(run, refs, defaults)
    sandbox = _sandbox(spec.sandbox, agent.spec.sandbox if agent else None, _size(refs.workspace), defaults)
    _demand_runtime_class(sandbox.runtime_class, refs.runtime_classes)
    resolved = _agent(template, refs, defaults)
    return ResolvedRun(
        uid=meta.uid,
        tenant=meta.namespace,
        name=meta.name,
        session_id=meta.uid,
        placement=defaults.placement,
        goal=_goal(run, refs),
        workspace=workspace,
        agent=resolved,
        acceptance=tuple(
            ResolvedCheck(name=check.name, run=check.run, timeout_ms=check.timeout.ms)
            for check in spec.acceptance or ()
        ),
        delivery=_delivery(run, prefix, workspace, forge_of(run, refs.workspace)),
        limits=_enforced(run, agent, resolved, refs.constraints),
        timeouts=timeouts(run),
        sandbox=sandbox,
        retention=retention(run),
        approvals=_approvals(run, resolved),
        max_attempts=spec.recovery.max_attempts,
        acceptance_rounds=_rounds(run, resolved.driver),
    )


def _approvals(run: AgentRun, agent: ResolvedAgent) -> tuple[ResolvedApproval, ...]:
    asked = run.spec.approvals or ()
    if (why := unenforceable(asked, agent)) is not None:
        raise Unresolved("ApprovalNotEnforceable", why, stalled=True)
    if agent.model is not None and any(each.before == COST for each in asked):
        _demand_prices(agent.model)
    return resolved_approvals(asked)


def _rounds(run: AgentRun, driver: str) -> int:
    """The same command again mostly comes to the same."""
    asked = run.spec.recovery.acceptance_rounds
    return asked if asked is not None else 0 if driver == UNHEARING else ACCEPTANCE_ROUNDS


def _refuse_unsupported(run: AgentRun, placement: Placement) -> None:
    """Fields that exist already and would be silently without effect."""
    spec = run.spec
    asked = {
        "continueFrom": spec.continue_from is not None,
    }
    for field, used in asked.items():
        if used:
            raise Unresolved(
                "NotSupported", f"spec.{field} isn't supported by this version: leave it out", stalled=True
            )
    if spec.parent_ref is not None and placement == "local":
        why = "spec.parentRef: a local run has no children in this version; leave it out, or run it in a cluster"
        raise Unresolved("NotSupported", why, stalled=True)


# --- goal -------------------------------------------------------------------------------------------------------------


def _goal(run: AgentRun, refs: References) -> str:
    spec = run.spec
    if spec.goal is not None:
        return spec.goal
    source = spec.goal_from.config_map_key_ref if spec.goal_from else None
    if source is None:
        raise Unresolved("GoalNotFound", "set goal or goalFrom", stalled=True)
    if refs.goal is None:
        why = f"ConfigMap {source.name} with the key {source.key} isn't there: create it in this namespace"
        raise Unresolved("GoalNotFound", why)
    size = len(refs.goal.encode(errors="replace"))
    if size > MAX_GOAL_BYTES:
        why = f"the goal in ConfigMap {source.name} has {size} bytes, at most {MAX_GOAL_BYTES} are taken: shorten it"
        raise Unresolved("GoalTooLarge", why)
    if not refs.goal.strip():
        raise Unresolved("GoalNotFound", f"the goal in ConfigMap {source.name} is empty: write what is to be done")
    return refs.goal


# --- agent and model --------------------------------------------------------------------------------------------------


def _template(run: AgentRun, refs: References) -> tuple[AgentTemplate, Agent | None]:
    if run.spec.agent is not None:
        return run.spec.agent, None
    name = run.spec.agent_ref.name if run.spec.agent_ref else ""
    agent = _found("Agent", name, refs.agent)
    return agent.spec, agent


def _found(kind: str, name: str, found: Any) -> Any:
    if found is None:
        raise Unresolved(f"{kind}NotFound", f"{kind} {name} isn't there: create it in this namespace")
    if isinstance(found, Broken):
        raise Unresolved(f"{kind}Invalid", f"{kind} {name} can't be used: {found.message}")
    return found


def model_choice(run: AgentRun, agent: Agent | Broken | None) -> ModelChoice | None:
    """Which model the run's agent talks to; says which ModelProvider has to be read."""
    if run.spec.agent is not None:
        return run.spec.agent.model
    return agent.spec.model if isinstance(agent, Agent) else None


def _agent(template: AgentTemplate, refs: References, defaults: Defaults) -> ResolvedAgent:
    if template.driver not in refs.drivers:
        known = ", ".join(sorted(refs.drivers))
        raise Unresolved("UnknownDriver", f"driver {template.driver} isn't installed; known are: {known}", stalled=True)
    return ResolvedAgent(
        driver=template.driver,
        image=template.image or defaults.image,
        command=template.command or (),
        args=template.args or (),
        env={variable.name: variable.value for variable in template.env or ()},
        model=_model(template, template.model, refs) if template.model else None,
        continuation=_continuation(template),
        children=_children(template, defaults.placement),
    )


def _children(template: AgentTemplate, placement: Placement) -> ResolvedChildren | None:
    asked = template.children
    if asked is None:
        return None
    if template.driver not in PARENTAL or placement == "local":
        where = "a local run" if placement == "local" else f"the driver {template.driver}"
        why = f"agent.children: {where} can't start any in this version: leave it out"
        raise Unresolved("NotSupported", why, stalled=True)
    return ResolvedChildren(max=asked.max, concurrent=asked.concurrent)


def _continuation(template: AgentTemplate) -> ResolvedContinuation:
    """A command's program hears of nothing that is said to it after its start."""
    asked = template.continuation or Continuation()
    if template.driver == UNHEARING:
        return ResolvedContinuation(plan=asked.plan)
    nudges = template.driver == NATIVE if asked.nudges == "Auto" else asked.nudges == "On"
    return ResolvedContinuation(check_rounds=asked.check_rounds, nudges=nudges, plan=asked.plan)


def _model(template: AgentTemplate, choice: ModelChoice, refs: References) -> ResolvedModel:
    name = choice.provider_ref.name
    spec = _found("ModelProvider", name, refs.provider).spec
    spoken = SPEAKS.get(template.driver, PROTOCOLS.keys())
    if spec.protocol not in spoken:
        known = ", ".join(sorted(spoken))
        why = f"ModelProvider {name} speaks {spec.protocol}; the driver {template.driver} speaks: {known}"
        raise Unresolved("ProtocolNotSupported", why)
    offered = spec.models or ()
    allowed = tuple(model.name for model in offered)
    if allowed and choice.name not in allowed:
        why = f"ModelProvider {name} doesn't offer {choice.name}; it offers: {', '.join(allowed[:16])}"
        raise Unresolved("ModelNotOffered", why)
    secret = spec.credentials_secret_ref
    return ResolvedModel(
        provider=name,
        protocol=spec.protocol,
        base_url=spec.base_url,
        name=choice.name,
        credentials=SecretRef(name=secret.name, key=secret.key) if secret else None,
        allowed=allowed,
        prices={each.name: _prices(each.prices) for each in offered if each.prices is not None},
        max_concurrent=spec.max_concurrent_requests,
        requests_per_minute=spec.requests_per_minute,
        tokens_per_minute=spec.tokens_per_minute.number if spec.tokens_per_minute else None,
        retries=_retries(spec.retries),
        capture=spec.capture,
        context_window=next((m.context_window for m in offered if m.name == choice.name and m.context_window), WINDOW),
        max_output_tokens={each.name: each.max_output_tokens for each in offered if each.max_output_tokens is not None},
    )


def _retries(told: ProviderRetries) -> ResolvedRetries:
    return ResolvedRetries(max_attempts=told.max_attempts, budget=told.budget, max_wait_ms=told.max_wait.ms)


def _prices(told: Prices) -> ResolvedPrices:
    """What is left out costs what is nearest to it."""
    cache_write = told.cache_write or told.input
    return ResolvedPrices(
        input=told.input.micros,
        output=told.output.micros,
        cache_read=(told.cache_read or told.input).micros,
        cache_write=cache_write.micros,
        cache_write_1h=(told.cache_write_hour or cache_write).micros,
    )


# --- workspace and delivery -------------------------------------------------------------------------------------------


def _workspace(run: AgentRun, refs: References, defaults: Defaults) -> tuple[ResolvedWorkspace, str]:
    """The workspace and the prefix of its branches."""
    if run.spec.workspace is not None:
        return _source(run, run.spec.workspace, defaults, None), DEFAULT_BRANCH_PREFIX
    name = run.spec.workspace_ref.name if run.spec.workspace_ref else ""
    found: Workspace = _found("Workspace", name, refs.workspace)
    return _source(run, found.spec, defaults, found), found.spec.branch_prefix


def _source(run: AgentRun, source: WorkspaceSource, defaults: Defaults, named: Workspace | None) -> ResolvedWorkspace:
    storage = named.spec.storage if named else None
    common: dict[str, Any] = {
        "name": named.metadata.name if named else None,
        "storage": (storage.storage_class_name if storage else None) or defaults.storage_class,
    }
    git, local = source.remote_git, source.local
    if git is not None:
        if not git.url.startswith(("http://", "https://")):
            why = (
                "remoteGit.url: only http and https are supported by this version; give the repository's https address"
            )
            raise Unresolved("NotSupported", why, stalled=named is None)
        if git.lfs:
            why = "remoteGit.lfs isn't supported by this version: leave it out, and LFS files stay pointers"
            raise Unresolved("NotSupported", why, stalled=named is None)
        secret = git.credentials_secret_ref
        return ResolvedWorkspace(
            key=digest("remote_git", git.url, secret.name if secret else ""),
            kind="remote_git",
            url=git.url,
            ref=git.ref,
            credentials=SecretRef(name=secret.name, key=secret.key) if secret else None,
            depth=git.depth,
            filter=git.filter,
            sparse=git.sparse or (),
            submodules=git.submodules,
            lfs=git.lfs,
            **common,
        )
    if local is not None:
        if local.path is None:
            why = "local.claimName isn't supported by this version: use remoteGit or ephemeral"
            raise Unresolved("NotSupported", why, stalled=named is None)
        key = digest("local", local.path)
        return ResolvedWorkspace(key=key, kind="local", path=local.path, ref=local.ref, **common)
    return ResolvedWorkspace(key=digest("ephemeral", run.metadata.uid), kind="ephemeral", **common)


def _delivery(
    run: AgentRun, prefix: str, workspace: ResolvedWorkspace, forge: ForgeApi | None
) -> ResolvedDelivery | None:
    asked, branch = run.spec.delivery, run.branch(prefix)
    if asked is None or branch is None:
        return None
    pull = pull_request(asked.pull_request, workspace, forge) if asked.pull_request else None
    if asked.pull_request and pull is None:
        raise Unresolved("NoForgeApi", LACKING, stalled=run.spec.workspace is not None)
    return ResolvedDelivery(
        branch=branch,
        push=asked.push,
        allow_empty=asked.allow_empty,
        message=asked.message,
        pull_request=pull,
    )


# --- sandbox, limits, times -------------------------------------------------------------------------------------------


def _size(workspace: Workspace | Broken | None) -> Quantity | None:
    """How large a Workspace wants the volumes of its runs."""
    storage = workspace.spec.storage if isinstance(workspace, Workspace) else None
    return storage.size if storage else None


def _sandbox(own: Sandbox | None, usual: Sandbox | None, size: Quantity | None, defaults: Defaults) -> ResolvedSandbox:
    """Each field the run's, else the Agent's, else (the disk's) the Workspace's, else the installation's."""
    layers = [s for s in (own, usual) if s is not None]
    resources = [s.resources for s in layers if s.resources is not None]
    return ResolvedSandbox(
        runtime_class=_first(*(s.runtime_class_name for s in layers), defaults.runtime_class),
        cpu=_first(*(r.cpu for r in resources), defaults.cpu),
        memory=_first(*(r.memory for r in resources), defaults.memory),
        disk=_first(*(r.disk for r in resources), size, defaults.disk),
        egress=tuple(_egress(host) for host in next((s.egress for s in layers if s.egress is not None), ())),
    )


def _egress(host: EgressHost) -> ResolvedEgress:
    secret = host.credentials_secret_ref
    return ResolvedEgress(
        host=host.host,
        effects=host.effects,
        scheme=host.scheme,
        port=host.port or (443 if host.scheme == "https" else 80),
        methods=host.methods or (),
        paths=host.paths or (),
        credentials=SecretRef(name=secret.name, key=secret.key) if secret else None,
        credential_header=host.credential_header,
        key_header=host.key_header,
    )


def _first(*values: str | None) -> str | None:
    return next((str(value) for value in values if value), None)


def _demand_runtime_class(wanted: str | None, present: frozenset[str] | None) -> None:
    if wanted is None or present is None or wanted in present:
        return
    known = f"installed are: {', '.join(sorted(present))}" if present else "none is installed"
    why = f"RuntimeClass {wanted} isn't installed ({known}): ask an administrator for it, or name another one"
    raise Unresolved("RuntimeClassNotFound", why)


def _enforced(run: AgentRun, agent: Agent | None, resolved: ResolvedAgent, installed: frozenset[str]) -> ResolvedLimits:
    """The limits, unless one of them would be without effect."""
    found, model = limits(run.spec.constraints, agent.spec.constraints if agent else None), resolved.model
    if model is not None and (found.cost_soft_micros is not None or found.cost_hard_micros is not None):
        _demand_prices(model)
    for custom in found.custom:
        _demand_judged(custom, resolved, installed)
    return found


def _demand_judged(custom: ResolvedConstraint, agent: ResolvedAgent, installed: frozenset[str]) -> None:
    """C4: an expression that can be judged, and that holds as the run begins; or an entry point that is there."""
    at = f"constraints.custom {custom.name}"
    if custom.entry_point is not None and custom.entry_point not in installed:
        known = f"installed are: {', '.join(sorted(installed))}" if installed else "none is installed"
        why = f"{at}: no entry point {custom.entry_point} in the group moorage.constraints ({known})"
        raise Unresolved("ConstraintNotFound", why, stalled=True)
    if custom.cel is None:
        return
    begins = Context(state=Snapshot("Running", 1, agent.driver, agent.model.name if agent.model else ""))
    try:
        Expression.compiled(custom).demand_held(begins)
    except BadExpression as error:
        raise Unresolved("ConstraintInvalid", f"{at}: {error}", stalled=True) from None


def _demand_prices(model: ResolvedModel) -> None:
    unpriced = [name for name in model.allowed or (model.name,) if name not in model.prices]
    if unpriced:
        names = ", ".join(unpriced[:16])
        why = f"constraints.cost needs prices, and ModelProvider {model.provider} has none for {names}: add"
        raise Unresolved("PricesMissing", f"{why} spec.models[].prices to it, or limit constraints.tokens instead")


def limits(own: Constraints, usual: Constraints | None) -> ResolvedLimits:
    """Limits as integers; each the run's, else the Agent's, else none."""
    layers = [c for c in (own, usual) if c is not None]
    tokens = next((c.tokens for c in layers if c.tokens is not None), TokenLimit())
    cost = next((c.cost for c in layers if c.cost is not None), CostLimit())
    clock = next((c.wall_clock for c in layers if c.wall_clock is not None), None)
    calls = next((c.tool_calls for c in layers if c.tool_calls is not None), CountLimit())
    effects = next((c.effects for c in layers if c.effects is not None), CountLimit())
    egress = next((c.egress for c in layers if c.egress is not None), BytesLimit())
    disk = next((c.disk for c in layers if c.disk is not None), BytesLimit())
    return ResolvedLimits(
        max_iterations=next((c.max_iterations for c in layers if c.max_iterations is not None), None),
        tokens_soft=tokens.soft.number if tokens.soft else None,
        tokens_hard=tokens.hard.number if tokens.hard else None,
        cost_soft_micros=cost.soft.micros if cost.soft else None,
        cost_hard_micros=cost.hard.micros if cost.hard else None,
        wall_clock_ms=clock.ms if clock else None,
        tool_calls_soft=calls.soft,
        tool_calls_hard=calls.hard,
        effects_soft=effects.soft,
        effects_hard=effects.hard,
        egress_soft_bytes=_whole(egress.soft),
        egress_hard_bytes=_whole(egress.hard),
        disk_soft_bytes=_whole(disk.soft),
        disk_hard_bytes=_whole(disk.hard),
        custom=next((tuple(map(_custom, c.custom)) for c in layers if c.custom is not None), ()),
    )


def _whole(amount: Quantity | None) -> int | None:
    """Whole bytes."""
    return None if amount is None else int(amount.amount)


def _custom(told: CustomConstraint) -> ResolvedConstraint:
    return ResolvedConstraint(
        name=told.name,
        cel=told.cel,
        entry_point=told.entry_point,
        on_violation=told.on_violation or "GracefulExit",
        message=told.message,
    )


def timeouts(run: AgentRun) -> ResolvedTimeouts:
    """The run's own times, which count before it is admitted too."""
    times, deadline = run.spec.timeouts, run.spec.scheduling.deadline
    return ResolvedTimeouts(
        schedule_to_start_ms=times.schedule_to_start.ms,
        attempt_ms=times.attempt.ms,
        no_progress_ms=times.no_progress.ms,
        delivery_ms=times.delivery.ms,
        settle_ms=times.settle.ms,
        pause_ms=times.pause.ms,
        deadline_ms=deadline.ms if deadline else None,
    )


def retention(run: AgentRun) -> ResolvedRetention:
    """W5: may be changed after admission, so it is read anew in each pass."""
    kept = run.spec.retention
    return ResolvedRetention(
        ttl_ms=kept.ttl_after_finished.ms, keep_worktree=kept.keep_worktree, delete_object=kept.delete_object
    )


def amended(admitted: ResolvedRun, run: AgentRun) -> ResolvedRun:
    """The admitted spec with what its author may change later and the journal doesn't say: its retention."""
    return admitted.model_copy(update={"retention": retention(run)})
