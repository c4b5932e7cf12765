"""W5: the pull request of a delivered branch, at a real Gitea and at a stand-in of each kind of forge, and whatever may
come between.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.memory_gateway import gateway
from tests.gateway_script import BRANCH, Operator, ok, resolved, verified, work_done

from moorage.api.wire import ResolvedDelivery, ResolvedPullRequest, SecretRef
from moorage.core.effects import pulls
from moorage.gateway.pulls import QUIET_MS
from moorage.testing.forge import Ended, ForgeAtHand, StandInForge
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitea import GiteaForge, GiteaServer
from moorage.testing.gitserver import GitServer

__all__ = ["gateway"]  # a fixture

TOKEN = "forge-token-that-nobody-else-may-know"
FORGES = ("github", "gitlab", "gitea", pytest.param("gitea_server", id="real-gitea"))


@pytest.fixture(params=FORGES)
async def forge(request: pytest.FixtureRequest, upstream: GitServer) -> AsyncIterator[ForgeAtHand]:
    made: ForgeAtHand
    if request.param == "gitea_server":
        made = await asyncio.to_thread(GiteaForge, request.getfixturevalue("gitea_server"))
    else:
        remote = upstream.url("shop.git")
        made = StandInForge(request.param, upstream.root / "shop.git", TOKEN, remote=remote)
    async with made.serving():
        yield made


class Story:
    """A run whose result has passed, and that wants a pull request."""

    def __init__(self, gateway: LocalGateway, operator: Operator, head: str) -> None:
        self.gateway, self.operator, self.head = gateway, operator, head

    async def deliver(self) -> list[tuple[str, str]]:
        """Kinds and statuses of the effects after one more try."""
        view = await ok(await self.operator.deliver(1, self.head))
        return [(each["kind"], each["status"]) for each in view["state"]["effects"]]

    async def records(self, kind: str) -> list[Any]:
        found = [record.payload for record in await self.operator.records() if record.type == kind]
        return [each for each in found if each]


@pytest.fixture
def base() -> str | None:
    """What a pull request is merged into; None is the forge's default branch."""
    return "main"


@pytest.fixture
def draft() -> bool:
    """Whether it is one."""
    return False


@pytest.fixture
async def story(gateway, forge, tmp_path: Path, base: str | None, draft: bool) -> Story:
    gateway.secrets.give("team-a", "forge", token=forge.token)
    pull = ResolvedPullRequest(
        kind=forge.kind,
        api=forge.url,
        project=forge.project,
        base=base,
        draft=draft,
        credentials=SecretRef(name="forge"),
    )
    delivery = ResolvedDelivery(branch=BRANCH, pull_request=pull, message="Mend it\n\nx")
    operator = Operator(gateway, resolved(forge.remote, delivery=delivery))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    return Story(gateway, operator, head)


PUSHED = ("git_push", "confirmed")


@pytest.mark.rule("W5", "E1", "T2")
async def test_a_delivered_branch_gets_its_pull_request(story: Story, forge: ForgeAtHand) -> None:
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    (pull,) = await forge.made()
    assert (pull.head, pull.base, pull.title, pull.draft) == (BRANCH, "main", "Mend it", False)
    assert "Moorage-Run: team-a/fix" in pull.body
    state = await story.operator.state()
    assert state["effects"][-1]["detail"].endswith(f"/{pull.number}")
    await ok(await story.operator.report(1, "RUN_SUCCEEDED", {"reason": "Completed", "commit": story.head}))
    types = await story.operator.types()
    assert types[-1] == "RUN_SUCCEEDED"
    assert [t for t in types if t.startswith("EFFECT")] == ["EFFECT_INTENT", "EFFECT_DISPATCHED", "EFFECT_RECEIPT"] * 2
    text = b"".join([stored.body async for stored in story.gateway.deps.store.stored("u1")]).decode()
    assert forge.token not in text


