"""The manifest of a local run: one AgentRun and the objects beside it, checked before anything starts."""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.api.agentrun import AgentRun
from moorage.api.parse import InvalidSpec, parse_agent_run
from moorage.api.wire import SecretRef
from moorage.app.documents import Refused, read_documents
from moorage.cli.ports import STDIN, ManifestRefused, RunRefused
from moorage.drivers.registry import known
from moorage.gateway.ports import Secret, SecretMissing

TENANT = "local"
_ASKED = ("--is-bare-repository", "--show-object-format", "--absolute-git-dir")
PATH = "spec.workspace.local.path"
KINDS = ("AgentRun", "Workspace", "Agent", "ModelProvider", "ConfigMap", "Secret")

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Manifest:
    """A manifest that can be run here: `run` as written, with absolute paths; `parsed` the same as its model."""

    path: Path
    run: Document
    parsed: AgentRun
    others: Sequence[Document]
    secrets: ManifestSecrets


def read_manifest(path: Path) -> Manifest:
    """The one AgentRun of a file and the objects beside it. Raises ManifestRefused with what to change, RunRefused
    where this machine lacks git.
    """
    documents = _documents(path)
    runs = [each for each in documents if each["kind"] == "AgentRun"]
    if len(runs) != 1:
        raise ManifestRefused(f"it holds {len(runs)} AgentRuns; give exactly one")
    run, others = _located(runs[0], path.absolute().parent), [each for each in documents if each is not runs[0]]
    named = {**run, "metadata": {**run["metadata"], "namespace": TENANT}}
    parsed = parse_agent_run(named, "local", "refuse")
    if isinstance(parsed, InvalidSpec):
        raise ManifestRefused(parsed.message)
    _check_agent(parsed)
    return Manifest(path if path == STDIN else path.absolute(), run, parsed, others, ManifestSecrets(others))


def _documents(path: Path) -> list[Document]:
    try:
        found = read_documents(sys.stdin.read() if path == STDIN else path.read_text())
    except (Refused, UnicodeDecodeError, OSError) as error:
        raise ManifestRefused(f"it can't be read as YAML: {error}") from error
    taken: set[tuple[str, str]] = set()
    for number, each in enumerate(found, 1):
        if not isinstance(each, dict) or each.get("kind") not in KINDS:
            raise ManifestRefused(f"document {number}: every document has a kind, one of {', '.join(KINDS)}")
        name = _name(each)
        if name is None:
            raise ManifestRefused(f"document {number} ({each['kind']}): metadata.name is missing")
        if (each["kind"], name) in taken:
            raise ManifestRefused(f"document {number}: there is another {each['kind']} {name} before it")
        taken.add((each["kind"], name))
    return found


def _name(document: Document) -> str | None:
    meta = document.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) and name else None


def _check_agent(run: AgentRun) -> None:
    driver = run.spec.agent.driver if run.spec.agent else None
    if driver is not None and driver not in known():
        raise ManifestRefused(f"spec.agent.driver: {driver} isn't installed; known are: {', '.join(known())}")


# --- paths ------------------------------------------------------------------------------------------------------------


def _located(run: Document, folder: Path) -> Document:
    """The path of a local workspace made absolute: the root of the repository that it lies in, seen from `folder`."""
    spec = run.get("spec")
    source = spec.get("workspace") if isinstance(spec, dict) else None
    local = source.get("local") if isinstance(source, dict) else None
    if not isinstance(local, dict) or not isinstance(local.get("path"), str):
        return run
    path = _repository((folder / Path(local["path"]).expanduser()).resolve())
    workspace = {**run["spec"]["workspace"], "local": {**local, "path": str(path)}}
    return {**run, "spec": {**run["spec"], "workspace": workspace}}


def _repository(path: Path) -> Path:
    if not path.is_dir():
        raise ManifestRefused(f"{PATH}: there is no folder {path}; a relative path counts from the manifest's folder")
    command = ["git", "-c", "safe.directory=*", "-C", str(path), "rev-parse", *_ASKED]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # hooks are told of theirs
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        top = subprocess.run([*command, "--show-toplevel"], capture_output=True, text=True, check=False, env=env)
    except FileNotFoundError:
        raise RunRefused("git was not found", "install git; `moorage doctor` looks at this machine") from None
    if asked.returncode:
        raise ManifestRefused(f"{PATH}: {path} is no git repository; `git init` makes one")
    bare, ids, folder = asked.stdout.rstrip("\n").split("\n", 2)
    if ids != "sha1":
        raise ManifestRefused(f"{PATH}: {path} has {ids} object ids; this version reads repositories with sha1 alone")
    if bare == "true":
        return Path(folder)
    if top.returncode:
        raise ManifestRefused(f"{PATH}: {path} is no working tree, but git's own folder; name the folder that holds it")
    return Path(top.stdout.removeprefix(asked.stdout).rstrip("\n"))


# --- secrets ----------------------------------------------------------------------------------------------------------


class ManifestSecrets:
    """Secrets that the manifest brings, `data` and `stringData` as in a cluster. Raises ManifestRefused."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._held = {each["metadata"]["name"]: _values(each) for each in documents if each["kind"] == "Secret"}

    async def read(self, namespace: str, ref: SecretRef) -> Secret:
        """See gateway.ports.Secrets; all that a manifest holds is in the run's namespace."""
        del namespace
        data = self._held.get(ref.name)
        if data is None or (ref.key and ref.key not in data):
            key = f" with the key {ref.key}" if ref.key else ""
            raise SecretMissing(f"the manifest holds no Secret {ref.name}{key}")
        return Secret({ref.key: data[ref.key]} if ref.key else data)


def _values(secret: Document) -> dict[str, bytes]:
    """All values; where a key is in both maps, `stringData` wins, as in a cluster. No value gets into a message."""
    name = secret["metadata"]["name"]
    decoded = {key: _decoded(name, key, text) for key, text in _texts(secret, "data").items()}
    return decoded | {key: text.encode() for key, text in _texts(secret, "stringData").items()}


def _texts(secret: Document, field: str) -> Mapping[str, str]:
    name, held = secret["metadata"]["name"], secret.get(field)
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise ManifestRefused(f"Secret {name}: {field} maps keys to strings")
    for key, value in held.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ManifestRefused(f"Secret {name}: {field}.{key} is no string: put it in quotes")
    return held


def _decoded(name: str, key: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        why = "is no base64; `base64` makes it, or write the value as it is below stringData"
        raise ManifestRefused(f"Secret {name}: data.{key} {why}") from None
