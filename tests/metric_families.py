"""All metrics that our processes tell, by the names and labels of their samples."""

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from moorage.telemetry.metrics import GatewayMetrics, OperatorMetrics
from moorage.telemetry.tenants import Tenants


def families() -> list[Metric]:
    """Those of operator and gateway; of a metric with labels that nobody has set there are no samples."""
    operator, gateway = CollectorRegistry(), CollectorRegistry()
    OperatorMetrics(operator)
    Tenants(operator, dict)
    GatewayMetrics(gateway)
    return [*operator.collect(), *gateway.collect()]
