from dataclasses import replace
from typing import Any

import pytest

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.modelprovider import ModelProvider
from moorage.api.wire import ResolvedRun
from moorage.api.workspace import Workspace
from moorage.core.run.observed import Problem
from moorage.core.run.resolve import Broken, Defaults, References, amended, read_run, resolve
from moorage.core.run.usable import unusable

DRIVERS = frozenset({"command", "builtin", "codex"})
META = {"name": "fix", "namespace": "team-a", "uid": "8c0a3c6e-5d5e-4a3f-9a51-0a6a7d2d6f10", "generation": 1}
COMMAND = {"driver": "command", "command": ["sh", "-c", "true"]}
GIT = {"remoteGit": {"url": "https://git.example/web.git", "credentialsSecretRef": {"name": "git"}}}


def run_of(**spec: Any) -> AgentRun:
    base: dict[str, Any] = {"workspace": GIT, "goal": "Mend it.", "agent": COMMAND}
    merged = {k: v for k, v in (base | spec).items() if v is not None}
    found = read_run({"metadata": META, "spec": merged})
    assert isinstance(found, AgentRun), found
    return found


def workspace(**spec: Any) -> Workspace:
    return Workspace.model_validate({"metadata": {"name": "web", "namespace": "team-a"}, "spec": GIT | spec})


def agent(**spec: Any) -> Agent:
    return Agent.model_validate({"metadata": {"name": "codex", "namespace": "team-a"}, "spec": COMMAND | spec})


def provider(**spec: Any) -> ModelProvider:
    base = {
        "protocol": "anthropic-messages",
        "baseURL": "https://models.example",
        "credentialsSecretRef": {"name": "key", "key": "token"},
    }
    return ModelProvider.model_validate({"metadata": {"name": "models", "namespace": "team-a"}, "spec": base | spec})


def resolved(run: AgentRun, refs: References | None = None, defaults: Defaults | None = None) -> ResolvedRun:
    found = resolve(run, refs or References(drivers=DRIVERS), defaults or Defaults())
    assert isinstance(found, ResolvedRun), found
    return found


def problem(run: AgentRun, refs: References | None = None, defaults: Defaults | None = None) -> Problem:
    found = resolve(run, refs or References(drivers=DRIVERS), defaults or Defaults())
    assert isinstance(found, Problem), found
    return found


BUILTIN = {"driver": "builtin", "model": {"providerRef": {"name": "models"}, "name": "m-1"}}


