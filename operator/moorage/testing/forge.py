"""Forges as tests have them: a stand-in for the pull requests of GitHub, GitLab and Gitea, and what befalls requests.

The stand-in is none of the three: names, shapes and statuses are those that their documentation tells, for exactly what
Moorage asks of them. As Gitea it is held against a real one (moorage.testing.gitea) by the same tests. It looks at a
real bare repository for the branches that a pull request is between.

    forge = StandInForge("gitea", repository=bare, token="t")
    async with forge.serving() as url:
        forge.faults = ["lost"]                 # the next request is done, and its answer never comes
        …
        assert [pull.title for pull in await forge.made()] == ["Mend it"]
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moorage.core.effects.pulls import FORGES
from moorage.testing.serving import listening
from moorage.testing.trees import git

Kind = Literal["github", "gitlab", "gitea"]
Ended = Literal["merged", "closed"]
Fault = Literal["lost", "late", "busy", "down", "refused"]
"""What befalls a request that makes one: done and never answered; answered with 502 though done; 429; 503; 403."""
STATUSES: Mapping[str, int] = {"late": 502, "busy": 429, "down": 503, "refused": 403}
DONE = frozenset({"lost", "late"})
DRAFTS: Mapping[str, tuple[str, ...]] = {"gitlab": ("draft:", "[draft]", "(draft)"), "gitea": ("wip:", "[wip]")}
"""How the title of a draft begins, small or large, where no field says so."""


@dataclass
class Made:
    """A pull request, as its forge tells of it. `state`: open, closed or merged. `commit` is its head."""

    number: int
    head: str
    base: str
    title: str
    body: str
    draft: bool
    state: str = "open"
    commit: str = ""

    @property
    def is_open(self) -> bool:
        """Nobody has closed or merged it."""
        return self.state == "open"


class _Cut(Response):
    """An answer that breaks off."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's
        """Promise more than comes."""
        headers = [(b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": False})


class ForgeAtHand(abc.ABC):
    """One repository `project` at a forge of that kind, with what a person does there, and the way that requests come.

    `faults` befall the next requests that make a pull request, one after the other; `asked` are all requests, as method
    and path. `says`: more words of the refusals among the faults. `between` is done once, as the next request that
    makes one comes in. `remote`: the repository's git address, where it has one of its own.
    """

    def __init__(
        self, kind: Kind, token: str, project: str, *, faults: Sequence[Fault] = (), says: str = "", remote: str = ""
    ) -> None:
        self.kind, self.token, self.project, self.remote = kind, token, project, remote
        self.faults, self.says = list(faults), says
        self.between: Callable[[], Awaitable[object]] | None = None
        self.asked: list[str] = []
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The API's address."""
        route = Route("/{path:path}", self._serve, methods=["GET", "POST"])
        async with listening(Starlette(routes=[route])) as root:
            self.url = f"{root}{FORGES[self.kind].api}"
            yield self.url

    async def _serve(self, request: Request) -> Response:
        path = unquote(request.url.path).removeprefix(FORGES[self.kind].api)
        self.asked.append(f"{request.method} {path}")
        return await (self._answer(request, path) if request.method == "GET" else self._make(request, path))

    async def _make(self, request: Request, path: str) -> Response:
        between, self.between = self.between, None
        if between is not None:
            await between()
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault not in DONE:
            return self._refused(fault)
        answer = await self._answer(request, path)
        if fault == "lost":
            return _Cut()
        return self._refused(fault) if fault else answer

    def _refused(self, fault: Fault) -> Response:
        return JSONResponse({"message": f"{fault} {self.says}".strip()}, STATUSES[fault])

    @abc.abstractmethod
    async def _answer(self, request: Request, path: str) -> Response:
        """What the forge itself says; `path` is that below its API."""

    # --- people's ways, past all faults -------------------------------------------------------------------------------

    @abc.abstractmethod
    async def made(self) -> list[Made]:
        """All pull requests, the oldest first."""

    @abc.abstractmethod
    async def open_by_hand(self, head: str, base: str, title: str) -> int:
        """Ask for one; the status of the answer."""

    @abc.abstractmethod
    async def end(self, number: int, how: Ended, *, gone: bool = False) -> None:
        """Merge it, or close it. `gone`: delete its branch, too."""

    @abc.abstractmethod
    async def branch(self, name: str, base: str) -> None:
        """Push a branch with a commit of its own."""

    @abc.abstractmethod
    async def choose_default(self, branch: str) -> None:
        """Make that branch, which is there, the default one."""


class StandInForge(ForgeAtHand):
    """A stand-in; `repository` is the bare one whose branches it has, `default` its default branch."""

    def __init__(
        self,
        kind: Kind,
        repository: Path,
        token: str,
        *,
        project: str = "team/shop",
        faults: Sequence[Fault] = (),
        says: str = "",
        remote: str = "",
    ) -> None:
        super().__init__(kind, token, project, faults=faults, says=says, remote=remote)
        self.repository = repository
        self.pulls: list[Made] = []
        self.default = "main"

    async def _answer(self, request: Request, path: str) -> Response:
        if request.headers.get("authorization") != FORGES[self.kind].credential(self.token)["authorization"]:
            return JSONResponse({"message": "Bad credentials"}, 401)
        project = f"/projects/{self.project}" if self.kind == "gitlab" else f"/repos/{self.project}"
        pulls = f"{project}/{'merge_requests' if self.kind == 'gitlab' else 'pulls'}"
        if path == project:
            return JSONResponse({"default_branch": self.default})
        if path != pulls:
            return JSONResponse({"message": "Not Found"}, 404)
        return self._list(request) if request.method == "GET" else self._made(await request.json())

    # --- looking ------------------------------------------------------------------------------------------------------

    def _list(self, request: Request) -> Response:
        query = request.query_params
        found = [pull for pull in reversed(self.pulls) if self._fits(pull, query)]
        size = int(query.get("per_page") or query.get("limit") or 30)
        first = (int(query.get("page", "1")) - 1) * size
        return JSONResponse([self._told(pull) for pull in found[first : first + size]])

    def _fits(self, pull: Made, query: Mapping[str, str]) -> bool:
        """By the filters that this kind has."""
        owner = self.project.partition("/")[0]
        head = {"github": f"{owner}:{pull.head}", "gitlab": pull.head}.get(self.kind)
        asked = query.get("head" if self.kind == "github" else "source_branch")
        state = query.get("state", "open")
        return (asked is None or asked == head) and (state == "all" or (state in {"open", "opened"}) == pull.is_open)

    # --- making -------------------------------------------------------------------------------------------------------

    def _made(self, asked: Mapping[str, Any]) -> Response:
        lab = self.kind == "gitlab"
        head, base = asked["source_branch" if lab else "head"], asked["target_branch" if lab else "base"]
        if not {head, base} <= self._branches():
            if self.kind == "gitea":
                return JSONResponse({"message": "not found", "errors": None}, 404)
            return JSONResponse({"message": "Validation Failed", "errors": [{"field": "head", "code": "invalid"}]}, 422)
        if any(pull.is_open and (pull.head, pull.base) == (head, base) for pull in self.pulls):
            return JSONResponse({"message": "already exists"}, 422 if self.kind == "github" else 409)
        title, body = asked["title"], asked.get("description" if lab else "body") or ""
        draft = asked.get("draft") is True if self.kind == "github" else title.lower().startswith(DRAFTS[self.kind])
        pull = Made(len(self.pulls) + 1, head, base, title, body, draft)
        pull.commit = git(self.repository, "rev-parse", f"refs/heads/{head}").strip()
        self.pulls.append(pull)
        return JSONResponse(self._told(pull), 201)

    def _branches(self) -> set[str]:
        return set(git(self.repository, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    # --- telling ------------------------------------------------------------------------------------------------------

    def _told(self, pull: Made) -> dict[str, Any]:
        return self._lab(pull) if self.kind == "gitlab" else self._hub(pull)

    def _hub(self, pull: Made) -> dict[str, Any]:
        repository = {"full_name": self.project}
        return {
            "number": pull.number,
            "html_url": f"https://forge.example/{self.project}/pulls/{pull.number}",
            "state": "open" if pull.is_open else "closed",
            "title": pull.title,
            "draft": pull.draft,
            "head": {"ref": self._ref(pull), "sha": pull.commit, "label": pull.head, "repo": repository},
            "base": {"ref": pull.base, "repo": repository},
        }

    def _ref(self, pull: Made) -> str:
        gone = self.kind == "gitea" and pull.head not in self._branches()
        return f"refs/pull/{pull.number}/head" if gone else pull.head

    def _lab(self, pull: Made) -> dict[str, Any]:
        return {
            "iid": pull.number,
            "web_url": f"https://forge.example/{self.project}/-/merge_requests/{pull.number}",
            "state": "opened" if pull.is_open else pull.state,
            "title": pull.title,
            "draft": pull.draft,
            "sha": pull.commit,
            "source_branch": pull.head,
            "target_branch": pull.base,
            "source_project_id": 1,
            "target_project_id": 1,
        }

    # --- people's ways ------------------------------------------------------------------------------------------------

    async def made(self) -> list[Made]:
        """As the parent's."""
        return list(self.pulls)

    async def open_by_hand(self, head: str, base: str, title: str) -> int:
        """As the parent's."""
        lab = self.kind == "gitlab"
        asked = {"source_branch" if lab else "head": head, "target_branch" if lab else "base": base, "title": title}
        return self._made(asked).status_code

    async def end(self, number: int, how: Ended, *, gone: bool = False) -> None:
        """As the parent's; nothing comes into the base, since nobody looks there."""
        pull = self.pulls[number - 1]
        pull.state = how
        if gone:
            await asyncio.to_thread(git, self.repository, "update-ref", "-d", f"refs/heads/{pull.head}")

    async def branch(self, name: str, base: str) -> None:
        """As the parent's."""
        said = ("commit-tree", f"{base}^{{tree}}", "-p", base, "-m", name)
        commit = await asyncio.to_thread(git, self.repository, *said)
        await asyncio.to_thread(git, self.repository, "update-ref", f"refs/heads/{name}", commit.strip())

    async def choose_default(self, branch: str) -> None:
        """As the parent's."""
        self.default = branch
