"""H2: durations follow from the records that begin and end them."""

import pytest
from prometheus_client import CollectorRegistry
from tests.property.run_world import record

from moorage.core.journal.record import Record
from moorage.gateway.durations import MAX_OPEN, Durations
from moorage.telemetry.metrics import GatewayMetrics


def at(seconds: int, kind: str, epoch: int = 1, call: str | None = None) -> Record:
    made = record(seconds, kind, {}, epoch=epoch, at=seconds * 1_000)
    return Record(**{**made.__dict__, "tool_call_id": call})


@pytest.fixture
def metrics() -> GatewayMetrics:
    return GatewayMetrics(CollectorRegistry())


def told(metrics: GatewayMetrics, name: str) -> tuple[float | None, float | None]:
    value = metrics.registry.get_sample_value
    return value(f"moorage_{name}_seconds_count"), value(f"moorage_{name}_seconds_sum")


@pytest.mark.rule("H2")
def test_steps_tools_and_verifications_are_measured_each_by_its_own_records(metrics: GatewayMetrics) -> None:
    durations = Durations(metrics)
    durations.appended([at(1, "AGENT_STARTED"), at(2, "TOOL_REQUEST", call="1.0"), at(2, "TOOL_REQUEST", call="1.1")])
    durations.appended([at(5, "TOOL_RESPONSE", call="1.1"), at(9, "TOOL_RESPONSE", call="1.0")])
    durations.appended([at(11, "ITERATION_COMPLETE"), at(15, "ITERATION_COMPLETE")])
    durations.appended([at(20, "VERIFICATION_STARTED"), at(26, "VERIFICATION_RESULT")])
    assert told(metrics, "tool") == (2, 3 + 7)
    assert told(metrics, "step") == (2, 10 + 4)
    assert told(metrics, "verification") == (1, 6)


@pytest.mark.rule("H2", "P6")
def test_how_long_a_request_was_held_is_measured_apart(metrics: GatewayMetrics) -> None:
    durations = Durations(metrics)
    done = [
        record(n, "ITERATION_COMPLETE", payload) for n, payload in enumerate(({"held_ms": 250}, {"held_ms": 0}, {}))
    ]
    durations.appended(done)
    assert told(metrics, "model_held") == (2, 0.25)


def test_what_began_elsewhere_in_another_attempt_or_never_is_left_out(metrics: GatewayMetrics) -> None:
    durations = Durations(metrics)
    durations.appended([at(1, "TOOL_RESPONSE", call="1.0"), at(2, "TOOL_REQUEST", call="1.0")])
    durations.appended([at(3, "TOOL_RESPONSE", epoch=2, call="1.0"), at(4, "VERIFICATION_RESULT")])
    assert (told(metrics, "tool"), told(metrics, "verification")) == ((0, 0), (0, 0))


def test_what_never_ends_is_forgotten(metrics: GatewayMetrics) -> None:
    durations = Durations(metrics)
    durations.appended([at(1, "TOOL_REQUEST", call=f"{n}") for n in range(MAX_OPEN + 5)])
    assert len(durations._began) == MAX_OPEN
