"""What the references of a run lead to, and what an installation fills in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from moorage.api.agent import Agent
from moorage.api.modelprovider import ModelProvider
from moorage.api.workspace import Workspace
from moorage.core.run.observed import Problem
from moorage.core.run.parents import Parent

Placement = Literal["local", "cluster"]


@dataclass(frozen=True)
class Broken:
    """A referenced object that is there and can't be read; the message says why."""

    message: str


@dataclass(frozen=True)
class References:
    """What the run's references led to: None where nothing was found, or nothing is named.

    parent: the run that spec.parentRef names; origin: the one that spec.continueFrom names. goal: text of the
    ConfigMap's key. runtime_classes: None where they may not be listed (namespaced mode); then the pod's admission
    decides. drivers: those that the installed runner knows; constraints: entry points of the gateway.
    """

    workspace: Workspace | Broken | None = None
    agent: Agent | Broken | None = None
    provider: ModelProvider | Broken | None = None
    parent: Parent | None = None
    origin: Parent | Broken | None = None
    goal: str | None = None
    runtime_classes: frozenset[str] | None = None
    drivers: frozenset[str] = frozenset()
    constraints: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Defaults:
    """What an installation fills in. Quantities in Kubernetes notation; None leaves the choice to the cluster."""

    placement: Placement = "cluster"
    image: str | None = None
    runtime_class: str | None = None
    cpu: str | None = None
    memory: str | None = None
    disk: str | None = None
    storage_class: str | None = None


class Unresolved(Exception):
    """Carries the problem up to `resolve`; seen by nobody else."""

    def __init__(self, reason: str, message: str, *, stalled: bool = False) -> None:
        self.problem = Problem(reason, message, stalled)
        super().__init__(message)


def referenced(kind: str, name: str, found: Any) -> Any:
    """The referenced object. Raise Unresolved where it isn't there or can't be read."""
    if found is None:
        raise Unresolved(f"{kind}NotFound", f"{kind} {name} isn't there: create it in this namespace")
    if isinstance(found, Broken):
        raise Unresolved(f"{kind}Invalid", f"{kind} {name} can't be used: {found.message}")
    return found