async def test_asked_for_again_it_is_one(story: Story, forge: ForgeAtHand) -> None:
    await asyncio.gather(story.deliver(), story.deliver())
    story.gateway.restart()
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert len(await forge.made()) == 1


@pytest.mark.rule("W5", "E4")
@pytest.mark.parametrize("fault", ["lost", "late"])
async def test_one_whose_answer_got_lost_is_found_and_not_made_again(story: Story, forge: ForgeAtHand, fault) -> None:
    forge.faults = [fault]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    story.gateway.restart()
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert len(await forge.made()) == 1
    assert [each["outcome"] for each in await story.records("EFFECT_RECONCILED")] == ["confirmed"]


@pytest.mark.rule("W5", "E4")
@pytest.mark.parametrize("base", [None])
async def test_one_for_a_default_branch_is_found_also_where_another_has_become_that(
    story: Story, forge: ForgeAtHand
) -> None:
    forge.faults = ["lost"]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    await forge.branch("develop", "main")
    await forge.choose_default("develop")
    story.gateway.restart()
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert [pull.base for pull in await forge.made()] == ["main"]


@pytest.mark.rule("W5", "E4")
@pytest.mark.parametrize("gone", [False, True], ids=["kept", "gone"])
async def test_one_that_is_merged_before_anybody_asked_again_counts_as_made(
    story: Story, forge: ForgeAtHand, gone: bool
) -> None:
    forge.faults = ["lost"]
    await story.deliver()
    await forge.end(1, "merged", gone=gone)
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert len(await forge.made()) == 1


@pytest.mark.rule("W5", "E4")
@pytest.mark.parametrize("state", ["merged", "closed"])
async def test_an_earlier_runs_of_the_same_branch_name_is_not_taken_for_ours(
    story: Story, forge: ForgeAtHand, clock, state: Ended
) -> None:
    await forge.branch(BRANCH, "main")
    assert await forge.open_by_hand(BRANCH, "main", "Of another run") == 201
    await forge.end(1, state, gone=True)
    forge.faults = ["down"]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    clock.advance(QUIET_MS)
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched"), ("pull_request", "confirmed")]
    assert [pull.is_open for pull in await forge.made()] == [False, True]


@pytest.mark.rule("E4")
async def test_where_the_forge_was_down_it_is_made_once_that_is_certain(
    story: Story, forge: ForgeAtHand, clock
) -> None:
    forge.faults = ["down"]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")], "it may still be at work on it"
    clock.advance(QUIET_MS)
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched"), ("pull_request", "confirmed")]
    assert len(await forge.made()) == 1


async def test_where_the_forge_is_busy_it_is_asked_for_later(story: Story, forge: ForgeAtHand) -> None:
    forge.faults = ["busy"]
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched")]
    assert (await story.operator.state())["deferral"]["reason"] == "ForgeUnreachable"
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched"), ("pull_request", "confirmed")]
    assert len(await forge.made()) == 1


async def test_what_the_forge_refuses_is_final_and_says_why(story: Story, forge: ForgeAtHand) -> None:
    forge.faults = ["refused"]
    assert await story.deliver() == [PUSHED, ("pull_request", "rejected")]
    assert (await story.operator.state())["effects"][-1]["detail"] == (
        f"PullRequestRejected: the forge refuses {BRANCH} into main: 403: refused"
    )
    assert await story.deliver() == [PUSHED, ("pull_request", "rejected")]
    assert await forge.made() == []


@pytest.mark.rule("T2")
@pytest.mark.parametrize("fault", ["refused", "down", "busy", "late"])
async def test_a_forge_that_says_what_it_was_sent_tells_nobody_its_token(
    story: Story, forge: ForgeAtHand, fault: Any
) -> None:
    forge.faults, forge.says = [fault], f"you sent token {forge.token}"
    await story.deliver()
    records = str(await story.operator.records())
    assert forge.token not in records + str(await story.operator.state())
    assert "[the credential]" in records