@pytest.mark.parametrize(
    ("spec", "refs", "reason", "says", "stalled"),
    [
        ({"workspace": None, "workspaceRef": {"name": "web"}}, {}, "WorkspaceNotFound", "create it", False),
        (
            {"workspace": None, "workspaceRef": {"name": "web"}},
            {"workspace": Broken("spec.url: bad")},
            "WorkspaceInvalid",
            "spec.url: bad",
            False,
        ),
        ({"agent": None, "agentRef": {"name": "codex"}}, {}, "AgentNotFound", "codex", False),
        ({"agent": BUILTIN}, {}, "ModelProviderNotFound", "models", False),
        ({"agent": BUILTIN}, {"provider": provider(models=[{"name": "other"}])}, "ModelNotOffered", "other", False),
        (
            {"agent": BUILTIN | {"driver": "codex"}},
            {"provider": provider(protocol="openai-chat")},
            "ProtocolNotSupported",
            "openai-responses",
            False,
        ),
        ({"goal": None, "goalFrom": {"configMapKeyRef": {"name": "g", "key": "k"}}}, {}, "GoalNotFound", "g", False),
        (
            {"goal": None, "goalFrom": {"configMapKeyRef": {"name": "g", "key": "k"}}},
            {"goal": "x" * (300 * 1024)},
            "GoalTooLarge",
            "262144",
            False,
        ),
        (
            {"goal": None, "goalFrom": {"configMapKeyRef": {"name": "g", "key": "k"}}},
            {"goal": " \n"},
            "GoalNotFound",
            "empty",
            False,
        ),
        ({"agent": {"driver": "nobody"}}, {}, "UnknownDriver", "builtin, codex, command", True),
        (
            {"approvals": [{"name": "shell", "before": "ToolCall"}]},
            {},
            "ApprovalNotEnforceable",
            "holds up no tool call for an answer; acp, builtin, claude-code do",
            True,
        ),
        (
            {
                "delivery": {},
                "approvals": [{"name": "push", "before": "Delivery"}, {"name": "legal", "before": "Delivery"}],
                "constraints": {"humanApprovals": {"hard": 1}},
            },
            {},
            "ConstraintInvalid",
            "constraints.humanApprovals.hard of 1 is less than spec.approvals asks before Delivery (2)",
            True,
        ),
        (
            {"sandbox": {"runtimeClassName": "kata"}},
            {"runtime_classes": frozenset({"gvisor"})},
            "RuntimeClassNotFound",
            "installed are: gvisor",
            False,
        ),
        (
            {"sandbox": {"runtimeClassName": "kata"}},
            {"runtime_classes": frozenset()},
            "RuntimeClassNotFound",
            "none is installed",
            False,
        ),
        ({"workspace": {"local": {"claimName": "c"}}}, {}, "NotSupported", "claimName", True),
        ({"continueFrom": {"name": "x"}}, {}, "ContinuedNotFound", "AgentRun x isn't there, or hasn't begun", False),
        (
            {"continueFrom": {"name": "x"}},
            {"origin": Broken("gone")},
            "ContinuedUnreadable",
            "x can't be gone on",
            False,
        ),
        (
            {"continueFrom": {"name": "x"}, "parentRef": {"name": "y"}},
            {},
            "NotSupported",
            "a run has its session's budget or its parent's",
            True,
        ),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(
    spec: dict[str, Any], refs: dict[str, Any], reason: str, says: str, stalled: bool
) -> None:
    found = problem(run_of(**spec), References(drivers=DRIVERS, **refs))
    assert (found.reason, found.stalled) == (reason, stalled)
    assert says in found.message


@pytest.mark.parametrize("protocol", ["anthropic-messages", "openai-responses", "openai-chat"])
def test_the_driver_builtin_speaks_every_protocol(protocol: str) -> None:
    refs = References(provider=provider(protocol=protocol), drivers=DRIVERS)
    assert resolved(run_of(agent=BUILTIN), refs).agent.model.protocol == protocol


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"continueFrom": {"name": "x"}}, "a local run goes on with no other one"),
        ({"parentRef": {"name": "x"}}, "a local run has no children"),
    ],
)
def test_a_local_run_has_no_relatives(spec: dict[str, Any], says: str) -> None:
    body = {"workspace": {"local": {"path": "."}}, "goal": "g", "agent": {"driver": "command", "command": ["true"]}}
    run = read_run({"metadata": {"name": "x", "namespace": "local", "uid": "u"}, "spec": body | spec}, "local")
    assert isinstance(run, AgentRun), run
    found = resolve(run, References(drivers=DRIVERS), Defaults(placement="local"))
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("NotSupported", True)
    assert says in found.message


def test_classes_that_may_not_be_listed_are_left_to_the_pods_admission() -> None:
    assert resolved(run_of(sandbox={"runtimeClassName": "kata"})).sandbox.runtime_class == "kata"


