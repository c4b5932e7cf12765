"""W5: pull requests at the forges that have an API for them. What is asked and what is answered; all of it pure.

The three differ in names alone. A pull request is known by its head branch, which a run has for itself, so that the
forge can be asked whether there is one: that is the whole of E4 for this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

KIND = "pull_request"
PAGE = 50
PAGES = 2  # of a forge that can't be asked by the branch: the newest come first
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    """A pull request as it is to be. `project`: path of the repository, below the forge's own address."""

    project: str
    head: str
    base: str
    title: str = ""
    body: str = ""
    draft: bool = False


@dataclass(frozen=True)
class Pull:
    """One that is there. `url` is for people; `commit` is its head, empty where the forge doesn't tell."""

    url: str
    base: str
    open: bool
    commit: str = ""


@dataclass(frozen=True)
class Forge:
    """One kind of API, below its address.

    api: path of the API where the forge stands at the root of its host. project: path of a repository. listing: path
    and query of a page (from 1) of the pull requests that may be of a head branch, the newest first; `pages` of them.
    making: path and body that make one. pull: an entry of either answer; None where it isn't of that head branch.
    """

    api: str
    credential: Callable[[str], dict[str, str]]
    project: Callable[[str], str]
    listing: Callable[[str, str, int], str]
    making: Callable[[Wanted], tuple[str, Json]]
    pull: Callable[[Json, str, str], Pull | None]
    pages: int = 1


def project_of(remote: str, api: str, path: str) -> str:
    """The repository's path at its forge, from its git address; `path` is the API's usual one, so that what stands
    before that is where the forge lives.
    """
    below = urlsplit(api).path.rstrip("/").removesuffix(path).rstrip("/")
    project = urlsplit(remote).path
    if below and project.startswith(f"{below}/"):
        project = project[len(below) :]
    return project.strip("/").removesuffix(".git")


def default_api(kind: str, remote: str) -> str:
    """Where the API of a remote's forge is, where nobody says."""
    parts = urlsplit(remote)
    if kind == "github" and parts.hostname == "github.com":
        return "https://api.github.com"
    return f"{parts.scheme}://{parts.netloc}{FORGES[kind].api}"


def _words(told: Json, *names: str) -> str:
    """The text at the end of a path of objects; empty where there is none."""
    value: Any = told
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def _of(told: Json, project: str, head: str) -> bool:
    """By the names that GitHub and Gitea share. A fork's branch may have the same name; of a branch that is gone, as
    after a merge, Gitea has the name in the label alone.
    """
    whose, branch = _words(told, "head", "repo", "full_name") or project, _words(told, "head", "ref")
    if branch.startswith("refs/pull/"):
        branch = _words(told, "head", "label")
    return branch == head and whose.casefold() == project.casefold()


def _shared_pull(told: Json, project: str, head: str) -> Pull | None:
    if not _of(told, project, head):
        return None
    is_open, commit = _words(told, "state") == "open", _words(told, "head", "sha")
    return Pull(_words(told, "html_url"), _words(told, "base", "ref"), is_open, commit)


def _repository(project: str) -> str:
    return f"/repos/{quote(project)}"


def _github_listing(project: str, head: str, page: int) -> str:
    owner = project.partition("/")[0]
    asked = {"state": "all", "head": f"{owner}:{head}", "sort": "created", "direction": "desc", "page": page}
    return f"{_repository(project)}/pulls?{urlencode({**asked, 'per_page': PAGE})}"


def _github_making(wanted: Wanted) -> tuple[str, Json]:
    body = {"title": wanted.title, "body": wanted.body, "head": wanted.head, "base": wanted.base, "draft": wanted.draft}
    return f"{_repository(wanted.project)}/pulls", body


def _gitea_listing(project: str, _: str, page: int) -> str:
    asked = {"state": "all", "page": page, "limit": PAGE}  # of its orders, only the one without a name is by creation
    return f"{_repository(project)}/pulls?{urlencode(asked)}"


def _gitea_making(wanted: Wanted) -> tuple[str, Json]:
    title = f"WIP: {wanted.title}" if wanted.draft else wanted.title
    body = {"title": title, "body": wanted.body, "head": wanted.head, "base": wanted.base}
    return f"{_repository(wanted.project)}/pulls", body


def _gitlab_project(project: str) -> str:
    return f"/projects/{quote(project, safe='')}"


def _gitlab_listing(project: str, head: str, page: int) -> str:
    asked = {"state": "all", "source_branch": head, "order_by": "created_at", "page": page, "per_page": PAGE}
    return f"{_gitlab_project(project)}/merge_requests?{urlencode(asked)}"


def _gitlab_making(wanted: Wanted) -> tuple[str, Json]:
    title = f"Draft: {wanted.title}" if wanted.draft else wanted.title
    body = {"title": title, "description": wanted.body, "source_branch": wanted.head, "target_branch": wanted.base}
    return f"{_gitlab_project(wanted.project)}/merge_requests", body


def _gitlab_pull(told: Json, _: str, head: str) -> Pull | None:
    if _words(told, "source_branch") != head or told.get("source_project_id") != told.get("target_project_id"):
        return None
    is_open, commit = _words(told, "state") == "opened", _words(told, "sha")
    return Pull(_words(told, "web_url"), _words(told, "target_branch"), is_open, commit)


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


FORGES: Mapping[str, Forge] = MappingProxyType(
    {
        "github": Forge("/api/v3", _bearer, _repository, _github_listing, _github_making, _shared_pull),
        "gitea": Forge(
            "/api/v1",
            lambda token: {"authorization": f"token {token}"},
            _repository,
            _gitea_listing,
            _gitea_making,
            _shared_pull,
            PAGES,
        ),
        "gitlab": Forge("/api/v4", _bearer, _gitlab_project, _gitlab_listing, _gitlab_making, _gitlab_pull),
    }
)
"""By the name that a Workspace gives its remote's API."""
