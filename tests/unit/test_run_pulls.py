"""W5: when a pull request is asked for, what run and status say of it, and how each kind of forge is spoken to."""

from typing import Any

import pytest
from tests.property.run_world import HEAD, START, T, World, a_spec
from tests.run_plans import proposed, records

from moorage.api.agentrun import PullRequest
from moorage.api.runstatus import AgentRunStatus
from moorage.api.wire import ResolvedPullRequest, ResolvedWorkspace, SecretRef
from moorage.api.workspace import ForgeApi
from moorage.api.workspace import SecretRef as Named
from moorage.core.effects.pulls import FORGES, Pull, Wanted, default_api, project_of
from moorage.core.run import actions as a
from moorage.core.run.merges import branch_of, pull_request
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.status import project
from moorage.gateway.forge import Refused, judged

URL = "https://forge.example/team/shop/pulls/1"
ASKED = ResolvedPullRequest(kind="gitea", api="https://forge.example/api/v1", project="team/shop")


def pushed(*, asked: ResolvedPullRequest | None = ASKED) -> World:
    """A run whose branch is known to be there."""
    delivery = a_spec().delivery
    assert delivery
    world = proposed(acceptance=(), delivery=delivery.model_copy(update={"pull_request": asked}))
    told(world, "push", "git_push", "confirmed")
    return world


def told(world: World, effect: str, kind: str, outcome: str, detail: str = "") -> None:
    """An effect, from its intent to what came of it."""
    intent = {"effect_id": effect, "kind": kind, "key": effect, "target": "there", "level": "queryable"}
    world.gateway.append(f"i:{effect}", T.EFFECT_INTENT, intent, 1, world.now)
    world.gateway.append(f"d:{effect}", T.EFFECT_DISPATCHED, {"effect_id": effect}, 1, world.now)
    receipt = {"effect_id": effect, "outcome": outcome, "detail": detail}
    world.gateway.append(f"r:{effect}", T.EFFECT_RECEIPT, receipt, 1, world.now)


def delivered(world: World) -> tuple[str, str, str | None]:
    """The condition, and the URL in the result."""
    status = project(world.observed(), world.plan(), AgentRunStatus(), START)
    (found,) = (each for each in status.conditions if each.type == "Delivered")
    return found.status, found.reason, status.result.pull_request if status.result else None


@pytest.mark.rule("W5")
def test_a_pushed_branch_is_success_only_where_no_pull_request_is_asked_for() -> None:
    assert records(pushed(asked=None).plan()) == [("RUN_SUCCEEDED", "Completed")]
    world = pushed()
    assert world.plan().actions == (a.Deliver(HEAD),)
    assert delivered(world) == ("False", "PullRequestPending", None)
    told(world, "pull", "pull_request", "confirmed", URL)
    assert records(world.plan()) == [("RUN_SUCCEEDED", "Completed")]
    assert delivered(world) == ("True", "PullRequestOpen", URL)


@pytest.mark.rule("E4")
def test_one_of_unknown_end_is_asked_about_and_one_that_never_left_is_asked_for_again() -> None:
    for outcome, condition in (("unknown", "Unknown"), ("not_dispatched", "False")):
        world = pushed()
        told(world, "pull", "pull_request", outcome)
        assert world.plan().actions == (a.Deliver(HEAD),)
        assert delivered(world) == (condition, "PullRequestPending", None)


def test_a_refused_one_ends_the_run_and_says_that_the_branch_is_there() -> None:
    world = pushed()
    told(world, "pull", "pull_request", "rejected", "PullRequestRejected: the forge refuses it: 403: no right")
    (end,) = (action for action in world.plan().actions if isinstance(action, a.Report))
    assert (end.type, end.payload["reason"]) == ("RUN_FAILED", "PullRequestRejected")
    assert "the forge refuses it: 403: no right. The branch is pushed" in end.payload["message"]
    assert delivered(world) == ("False", "PullRequestRejected", None)


@pytest.mark.rule("B3")
def test_a_forge_that_stays_away_ends_the_run_after_its_time() -> None:
    world = pushed()
    deferred = {"kind": "pull_request", "reason": "ForgeUnreachable", "message": "it can't be reached"}
    world.gateway.append("later", T.EFFECT_DEFERRED, deferred, 1, world.now)
    assert world.plan().reason == "ForgeUnreachable"
    world.now += world.spec.timeouts.delivery_ms
    assert records(world.plan()) == [("RUN_FAILED", "ForgeUnreachable")]


@pytest.mark.rule("S3")
def test_no_success_is_taken_while_a_pull_request_is_not_there() -> None:
    world = pushed()
    told(world, "pull", "pull_request", "unknown")
    with pytest.raises(IllegalMove, match="the pull request at there is unknown"):
        world.gateway.append("end", T.RUN_SUCCEEDED, {"reason": "Completed", "message": ""}, 1, world.now)
    assert world.state.phase is RunPhase.DELIVERING


