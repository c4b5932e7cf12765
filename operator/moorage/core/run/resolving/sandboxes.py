"""What a run's sandbox is made of, and which hosts it may reach (O6, T3)."""

from __future__ import annotations

from moorage.api.agent import EgressHost, Sandbox
from moorage.api.quantity import Quantity
from moorage.api.wire import ResolvedEgress, ResolvedSandbox, SecretRef
from moorage.core.run.resolving.references import Defaults, Unresolved


def resolved_sandbox(
    own: Sandbox | None, usual: Sandbox | None, size: Quantity | None, defaults: Defaults
) -> ResolvedSandbox:
    """Each field the run's, else the Agent's, else (the disk's) the Workspace's, else the installation's."""
    layers = [s for s in (own, usual) if s is not None]
    resources = [s.resources for s in layers if s.resources is not None]
    return ResolvedSandbox(
        runtime_class=_first(*(s.runtime_class_name for s in layers), defaults.runtime_class),
        cpu=_first(*(r.cpu for r in resources), defaults.cpu),
        memory=_first(*(r.memory for r in resources), defaults.memory),
        disk=_first(*(r.disk for r in resources), size, defaults.disk),
        egress=tuple(_egress(host) for host in next((s.egress for s in layers if s.egress is not None), ())),
    )


def _egress(host: EgressHost) -> ResolvedEgress:
    secret = host.credentials_secret_ref
    return ResolvedEgress(
        host=host.host,
        effects=host.effects,
        scheme=host.scheme,
        port=host.port or (443 if host.scheme == "https" else 80),
        methods=host.methods or (),
        paths=host.paths or (),
        credentials=SecretRef(name=secret.name, key=secret.key) if secret else None,
        credential_header=host.credential_header,
        key_header=host.key_header,
    )


def _first(*values: str | None) -> str | None:
    return next((str(value) for value in values if value), None)


def demand_runtime_class(wanted: str | None, present: frozenset[str] | None) -> None:
    """Raise Unresolved where it is known not to be installed."""
    if wanted is None or present is None or wanted in present:
        return
    known = f"installed are: {', '.join(sorted(present))}" if present else "none is installed"
    why = f"RuntimeClass {wanted} isn't installed ({known}): ask an administrator for it, or name another one"
    raise Unresolved("RuntimeClassNotFound", why)
