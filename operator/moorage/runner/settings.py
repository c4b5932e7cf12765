"""What the sandbox spec hands to the runner, as environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunnerSettings:
    """Read once. Durations in seconds."""

    gateway: str
    """`http://host:port`, or `unix:/path` where the gateway listens on a socket file (local runs)."""

    token_file: Path
    """The projected token; read for each request, since the kubelet rotates it."""

    volume: Path = Path("/workspace")
    """The run's volume: worktree in `tree`, everything of ours and the agent's HOME in `.moorage`."""

    termination_log: Path | None = Path("/dev/termination-log")
    """Where the reason of an end is left for the operator."""

    probe: tuple[tuple[str, int], ...] = ()
    """Addresses that must refuse a connection before the agent starts (T3); empty where no policy is promised."""

    probe_patience_s: float = 30.0
    """How long enforcement of the network policy may lag the pod's start."""

    alternates: Path | None = None
    """A repository on the same disk to borrow objects from (local runs)."""

    heartbeat_s: float = 5.0
    """F4: every 5 s, so that a Lease of 40 s survives seven lost ones."""

    patience_s: float = 300.0
    """How long an unreachable gateway is waited for: a rollout with a volume that moves takes minutes."""

    stop_grace_s: float = 25.0
    """SIGTERM to SIGKILL for the agent; below the pod's own 30 s, so that the final checkpoint still fits. Who gives a
    sandbox another grace gives this with it."""

    lifeline: bool = False
    """True where standard input stays open for as long as our owner lives (local runs): when it ends, so do we."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> RunnerSettings:
        """Raise ValueError that names the variable which is missing or makes no sense."""
        return cls(
            gateway=_given(env, "MOORAGE_GATEWAY_URL"),
            token_file=Path(_given(env, "MOORAGE_TOKEN_FILE")),
            volume=Path(env.get("MOORAGE_VOLUME", "/workspace")),
            termination_log=termination_log(env),
            probe=tuple(_address(part) for part in env.get("MOORAGE_PROBE", "").split(",") if part),
            alternates=Path(env["MOORAGE_ALTERNATES"]) if env.get("MOORAGE_ALTERNATES") else None,
            lifeline=env.get("MOORAGE_LIFELINE") == "stdin",
            stop_grace_s=_seconds(env, "MOORAGE_STOP_GRACE_SECONDS", cls.stop_grace_s),
        )


def termination_log(env: Mapping[str, str]) -> Path | None:
    """Known by itself, so that a mistake in the others can be told there."""
    place = env.get("MOORAGE_TERMINATION_LOG", "/dev/termination-log")
    return Path(place) if place else None


def _given(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise ValueError(f"{name} is not set")
    return env[name]


def _seconds(env: Mapping[str, str], name: str, usual: float) -> float:
    given = env.get(name, "")
    if given and not given.isdecimal():
        raise ValueError(f"{name}: {given!r} is no whole number of seconds")
    return float(given) if given else usual


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"MOORAGE_PROBE: {text!r} is no host:port")
    return host.strip("[]"), int(port)
