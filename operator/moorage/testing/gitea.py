"""A real Gitea of one's own for tests: its server on loopback, with a database in a folder that goes with it.

The program has to be there already (the harness builds it from source), with the folders `options`, `public` and
`templates` of its sources beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx
from starlette.requests import Request
from starlette.responses import Response

from moorage.core.effects.pulls import FORGES
from moorage.testing.forge import Ended, ForgeAtHand, Made
from moorage.testing.trust import trusted

START_S = 60
API = FORGES["gitea"].api
MERGE_S = 20
"""It looks for conflicts on its own time, and merges nothing before it has."""
PASSED_ON = ("authorization", "content-type", "accept")
SCOPE = "write:repository"
"""What a token must be allowed to ask for pull requests."""


class GiteaServer:
    """A server with one user, who owns every repository in it. `url` is its address, once it is entered."""

    def __init__(self, program: Path, user: str, password: str) -> None:
        self._program, self.user, self.password = program, user, password
        self._process: subprocess.Popen[bytes] | None = None
        self._reserved = socket.socket()
        self._serial = 0
        self.folder = Path(tempfile.mkdtemp(prefix="moorage-gitea-"))
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def pid(self) -> int:
        """The server's process."""
        if self._process is None:
            raise RuntimeError("the server isn't running")
        return self._process.pid

    def remove(self) -> None:
        """End it at once, and forget all of it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        self._reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def repository(self) -> str:
        """Make a repository with a first commit on `main`, and return its path."""
        self._serial += 1
        name = f"shop-{self._serial}"
        self.ask("POST", "/user/repos", {"name": name, "auto_init": True, "default_branch": "main"})
        return f"{self.user}/{name}"

    def token(self, scope: str = SCOPE) -> str:
        """Make a token of the user's that is allowed this."""
        self._serial += 1
        asked = {"name": f"token-{self._serial}", "scopes": [scope]}
        return str(self.ask("POST", f"/users/{self.user}/tokens", asked).json()["sha1"])

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """Call its API as the user. Raise httpx.HTTPStatusError."""
        answer = self.answer(method, path, body)
        return answer.raise_for_status()

    def answer(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """As `ask`, whatever it says."""
        return httpx.request(
            method, f"{self.url}{API}{path}", json=body, auth=(self.user, self.password), timeout=START_S
        )

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        # The port is ours by a socket that never listens: the server may bind it beside, and nobody else gets it.
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._config().write_text(_config(self.folder, self._program.parent, port))
        with self._log().open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._command("web")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=self._env(),
            )  # fmt: skip
        self._wait()
        account = ("--username", self.user, "--password", self.password, "--email", f"{self.user}@example.com")
        made = subprocess.run(
            self._command("admin", "user", "create", *account, "--must-change-password=false"),
            capture_output=True, check=False, text=True, cwd=self.folder, env=self._env(),
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"Gitea makes no user: {made.stdout[-2000:]}{made.stderr[-2000:]}")

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}{API}/version", timeout=5).status_code == 200:
                    return
            if self._process is None or self._process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"Gitea doesn't start: {self._log().read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def _command(self, *arguments: str) -> list[str]:
        return [str(self._program), *arguments, "--config", str(self._config()), "--work-path", str(self.folder)]

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder)}

    def _config(self) -> Path:
        return self.folder / "app.ini"

    def _log(self) -> Path:
        return self.folder / "log.txt"


class GiteaForge(ForgeAtHand):
    """A repository of its own at a running Gitea, with a token for it."""

    def __init__(self, server: GiteaServer) -> None:
        project = server.repository()
        super().__init__("gitea", server.token(), project, remote=f"{server.url}/{project}.git")
        self.server = server

    async def _answer(self, request: Request, path: str) -> Response:  # noqa: ARG002  it goes on as it came
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        target = f"{self.server.url}{request.scope['raw_path'].decode()}?{request.url.query}"
        async with httpx.AsyncClient(timeout=START_S, verify=trusted()) as http:
            said = await http.request(request.method, target, headers=headers, content=await request.body())
        return Response(said.content, said.status_code, media_type=said.headers.get("content-type"))

    async def made(self) -> list[Made]:
        """As the parent's."""
        told = (await self._ask("GET", "/pulls?state=all&limit=50")).json()
        return sorted(map(_made, told), key=lambda pull: pull.number)

    async def open_by_hand(self, head: str, base: str, title: str) -> int:
        """As the parent's."""
        asked = {"head": head, "base": base, "title": title}
        path = f"/repos/{self.project}/pulls"
        return (await asyncio.to_thread(self.server.answer, "POST", path, asked)).status_code

    async def end(self, number: int, how: Ended, *, gone: bool = False) -> None:
        """As the parent's."""
        head = (await self._ask("GET", f"/pulls/{number}")).json()["head"]["ref"]
        if how == "closed":
            await self._ask("PATCH", f"/pulls/{number}", {"state": "closed"})
        else:
            await self._merge(number)
        if gone:
            await self._ask("DELETE", f"/branches/{head}")

    async def branch(self, name: str, base: str) -> None:
        """As the parent's."""
        file = {"content": "", "message": name, "branch": base, "new_branch": name}
        await self._ask("POST", f"/contents/{name}.txt", file)

    async def choose_default(self, branch: str) -> None:
        """As the parent's."""
        await self._ask("PATCH", "", {"default_branch": branch})

    async def _merge(self, number: int) -> None:
        until = time.monotonic() + MERGE_S
        path = f"/repos/{self.project}/pulls/{number}/merge"
        while (said := await asyncio.to_thread(self.server.answer, "POST", path, {"Do": "merge"})).is_error:
            if said.status_code != httpx.codes.METHOD_NOT_ALLOWED or time.monotonic() > until:
                raise RuntimeError(f"Gitea merges nothing: {said.status_code} {said.text}")
            await asyncio.sleep(0.1)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        return await asyncio.to_thread(self.server.ask, method, f"/repos/{self.project}{path}", body)


def _made(told: Mapping[str, Any]) -> Made:
    head, base = told["head"], told["base"]
    state = "merged" if told["merged"] else told["state"]
    return Made(
        told["number"], head["label"], base["ref"], told["title"], told["body"], told["draft"], state, head["sha"]
    )


def _config(folder: Path, files: Path, port: int) -> str:
    """Small, and alone on loopback. What a push does to pull requests is done before it is answered: else one that is
    opened right after its branch was deleted and made anew could still be closed for the first.
    """
    user = pwd.getpwuid(os.geteuid()).pw_name
    return f"""\
RUN_MODE = prod
RUN_USER = {user}
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = {str(user == "root").lower()}

[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = http://127.0.0.1:{port}/
STATIC_ROOT_PATH = {files}
DISABLE_SSH = true
OFFLINE_MODE = true

[database]
DB_TYPE = sqlite3
PATH = {folder}/gitea.db

[repository]
ROOT = {folder}/repositories

[security]
INSTALL_LOCK = true
SECRET_KEY = {secrets.token_hex(32)}

[service]
DISABLE_REGISTRATION = true

[indexer]
ISSUE_INDEXER_TYPE = db

[queue.push_update]
TYPE = immediate

[actions]
ENABLED = false

[packages]
ENABLED = false

[cron]
ENABLED = false

[log]
MODE = console
LEVEL = Warn
"""
