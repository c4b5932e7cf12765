"""H2: who uses what and who waits, by tenant, as it is when somebody asks.

Label cardinality is bounded: the first MOST_TENANTS namespaces seen keep their names for as long as the process lives,
so that no series changes its meaning; all others together are `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

MOST_TENANTS = 100
OTHER = "other"  # a namespace of that name is counted with the rest


@dataclass(frozen=True)
class TenantUse:
    """One tenant. oldest_s: how long the first of those that wait has waited. charge_s: slot time of late for its
    weight. most: live runs that its contract allows at once, None without a bound. unknown: live runs with an effect of
    unknown end. bound: its own contract or quota keeps those that wait, and not what others use.
    """

    waiting: int = 0
    live: int = 0
    oldest_s: float = 0
    charge_s: float = 0
    most: int | None = None
    unknown: int = 0
    bound: bool = False

    def and_(self, more: TenantUse) -> TenantUse:
        """Both together."""
        bounds = [each.most for each in (self, more) if each.most is not None]
        return TenantUse(
            self.waiting + more.waiting,
            self.live + more.live,
            max(self.oldest_s, more.oldest_s),
            max(self.charge_s, more.charge_s),
            sum(bounds) if bounds else None,
            self.unknown + more.unknown,
            self.bound and more.bound,
        )


class Names:
    """The labels of tenants."""

    def __init__(self, most: int = MOST_TENANTS) -> None:
        self._most, self._known = most, {OTHER}

    def of(self, tenant: str) -> str:
        """Its own name, or `other`."""
        if tenant not in self._known:
            if len(self._known) > self._most:
                return OTHER
            self._known.add(tenant)
        return tenant


def lag(uses: Iterable[TenantUse]) -> float:
    """Fairness lag: by how much slot time, for their weights, those that wait for each other are apart (seconds)."""
    charges = [use.charge_s for use in uses if use.waiting and not use.bound]
    return max(charges) - min(charges) if charges else 0.0


class Tenants(Collector):
    """Asks `uses` at each scrape."""

    def __init__(
        self, registry: CollectorRegistry, uses: Callable[[], Mapping[str, TenantUse]], most: int = MOST_TENANTS
    ) -> None:
        self._uses, self._names = uses, Names(most)
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Without asking anybody."""
        return self._families({})

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families."""
        uses = self._uses()
        told: dict[str, TenantUse] = {}
        for tenant in sorted(uses):
            name = self._names.of(tenant)
            told[name] = told.get(name, TenantUse()).and_(uses[tenant])
        yield from self._families(told, lag(uses.values()))

    @staticmethod
    def _families(told: Mapping[str, TenantUse], apart: float = 0.0) -> Iterator[GaugeMetricFamily]:
        runs = GaugeMetricFamily("moorage_tenant_runs", "Runs of a tenant, by phase.", labels=("tenant", "phase"))
        oldest = _family("moorage_tenant_oldest_wait_seconds", "How long its first waiting run has waited.")
        charge = _family("moorage_tenant_slot_seconds", "Slot time of the last ten minutes for its weight.")
        most = _family("moorage_tenant_slots", "Live runs that its contract allows at once.")
        unknown = _family("moorage_tenant_unknown_effects", "Its live runs with an effect of unknown end.")
        for name, use in told.items():
            runs.add_metric((name, "waiting"), use.waiting)
            runs.add_metric((name, "live"), use.live)
            oldest.add_metric((name,), use.oldest_s)
            charge.add_metric((name,), use.charge_s)
            unknown.add_metric((name,), use.unknown)
            if use.most is not None:
                most.add_metric((name,), use.most)
        yield from (runs, oldest, charge, most, unknown)
        yield GaugeMetricFamily(
            "moorage_operator_fairness_lag_seconds",
            "By how much slot time for their weights tenants that wait are apart.",
            value=apart,
        )


def _family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=("tenant",))
