"""C4, C6: a run under its tenant's contract is bounded by it or held, never failed."""

from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import START, World, a_spec
from tests.run_plans import observed
from tests.unit.test_tenancy_contract import rcon

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedEgress, ResolvedModel, ResolvedPrices, ResolvedRun, ResolvedSandbox
from moorage.core.run.limits import how_to_raise, raises
from moorage.core.run.observed import Problem
from moorage.core.run.plan import decide
from moorage.core.tenancy.admission import under_contract, wanted_limits
from moorage.core.tenancy.contract import Contract, merge

MODEL = ResolvedModel(provider="p", protocol="openai-chat", base_url="http://m.example", name="m", allowed=("m", "n"))
BOX = ResolvedSandbox(
    runtime_class="gvisor",
    cpu="2",
    memory="4Gi",
    disk="10Gi",
    egress=(ResolvedEgress(host="a.example.com", scheme="https", port=443, effects="none"),),
)


def a_run(**changes: Any) -> ResolvedRun:
    run = a_spec()
    agent = run.agent.model_copy(update={"model": changes.pop("model", MODEL)})
    return run.model_copy(update={"agent": agent, "sandbox": BOX} | changes)


def under(run: ResolvedRun, labels: dict[str, str] | None = None, **spec: Any) -> ResolvedRun | Problem:
    return under_contract(run, labels or {}, merge([rcon("team", **spec)]))


def test_without_a_contract_a_run_is_what_it_was() -> None:
    run = a_run()
    assert under_contract(run, {}, Contract()) == run
    assert under(run, concurrency={"sandboxes": 1}, weight=3) == run


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"allowed": {"models": ["n"]}},
        "ModelNotAllowed",
        "model m isn't in allowed.models of rcon/team (allowed are: n)",
    ),
    ({"allowed": {"models": []}}, "ModelNotAllowed", "(none is allowed)"),
    (
        {"allowed": {"providers": ["corporate"]}},
        "ProviderNotAllowed",
        "ModelProvider p isn't in allowed.providers of rcon/team (allowed are: corporate)",
    ),
    ({"allowed": {"runtimeClasses": ["kata"]}}, "RuntimeClassNotAllowed", "RuntimeClass gvisor isn't in"),
    (
        {"allowed": {"hosts": ["b.example.com"]}},
        "HostNotAllowed",
        "host a.example.com isn't in allowed.hosts of rcon/team",
    ),
    (
        {"perSandbox": {"cpu": "1900m"}},
        "SandboxTooLarge",
        "sandbox.resources.cpu of 2 is more than perSandbox.cpu of rcon/",
    ),
    ({"perSandbox": {"memory": "4095Mi"}}, "SandboxTooLarge", "sandbox.resources.memory of 4Gi is more than"),
    ({"perSandbox": {"disk": "1Gi"}}, "SandboxTooLarge", "sandbox.resources.disk of 10Gi is more than"),
]


@pytest.mark.rule("C6")
@pytest.mark.parametrize(("spec", "reason", "says"), REFUSALS, ids=lambda value: str(value)[:30])
def test_what_the_contract_doesnt_allow_is_held_with_its_name_and_what_to_do(
    spec: dict[str, Any], reason: str, says: str
) -> None:
    found = under(a_run(), **spec)
    assert isinstance(found, Problem)
    assert (found.reason, found.held, found.stalled) == (reason, True, False)
    assert says in found.message
    assert "or have rcon/team changed: it starts then" in found.message


def test_what_it_allows_begins() -> None:
    allowed = {"models": ["m"], "runtimeClasses": ["gvisor"], "hosts": ["a.example.com"]}
    found = under(a_run(), allowed=allowed, perSandbox={"cpu": 2, "memory": "4Gi", "disk": "10Gi"})
    assert isinstance(found, ResolvedRun)
    assert found.agent.model is not None
    assert found.agent.model.allowed == ("m",), "of what its provider serves, no more than that"
    assert isinstance(under(a_run(model=None), allowed={"models": []}), ResolvedRun)


def test_a_sandbox_without_a_runtime_class_is_none_of_the_allowed_ones() -> None:
    found = under(a_run(sandbox=ResolvedSandbox()), allowed={"runtimeClasses": ["gvisor"]})
    assert isinstance(found, Problem)
    assert "a sandbox without a RuntimeClass isn't in" in found.message


@pytest.mark.rule("C4")
def test_the_stricter_of_both_limits_applies_and_all_expressions() -> None:
    run = a_run(limits=ResolvedLimits(tokens_hard=500, max_iterations=9))
    bounds = {"tokens": {"hard": 900}, "maxIterations": 3, "custom": [{"name": "c", "cel": "tokens < 5"}]}
    found = under(run, constraints=bounds)
    assert isinstance(found, ResolvedRun)
    assert (found.limits.tokens_hard, found.limits.max_iterations) == (500, 3)
    assert [each.name for each in found.limits.custom] == ["team.c"]
    assert found.contract is not None
    assert found.contract.own == run.limits


