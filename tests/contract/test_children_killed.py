"""Killed, failing, held up and stopped where a child is asked for, admitted, settled and merged: it is one child, whose
share is taken once and given back once, and whose work its parent has once.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.contract.killpoint_places import elsewhere
from tests.gateway_killed import Killed, Patient, meeting, patiently
from tests.gateway_script import commit, git, resolved, result, told

from moorage.api import names
from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedChildren, ResolvedModel, ResolvedParent, SecretRef
from moorage.core.journal.chain import Intact
from moorage.core.journal.export import verify_export
from moorage.points import Point
from moorage.runner.watch import background
from moorage.testing.gateway import OPERATOR_TOKEN
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Fault, Shot, environment, fired
from moorage.testing.models import Reply, Script, ToolCall
from moorage.testing.torture import waken
from moorage.testing.world import Run, World

pytestmark = pytest.mark.timeout(300)

CHILDREN = ResolvedChildren(max=3, concurrent=2)
CHILD = names.hashed("fix-1", "u1", 1)  # of the first that the run `fix` asks for
LOST = {"epoch": 1, "role": "runner", "reason": "RunnerLost", "message": ""}


class Family:
    """A parent and its child at a gateway that dies and comes again: each step is repeated until it is answered."""

    def __init__(self, port: int, upstream: GitServer, tmp_path: Path) -> None:
        self.port, self.tmp_path = port, tmp_path
        agent = ResolvedAgent(driver="command", command=("true",), children=CHILDREN)
        self.parent = resolved(upstream, agent=agent, limits=ResolvedLimits(tokens_hard=1_000))
        self.operator = Patient(port, OPERATOR_TOKEN)
        self.runner, self.kid = Patient(port, "token-of-p1"), Patient(port, "token-of-p2")

    async def close(self) -> None:
        for each in (self.operator, self.runner, self.kid):
            await each.http.aclose()

    async def begin(self, spec: Any, pod: str, runner: Patient) -> dict[str, Any]:
        """To where its agent works; where its worktree begins, and on which branch."""
        door = f"/v1/runs/{spec.uid}"
        await self.operator("PUT", door, spec.model_dump(mode="json"))
        await self.operator("POST", f"{door}/fence", {"epoch": 1, "attempt": 1, "holder": "a"})
        await self.operator("POST", f"{door}/pods", {"pod_uid": pod, "pod_name": pod, "epoch": 1, "role": "runner"})
        place: dict[str, Any] = (await runner("GET", "/v1/self"))["git"]
        ready = {"base": place["base"], "branch": place["branch"]}
        await runner("POST", "/v1/self/records", told("WORKSPACE_READY", ready))
        await runner("POST", "/v1/self/records", told("AGENT_STARTED", {}))
        return place

    async def spawn(self) -> ResolvedParent:
        """The child as its operator is to admit it."""
        place = await self.begin(self.parent, "p1", self.runner)
        asked = {"epoch": 1, "key": "1.0", "goal": "the parser", "tokens": 300}
        assert (await self.runner("POST", "/v1/self/children", asked))["name"] == CHILD
        return ResolvedParent(uid="u1", name="fix", commit=place["base"])

    async def work(self, above: ResolvedParent) -> str:
        """A whole child; its commit."""
        changes = {"uid": "u2", "session_id": "u2", "name": CHILD, "parent": above, "delivery": None, "acceptance": ()}
        limits = {"limits": ResolvedLimits(tokens_hard=300)}
        place = await self.begin(self.parent.model_copy(update=changes | limits), "p2", self.kid)
        tree, url = self.tree("kid", "p2"), f"http://127.0.0.1:{self.port}/git/run.git"
        await patiently(git, tree, "fetch", "-q", url, place["base"])
        git(tree, "checkout", "-q", place["base"])
        head = commit(tree, "c.txt", "three\n")
        await patiently(git, tree, "push", "-q", url, f"HEAD:refs/heads/{place['branch']}")
        await self.kid("POST", "/v1/self/result", result(head))
        end = {"reason": "Completed", "message": "", "commit": head}
        await self.operator("POST", "/v1/runs/u2/records", told("RUN_SUCCEEDED", end))
        return head

    def tree(self, name: str, pod: str) -> Path:
        tree = self.tmp_path / name
        git(self.tmp_path, "init", "-q", str(tree))
        git(tree, "config", "http.extraHeader", f"Authorization: Bearer token-of-{pod}")
        return tree

    async def settled(self) -> dict[str, Any]:
        """Its child in its journal, settled."""
        while True:
            view = await self.operator("POST", "/v1/runs/u1/children", {"gone": []})
            (child,) = view["state"]["children"]
            if child["status"] == "ended":
                return dict(child)


@pytest.mark.rule("K1", "B2", "O2", "W7")
@pytest.mark.parametrize(
    ("fault", "points"),
    elsewhere("test_whatever_befalls_a_gateway_at_a_child_its_share_is_taken_and_settled_once"),
)
async def test_whatever_befalls_a_gateway_at_a_child_its_share_is_taken_and_settled_once(
    upstream: GitServer, tmp_path: Path, fault: Fault, points: Sequence[Point]
) -> None:
    shots, trace, gateway = [Shot(point, fault=fault) for point in points], tmp_path / "trace", Killed(tmp_path)
    family = Family(gateway.port, upstream, tmp_path)
    try:
        async with meeting(gateway, trace, shots):
            head = await family.work(await family.spawn())
            child = await family.settled()
            journals = [await family.operator.answer("GET", f"/v1/runs/{uid}/journal") for uid in ("u1", "u2")]
            elder, url = family.tree("elder", "p1"), f"http://127.0.0.1:{gateway.port}/git/run.git"
            await patiently(git, elder, "fetch", "-q", url, head)
    finally:
        await family.close()
        await gateway.kill()
    assert all(fired(trace, shot) for shot in shots)
    assert (child["uid"], child["outcome"], child["commit"]) == ("u2", "Succeeded", head)
    assert child["reserve"]["tokens"] == 300
    parent, _ = (verify_export([each.content]) for each in journals)
    assert isinstance(parent.chain, Intact)
    for kind in ("CHILD_REQUESTED", "CHILD_STARTED", "CHILD_ENDED"):
        assert journals[0].text.count(f'"type":"{kind}"') == 1


# --- merged -----------------------------------------------------------------------------------------------------------


def call(tool: str, **given: Any) -> Reply:
    return Reply(tools=(ToolCall(name=tool, input=given),))


SCRIPT = Script(
    replies=(
        call("bash", command="echo mine > mine.txt"),
        call("spawn_run", goal="the parser"),
        call("wait_run", name=CHILD),
        call("merge_run", name=CHILD),
        call("merge_run", name=CHILD),  # as an agent does that was told of a failure
        Reply(text="All done."),
    )
)


def builtin(world: World) -> ResolvedAgent:
    """With the world's model."""
    assert world.model
    model = ResolvedModel(
        provider="p",
        protocol="anthropic-messages",
        name="scripted",
        base_url=world.model.url,
        credentials=SecretRef(name="model", key="apiKey"),
    )
    return ResolvedAgent(driver="builtin", model=model, children=CHILDREN)


