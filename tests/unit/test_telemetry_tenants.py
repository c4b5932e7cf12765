"""H2: what is told by tenant has a bound."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.property.run_world import START, T, World
from tests.unit.test_controller_parts import body

from moorage.api.budget import ResolvedLimits
from moorage.controller.measures import Measures
from moorage.controller.roll import Roll
from moorage.controller.told import Standing, key_of
from moorage.core.run.actions import Plan, Report
from moorage.core.tenancy.contract import Contract
from moorage.sandbox.port import RunKey
from moorage.telemetry.metrics import OperatorMetrics
from moorage.telemetry.tenants import OTHER, Tenants, TenantUse, lag


@pytest.mark.rule("H2")
def test_tenants_over_the_bound_are_told_together_and_none_changes_its_name() -> None:
    registry = CollectorRegistry()
    uses = {f"team-{at:03}": TenantUse(waiting=1, live=2, oldest_s=at, most=3) for at in range(2)}
    Tenants(registry, lambda: uses, most=2)

    def told(name: str, tenant: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"tenant": tenant, **labels})

    assert told("moorage_tenant_runs", "team-001", phase="live") == 2
    uses |= {f"a-team-{at:03}": TenantUse(waiting=1, oldest_s=100 + at) for at in range(500)}
    assert told("moorage_tenant_runs", "team-001", phase="live") == 2
    assert told("moorage_tenant_runs", OTHER, phase="waiting") == 500
    assert told("moorage_tenant_oldest_wait_seconds", OTHER) == 599
    assert told("moorage_tenant_slots", "team-001") == 3
    assert told("moorage_tenant_slots", OTHER) is None
    lines = [line for line in generate_latest(registry).decode().splitlines() if line.startswith("moorage_tenant_")]
    assert len(lines) == 3 * 5 + 2


@pytest.mark.rule("H2")
def test_lag_is_between_those_that_wait() -> None:
    assert lag([]) == 0
    assert lag([TenantUse(waiting=1, charge_s=5), TenantUse(waiting=2, charge_s=2), TenantUse(charge_s=90)]) == 3
    assert lag([TenantUse(waiting=1, charge_s=90, bound=True), TenantUse(waiting=2, charge_s=2)]) == 0


@pytest.mark.rule("H2")
def test_who_uses_what_and_who_waits_is_read_from_the_queue() -> None:
    now = 1_767_225_660_000  # a minute after the runs' creation
    roll, metrics = Roll(2, lambda: now, lambda _: Contract(sandboxes=4)), OperatorMetrics(CollectorRegistry())
    Measures(metrics, roll)
    for name in ("a", "b"):
        roll.saw(body(name))
    roll.note(key_of(body("a")), Standing.LIVE)

    def told(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"tenant": "t", **labels})

    assert told("moorage_tenant_runs", phase="live") == 1
    assert told("moorage_tenant_runs", phase="waiting") == 1
    assert told("moorage_tenant_oldest_wait_seconds") == 60
    assert told("moorage_tenant_slot_seconds") == 60, "what a run usually takes"
    assert told("moorage_tenant_slots") == 4


@pytest.mark.rule("H2")
def test_what_part_of_its_limits_a_run_has_used_is_told_at_its_end() -> None:
    metrics, world = OperatorMetrics(CollectorRegistry()), World()
    measures = Measures(metrics, Roll(1))
    world.step()
    world.apply(Report("m", T.MODEL_RESPONSE, {"usage": {"input_tokens": 30}}))
    before = world.observed()
    world.apply(Report("end", T.RUN_FAILED, {"reason": "x"}))
    after = world.observed()
    assert after.spec is not None
    limited = after.spec.model_copy(update={"limits": ResolvedLimits(tokens_hard=120)})
    measures.passed(RunKey("u", "t", "a"), Plan(), before, replace(after, spec=limited), START)
    read = metrics.registry.get_sample_value
    used = after.journal.usage.tokens if after.journal else 0
    assert used > 0
    assert read("moorage_operator_budget_used_ratio_sum", {"limit": "tokens"}) == used / 120
    assert read("moorage_operator_budget_used_ratio_count", {"limit": "cost"}) is None
