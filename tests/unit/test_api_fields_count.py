"""No field of the API is without effect: each changes what the run is resolved to, or is refused by name, or is read by
the one place that is named here."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from moorage.api.agent import Agent, AgentSpec
from moorage.api.agentrun import AgentRun, AgentRunSpec
from moorage.api.modelprovider import ModelProvider, ModelProviderSpec
from moorage.api.wire import ResolvedRun
from moorage.api.workspace import Workspace, WorkspaceSpec
from moorage.core.run.observed import Problem
from moorage.core.run.parents import Parent
from moorage.core.run.resolve import Defaults, References, read_run, resolve
from moorage.core.run.state import Checkpoint, End, RunState

SOURCES = Path(__file__).resolve().parents[2] / "operator" / "moorage"
META = {"name": "fix", "namespace": "team-a", "uid": "8c0a3c6e-5d5e-4a3f-9a51-0a6a7d2d6f10", "generation": 1}
Changes = dict[str, tuple[dict[str, Any], dict[str, Any]]]

GIT = {"url": "https://git.example/web.git"}
MODEL = {"providerRef": {"name": "models"}, "name": "m-1"}
RUN: dict[str, Any] = {
    "workspace": {"remoteGit": GIT},
    "goal": "Mend it.",
    "agent": {"driver": "command", "command": ["a"]},
}
NAMED: dict[str, Any] = {
    "workspaceRef": {"name": "web"},
    "agentRef": {"name": "codex"},
    "goal": "Mend it.",
    "delivery": {},
}

READ_ELSEWHERE = {
    "suspend": "controller/gather.py",
    "cancel": "controller/gather.py",
    "scheduling.class": "controller/roll.py",
    "scheduling.preemptible": "controller/roll.py",
    "goalFrom": "controller/gather.py",
    "workspaceRef": "controller/gather.py",
    "agentRef": "controller/gather.py",
}


def remote(**change: Any) -> dict[str, Any]:
    return {"workspace": {"remoteGit": GIT | change}}


def asking(api: dict[str, Any] | None = None, **change: Any) -> dict[str, Any]:
    """A run that wants a pull request."""
    return remote(api=api or {"kind": "gitea"}) | {"delivery": {"pullRequest": change}}


def agent(**change: Any) -> dict[str, Any]:
    return {"agent": {"driver": "command", "command": ["a"]} | change}


def builtin(**change: Any) -> dict[str, Any]:
    return {"agent": {"driver": "builtin", "model": MODEL} | change}


def approvals(**change: Any) -> dict[str, Any]:
    return {**builtin(), "delivery": {}, "approvals": [{"name": "a", "before": "Delivery"} | change]}


def egress(**change: Any) -> dict[str, Any]:
    return {"sandbox": {"egress": [{"host": "a.example.com"} | change]}}


def priced(**change: str) -> dict[str, Any]:
    return {"models": [{"name": "m-1", "prices": {"input": "1", "output": "1"} | change}]}


def custom(**change: Any) -> dict[str, Any]:
    return {"constraints": {"custom": [{"name": "a", "cel": "tokens < 8"} | change]}}


OF_A_RUN: dict[str, dict[str, Any]] = {
    "workspace.remoteGit.url": remote(url="https://git.example/other.git"),
    "workspace.remoteGit.ref": remote(ref="v1"),
    "workspace.remoteGit.credentialsSecretRef.name": remote(credentialsSecretRef={"name": "s"}),
    "workspace.remoteGit.credentialsSecretRef.key": remote(credentialsSecretRef={"name": "s", "key": "k"}),
    "workspace.remoteGit.depth": remote(depth=1),
    "workspace.remoteGit.filter": remote(filter="blob:none"),
    "workspace.remoteGit.sparse": remote(sparse=["src"]),
    "workspace.remoteGit.submodules": remote(submodules=True),
    "workspace.remoteGit.lfs": remote(lfs=True),
    "workspace.local.claimName": {"workspace": {"local": {"claimName": "c"}}},
    "workspace.local.path": {"workspace": {"local": {"path": "/repo"}}},
    "workspace.local.ref": {"workspace": {"local": {"path": "/repo", "ref": "v1"}}},
    "workspace.ephemeral": {"workspace": {"ephemeral": {}}},
    "goal": {"goal": "Something else."},
    "agent.driver": {"agent": {"driver": "builtin", "model": MODEL}},
    "agent.image": agent(image="base:2"),
    "agent.command": agent(command=["b"]),
    "agent.args": agent(args=["-v"]),
    "agent.model.providerRef.name": agent(model=MODEL | {"providerRef": {"name": "others"}}),
    "agent.model.name": agent(model=MODEL | {"name": "m-2"}),
    "agent.env.name": agent(env=[{"name": "A"}]),
    "agent.env.value": agent(env=[{"name": "A", "value": "1"}]),
    "agent.continuation.checkRounds": builtin(continuation={"checkRounds": 5}),
    "agent.continuation.nudges": builtin(continuation={"nudges": "Off"}),
    "agent.continuation.plan": agent(continuation={"plan": True}),
    "acceptance.name": {"acceptance": [{"name": "b", "run": "true"}]},
    "acceptance.run": {"acceptance": [{"name": "a", "run": "false"}]},
    "acceptance.timeout": {"acceptance": [{"name": "a", "run": "true", "timeout": "1m"}]},
    "sandbox.runtimeClassName": {"sandbox": {"runtimeClassName": "kata"}},
    "sandbox.resources.cpu": {"sandbox": {"resources": {"cpu": "2"}}},
    "sandbox.resources.memory": {"sandbox": {"resources": {"memory": "2Gi"}}},
    "sandbox.resources.disk": {"sandbox": {"resources": {"disk": "2Gi"}}},
    "sandbox.egress.host": {"sandbox": {"egress": [{"host": "a.example.com"}]}},
    "sandbox.egress.effects": {"sandbox": {"egress": [{"host": "a.example.com", "effects": "none"}]}},
    "sandbox.egress.scheme": egress(scheme="http"),
    "sandbox.egress.port": egress(port=8443),
    "sandbox.egress.methods": egress(methods=["GET"]),
    "sandbox.egress.paths": egress(paths=["/v1"]),
    "sandbox.egress.credentialsSecretRef.name": egress(credentialsSecretRef={"name": "s", "key": "k"}),
    "sandbox.egress.credentialsSecretRef.key": egress(credentialsSecretRef={"name": "s", "key": "k"}),
    "sandbox.egress.credentialHeader": egress(credentialHeader="X-Key"),
    "sandbox.egress.keyHeader": egress(keyHeader="X-Once"),
    "constraints.maxIterations": {"constraints": {"maxIterations": 9}},
    "constraints.tokens.soft": {"constraints": {"tokens": {"soft": 9}}},
    "constraints.tokens.hard": {"constraints": {"tokens": {"hard": 9}}},
    "constraints.cost.soft": {"constraints": {"cost": {"soft": "9"}}},
    "constraints.cost.hard": {"constraints": {"cost": {"hard": "9"}}},
    "constraints.wallClock": {"constraints": {"wallClock": "9m"}},
    "constraints.toolCalls.soft": {"constraints": {"toolCalls": {"soft": 9}}},
    "constraints.toolCalls.hard": {"constraints": {"toolCalls": {"hard": 9}}},
    "constraints.effects.soft": {"constraints": {"effects": {"soft": 9}}},
    "constraints.effects.hard": {"constraints": {"effects": {"hard": 9}}},
    "constraints.egress.soft": {"constraints": {"egress": {"soft": "9Ki"}}},
    "constraints.egress.hard": {"constraints": {"egress": {"hard": "9Ki"}}},
    "constraints.disk.soft": {"constraints": {"disk": {"soft": "9Ki"}}},
    "constraints.disk.hard": {"constraints": {"disk": {"hard": "9Ki"}}},
    "constraints.humanApprovals.soft": {"constraints": {"humanApprovals": {"soft": 9}}},
    "constraints.humanApprovals.hard": {"constraints": {"humanApprovals": {"hard": 9}}},
    "constraints.custom.name": custom(name="b"),
    "constraints.custom.cel": custom(cel="tokens < 9"),
    "constraints.custom.entryPoint": {"constraints": {"custom": [{"name": "a", "entryPoint": "mine"}]}},
    "constraints.custom.onViolation": custom(onViolation="Warn"),
    "constraints.custom.message": custom(message="No."),
    "delivery.branch": {"delivery": {"branch": "b"}},
    "delivery.push": {"delivery": {"push": False}},
    "delivery.allowEmpty": {"delivery": {"allowEmpty": True}},
    "delivery.message": {"delivery": {"message": "Mend it"}},
    "delivery.pullRequest.title": asking(title="Mend it"),
    "delivery.pullRequest.body": asking(body="Mended."),
    "delivery.pullRequest.base": asking(base="next"),
    "delivery.pullRequest.draft": asking(draft=True),
    "workspace.remoteGit.api.kind": asking({"kind": "gitlab"}),
    "workspace.remoteGit.api.url": asking({"kind": "gitea", "url": "https://api.example/v1"}),
    "workspace.remoteGit.api.credentialsSecretRef.name": asking(
        {"kind": "gitea", "credentialsSecretRef": {"name": "f"}}
    ),
    "workspace.remoteGit.api.credentialsSecretRef.key": asking(
        {"kind": "gitea", "credentialsSecretRef": {"name": "f", "key": "k"}}
    ),
    "scheduling.deadline": {"scheduling": {"deadline": "9h"}},
    "timeouts.scheduleToStart": {"timeouts": {"scheduleToStart": "9m"}},
    "timeouts.attempt": {"timeouts": {"attempt": "9m"}},
    "timeouts.noProgress": {"timeouts": {"noProgress": "9m"}},
    "timeouts.delivery": {"timeouts": {"delivery": "9m"}},
    "timeouts.settle": {"timeouts": {"settle": "9m"}},
    "recovery.acceptanceRounds": {"recovery": {"acceptanceRounds": 5}},
    "timeouts.pause": {"timeouts": {"pause": "9m"}},
    "recovery.maxAttempts": {"recovery": {"maxAttempts": 9}},
    "retention.ttlAfterFinished": {"retention": {"ttlAfterFinished": "9h"}},
    "retention.keepWorktree": {"retention": {"keepWorktree": "Never"}},
    "retention.deleteObject": {"retention": {"deleteObject": True}},
    "approvals.name": approvals(name="b"),
    "approvals.before": approvals(before="ToolCall"),
    "approvals.tools": approvals(before="ToolCall", tools=["bash"]),
    "approvals.hosts": approvals(before="Egress", hosts=["a.example.com"]),
    "approvals.step": approvals(before="Cost", step="5.00"),
    "approvals.rejectAfter": approvals(rejectAfter="9h"),
    "agent.children.max": builtin(children={"max": 2}),
    "agent.children.concurrent": builtin(children={"max": 9, "concurrent": 3}),
    "parentRef.name": {"parentRef": {"name": "a"}},
    "parentRef.start": {"parentRef": {"name": "a", "start": "Base"}},
    "continueFrom.name": {"continueFrom": {"name": "a"}},
}
BESIDE = {
    "parentRef.start": {"parentRef": {"name": "a"}},
    "approvals.": approvals(),
    "agent.model.": agent(model=MODEL),
    "agent.continuation.checkRounds": builtin(),
    "agent.continuation.nudges": builtin(),
    "agent.children.concurrent": builtin(children={"max": 9}),
    "agent.children.max": builtin(),
    "agent.env.value": agent(env=[{"name": "A"}]),
    "acceptance.": {"acceptance": [{"name": "a", "run": "true"}]},
    "sandbox.egress.host": {},
    "sandbox.egress.": egress(),
    "constraints.custom.": custom(),
    "delivery.": {"delivery": {}},
    "workspace.remoteGit.credentialsSecretRef.key": remote(credentialsSecretRef={"name": "s"}),
}
"""What a field is compared with, where that isn't RUN itself."""
OF_OTHERS: dict[str, dict[str, Any]] = {
    "Workspace.storage.storageClassName": {"storage": {"storageClassName": "fast"}},
    "Workspace.storage.size": {"storage": {"size": "9Gi"}},
    "Workspace.branchPrefix": {"branchPrefix": "bots/"},
    "Agent.sandbox.runtimeClassName": {"sandbox": {"runtimeClassName": "kata"}},
    "Agent.sandbox.resources.cpu": {"sandbox": {"resources": {"cpu": "2"}}},
    "Agent.sandbox.resources.memory": {"sandbox": {"resources": {"memory": "2Gi"}}},
    "Agent.sandbox.resources.disk": {"sandbox": {"resources": {"disk": "2Gi"}}},
    "Agent.sandbox.egress.host": {"sandbox": {"egress": [{"host": "a.example.com"}]}},
    "Agent.sandbox.egress.effects": {"sandbox": {"egress": [{"host": "a.example.com", "effects": "none"}]}},
    "Agent.sandbox.egress.scheme": egress(scheme="http"),
    "Agent.sandbox.egress.port": egress(port=8443),
    "Agent.sandbox.egress.methods": egress(methods=["GET"]),
    "Agent.sandbox.egress.paths": egress(paths=["/v1"]),
    "Agent.sandbox.egress.credentialsSecretRef.name": egress(credentialsSecretRef={"name": "s", "key": "k"}),
    "Agent.sandbox.egress.credentialsSecretRef.key": egress(credentialsSecretRef={"name": "s", "key": "k"}),
    "Agent.sandbox.egress.credentialHeader": egress(credentialHeader="X-Key"),
    "Agent.sandbox.egress.keyHeader": egress(keyHeader="X-Once"),
    "Agent.constraints.maxIterations": {"constraints": {"maxIterations": 9}},
    "Agent.constraints.tokens.soft": {"constraints": {"tokens": {"soft": 9}}},
    "Agent.constraints.tokens.hard": {"constraints": {"tokens": {"hard": 9}}},
    "Agent.constraints.cost.soft": {"constraints": {"cost": {"soft": "9"}}},
    "Agent.constraints.cost.hard": {"constraints": {"cost": {"hard": "9"}}},
    "Agent.constraints.wallClock": {"constraints": {"wallClock": "9m"}},
    "Agent.constraints.toolCalls.soft": {"constraints": {"toolCalls": {"soft": 9}}},
    "Agent.constraints.toolCalls.hard": {"constraints": {"toolCalls": {"hard": 9}}},
    "Agent.constraints.effects.soft": {"constraints": {"effects": {"soft": 9}}},
    "Agent.constraints.effects.hard": {"constraints": {"effects": {"hard": 9}}},
    "Agent.constraints.egress.soft": {"constraints": {"egress": {"soft": "9Ki"}}},
    "Agent.constraints.egress.hard": {"constraints": {"egress": {"hard": "9Ki"}}},
    "Agent.constraints.disk.soft": {"constraints": {"disk": {"soft": "9Ki"}}},
    "Agent.constraints.disk.hard": {"constraints": {"disk": {"hard": "9Ki"}}},
    "Agent.constraints.humanApprovals.soft": {"constraints": {"humanApprovals": {"soft": 9}}},
    "Agent.constraints.humanApprovals.hard": {"constraints": {"humanApprovals": {"hard": 9}}},
    "Agent.constraints.custom.name": custom(name="b"),
    "Agent.constraints.custom.cel": custom(cel="tokens < 9"),
    "Agent.constraints.custom.entryPoint": {"constraints": {"custom": [{"name": "a", "entryPoint": "mine"}]}},
    "Agent.constraints.custom.onViolation": custom(onViolation="Warn"),
    "Agent.constraints.custom.message": custom(message="No."),
    "ModelProvider.protocol": {"protocol": "openai-chat"},
    "ModelProvider.baseURL": {"baseURL": "https://other.example"},
    "ModelProvider.credentialsSecretRef.name": {"credentialsSecretRef": {"name": "s", "key": "k"}},
    "ModelProvider.credentialsSecretRef.key": {"credentialsSecretRef": {"name": "s", "key": "k"}},
    "ModelProvider.models.name": {"models": [{"name": "m-1"}]},
    "ModelProvider.models.prices.input": priced(input="2"),
    "ModelProvider.models.prices.output": priced(output="2"),
    "ModelProvider.models.prices.cacheRead": priced(cacheRead="2"),
    "ModelProvider.models.prices.cacheWrite": priced(cacheWrite="2"),
    "ModelProvider.models.prices.cacheWriteHour": priced(cacheWriteHour="2"),
    "ModelProvider.maxConcurrentRequests": {"maxConcurrentRequests": 9},
    "ModelProvider.requestsPerMinute": {"requestsPerMinute": 9},
    "ModelProvider.tokensPerMinute": {"tokensPerMinute": "9k"},
    "ModelProvider.retries.maxAttempts": {"retries": {"maxAttempts": 9}},
    "ModelProvider.retries.budget": {"retries": {"budget": 9}},
    "ModelProvider.retries.maxWait": {"retries": {"maxWait": "9s"}},
    "ModelProvider.capture": {"capture": True},
    "ModelProvider.models.maxOutputTokens": {"models": [{"name": "m-1", "maxOutputTokens": 9}]},
    "ModelProvider.models.contextWindow": {"models": [{"name": "m-1", "contextWindow": 9_999}]},
}