async def child_of(world: World, parent: Run) -> None:
    """What its operator and its own sandbox do; settled."""
    await parent.until("CHILD_REQUESTED", within_s=120)
    state = await parent.state()
    above = ResolvedParent(uid="u1", name="fix", commit=state["checkpoint"]["commit"])
    kid = await world.admit(
        uid="u2",
        name=CHILD,
        command=("sh", "-euc", "test -e mine.txt; echo three >> c.txt"),
        parent=above,
        delivery=None,
        acceptance=(),
    )
    assert await (await kid.start()).ended(120) == 0
    head = (await kid.state())["proposal"]["commit"]
    await kid.report("RUN_SUCCEEDED", {"reason": "Completed", "message": "", "commit": head})
    await parent.call("POST", "/children", {"gone": []})


async def to_its_end(parent: Run, armed: dict[str, str]) -> int:
    """How many attempts it takes; what has fired fires no more."""
    for epoch in range(1, 5):
        sandbox = await parent.start(epoch, environment=armed)
        if await sandbox.ended(200) == 0:
            return epoch
        await sandbox.kill()
        await parent.report("ATTEMPT_ENDED", LOST | {"epoch": epoch})
    raise AssertionError("it never ends")


@pytest.mark.rule("K1", "W7", "R2")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_a_runner_at_a_merge_the_tree_has_it_once")
)
async def test_whatever_befalls_a_runner_at_a_merge_the_tree_has_it_once(
    tmp_path: Path, fault: Fault, points: Sequence[Point]
) -> None:
    """What its model has decided stands: another attempt merges again, into the tree of the last safe point. What fails
    is told to the model, which asks again.
    """
    shots, trace = [Shot(point, fault=fault) for point in points], tmp_path / "trace"
    async with World(tmp_path / "world", script=SCRIPT) as world:
        parent = await world.admit(agent=builtin(world), acceptance=())
        stops = [waken(trace, shot) for shot in shots if shot.fault is Fault.STOP]
        async with background(child_of(world, parent), *stops):
            attempts = await to_its_end(parent, environment(trace, *shots))
        assert all(fired(trace, shot) for shot in shots)
        assert attempts == (2 if fault is Fault.KILL else 1)
        head, mirror = (await parent.state())["proposal"]["commit"], next((world.root / "mirrors").rglob("HEAD")).parent
        assert git(mirror, "show", f"{head}:c.txt") == "three"
        assert git(mirror, "show", f"{head}:mine.txt") == "mine"
        counted = Counter(await parent.types())
        assert (counted["CHILD_REQUESTED"], counted["CHILD_ENDED"], counted["ITERATION_COMPLETE"]) == (1, 1, 6)
        assert world.model
        assert len(world.model.bodies) == 6, "each decision is made once"
