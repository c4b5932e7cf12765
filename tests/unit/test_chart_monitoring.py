"""H3, H4: the chart's alerts and dashboard ask for metrics that there are, by labels that they have."""

import json
import re
from typing import Any

import promql_parser
import pytest
import yaml
from tests.metric_families import bounds, samples
from tests.unit.test_chart_renders import CHART, Objects, helm, of_kind, render, template

from moorage.telemetry.metrics import Violation

__all__ = ["helm"]  # a fixture
pytestmark = pytest.mark.timeout(600)  # the first test may have to build Helm

PARTS = ("serviceMonitor", "prometheusRule", "dashboard")
ALL = tuple(f"monitoring.{part}.enabled=true" for part in PARTS)
KINDS = ("ServiceMonitor", "PrometheusRule")
TARGET = {"namespace", "pod"}
"""What scraping adds to each sample."""

KNOWN = samples()


def asked(expression: str) -> tuple[list[tuple[str, set[str]]], set[str]]:
    """The samples that it selects, with the labels that it selects them by, and the labels that it groups by."""
    selected: list[tuple[str, set[str]]] = []
    grouped: set[str] = set()

    def see(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            selected.append((node.name, {each.name for each in node.matchers.matchers}))
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(expression), see)
    return selected, grouped


def demand_known(expression: str) -> None:
    selected, grouped = asked(expression)
    assert selected, expression
    labels: set[str] = set(TARGET)
    for name, by in selected:
        assert name in KNOWN, f"{name} isn't told by anybody: {expression}"
        assert by <= KNOWN[name] | TARGET, expression
        labels |= KNOWN[name]
    assert grouped <= labels, expression


def rules(helm: str, *values: str) -> dict[str, dict[str, Any]]:
    (made,) = of_kind(render(helm, (*ALL, *values)), "PrometheusRule")
    return {rule["alert"]: rule for group in made["spec"]["groups"] for rule in group["rules"]}


def board(helm: str) -> dict[str, Any]:
    made = [each for each in of_kind(render(helm, ALL), "ConfigMap") if "moorage.json" in each["data"]]
    loaded: dict[str, Any] = json.loads(made[0]["data"]["moorage.json"])
    return loaded


def test_nothing_of_it_is_there_unless_it_is_asked_for(helm: str) -> None:
    def names(objects: Objects) -> set[tuple[str, str]]:
        return {(each["kind"], each["metadata"]["name"]) for each in objects}

    usual = names(render(helm))
    assert not any(kind in KINDS for kind, _ in usual)
    assert names(render(helm, ALL)) - usual == {
        ("Service", "moorage-operator"),
        ("ServiceMonitor", "moorage-operator"),
        ("ServiceMonitor", "moorage-gateway"),
        ("PrometheusRule", "moorage"),
        ("ConfigMap", "moorage-dashboard"),
    }


@pytest.mark.rule("H3", "H4")
def test_alerts_ask_for_what_there_is(helm: str) -> None:
    for alert in rules(helm).values():
        demand_known(alert["expr"])


@pytest.mark.rule("H2")
def test_the_dashboard_asks_for_what_there_is(helm: str) -> None:
    shown = board(helm)
    targets = [target for panel in shown["panels"] for target in panel.get("targets", ())]
    assert len(targets) > 20
    for target in targets:
        expression = target["expr"].replace("$__rate_interval", "5m").replace("$namespace", ".*")
        demand_known(expression)
        _, grouped = asked(expression)
        legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert legend <= grouped, f"a legend of {expression} says what isn't there"
    assert len({panel["id"] for panel in shown["panels"]}) == len(shown["panels"])


def test_an_expression_of_what_nobody_tells_is_found() -> None:
    for wrong in ("moorage_lost_total > 0", 'moorage_leader{tenant="x"}', "sum by (tenant) (moorage_leader)"):
        with pytest.raises(AssertionError):
            demand_known(wrong)


@pytest.mark.rule("H3")
def test_one_of_any_kind_is_an_alert_at_once(helm: str) -> None:
    alert = rules(helm)["MoorageViolation"]
    assert alert["expr"].endswith("> 0")
    assert "for" not in alert
    assert alert["labels"]["severity"] == "critical"
    assert KNOWN["moorage_violations_total"] == {"kind"}
    assert len(Violation) == 4


OBJECTIVES = {
    "resumeSeconds": "moorage_operator_resume_seconds_bucket",
    "cancelSeconds": "moorage_operator_cancel_seconds_bucket",
    "queueSeconds": "moorage_operator_queue_seconds_bucket",
}


@pytest.mark.rule("H4")
def test_objectives_lie_where_a_histogram_can_tell_them_apart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["prometheusRule"]["objectives"]
    schema: Any = json.loads((CHART / "values.schema.json").read_text())
    for part in ("monitoring", "prometheusRule", "objectives"):
        schema = schema["properties"][part]
    for name, metric in OBJECTIVES.items():
        assert values[name] in bounds()[metric], f"{name}: a quantile within a bucket is a guess"
        assert schema["properties"][name]["maximum"] < max(bounds()[metric]), f"{name}: no quantile exceeds that"


@pytest.mark.rule("H4")
@pytest.mark.parametrize("name", [*OBJECTIVES, "unknownEffectSeconds"])
def test_an_objective_is_a_value(helm: str, name: str) -> None:
    changed = rules(helm, f"monitoring.prometheusRule.objectives.{name}=77")
    assert [alert for alert in changed.values() if re.search(r"> 77\b", alert["expr"])]
    refused = template(helm, (*ALL, f"monitoring.prometheusRule.objectives.{name}=0"))
    assert refused.returncode != 0
    assert name in refused.stderr


def test_monitors_select_the_services_and_ports_that_there_are(helm: str) -> None:
    objects = render(helm, (*ALL, "monitoring.serviceMonitor.labels.release=prometheus"))
    services = of_kind(objects, "Service")
    monitors = of_kind(objects, "ServiceMonitor")
    assert len(monitors) == 2
    for monitor in monitors:
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [each for each in services if wanted <= each["metadata"]["labels"].items()]
        assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
        (pods,) = [each for each in of_kind(objects, "Deployment") if serves(service, each)]
        (container,) = pods["spec"]["template"]["spec"]["containers"]
        assert service["spec"]["ports"][0]["targetPort"] in {port["name"] for port in container["ports"]}


def serves(service: dict[str, Any], deployment: dict[str, Any]) -> bool:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    return bool(service["spec"]["selector"].items() <= labels.items())