# --- what is asked, and where -----------------------------------------------------------------------------------------


def space(url: str = "https://git.example/team/shop.git", ref: str | None = None) -> ResolvedWorkspace:
    return ResolvedWorkspace(key="w", kind="remote_git", url=url, ref=ref, credentials=SecretRef(name="git"))


def test_what_nobody_says_follows_from_the_workspace() -> None:
    found = pull_request(PullRequest(), space(ref="main"), ForgeApi(kind="gitlab"))
    assert found == ResolvedPullRequest(
        kind="gitlab",
        api="https://git.example/api/v4",
        project="team/shop",
        base="main",
        credentials=SecretRef(name="git"),
    )
    own = ForgeApi(kind="gitea", url="https://api.example/x/", credentials_secret_ref=Named(name="forge", key="k"))
    found = pull_request(PullRequest(base="next"), space(ref="main"), own)
    assert found is not None
    assert (found.api, found.base, found.credentials) == (
        "https://api.example/x",
        "next",
        SecretRef(name="forge", key="k"),
    )
    assert pull_request(PullRequest(), space(), None) is None


@pytest.mark.parametrize(
    ("ref", "branch"),
    [(None, None), ("main", "main"), ("refs/heads/a/b", "a/b"), ("refs/tags/v1", None), ("c" * 40, None)],
)
def test_only_a_branch_can_be_merged_into(ref: str | None, branch: str | None) -> None:
    assert branch_of(ref) == branch


@pytest.mark.parametrize(
    ("kind", "remote", "api", "project"),
    [
        ("github", "https://github.com/team/shop.git", "https://api.github.com", "team/shop"),
        ("github", "https://ghe.example/team/shop", "https://ghe.example/api/v3", "team/shop"),
        ("gitlab", "https://lab.example:8443/a/b/shop.git", "https://lab.example:8443/api/v4", "a/b/shop"),
        ("gitea", "http://tea.example/team/shop.git/", "http://tea.example/api/v1", "team/shop"),
    ],
)
def test_the_api_and_the_project_follow_from_the_remote(kind: str, remote: str, api: str, project: str) -> None:
    assert default_api(kind, remote) == api
    assert project_of(remote, api, FORGES[kind].api) == project


def test_a_forge_below_a_path_of_its_host_has_its_projects_there() -> None:
    remote, api = "https://x.example/lab/team/shop.git", "https://x.example/lab/api/v4"
    assert project_of(remote, api, FORGES["gitlab"].api) == "team/shop"


@pytest.mark.parametrize("kind", FORGES)
def test_what_is_odd_in_a_name_is_quoted(kind: str) -> None:
    forge, project = FORGES[kind], "te am/shöp"
    path, body = forge.making(Wanted(project, "he&ad", "ma in", "t", "b", draft=True))
    for told_path in (path, forge.listing(project, "he&ad", 1), forge.project(project)):
        assert " " not in told_path
        assert told_path.isascii()
    assert "he&ad" not in forge.listing(project, "he&ad", 1)
    assert "he&ad" in body.values()


HUB: dict[str, Any] = {
    "html_url": URL,
    "state": "open",
    "head": {"ref": "b", "repo": {"full_name": "Team/Shop"}},
    "base": {"ref": "main"},
}
LAB: dict[str, Any] = {
    "web_url": URL,
    "state": "opened",
    "source_branch": "b",
    "target_branch": "main",
    "source_project_id": 1,
    "target_project_id": 1,
}


@pytest.mark.parametrize(("kind", "entry"), [("github", HUB), ("gitea", HUB), ("gitlab", LAB)])
def test_a_pull_request_is_ours_by_its_branch_and_a_forks_is_not(kind: str, entry: dict[str, Any]) -> None:
    forge = FORGES[kind]
    assert forge.pull(entry, "team/shop", "b") == Pull(URL, "main", open=True)
    assert forge.pull(entry, "team/shop", "other") is None
    fork = {"head": {"ref": "b", "repo": {"full_name": "else/shop"}}, "source_project_id": 2}
    assert forge.pull(entry | fork, "team/shop", "b") is None
    closed = forge.pull(entry | {"state": "closed"}, "team/shop", "b")
    assert closed is not None
    assert not closed.open
    for strange in ({}, {"head": None}, {"head": {"ref": 1}}, {"source_branch": []}):
        assert forge.pull(strange, "team/shop", "b") is None


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_repository_that_has_moved_is_refused_as_that(status: int) -> None:
    with pytest.raises(Refused, match=f"{status}: the repository or its API has moved: correct remoteGit"):
        judged(status, b'<a href="/elsewhere">Moved</a>')