def test_a_limit_that_cant_be_counted_for_the_run_holds_it() -> None:
    found = under(a_run(), constraints={"cost": {"hard": "1.00"}})
    assert isinstance(found, Problem)
    assert (found.reason, found.held) == ("PricesMissing", True)
    assert found.message.startswith("rcon/team: ")
    price = ResolvedPrices(input=1, output=1, cache_read=1, cache_write=1, cache_write_1h=1)
    priced = MODEL.model_copy(update={"prices": {"m": price, "n": price}})
    assert isinstance(under(a_run(model=priced), constraints={"cost": {"hard": "1.00"}}), ResolvedRun)
    bad = under(a_run(), constraints={"custom": [{"name": "c", "entryPoint": "mine"}]})
    assert isinstance(bad, Problem)
    assert (bad.reason, bad.held) == ("ConstraintNotFound", True)


def test_a_selector_is_asked_with_the_runs_labels() -> None:
    some = {"selector": {"matchLabels": {"team": "x"}}, "allowed": {"hosts": []}}
    assert isinstance(under(a_run(), {"team": "y"}, **some), ResolvedRun)
    assert isinstance(under(a_run(), {"team": "x"}, **some), Problem)


# --- raising ----------------------------------------------------------------------------------------------------------


def raised(run: ResolvedRun, author: ResolvedLimits, **constraints: Any) -> dict[str, int]:
    contract = merge([rcon("team", constraints=constraints)])
    return raises(run.limits, wanted_limits(author, run, contract))


@pytest.mark.rule("C4")
def test_nobody_raises_a_run_above_its_contract() -> None:
    run = a_run(limits=ResolvedLimits(tokens_hard=500))
    found = under(run, constraints={"tokens": {"hard": 900}})
    assert isinstance(found, ResolvedRun)
    assert raised(found, ResolvedLimits(tokens_hard=700), tokens={"hard": 900}) == {"tokens_hard": 700}
    assert raised(found, ResolvedLimits(tokens_hard=5_000), tokens={"hard": 900}) == {"tokens_hard": 900}
    assert raised(found, ResolvedLimits(tokens_hard=500), tokens={"hard": 900}) == {}


@pytest.mark.rule("C4")
def test_what_only_the_contract_bounds_follows_it_up_and_never_down() -> None:
    found = under(a_run(), constraints={"tokens": {"hard": 900}})
    assert isinstance(found, ResolvedRun)
    assert raised(found, ResolvedLimits(), tokens={"hard": 2_000}) == {"tokens_hard": 2_000}
    assert raised(found, ResolvedLimits(), tokens={"hard": 100}) == {}
    agents = under(a_run(limits=ResolvedLimits(tokens_hard=1_000)), constraints={"tokens": {"hard": 900}})
    assert isinstance(agents, ResolvedRun)
    assert raised(agents, ResolvedLimits(), tokens={"hard": 2_000}) == {"tokens_hard": 1_000}, "its Agent's"
    assert "have constraints.tokens.hard of rcon/team raised, which allows 900" in how_to_raise(agents, "tokens_hard")
    own = under(a_run(limits=ResolvedLimits(tokens_hard=700)), constraints={"tokens": {"hard": 900}})
    assert isinstance(own, ResolvedRun)
    assert raised(own, ResolvedLimits(tokens_hard=700), tokens={"hard": 600}) == {}
    assert "kubectl patch ar" in how_to_raise(own, "tokens_hard")


# --- the wait ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("C6")
def test_a_held_run_waits_for_as_long_as_it_takes_and_looks_again() -> None:
    held = Problem("ModelNotAllowed", "m", stalled=False, held=True)
    plan = decide(observed(World(), problem=held), START + 100 * 3_600_000)
    assert (plan.verdict, plan.actions, plan.reason) == (None, (), "ModelNotAllowed")
    assert plan.requeue_ms


@pytest.mark.rule("F5")
def test_time_in_the_queue_doesnt_count_against_a_reference_that_went_away() -> None:
    hour = 3_600_000
    missing = observed(World(), problem=Problem("SecretNotFound", "m", stalled=False))
    late = START + 5 * hour
    assert decide(replace(missing, problem_since=late - 1_000), late).verdict is None
    verdict = decide(replace(missing, problem_since=late - hour), late).verdict
    assert verdict is not None
    assert verdict.reason == "ScheduleToStartTimeout"
