"""The manifest of a local run: what is wrong with it is said before anything starts, in words that help."""

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorage.api.wire import SecretRef
from moorage.app.manifest import Manifest, read_manifest
from moorage.cli.ports import ManifestRefused, RunRefused
from moorage.gateway.ports import SecretMissing
from moorage.testing.trees import git

RUN: dict[str, Any] = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "AgentRun",
    "metadata": {"name": "tidy"},
    "spec": {
        "workspace": {"local": {"path": "repository"}},
        "goal": "Tidy up.",
        "agent": {"driver": "command", "command": ["true"]},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path / "repository")], check=True)
    (tmp_path / "repository" / "below").mkdir()
    return tmp_path


def read(folder: Path, *documents: Any) -> Manifest:
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return read_manifest(file)


def secret(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "git"}} | fields


def local(path: str) -> dict[str, Any]:
    return {**RUN, "spec": {**RUN["spec"], "workspace": {"local": {"path": path}}}}


@pytest.mark.parametrize("path", ["repository", "./repository", "repository/below"])
def test_a_path_counts_from_the_manifests_folder_wherever_the_shell_is(
    folder: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    found = read(folder, local(path))
    assert found.run["spec"]["workspace"]["local"]["path"] == str(folder / "repository")


async def test_secrets_are_read_as_a_cluster_reads_them(folder: Path) -> None:
    held = secret(data={"password": "c2VjcmV0Cg==", "user": "YWRh"}, stringData={"user": "grace"})
    secrets = read(folder, RUN, held).secrets
    assert (await secrets.read("local", SecretRef(name="git", key="password"))).data == {"password": b"secret\n"}
    assert (await secrets.read("local", SecretRef(name="git", key="user"))).data == {"user": b"grace"}
    with pytest.raises(SecretMissing, match="no Secret git with the key token"):
        await secrets.read("local", SecretRef(name="git", key="token"))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "Secret"}, r"document 2 \(Secret\): metadata.name is missing"),
        ({"kind": "Workspace", "metadata": None}, r"document 2 \(Workspace\): metadata.name is missing"),
        ({"kind": "ConfigMap", "metadata": {"name": 3}}, "metadata.name is missing"),
        ({"kind": "Pod", "metadata": {"name": "p"}}, "document 2: every document has a kind, one of AgentRun"),
        (["a", "list"], "document 2: every document has a kind"),
        (secret(stringData="token=hunter2"), "Secret git: stringData maps keys to strings"),
        (secret(stringData={"pin": 1234}), "Secret git: stringData.pin is no string: put it in quotes"),
        (secret(data=["x"]), "Secret git: data maps keys to strings"),
        (secret(data={"token": "hunter2!"}), "Secret git: data.token is no base64"),
        ({**RUN, "metadata": {"name": "other"}}, "it holds 2 AgentRuns"),
    ],
)
def test_a_malformed_document_is_refused_with_what_to_change(folder: Path, document: Any, message: str) -> None:
    with pytest.raises(ManifestRefused, match=message) as refused:
        read(folder, RUN, document)
    assert "hunter2" not in str(refused.value)


def test_one_name_means_one_object(folder: Path) -> None:
    with pytest.raises(ManifestRefused, match="document 3: there is another Secret git"):
        read(folder, RUN, secret(), secret())


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere", "a relative path counts from the manifest's folder"), (".", "is no git repository")],
)
def test_a_path_that_leads_nowhere_says_what_it_was_seen_from(folder: Path, path: str, message: str) -> None:
    with pytest.raises(ManifestRefused, match=message):
        read(folder, local(path))


@pytest.mark.parametrize("path", ["repository/.git", "repository/.git/objects"])
def test_gits_own_folder_is_refused_with_what_to_name(folder: Path, path: str) -> None:
    with pytest.raises(ManifestRefused, match="name the folder that holds it"):
        read(folder, local(path))


def test_a_repository_of_another_object_format_is_refused_by_name(folder: Path) -> None:
    git(folder, "init", "-q", "--object-format=sha256", "strange")
    with pytest.raises(ManifestRefused, match="strange has sha256 object ids"):
        read(folder, local("strange"))


def test_an_agent_run_without_metadata_or_driver_is_refused(folder: Path) -> None:
    with pytest.raises(ManifestRefused, match="name is missing"):
        read(folder, {**RUN, "metadata": None})
    with pytest.raises(ManifestRefused, match="isn't installed"):
        read(folder, {**RUN, "spec": {**RUN["spec"], "agent": {"driver": "nothing"}}})


def test_a_path_of_a_manifest_from_standard_input_counts_from_the_shells_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(RUN)))
    found = read_manifest(Path("-"))
    assert found.path == Path("-")
    assert found.run["spec"]["workspace"]["local"]["path"] == str(folder / "repository")


def test_a_machine_without_git_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(RunRefused, match="git was not found"):
        read(folder, RUN)


def test_a_key_that_is_there_twice_is_refused_by_name(folder: Path) -> None:
    file = folder / "run.yaml"
    file.write_text("kind: AgentRun\nmetadata:\n  name: a\n  name: b\n")
    with pytest.raises(ManifestRefused, match="line 4: name is there a second time, after line 3"):
        read_manifest(file)