def models_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_of(part)]


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        at = f"{path}{field.alias or name}"
        below = [leaf for inner in models_of(field.annotation) for leaf in leaves(inner, f"{at}.")]
        yield from below or [at]


def inherited(kind: str, base: type[BaseModel]) -> set[str]:
    """Leaves of a kind beside those that the run has under the same names, and that are resolved by the same lines."""
    same = {"Workspace": "workspace.", "Agent": "agent."}.get(kind, "-")
    return {f"{kind}.{leaf}" for leaf in leaves(base) if f"{same}{leaf}" not in OF_A_RUN}


def is_read_elsewhere(leaf: str) -> bool:
    return any(leaf == name or leaf.startswith(f"{name}.") for name in READ_ELSEWHERE)


def test_every_field_of_the_api_is_in_the_tables_above() -> None:
    assert {leaf for leaf in leaves(AgentRunSpec) if not is_read_elsewhere(leaf)} == set(OF_A_RUN)
    others = inherited("Workspace", WorkspaceSpec) | inherited("Agent", AgentSpec)
    assert others | inherited("ModelProvider", ModelProviderSpec) == set(OF_OTHERS)


@pytest.mark.parametrize(("field", "place"), READ_ELSEWHERE.items())
def test_what_is_read_elsewhere_is_read_there(field: str, place: str) -> None:
    name = re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", field.rpartition(".")[2])
    assert re.search(rf"\b{name}\b", (SOURCES / place).read_text())