@pytest.mark.rule("O6")
def test_all_references_are_followed_into_one_plain_run() -> None:
    refs = References(
        workspace=workspace(branchPrefix="bots/", storage={"storageClassName": "fast", "size": "20Gi"}),
        agent=agent(**BUILTIN, command=None, constraints={"maxIterations": 7}, sandbox={"resources": {"cpu": "2"}}),
        provider=provider(),
        goal="From a ConfigMap.",
        runtime_classes=frozenset({"gvisor"}),
        drivers=DRIVERS,
    )
    run = run_of(
        workspace=None,
        workspaceRef={"name": "web"},
        agent=None,
        agentRef={"name": "codex"},
        goal=None,
        goalFrom={"configMapKeyRef": {"name": "g", "key": "k"}},
        acceptance=[{"name": "tests", "run": "pytest -q", "timeout": "5m"}],
        delivery={},
        constraints={"tokens": {"soft": "300k", "hard": "500k"}, "wallClock": "2h"},
    )
    defaults = Defaults(image="base:1", runtime_class="gvisor", cpu="1", memory="2Gi", disk="5Gi")
    found = resolved(run, refs, defaults)
    assert found.goal == "From a ConfigMap."
    assert found.workspace.url == "https://git.example/web.git"
    assert found.workspace.storage == "fast"
    assert found.workspace.credentials is not None
    assert found.workspace.credentials.name == "git"
    assert found.delivery is not None
    assert found.delivery.branch == "bots/fix"
    assert found.agent.image == "base:1"
    assert found.agent.model is not None
    assert found.agent.model.credentials is not None
    assert found.agent.model.credentials.key == "token"
    assert found.acceptance[0].timeout_ms == 300_000
    assert found.limits.max_iterations == 7
    assert found.limits.tokens_hard == 500_000
    assert found.limits.wall_clock_ms == 7_200_000
    assert (found.sandbox.cpu, found.sandbox.memory, found.sandbox.runtime_class) == ("2", "2Gi", "gvisor")
    assert found.sandbox.disk == "20Gi"
    assert found.retention.ttl_ms == 168 * 3_600_000


@pytest.mark.parametrize("size", [None, "20Gi"])
def test_the_disk_is_the_runs_else_the_workspaces_else_the_installations(size: str | None) -> None:
    refs = References(workspace=workspace(storage={"size": size} if size else None), drivers=DRIVERS)
    run = {"workspace": None, "workspaceRef": {"name": "web"}}
    assert resolved(run_of(**run), refs, Defaults(disk="5Gi")).sandbox.disk == (size or "5Gi")
    asked = run_of(**run, sandbox={"resources": {"disk": "1Gi"}})
    assert resolved(asked, refs, Defaults(disk="5Gi")).sandbox.disk == "1Gi"


COST = {"cost": {"hard": "8.00"}}
NO_EFFECT = {
    "LFS of the run's": (
        {"workspace": {"remoteGit": {**GIT["remoteGit"], "lfs": True}}},
        References(drivers=DRIVERS),
        True,
    ),
    "a remote that isn't reached by http": (
        {"workspace": {"remoteGit": {"url": "ssh://git@git.example/web.git"}}},
        References(drivers=DRIVERS),
        True,
    ),
    "a workspace's remote as scp has it": (
        {"workspace": None, "workspaceRef": {"name": "web"}},
        References(workspace=workspace(remoteGit={"url": "git@git.example:web.git"}), drivers=DRIVERS),
        False,
    ),
    "LFS of a workspace": (
        {"workspace": None, "workspaceRef": {"name": "web"}},
        References(workspace=workspace(remoteGit={**GIT["remoteGit"], "lfs": True}), drivers=DRIVERS),
        False,
    ),
}


@pytest.mark.parametrize("what", NO_EFFECT)
def test_what_would_be_without_effect_is_refused(what: str) -> None:
    change, refs, stalled = NO_EFFECT[what]
    found = resolve(run_of(**change), refs, Defaults())
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("NotSupported", stalled)


PRICED = {"name": "m-1", "prices": {"input": "3.00", "output": "15", "cacheRead": "0.3", "cacheWrite": "3.75"}}