async def test_one_that_somebody_has_opened_is_adopted(story: Story, forge: ForgeAtHand) -> None:
    forge.faults = ["busy"]
    await story.deliver()
    assert await forge.open_by_hand(BRANCH, "main", "By hand") == 201
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched"), ("pull_request", "confirmed")]
    assert [pull.title for pull in await forge.made()] == ["By hand"]
    assert len(await story.records("EFFECT_DISPATCHED")) == 2, "the push, and the one that the forge had no time for"


@pytest.mark.rule("W5")
async def test_one_that_somebody_opens_in_that_moment_is_adopted(story: Story, forge: ForgeAtHand) -> None:
    async def by_hand() -> None:
        assert await forge.open_by_hand(BRANCH, "main", "By hand") == 201

    forge.between = by_hand
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert [pull.title for pull in await forge.made()] == ["By hand"]
    assert [line.split()[0] for line in forge.asked] == ["GET", "POST", "GET"]


async def test_one_that_was_closed_before_is_not_taken_for_ours(story: Story, forge: ForgeAtHand) -> None:
    forge.faults = ["busy"]
    await story.deliver()
    assert await forge.open_by_hand(BRANCH, "main", "By hand") == 201
    await forge.end(1, "closed")
    assert (await story.deliver())[-1] == ("pull_request", "confirmed")
    assert [pull.title for pull in await forge.made()] == ["By hand", "Mend it"]


async def test_a_token_that_is_no_good_is_told_before_anything_is_sent(story: Story, forge: ForgeAtHand) -> None:
    story.gateway.secrets.give("team-a", "forge", token="another")
    assert await story.deliver() == [PUSHED, ("pull_request", "rejected")]
    assert "401" in (await story.operator.state())["effects"][-1]["detail"]
    assert not [line for line in forge.asked if line.startswith("POST")]


@pytest.mark.parametrize("base", ["nowhere"])
async def test_a_base_that_is_not_there_is_refused_and_named(story: Story, forge: ForgeAtHand) -> None:
    assert await story.deliver() == [PUSHED, ("pull_request", "rejected")]
    detail = (await story.operator.state())["effects"][-1]["detail"]
    assert detail.startswith(f"PullRequestRejected: the forge refuses {BRANCH} into nowhere: 4")
    assert await forge.made() == []


@pytest.mark.parametrize("draft", [True])
async def test_a_draft_is_one_at_the_forge(story: Story, forge: ForgeAtHand) -> None:
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    (pull,) = await forge.made()
    assert pull.draft
    assert pull.title.endswith("Mend it")


@pytest.mark.rule("W5", "E4")
@pytest.mark.parametrize("forge", [FORGES[-1]], indirect=True)
async def test_it_is_among_the_newest_whatever_else_was_talked_about_since(
    story: Story, forge: ForgeAtHand, gitea_server: GiteaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "PAGE", 1)
    for name in ("one", "two", "three"):
        await forge.branch(name, "main")
        assert await forge.open_by_hand(name, "main", name) == 201
    forge.faults = ["lost"]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    await asyncio.sleep(1.1)  # its clock has seconds
    for number in (1, 2, 3):
        comments = f"/repos/{forge.project}/issues/{number}/comments"
        await asyncio.to_thread(gitea_server.ask, "POST", comments, {"body": "well"})
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]


@pytest.mark.parametrize("forge", [FORGES[-1]], indirect=True)
async def test_a_token_that_may_only_read_is_refused_with_the_forges_words(
    story: Story, forge: ForgeAtHand, gitea_server: GiteaServer
) -> None:
    token = await asyncio.to_thread(gitea_server.token, "read:repository")
    story.gateway.secrets.give("team-a", "forge", token=token)
    assert await story.deliver() == [PUSHED, ("pull_request", "rejected")]
    detail = (await story.operator.state())["effects"][-1]["detail"]
    assert "403: token does not have at least one of required scope(s)" in detail
    assert await forge.made() == []
