"""Where runs are tortured: a small job of our own with every door in it, and a copy of a user's own."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from moorage.testing.authority import Authority
from moorage.testing.gitserver import GitServer
from moorage.testing.judge import Outside, in_postgres, on_disk
from moorage.testing.killpoints import DSN
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.models.script import Usage
from moorage.testing.owner import HOSTS
from moorage.testing.postgres import PostgresServer
from moorage.testing.torture import Bench
from moorage.testing.trees import ENV, git

BRANCH = "moorage/steps"
STEPS = 3
KEYED, PLAIN = "keyed.example.com", "plain.example.com"
ORDER = f"""
import http.client, os, sys, time
_, _, proxy = os.environ["http_proxy"].rpartition("/")
def ask(host):
    door = http.client.HTTPConnection(proxy, timeout=600)
    door.request("POST", f"http://{{host}}/orders/{{sys.argv[1]}}", f"{{host}}/orders/{{sys.argv[1]}}")
    answer = door.getresponse()
    return answer, answer.read().decode()
for host in ("{KEYED}", "{PLAIN}"):
    answer, said = ask(host)
    while answer.status == 502:
        time.sleep(0.1)
        answer, said = ask(host)
    if answer.status != 201 and not (host == "{PLAIN}" and "EffectUnknown" in said):
        sys.exit(f"{{host}}: {{answer.status}} {{said}}")
"""
"""Orders something of each host, once, and again where nothing was sent; that nobody knows whether it was ordered is an
answer where no key protects.
"""
STEP = f"""
n=$(ls [0-9].txt 2>/dev/null | wc -l)
test $n -lt {STEPS} || exit 0
n=$((n + 1))
{sys.executable} -SE - $n <<'END' || exit 1
{ORDER}
END
echo $n > $n.txt; echo $n >> all
"""
"""One step more, whatever was done before; past the last one nothing."""
MODEL = {"providerRef": {"name": "models"}, "name": "stand-in"}
BUILTIN = {"driver": "builtin", "model": MODEL}
STREAM = f"""
import http.client, json, os, pathlib, time, urllib.request

left = pathlib.Path(os.environ["MOORAGE_REMAINING_FILE"])
for n in range(1, {STEPS} + 1):
    step = pathlib.Path(f"{{n}}.txt")
    if step.exists():
        continue
    messages = [{{"role": "user", "content": f"{{n}}"}}]
    asked = {{"model": "stand-in", "max_tokens": 100, "stream": True, "messages": messages}}
    headers = {{"content-type": "application/json", "x-api-key": os.environ["ANTHROPIC_API_KEY"]}}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    said = b""
    while b"message_stop" not in said:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), headers)) as answer:
                said = answer.read()
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
    step.write_text(f"{{n}}\\n")
    with open("all", "a") as every:
        every.write(f"{{n}}\\n")
    before = left.read_text()
    print(json.dumps({{"moorage": {{"event": "iteration"}}}}), flush=True)
    while left.read_text() == before:
        time.sleep(0.02)