def test_prices_are_integers_and_what_is_left_out_costs_what_is_nearest() -> None:
    models = [
        PRICED,
        {"name": "m-2", "prices": {"input": "0.000001", "output": "0"}, "maxOutputTokens": 7},
        {"name": "m-3", "prices": {"input": "1", "output": "2", "cacheWrite": "3", "cacheWriteHour": "4"}},
        {"name": "m-4"},
    ]
    found = resolved(run_of(agent=BUILTIN), References(provider=provider(models=models), drivers=DRIVERS)).agent.model
    assert found is not None
    assert {name: tuple(prices.model_dump().values()) for name, prices in found.prices.items()} == {
        "m-1": (3_000_000, 15_000_000, 300_000, 3_750_000, 3_750_000),
        "m-2": (1, 0, 1, 1, 1),
        "m-3": (1_000_000, 2_000_000, 1_000_000, 3_000_000, 4_000_000),
    }
    assert found.max_output_tokens == {"m-2": 7}


@pytest.mark.parametrize(
    ("models", "missing"),
    [(None, "m-1"), ([{"name": "m-1"}], "m-1"), ([PRICED, {"name": "m-2"}], "m-2"), ([PRICED], None)],
)
@pytest.mark.parametrize("whose", ["run", "agent"])
def test_a_limited_cost_needs_the_price_of_every_model_that_may_be_used(
    whose: str, models: list[dict[str, Any]] | None, missing: str | None
) -> None:
    refs = References(
        agent=agent(model=BUILTIN["model"], constraints=COST), provider=provider(models=models), drivers=DRIVERS
    )
    of_run = run_of(agent=BUILTIN, constraints=COST)
    found = resolve(of_run if whose == "run" else run_of(agent=None, agentRef={"name": "codex"}), refs, Defaults())
    if missing is None:
        assert isinstance(found, ResolvedRun)
        assert found.limits.cost_hard_micros == 8_000_000
    else:
        assert isinstance(found, Problem)
        assert (found.reason, found.stalled) == ("PricesMissing", False)
        assert f"has none for {missing}: " in found.message


def test_a_limited_cost_without_a_model_is_kept_by_itself() -> None:
    assert resolved(run_of(constraints=COST)).limits.cost_hard_micros == 8_000_000


def test_two_urls_or_two_credentials_never_share_a_mirror() -> None:
    keys = {
        resolved(run_of()).workspace.key,
        resolved(run_of(workspace={"remoteGit": {"url": "https://git.example/web.git"}})).workspace.key,
        resolved(run_of(workspace={"remoteGit": {"url": "https://git.example/other.git"}})).workspace.key,
        resolved(run_of(workspace={"ephemeral": {}})).workspace.key,
    }
    assert len(keys) == 4


def test_nothing_is_delivered_unless_asked() -> None:
    assert resolved(run_of()).delivery is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": META},
        {"metadata": META, "spec": None},
        {"metadata": META, "spec": {"goal": 7}},
        {"metadata": META, "spec": {"goal": "x" * 300_000, "workspace": GIT, "agent": COMMAND}},
        {"metadata": META, "spec": {"goal": "x", "workspace": GIT, "agent": COMMAND, "timeouts": {"attempt": "-1h"}}},
    ],
)
def test_an_object_that_cannot_be_read_is_its_authors_problem_and_no_crash(body: dict[str, Any]) -> None:
    found = read_run(body)
    assert isinstance(found, Problem)
    assert found.reason == "InvalidSpec"
    assert found.stalled
    assert "create it anew" in found.message


def test_a_field_of_a_newer_version_is_passed_over_and_named() -> None:
    found = read_run({"metadata": META, "spec": {"goal": "x", "workspace": GIT, "agent": COMMAND, "bogus": 1}})
    assert isinstance(found, AgentRun)
    assert found.unknown_fields == ("spec.bogus",)


def test_only_retention_reaches_an_admitted_run_unjournaled() -> None:
    admitted = resolved(run_of(constraints={"wallClock": "1h"}))
    changed = amended(
        admitted,
        run_of(goal="Something else.", constraints={"wallClock": "3h"}, retention={"ttlAfterFinished": "1h"}),
    )
    assert changed.goal == "Mend it."
    assert changed.limits.wall_clock_ms == 3_600_000
    assert changed.retention.ttl_ms == 3_600_000


