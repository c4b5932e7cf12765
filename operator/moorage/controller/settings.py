"""What can be set at the operator, as the chart sets it: each field states its unit, its default and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from moorage.api.meta import SchedulingClass
from moorage.core.run.resolve import Defaults


@dataclass(frozen=True)
class OperatorSettings:
    """Read once at the start from MOORAGE_* variables; nothing here changes while the process lives."""

    gateway_url: str
    """Where the gateway is, for the operator."""

    gateway_token_file: Path
    """The projected token with the gateway's audience; read at each call, since it rotates."""

    namespace: str
    """Where operator and gateway live."""

    gateway_service: str
    """The gateway's Service there: its ClusterIP is handed to the sandboxes, which resolve no names."""

    defaults: Defaults
    """What a sandbox is where the run doesn't say."""

    pod_name: str = "operator"
    """Named in Events, and in the Lease where it leads: no two that live at once have the same."""

    leader_lease: str = "moorage-operator"
    """The Lease by which one of several operators leads, in `namespace`."""

    watch_namespaces: tuple[str, ...] = ()
    """Empty: all of them, with a ClusterRole."""

    max_live_runs: int = 20
    """Runs that are live at once; what is over waits in the queue. One node of this size holds about a dozen."""

    pull_policy: str = "IfNotPresent"
    """Of the sandbox image: images are pinned, so one that is there is the right one."""

    pull_secrets: tuple[str, ...] = ()
    """Names of image pull secrets, in the runs' namespaces."""

    priority_classes: Mapping[str, str] = field(default_factory=dict)
    """The PriorityClass of a run's sandboxes by its scheduling.class; empty: the cluster's default for all."""

    drivers: tuple[str, ...] = ()
    """Names of drivers that sandbox images have beside those that are installed here: they are never started here."""

    command_authority: str = "claimed"
    """What vouches for a RunCommand's issuer, journaled with each (O8): the chart's admission policy, or nothing."""

    probe: str | None = None
    """host:port that must refuse a sandbox before its agent starts: the API server, which every pod could reach."""

    workers: int = 16
    """Passes at once. A pass waits for the network nearly all of its time; more would only crowd the API server."""

    recoveries_per_second: float = 10.0
    """Attempts after a run's first one that begin in a second, over all tenants; twice as many at once (Q3)."""

    scan_s: float = 60.0
    """Between two scans: what they find has waited for nobody."""

    health_port: int = 8081
    """/healthz, /readyz and /metrics."""

    log_level: str = "info"
    """debug, info, warning or error."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> OperatorSettings:
        """Raises KeyError with the variable's name where one is missing, ValueError for what isn't a number."""
        return cls(
            gateway_url=env["MOORAGE_GATEWAY_URL"],
            gateway_token_file=Path(env["MOORAGE_GATEWAY_TOKEN_FILE"]),
            namespace=env["MOORAGE_NAMESPACE"],
            gateway_service=env["MOORAGE_GATEWAY_SERVICE"],
            defaults=_defaults(env),
            pod_name=env.get("MOORAGE_POD_NAME", "operator"),
            leader_lease=env.get("MOORAGE_LEADER_LEASE") or "moorage-operator",
            watch_namespaces=_list(env.get("MOORAGE_WATCH_NAMESPACES", "")),
            max_live_runs=int(env.get("MOORAGE_MAX_LIVE_RUNS") or 20),
            pull_policy=env.get("MOORAGE_SANDBOX_PULL_POLICY") or "IfNotPresent",
            pull_secrets=_list(env.get("MOORAGE_SANDBOX_PULL_SECRETS", "")),
            priority_classes=_priority_classes(env),
            drivers=_list(env.get("MOORAGE_SANDBOX_DRIVERS", "")),
            command_authority=env.get("MOORAGE_COMMAND_AUTHORITY") or "claimed",
            probe=_probe(env),
            workers=int(env.get("MOORAGE_WORKERS") or 16),
            recoveries_per_second=float(env.get("MOORAGE_RECOVERIES_PER_SECOND") or 10),
            scan_s=float(env.get("MOORAGE_SCAN_SECONDS") or 60),
            health_port=int(env.get("MOORAGE_HEALTH_PORT") or 8081),
            log_level=env.get("MOORAGE_LOG_LEVEL") or "info",
        )


def _defaults(env: Mapping[str, str]) -> Defaults:
    return Defaults(
        placement="cluster",
        image=env["MOORAGE_SANDBOX_IMAGE"],
        runtime_class=env.get("MOORAGE_SANDBOX_RUNTIME_CLASS") or None,
        cpu=env.get("MOORAGE_SANDBOX_CPU") or None,
        memory=env.get("MOORAGE_SANDBOX_MEMORY") or None,
        disk=env.get("MOORAGE_SANDBOX_DISK") or None,
        storage_class=env.get("MOORAGE_SANDBOX_STORAGE_CLASS") or None,
    )


def _priority_classes(env: Mapping[str, str]) -> dict[str, str]:
    named = {kind: env.get(f"MOORAGE_SANDBOX_PRIORITY_{kind.upper()}") for kind in get_args(SchedulingClass)}
    return {kind: name for kind, name in named.items() if name}


def _probe(env: Mapping[str, str]) -> str | None:
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
