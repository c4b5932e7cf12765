"""W5: a whole run on this machine whose result gets a pull request, from its manifest to its printed result."""

import asyncio
from typing import Any

import pytest
import yaml
from tests.contract.local_machine import BRANCH, Machine
from tests.gateway_script import PASSWORD

from moorage.testing.forge import StandInForge
from moorage.testing.gitea import GiteaForge, GiteaServer
from moorage.testing.gitserver import GitServer

TOKEN = "forge-token-of-a-manifest"


def asking(machine: Machine, url: str, token: str, api: dict[str, Any], **pull: Any) -> None:
    """A manifest with its Secrets."""
    api = {**api, "credentialsSecretRef": {"name": "forge"}}
    remote = {"url": url, "ref": "main", "credentialsSecretRef": {"name": "git"}, "api": api}
    machine.write(workspace={"remoteGit": remote}, delivery={"branch": BRANCH, "pullRequest": pull})
    secrets = {"git": {"username": "ada", "password": PASSWORD}, "forge": {"token": token}}
    documents = [yaml.safe_load(machine.manifest.read_text())]
    for name, data in secrets.items():
        head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        documents.append(head | {"stringData": data})
    machine.manifest.write_text(yaml.safe_dump_all(documents))


@pytest.mark.rule("W5", "T2")
async def test_a_run_ends_with_the_pull_request_that_was_asked_for(machine: Machine, gitea_server: GiteaServer) -> None:
    forge = await asyncio.to_thread(GiteaForge, gitea_server)
    asking(machine, forge.remote, forge.token, {"kind": "gitea"}, title="Count", draft=True)
    code, result, err = await asyncio.to_thread(machine.run)
    assert (code, result["phase"]) == (0, "Succeeded"), err
    (pull,) = await forge.made()
    assert (pull.head, pull.base, pull.title, pull.draft) == (BRANCH, "main", "WIP: Count", True)
    assert result["result"]["pullRequest"] == f"{gitea_server.url}/{forge.project}/pulls/{pull.number}"
    assert "make a pull request" in machine.timeline()
    assert forge.token not in f"{result}{err}{machine.timeline()}"


async def test_a_forge_that_refuses_fails_the_run_whose_branch_is_there(machine: Machine, upstream: GitServer) -> None:
    forge = StandInForge("gitlab", upstream.root / "shop.git", "another token", project="shop")
    async with forge.serving() as api:
        asking(machine, upstream.url("shop.git"), TOKEN, {"kind": "gitlab", "url": api})
        code, result, _ = await asyncio.to_thread(machine.run)
    assert (code != 0, result["phase"], result["reason"]) == (True, "Failed", "PullRequestRejected")
    assert "401: Bad credentials. The branch is pushed" in result["message"]
    assert [u.ref for u in upstream.updates if u.ref != "refs/heads/main"] == [f"refs/heads/{BRANCH}"]