def test_a_local_run_keeps_its_path_and_its_placement() -> None:
    found = read_run(
        {"metadata": META, "spec": {"workspace": {"local": {"path": "/repo"}}, "goal": "x", "agent": COMMAND}}, "local"
    )
    assert isinstance(found, AgentRun)
    local = resolved(found, defaults=replace(Defaults(), placement="local"))
    assert (local.placement, local.workspace.kind, local.workspace.path) == ("local", "local", "/repo")


# --- what runs refer to -----------------------------------------------------------------------------------------------

AGENT = {"driver": "builtin", "model": {"providerRef": {"name": "models"}, "name": "m-1"}}
PROVIDER = {"protocol": "anthropic-messages", "baseURL": "https://models.example"}


@pytest.mark.parametrize(
    ("kind", "spec", "reason"),
    [
        ("Workspace", GIT, None),
        ("Workspace", {"ephemeral": {}}, None),
        ("Workspace", {"remoteGit": {"url": "git@git.example:web.git"}}, "NotSupported"),
        ("Workspace", {"local": {"claimName": "c"}}, "NotSupported"),
        ("Workspace", {"remoteGit": {"url": "nonsense"}}, "InvalidSpec"),
        ("Agent", COMMAND, None),
        ("Agent", AGENT, None),
        ("Agent", {"driver": "nobody"}, "UnknownDriver"),
        ("Agent", COMMAND | {"constraints": {"cost": {"hard": "8"}}}, None),
        ("Agent", AGENT | {"constraints": {"cost": {"hard": "8"}}}, None),
        ("ModelProvider", PROVIDER, None),
        ("ModelProvider", PROVIDER | {"models": [{"name": "m-1"}]}, None),
        ("ModelProvider", PROVIDER | {"protocol": "openai-chat"}, None),
        ("ModelProvider", PROVIDER | {"protocol": "openai-responses"}, None),
    ],
)
def test_whether_runs_can_use_an_object_is_found_out_as_a_run_would(
    kind: str, spec: dict[str, Any], reason: str | None
) -> None:
    found = unusable(kind, {"metadata": {"name": "x", "namespace": "team-a"}, "spec": spec}, DRIVERS)
    assert (found.reason if found else None) == reason


@pytest.mark.rule("N1", "N6")
@pytest.mark.parametrize(
    ("driver", "asked", "expected"),
    [
        ("builtin", {}, (2, True, 2)),
        ("builtin", {"nudges": "Off", "checkRounds": 0}, (0, False, 2)),
        ("codex", {}, (2, False, 2)),
        ("codex", {"nudges": "On", "checkRounds": 5}, (5, True, 2)),
        ("command", {"nudges": "On", "checkRounds": 5}, (0, False, 0)),
    ],
)
def test_what_is_asked_of_an_end_depends_on_who_can_hear_it(
    driver: str, asked: dict[str, Any], expected: tuple[int, bool, int]
) -> None:
    model = {"providerRef": {"name": "models"}, "name": "m-1"}
    program = COMMAND if driver == "command" else {"driver": driver, "model": model}
    spoken = "openai-responses" if driver == "codex" else "anthropic-messages"
    refs = References(provider=provider(protocol=spoken), drivers=DRIVERS | {"codex"})
    run = resolved(run_of(agent={**program, "continuation": asked}), refs)
    asked_of = run.agent.continuation
    assert (asked_of.check_rounds, asked_of.nudges, run.acceptance_rounds) == expected
    assert resolved(run_of(recovery={"acceptanceRounds": 7})).acceptance_rounds == 7, (
        "of a command too, where it is set"
    )


@pytest.mark.rule("N5")
def test_a_models_context_is_its_providers_word() -> None:
    models = [{"name": "m-1", "contextWindow": 32_000}, {"name": "m-2"}]
    for name, window in (("m-1", 32_000), ("m-2", 200_000)):
        model = {"providerRef": {"name": "models"}, "name": name}
        found = resolved(
            run_of(agent=BUILTIN | {"model": model}), References(provider=provider(models=models), drivers=DRIVERS)
        )
        assert found.agent.model
        assert found.agent.model.context_window == window
