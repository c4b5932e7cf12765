"""Can runs use this Workspace, Agent or ModelProvider? Found out as a run would: by resolving one that names it.

Only what the object itself says is looked at. Whether a remote answers or a Secret is there is found out by runs, and
told in theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.meta import Resource
from moorage.api.modelprovider import ModelProvider
from moorage.api.parse import InvalidSpec, parse
from moorage.api.wire import ResolvedRun
from moorage.api.workspace import Workspace
from moorage.core.models.spoken import PROTOCOLS
from moorage.core.run.observed import Problem
from moorage.core.run.resolve import SPEAKS, Defaults, References, resolve

KINDS: Mapping[str, type[Resource]] = {"Workspace": Workspace, "Agent": Agent, "ModelProvider": ModelProvider}
_MODEL = {"providerRef": {"name": "any"}, "name": "any"}
_WORK = {"driver": "command", "command": ["true"]}


def unusable(
    kind: str, body: Mapping[str, Any], drivers: frozenset[str], constraints: frozenset[str] = frozenset()
) -> Problem | None:
    """Why no run can use the object; None where nothing of its own is in the way. `kind` is one of KINDS."""
    found = parse(KINDS[kind], body, "cluster", "tell")
    if isinstance(found, InvalidSpec):
        return Problem("InvalidSpec", f"{found.message}; correct it", stalled=True)
    outcome = resolve(*_tried(found, drivers, constraints), Defaults())
    return None if isinstance(outcome, ResolvedRun) else outcome


def _tried(found: Resource, drivers: frozenset[str], constraints: frozenset[str]) -> tuple[AgentRun, References]:
    """The plainest run that names the object, with everything else as it should be."""
    match found:
        case Workspace():
            run = {"workspaceRef": {"name": "any"}, "agent": _WORK}
            return _run(run), References(workspace=found, drivers=drivers | {"command"})
        case Agent():
            run = {"workspace": {"ephemeral": {}}, "agentRef": {"name": "any"}}
            return _run(run), References(
                agent=found, provider=_provider(found), drivers=drivers, constraints=constraints
            )
        case ModelProvider():
            offered = found.spec.models[0].name if found.spec.models else "any"
            agent = {"driver": "any", "model": _MODEL | {"name": offered}}
            run = {"workspace": {"ephemeral": {}}, "agent": agent}
            return _run(run), References(provider=found, drivers=drivers | {"any"})
    raise AssertionError(f"no such kind: {type(found).__name__}")


def _run(spec: Mapping[str, Any]) -> AgentRun:
    meta = {"name": "any", "namespace": "any", "uid": "any"}
    return AgentRun.model_validate({"metadata": meta, "spec": {"goal": "any", **spec}})


def _provider(agent: Agent) -> ModelProvider:
    """One that serves what the agent asks for, in a protocol of its driver's, at a price."""
    protocol = min(SPEAKS.get(agent.spec.driver, PROTOCOLS.keys()))
    model = agent.spec.model
    served = [{"name": model.name, "prices": {"input": "0", "output": "0"}}] if model else []
    spec = {"protocol": protocol, "baseURL": "https://any.example", "models": served}
    return ModelProvider.model_validate({"metadata": {"name": "any", "namespace": "any"}, "spec": spec})
