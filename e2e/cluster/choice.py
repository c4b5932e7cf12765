"""Which cluster to use, as a pure decision over what is asked for, what stands already and what this machine lacks.

The cluster from source is what our own checks run on, so it comes first where it can be built. kind is for machines
where it can't (no root, no Go), or on request; the user's own context is never chosen unasked.
"""

import os
import platform
import shutil
from collections.abc import Collection, Sequence
from typing import Literal

from e2e.cluster.errors import HarnessError
from e2e.cluster.shell import succeeds

Kind = Literal["current", "kind", "source"]
KIND_IMAGE = "kindest/node:v1.34.0"
KIND_PROGRAMS = ("docker", "kind", "kubectl", "helm")
GVISOR_PROGRAMS = ("runsc", "containerd-shim-runsc-v1")
_WANTED: dict[str, Kind] = {"current": "current", "kind": "kind", "source": "source"}


def pick(
    wanted: str, standing: Collection[Kind], source_lacks: Sequence[str], kind_lacks: Sequence[str] | None
) -> Kind | None:
    """Choose the back end.

    Args:
        wanted: what the user asks for (``MOORAGE_CLUSTER``); empty when nothing.
        standing: clusters of ours that are up under this name.
        source_lacks: what a cluster from source needs and this machine hasn't.
        kind_lacks: the same for kind; None when it hasn't been looked up yet.

    Returns:
        the choice; None when `kind_lacks` must be looked up first.

    Raises:
        HarnessError: the user asks for something else, or no cluster can be had; the message says what is missing.
    """
    if wanted:
        if wanted not in _WANTED:
            raise HarnessError(f"MOORAGE_CLUSTER={wanted}: use {', '.join(_WANTED)}")
        return _WANTED[wanted]
    if "source" in standing:
        return "source"
    if "kind" in standing:
        return "kind"
    if not source_lacks:
        return "source"
    if kind_lacks is None:
        return None
    if not kind_lacks:
        return "kind"
    raise HarnessError(
        f"no cluster can be had on this machine. From source it lacks: {'; '.join(source_lacks)}. With kind it lacks: "
        f"{'; '.join(kind_lacks)}. Or use your own: MOORAGE_CLUSTER=current (see docs/getting-started.md)"
    )


def source_lacks() -> list[str]:
    """What a cluster from source needs and this machine hasn't, Debian's packages apart: those are installed."""
    needs = {
        "Linux": platform.system() == "Linux",
        "root (network namespaces, mounts)": os.geteuid() == 0,
        "Go 1.26 or later on PATH": shutil.which("go") is not None,
    }
    return [name for name, there in needs.items() if not there]


def kind_lacks() -> list[str]:
    """What a cluster of kind's with gVisor needs and this machine hasn't; may pull the node image."""
    lacking = [f"{name} on PATH" for name in KIND_PROGRAMS if not shutil.which(name)]
    if shutil.which("docker") and not succeeds(["docker", "info"]):
        lacking.append("a Docker engine that answers (`docker info`)")
    elif shutil.which("docker") and not _node_image():
        lacking.append(f"the image {KIND_IMAGE}, which can't be pulled either")
    if not shutil.which("go") and not all(map(shutil.which, GVISOR_PROGRAMS)):
        lacking.append(f"{' and '.join(GVISOR_PROGRAMS)} on PATH, or Go to build them")
    return lacking


def _node_image() -> bool:
    present = succeeds(["docker", "image", "inspect", KIND_IMAGE])
    return present or succeeds(["docker", "pull", "--quiet", KIND_IMAGE])
