"""W5: a whole run on this machine whose result gets a pull request, from its manifest to its printed result."""

import asyncio
from typing import Any

import pytest
import yaml
from tests.contract.local_machine import BRANCH, Machine
from tests.gateway_script import PASSWORD

from moorage.testing.forge import StandInForge
from moorage.testing.gitserver import GitServer

TOKEN = "forge-token-of-a-manifest"


def asking(machine: Machine, upstream: GitServer, api: dict[str, Any], **pull: Any) -> None:
    """A manifest with its Secrets."""
    remote = {"url": upstream.url("shop.git"), "ref": "main", "credentialsSecretRef": {"name": "git"}, "api": api}
    machine.write(workspace={"remoteGit": remote}, delivery={"branch": BRANCH, "pullRequest": pull})
    secrets = {"git": {"username": "ada", "password": PASSWORD}, "forge": {"token": TOKEN}}
    documents = [yaml.safe_load(machine.manifest.read_text())]
    for name, data in secrets.items():
        head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        documents.append(head | {"stringData": data})
    machine.manifest.write_text(yaml.safe_dump_all(documents))


@pytest.mark.rule("W5", "T2")
async def test_a_run_ends_with_the_pull_request_that_was_asked_for(machine: Machine, upstream: GitServer) -> None:
    forge = StandInForge("gitea", upstream.root / "shop.git", TOKEN, project="shop")
    async with forge.serving() as api:
        there = {"kind": "gitea", "url": api, "credentialsSecretRef": {"name": "forge"}}
        asking(machine, upstream, there, title="Count", draft=True)
        code, result, err = await asyncio.to_thread(machine.run)
    assert (code, result["phase"]) == (0, "Succeeded"), err
    (pull,) = forge.pulls
    assert (pull.head, pull.base, pull.title, pull.draft) == (BRANCH, "main", "Count", True)
    assert result["result"]["pullRequest"].endswith(f"/{pull.number}")
    assert "make a pull request" in machine.timeline()
    assert TOKEN not in f"{result}{err}{machine.timeline()}"


async def test_a_forge_that_refuses_fails_the_run_whose_branch_is_there(machine: Machine, upstream: GitServer) -> None:
    forge = StandInForge("gitlab", upstream.root / "shop.git", "another token", project="shop")
    async with forge.serving() as api:
        asking(machine, upstream, {"kind": "gitlab", "url": api, "credentialsSecretRef": {"name": "forge"}})
        code, result, _ = await asyncio.to_thread(machine.run)
    assert (code != 0, result["phase"], result["reason"]) == (True, "Failed", "PullRequestRejected")
    assert "401: Bad credentials. The branch is pushed" in result["message"]
    assert [u.ref for u in upstream.updates if u.ref != "refs/heads/main"] == [f"refs/heads/{BRANCH}"]