def ended(run: Parent) -> Parent:
    return replace(run, state=replace(run.state, end=End("Delivered", "", None, 1)))


def parent_of(spec: dict[str, Any], ref: str) -> Parent:
    """The same run, but for its relatives, at a checkpoint."""
    above = outcome({name: value for name, value in spec.items() if name != ref})
    assert isinstance(above, ResolvedRun), above
    state = RunState(workspace_base="a" * 40, checkpoint=Checkpoint("b" * 40, "c" * 40, 1, 1))
    return Parent(above.model_copy(update={"uid": "above"}), state, 0, 1)


def outcome(spec: dict[str, Any], **given: dict[str, Any]) -> ResolvedRun | Problem:
    """What a run comes to; a problem of any other kind than a refused field isn't what these tests are about."""
    run = read_run({"metadata": META, "spec": spec}, "local" if "path" in str(spec.get("workspace")) else "cluster")
    assert isinstance(run, AgentRun), run
    meta = {"name": "x", "namespace": "team-a"}
    provider = {"protocol": "anthropic-messages", "baseURL": "https://models.example"} | given.get("ModelProvider", {})
    definition = {"driver": "command", "command": ["a"], "model": MODEL} | given.get("Agent", {})
    refs = References(
        workspace=Workspace.model_validate({"metadata": meta, "spec": {"remoteGit": GIT} | given.get("Workspace", {})}),
        agent=Agent.model_validate({"metadata": meta, "spec": definition}),
        provider=ModelProvider.model_validate({"metadata": meta, "spec": provider}),
        parent=parent_of(spec, "parentRef") if "parentRef" in spec else None,
        origin=ended(parent_of(spec, "continueFrom")) if "continueFrom" in spec else None,
        drivers=frozenset({"command", "builtin"}),
        constraints=frozenset({"mine"}),
    )
    found = resolve(run, refs, Defaults())
    assert not isinstance(found, Problem) or found.reason in {
        "NotSupported",
        "PricesMissing",
        "ProtocolNotSupported",
    }, found
    return found


