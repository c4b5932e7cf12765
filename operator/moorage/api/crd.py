"""The CustomResourceDefinitions, generated from the models. `python -m moorage.api.crd` writes, `--check` compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from moorage.api import runcommand, runstatus
from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.modelprovider import ModelProvider
from moorage.api.names import GROUP, VERSION
from moorage.api.resourceconstraint import ResourceConstraint
from moorage.api.rules import Told
from moorage.api.runcommand import RunCommand
from moorage.api.structural import structural
from moorage.api.workspace import Workspace

FOLDERS = ("crds", "charts/moorage/files/crds")
_HEADER = "# Generated from operator/moorage/api by `make crds`; change the models instead.\n"


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; `wide` ones are shown by `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    description: str = ""
    wide: bool = False

    def rendered(self) -> dict[str, Any]:
        """As an item of `additionalPrinterColumns`."""
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.description:
            column["description"] = self.description
        return column | {"priority": 1} if self.wide else column


@dataclass(frozen=True)
class Definition:
    """A kind: its model, its names, its columns, and the fields that `--field-selector` may ask for."""

    model: type[BaseModel]
    plural: str
    short: str
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()
    born: Told | None = None  # the status of an object that no controller has looked at

    @property
    def name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{GROUP}_{self.plural}.yaml"


_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_READY = Column("Ready", '.status.conditions[?(@.type=="Ready")].status', description="Whether it can be used.")
_REASON = Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', description="Why, in one word.")

DEFINITIONS = (
    Definition(
        AgentRun,
        "agentruns",
        "ar",
        (
            Column("Phase", ".status.phase", description="Where the run stands."),
            Column("Reason", ".status.reason", description="Why, in one word."),
            Column("Iter", ".status.iteration", "integer", "Last complete iteration."),
            Column("Tokens", ".status.usage.tokens", "integer", "Tokens used, of all kinds."),
            Column("Cost", ".status.usage.cost", description="Cost in US dollars."),
            Column("Epoch", ".status.epoch", "integer", "Fencing epoch of the attempt."),
            _AGE,
            Column(
                "Workspace", ".spec.workspaceRef.name", description="The Workspace, if it is one by name.", wide=True
            ),
            Column("Branch", ".status.workspace.branch", description="The run's branch.", wide=True),
            Column("Node", ".status.node", description="Node of the sandbox.", wide=True),
            Column("Waits", ".status.queue.reason", description="What is short while it waits.", wide=True),
        ),
        (".status.phase",),
        runstatus.BORN,
    ),
    Definition(
        Workspace,
        "workspaces",
        "ws",
        (
            Column("Ready", _READY.path, description="Whether runs can start from it."),
            _REASON,
            Column("URL", ".spec.remoteGit.url", description="The remote."),
            _AGE,
        ),
    ),
    Definition(
        Agent,
        "agents",
        "agt",
        (
            Column("Driver", ".spec.driver", description="How the program is driven."),
            Column("Model", ".spec.model.name", description="The model that it talks to."),
            Column("Image", ".spec.image", description="Image of the sandbox.", wide=True),
            _AGE,
        ),
    ),
    Definition(
        ModelProvider,
        "modelproviders",
        "mp",
        (
            Column("Protocol", ".spec.protocol", description="What the endpoint speaks."),
            Column("URL", ".spec.baseURL", description="Where it is."),
            _AGE,
        ),
    ),
    Definition(
        RunCommand,
        "runcommands",
        "rcmd",
        (
            Column("Run", ".spec.runRef.name", description="The run that it is for."),
            Column("Type", ".spec.type", description="What is asked."),
            Column("State", ".status.state", description="What became of it."),
            Column("Reason", ".status.reason", description="Why, in one word."),
            _AGE,
            Column("Issuer", ".spec.issuer", description="Who asked.", wide=True),
            Column("Offset", ".status.offset", "integer", "Its record in the run's journal.", wide=True),
        ),
        (".spec.runRef.name", ".status.state"),
        runcommand.BORN,
    ),
    Definition(
        ResourceConstraint,
        "resourceconstraints",
        "rcon",
        (
            Column("Ready", _READY.path, description="Whether it is enforced."),
            _REASON,
            Column("Weight", ".spec.weight", "integer", "Share of the namespace."),
            Column("Sandboxes", ".status.sandboxes", description="Sandboxes used and allowed."),
            _AGE,
        ),
    ),
)


def manifest(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind. The chart adds the keep policy, which is its user's choice."""
    kind = definition.model.__name__
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [column.rendered() for column in definition.columns],
        "schema": {"openAPIV3Schema": structural(definition.model)},
    }
    if definition.born is not None:
        version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"] = definition.born.wire()
    if definition.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in definition.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": definition.name, "labels": {"app.kubernetes.io/part-of": "moorage"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": definition.plural,
                "singular": kind.lower(),
                "shortNames": [definition.short],
                "categories": ["moorage"],
            },
            "versions": [version],
        },
    }


def rendered() -> dict[str, str]:
    """File names and texts of all definitions."""
    return {d.file: _HEADER + yaml.safe_dump(manifest(d), width=120, allow_unicode=True) for d in DEFINITIONS}


def drift(folder: Path) -> list[str]:
    """Names of the files in `folder` that aren't what would be written, and of those that nothing writes."""
    wanted = rendered()
    found = {path.name: path.read_text() for path in folder.glob("*.yaml")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write(folder: Path) -> None:
    """Write all definitions into `folder` and remove what nothing writes any more."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = rendered()
    for path in folder.glob("*.yaml"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with `--check` return 1 and name those that have drifted from the models."""
    parser = argparse.ArgumentParser(prog="python -m moorage.api.crd", description=__doc__)
    parser.add_argument("--out", action="append", type=Path, help=f"folder, may be repeated (default: {FOLDERS})")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file has drifted")
    options = parser.parse_args(arguments)
    folders: list[Path] = options.out or [Path(folder) for folder in FOLDERS]
    if not options.check:
        for folder in folders:
            write(folder)
        return 0
    drifted = [str(folder / name) for folder in folders for name in drift(folder)]
    for path in drifted:
        sys.stderr.write(f"{path} has drifted from the models: run `make crds`\n")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
