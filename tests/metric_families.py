"""All metrics that our processes tell, by the names and labels of their samples."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from moorage.telemetry.metrics import GatewayMetrics, OperatorMetrics
from moorage.telemetry.tenants import Tenants, TenantUse

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def _registries() -> Iterator[CollectorRegistry]:
    """Of operator and gateway, with one sample at least of each metric, whatever its labels."""
    for group in (OperatorMetrics(CollectorRegistry()), GatewayMetrics(CollectorRegistry())):
        for metric in vars(group).values():
            if getattr(metric, "_labelnames", ()):
                metric.labels(*("x" for _ in metric._labelnames))
        if isinstance(group, OperatorMetrics):
            Tenants(group.registry, lambda: {"x": TenantUse(most=1)})
        yield group.registry


def families() -> list[Metric]:
    """Those of operator and gateway."""
    return [family for registry in _registries() for family in registry.collect()]


def samples() -> dict[str, set[str]]:
    """Labels by the names of samples."""
    return {
        sample.name: set(sample.labels)
        for family in families()
        for sample in family.samples
        if any(sample.name == family.name + suffix for suffix in SUFFIXES[family.type])
    }


def bounds() -> dict[str, list[float]]:
    """Finite upper bounds of histograms, by the names of their buckets."""
    found: dict[str, list[float]] = {}
    for family in families():
        for sample in family.samples:
            if sample.name.endswith("_bucket") and sample.labels["le"] != "+Inf":
                found.setdefault(sample.name, []).append(float(sample.labels["le"]))
    return found