@pytest.mark.parametrize("field", OF_A_RUN)
def test_each_field_of_a_run_changes_what_it_is_or_is_refused(field: str) -> None:
    beside = next((change for start, change in BESIDE.items() if field.startswith(start)), {})
    assert outcome(RUN | OF_A_RUN[field]) != outcome(RUN | beside)


@pytest.mark.parametrize("field", OF_OTHERS)
def test_each_field_of_what_a_run_refers_to_changes_what_the_run_is_or_is_refused(field: str) -> None:
    kind = field.partition(".")[0]
    beside = {kind: priced()} if ".prices." in field else {kind: custom()} if ".custom." in field else {}
    assert outcome(NAMED, **{kind: OF_OTHERS[field]}) != outcome(NAMED, **beside)


def resolved_leaves(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = models_of(field.annotation)
        yield from (leaf for each in inner for leaf in resolved_leaves(each)) if inner else (name,)


def test_what_a_run_is_resolved_to_is_used_by_somebody() -> None:
    makers = {SOURCES / "core" / "run" / "resolve.py"} | set((SOURCES / "api").rglob("*.py"))
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.py") if path not in makers)
    unused = {leaf for leaf in resolved_leaves(ResolvedRun) if not re.search(rf"\.{leaf}\b", text)}
    assert unused == set()