"""
"""Takes the same steps, each with a model's answer that streams, asked for until it is whole; those that stand in the
tree are left out.
"""
STREAMING = {"driver": "command", "command": [sys.executable, "-c", STREAM], "model": MODEL}
MOST_ATTEMPTS = 100  # R6 would end a run that is killed as often as these are
USER, PASSWORD, MODEL_KEY = "ada", "s3cret-of-ada", "sk-stand-in"


def script() -> Script:
    """A model that takes all the steps and says so."""
    usage = Usage(input_tokens=100, output_tokens=10)
    step = Reply(text="One more.", tools=(ToolCall(name="bash", input={"command": STEP}),), usage=usage)
    return Script(replies=(*[step] * STEPS, Reply(text="All done.", usage=usage)))


@contextlib.asynccontextmanager
async def small_on(server: PostgresServer, folder: Path, name: str) -> AsyncIterator[Bench]:
    """The same with its journal in a schema of its own on that server."""
    with server.schema() as dsn:
        async with small(folder, name) as bench:
            yield replace(bench, env={**bench.env, DSN: dsn}, store=functools.partial(in_postgres, dsn))


@contextlib.asynccontextmanager
async def small(folder: Path, name: str, agent: Mapping[str, Any] = BUILTIN) -> AsyncIterator[Bench]:
    """A run of three steps over a stand-in model, from and to a git server, with orders from two hosts at each step.

    Git server and hosts are one's own, and count what they get.

    Its sandboxes are ordinary processes, so that points in the runner can be reached, too.
    """
    root = folder / name
    root.mkdir(parents=True)
    with GitServer(root / "srv", USER, PASSWORD) as remote:
        _seed(remote, root)
        async with StandIn(script()).serving() as model, Authority().listening() as authority:
            manifest = root / "run.yaml"
            documents = _documents(remote.url("shop.git"), model.url, authority.port, agent)
            manifest.write_text(yaml.safe_dump_all(documents))
            store, outside = functools.partial(on_disk, root / "state"), functools.partial(_outside, remote, authority)
            yield Bench(root, manifest, _environment(root), outside, store)
    shutil.rmtree(root)


def _outside(remote: GitServer, authority: Authority) -> Outside:
    pushes = [each.new for each in remote.updates if each.ref == f"refs/heads/{BRANCH}"]
    ordered = [body.decode().partition("/") for body in authority.committed]
    return Outside(pushes, [f"http://{host}:{authority.port}/{path} by POST" for host, _, path in ordered])


def _seed(remote: GitServer, root: Path) -> None:
    remote.root.mkdir()
    bare = remote.create("shop.git")
    work = root / "seed"
    git(root, "clone", "-q", str(bare), str(work))
    git(work, "checkout", "-q", "-b", "main")
    (work / "README").write_text("steps\n")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "Begin")
    git(work, "push", "-q", "origin", "main")


def _documents(remote: str, model: str, port: int, agent: Mapping[str, Any]) -> list[dict[str, Any]]:
    api = "moorage.dev/v1alpha1"
    host = {"scheme": "http", "port": port}
    spec = {
        "workspace": {"remoteGit": {"url": remote, "credentialsSecretRef": {"name": "git"}}},
        "goal": "Count.",
        "agent": agent,
        "sandbox": {
            "egress": [{"host": KEYED, "effects": "keyed", **host}, {"host": PLAIN, "effects": "opaque", **host}]
        },
        "acceptance": [{"name": "all", "run": f"test $(wc -l < all) = {STEPS}", "timeout": "1m"}],
        "constraints": {"maxIterations": 50},
        "recovery": {"maxAttempts": MOST_ATTEMPTS},
        "delivery": {"branch": BRANCH},
    }
    provider = {
        "protocol": "anthropic-messages",
        "baseURL": model,
        "credentialsSecretRef": {"name": "model", "key": "key"},
    }
    return [
        _secret("git", username=USER, password=PASSWORD),
        _secret("model", key=MODEL_KEY),
        {"apiVersion": api, "kind": "ModelProvider", "metadata": {"name": "models"}, "spec": provider},
        {"apiVersion": api, "kind": "AgentRun", "metadata": {"name": "steps"}, "spec": spec},
    ]


def _secret(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}


def _environment(root: Path) -> Mapping[str, str]:
    """A user's, without bubblewrap."""
    programs, temporary = root / "programs", root / "tmp"
    programs.mkdir()
    temporary.mkdir()
    (programs / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (programs / "bwrap").chmod(0o755)
    path = f"{programs}:{ENV['PATH']}"
    hosts = f"{KEYED}=127.0.0.1 {PLAIN}=127.0.0.1"
    return {"PATH": path, "HOME": str(root), "LANG": "C.UTF-8", "TMPDIR": str(temporary), HOSTS: hosts}


# --- a user's own -----------------------------------------------------------------------------------------------------


class NotTorturable(ValueError):
    """A manifest whose run can't be repeated without being noticed outside; says what to change."""


@contextlib.asynccontextmanager
async def copied(manifest: Path, name: str) -> AsyncIterator[Bench]:
    """A user's manifest over a clone of its local repository: theirs is read and never written."""
    with tempfile.TemporaryDirectory(prefix=f"moorage-{name}-") as folder:
        yield _copy(manifest, Path(folder))


def _copy(manifest: Path, root: Path) -> Bench:
    documents = [each for each in yaml.safe_load_all(manifest.read_text()) if each is not None]
    run = next((each for each in documents if each.get("kind") == "AgentRun"), dict[str, Any]())
    spec = run.get("spec") or {}
    local = ((spec.get("workspace") or {}).get("local") or {}).get("path")
    branch = (spec.get("delivery") or {}).get("branch")
    if not local or not branch:
        why = "only runs on a local repository that name their branch are tortured, on a clone of it"
        raise NotTorturable(f"spec.workspace.local, spec.delivery.branch: {why}")
    source, clone = (manifest.absolute().parent / Path(local).expanduser()).resolve(), root / "repository"
    _git("clone", "--quiet", "--no-hardlinks", str(source), str(clone))
    _git("-C", str(clone), "config", "core.logAllRefUpdates", "always")
    spec["workspace"]["local"]["path"] = str(clone)
    spec["recovery"] = {**(spec.get("recovery") or {}), "maxAttempts": MOST_ATTEMPTS}
    copy = root / "run.yaml"
    copy.write_text(yaml.safe_dump_all(documents))
    (root / "tmp").mkdir()
    env = os.environ | {"TMPDIR": str(root / "tmp")}  # so that what is left there can be told from everybody's else
    return Bench(root, copy, env, lambda: Outside(_moves(clone, branch)), functools.partial(on_disk, root / "state"))


def _moves(clone: Path, branch: str) -> Sequence[str]:
    log = clone / ".git" / "logs" / "refs" / "heads" / branch
    return [line.split()[1] for line in log.read_text().splitlines()] if log.is_file() else []


def _git(*args: str) -> None:
    done = subprocess.run(["git", *args], capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode:
        raise NotTorturable(f"git {args[0]}: {done.stderr.strip()}")
