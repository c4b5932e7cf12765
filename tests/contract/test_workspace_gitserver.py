"""The git server that tests and demos push to."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import moorage
from moorage.testing.gitserver import GitServer
from moorage.testing.trees import ENV, git


@pytest.fixture
def server(tmp_path):
    (tmp_path / "srv").mkdir()
    with GitServer(tmp_path / "srv", "ada", "pass word") as running:
        running.create("demo.git")
        yield running


@pytest.fixture
def work(tmp_path, server):
    git(tmp_path, "init", "-q", "-b", "main", "work")
    git(tmp_path / "work", "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path / "work", "remote", "add", "origin", server.url("demo.git").replace("//", "//ada:pass%20word@"))
    return tmp_path / "work"


def test_every_request_and_ref_update_is_logged(server, work):
    git(work, "push", "-q", "origin", "main")
    head = git(work, "rev-parse", "HEAD")
    (update,) = server.updates
    assert (update.repository, update.ref, update.old, update.new) == ("demo.git", "refs/heads/main", "", head)
    asked = [(r.method, r.service, r.user, r.status) for r in server.requests]
    assert asked[0] == ("GET", "git-receive-pack", None, 401)
    assert asked[-1] == ("POST", "git-receive-pack", "ada", 200)
    git(work, "push", "-q", "origin", "main:refs/heads/a")
    git(work, "push", "-q", "origin", ":a", "main:refs/heads/b")
    assert [(u.ref, u.new) for u in server.updates[2:]] == [("refs/heads/a", ""), ("refs/heads/b", head)]


def test_a_wrong_password_gets_nothing(server, work):
    said = git(work, "ls-remote", server.url("demo.git").replace("//", "//ada:wrong@"), check=False)
    assert "Authentication failed" in said
    assert {r.status for r in server.requests} == {401}


def test_faults_are_used_up_one_by_one(server, work):
    server.inject("deny", "git-receive-pack")
    assert "403" in git(work, "push", "origin", "main", check=False)
    server.inject("error")
    assert "500" in git(work, "ls-remote", "origin", check=False)
    assert server.updates == []
    server.inject("drop", "git-receive-pack", times=2)
    git(work, "push", "origin", "main", check=False)
    assert [u.ref for u in server.updates] == ["refs/heads/main"]
    assert "refs/heads/main" in git(work, "ls-remote", "origin")


async def test_it_runs_as_a_program_with_faults_over_http(tmp_path, work):
    password = tmp_path / "password"
    password.write_text("other\n")
    (tmp_path / "own").mkdir()
    subprocess_env = {**ENV, "PYTHONPATH": str(Path(moorage.__file__).parent.parent)}
    args = ("--root", str(tmp_path / "own"), "--user", "eve", "--password-file", str(password))
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "moorage.testing.gitserver", *args, env=subprocess_env, stdout=subprocess.PIPE
    )
    try:
        url = (await program.stdout.readline()).decode().split()[-1]
        await asyncio.to_thread(git, tmp_path, "init", "-q", "--bare", str(tmp_path / "own/x.git"))
        remote = url.replace("//", "//eve:other@", 1) + "x.git"
        async with httpx.AsyncClient(base_url=url, auth=("eve", "other")) as client:
            answer = await client.post("/.control/faults", json={"kind": "deny", "service": "git-receive-pack"})
            assert answer.status_code == 204
            assert "403" in await asyncio.to_thread(git, work, "push", remote, "main", check=False)
            await asyncio.to_thread(git, work, "push", "-q", remote, "main")
            log = json.loads((await client.get("/.control/log")).content)
            assert [u["ref"] for u in log["updates"]] == ["refs/heads/main"]
            assert (await client.get("/.control/log", auth=("eve", "wrong"))).status_code == 401
    finally:
        program.terminate()
        await program.communicate()
