"""The agent of a run, and the model that it talks to (O6)."""

from __future__ import annotations

from types import MappingProxyType

from moorage.api.agent import Agent, AgentTemplate, Continuation, ModelChoice
from moorage.api.agentrun import AgentRun
from moorage.api.modelprovider import Prices, ProviderRetries
from moorage.api.wire import (
    ResolvedAgent,
    ResolvedChildren,
    ResolvedContinuation,
    ResolvedModel,
    ResolvedPrices,
    ResolvedRetries,
    SecretRef,
)
from moorage.core.models.anthropic import MESSAGES
from moorage.core.models.responses import RESPONSES
from moorage.core.models.spoken import PROTOCOLS
from moorage.core.run.resolving.references import Broken, Defaults, Placement, References, Unresolved, referenced

NATIVE, UNHEARING = "builtin", "command"  # drivers: our own loop, and programs that can be told nothing
PARENTAL = frozenset({NATIVE, "acp", "claude-code", "codex", "pi"})  # drivers whose agents may start children
WINDOW = 200_000  # tokens of a model whose provider doesn't say
SPEAKS = MappingProxyType({"claude-code": frozenset({MESSAGES.name}), "codex": frozenset({RESPONSES.name})})
"""Protocols that a driver's program speaks; what isn't named here may speak any."""


def template_of(run: AgentRun, refs: References) -> tuple[AgentTemplate, Agent | None]:
    """What the agent is made of, and the Agent that it is taken from, where one is named."""
    if run.spec.agent is not None:
        return run.spec.agent, None
    name = run.spec.agent_ref.name if run.spec.agent_ref else ""
    agent = referenced("Agent", name, refs.agent)
    return agent.spec, agent


def model_choice(run: AgentRun, agent: Agent | Broken | None) -> ModelChoice | None:
    """Which model the run's agent talks to; says which ModelProvider has to be read."""
    if run.spec.agent is not None:
        return run.spec.agent.model
    return agent.spec.model if isinstance(agent, Agent) else None


def resolved_agent(template: AgentTemplate, refs: References, defaults: Defaults) -> ResolvedAgent:
    """Raise Unresolved for a driver that isn't installed, or a model that isn't offered."""
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
    spec = referenced("ModelProvider", name, refs.provider).spec
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
