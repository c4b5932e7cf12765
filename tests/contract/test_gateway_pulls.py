"""W5: the pull request of a delivered branch, at a stand-in of each kind of forge, and whatever may come between."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_script import BRANCH, PASSWORD, Operator, ok, resolved, verified, work_done

from moorage.api.wire import ResolvedDelivery, ResolvedPullRequest, SecretRef
from moorage.gateway.pulls import QUIET_MS
from moorage.store.memory import MemoryStore
from moorage.testing.clock import StepClock
from moorage.testing.forge import Made, StandInForge
from moorage.testing.gateway import LocalGateway

TOKEN = "forge-token-that-nobody-else-may-know"
KINDS = ("github", "gitlab", "gitea")


@pytest.fixture
async def gateway(tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    """Over one store: what the others do with effects is tested with pushes."""
    made = LocalGateway(tmp_path, store=MemoryStore(), clock=clock)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving():
        yield made


@pytest.fixture(params=KINDS)
async def forge(request: pytest.FixtureRequest, upstream) -> AsyncIterator[StandInForge]:
    made = StandInForge(request.param, upstream.root / "shop.git", TOKEN)
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
async def story(gateway, upstream, forge, tmp_path: Path, base: str | None) -> Story:
    gateway.secrets.give("team-a", "forge", token=TOKEN)
    pull = ResolvedPullRequest(
        kind=forge.kind, api=forge.url, project=forge.project, base=base, credentials=SecretRef(name="forge")
    )
    operator = Operator(
        gateway, resolved(upstream, delivery=ResolvedDelivery(branch=BRANCH, pull_request=pull, message="Mend it\n\nx"))
    )
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    return Story(gateway, operator, head)


PUSHED = ("git_push", "confirmed")


@pytest.mark.rule("W5", "E1", "T2")
async def test_a_delivered_branch_gets_its_pull_request(story: Story, forge: StandInForge) -> None:
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    (pull,) = forge.pulls
    assert (pull.head, pull.base, pull.title, pull.draft) == (BRANCH, "main", "Mend it", False)
    assert "Moorage-Run: team-a/fix" in pull.body
    state = await story.operator.state()
    assert state["effects"][-1]["detail"].endswith(f"/{pull.number}")
    await ok(await story.operator.report(1, "RUN_SUCCEEDED", {"reason": "Completed", "commit": story.head}))
    types = await story.operator.types()
    assert types[-1] == "RUN_SUCCEEDED"
    assert [t for t in types if t.startswith("EFFECT")] == ["EFFECT_INTENT", "EFFECT_DISPATCHED", "EFFECT_RECEIPT"] * 2
    text = b"".join([stored.body async for stored in story.gateway.deps.store.stored("u1")]).decode()
    assert TOKEN not in text


async def test_asked_for_again_it_is_one(story: Story, forge: StandInForge) -> None:
    await asyncio.gather(story.deliver(), story.deliver())
    story.gateway.restart()
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert len(forge.pulls) == 1


@pytest.mark.rule("W5", "E4")
@pytest.mark.parametrize("fault", ["lost", "late"])
async def test_one_whose_answer_got_lost_is_found_and_not_made_again(story: Story, forge: StandInForge, fault) -> None:
    forge.faults = [fault]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    story.gateway.restart()
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert len(forge.pulls) == 1
    assert [each["outcome"] for each in await story.records("EFFECT_RECONCILED")] == ["confirmed"]


@pytest.mark.rule("W5", "E4")
@pytest.mark.parametrize("base", [None])
async def test_one_for_a_default_branch_is_found_also_where_another_has_become_that(
    story: Story, forge: StandInForge
) -> None:
    forge.faults = ["lost"]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    forge.default = "develop"
    story.gateway.restart()
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert [pull.base for pull in forge.pulls] == ["main"]


@pytest.mark.rule("W5", "E4")
async def test_one_that_is_merged_before_anybody_asked_again_counts_as_made(story: Story, forge: StandInForge) -> None:
    forge.faults = ["lost"]
    await story.deliver()
    forge.pulls[0].state = "merged"
    assert await story.deliver() == [PUSHED, ("pull_request", "confirmed")]
    assert len(forge.pulls) == 1


@pytest.mark.rule("W5", "E4")
@pytest.mark.parametrize("state", ["merged", "closed"])
async def test_an_earlier_runs_of_the_same_branch_name_is_not_taken_for_ours(
    story: Story, forge: StandInForge, clock, state: str
) -> None:
    forge.pulls.append(Made(1, BRANCH, "main", "Of another run", "", draft=False, state=state, commit="0" * 40))
    forge.faults = ["down"]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    clock.advance(QUIET_MS)
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched"), ("pull_request", "confirmed")]
    assert [pull.is_open for pull in forge.pulls] == [False, True]


@pytest.mark.rule("E4")
async def test_where_the_forge_was_down_it_is_made_once_that_is_certain(
    story: Story, forge: StandInForge, clock
) -> None:
    forge.faults = ["down"]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")]
    assert await story.deliver() == [PUSHED, ("pull_request", "unknown")], "it may still be at work on it"
    clock.advance(QUIET_MS)
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched"), ("pull_request", "confirmed")]
    assert len(forge.pulls) == 1


async def test_where_the_forge_is_busy_it_is_asked_for_later(story: Story, forge: StandInForge) -> None:
    forge.faults = ["busy"]
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched")]
    assert (await story.operator.state())["deferral"]["reason"] == "ForgeUnreachable"
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched"), ("pull_request", "confirmed")]
    assert len(forge.pulls) == 1


async def test_what_the_forge_refuses_is_final_and_says_why(story: Story, forge: StandInForge) -> None:
    forge.faults = ["refused"]
    assert await story.deliver() == [PUSHED, ("pull_request", "rejected")]
    assert (await story.operator.state())["effects"][-1]["detail"] == (
        "PullRequestRejected: the forge refuses it: 403: refused"
    )
    assert await story.deliver() == [PUSHED, ("pull_request", "rejected")]
    assert forge.pulls == []


@pytest.mark.rule("T2")
@pytest.mark.parametrize("fault", ["refused", "down", "busy", "late"])
async def test_a_forge_that_says_what_it_was_sent_tells_nobody_its_token(
    story: Story, forge: StandInForge, fault: Any
) -> None:
    forge.faults, forge.says = [fault], f"you sent token {TOKEN}"
    await story.deliver()
    records = str(await story.operator.records())
    assert TOKEN not in records + str(await story.operator.state())
    assert "[the credential]" in records


async def test_one_that_somebody_has_opened_is_adopted(story: Story, forge: StandInForge) -> None:
    forge.faults = ["busy"]
    await story.deliver()
    assert forge.open_by_hand(BRANCH, "main", "By hand").status_code == 201
    assert await story.deliver() == [PUSHED, ("pull_request", "not_dispatched"), ("pull_request", "confirmed")]
    assert [pull.title for pull in forge.pulls] == ["By hand"]
    assert len(await story.records("EFFECT_DISPATCHED")) == 2, "the push, and the one that the forge had no time for"


async def test_one_that_was_closed_before_is_not_taken_for_ours(story: Story, forge: StandInForge) -> None:
    forge.faults = ["busy"]
    await story.deliver()
    forge.open_by_hand(BRANCH, "main", "By hand")
    forge.pulls[0].state = "closed"
    assert (await story.deliver())[-1] == ("pull_request", "confirmed")
    assert [pull.title for pull in forge.pulls] == ["By hand", "Mend it"]


async def test_a_token_that_is_no_good_is_told_before_anything_is_sent(story: Story, forge: StandInForge) -> None:
    story.gateway.secrets.give("team-a", "forge", token="another")
    assert await story.deliver() == [PUSHED, ("pull_request", "rejected")]
    assert "401" in (await story.operator.state())["effects"][-1]["detail"]
    assert not [line for line in forge.asked if line.startswith("POST")]
