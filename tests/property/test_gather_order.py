"""The order of a pass's reads, while another operator, a kubelet and a runner move between any two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.run_world import START, T, World, a_spec

from moorage.controller.gather import Gatherer
from moorage.controller.roll import Roll
from moorage.controller.signs import Signs
from moorage.core.run.observed import SandboxPhase
from moorage.core.run.plan import decide
from moorage.core.run.resolve import Defaults
from moorage.core.run.view import RunView
from moorage.sandbox.port import Children, Conflict, RunKey
from moorage.testing.clock import StepClock

KEY = RunKey("u-1", "team-a", "fix")
BODY: dict[str, Any] = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "AgentRun",
    "metadata": {
        "name": "fix",
        "namespace": "team-a",
        "uid": "u-1",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": "2027-01-15T08:00:00Z",
    },
    "spec": {"workspace": {"ephemeral": {}}, "goal": "g", "agent": {"driver": "command", "command": ["true"]}},
    "status": {"phase": "Provisioning", "epoch": 1},
}


class Scene:
    """A world whose other inhabitants make one move before each read of the operator under test."""

    def __init__(self, moves: list[str]) -> None:
        self.world, self.moves = World(spec=a_spec(acceptance=())), list(moves)
        self.deleted: set[str] = set()
        self.heard: Children | None = None
        self.world.step(crash_after=2)  # admitted, and the epoch raised; the sandbox is still to come

    def move(self) -> None:
        """The next move, where it is possible."""
        if not self.moves:
            return
        runner = self.world.sandbox("runner")
        match self.moves.pop(0):
            case "pass":
                self.world.step(crash_after=99)  # time stands still, so that nothing is lost by its passing
            case "half a pass":
                self.world.step(crash_after=1)
            case "start" if runner and runner.phase is SandboxPhase.WAITING:
                self.world.run_pod(runner)
                self.world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
            case "finish" if runner and runner.phase is SandboxPhase.RUNNING:
                self.world.work()
                self.world.set_pod(runner, phase=SandboxPhase.ENDED)
            case "delete" if runner:
                del self.world.pods[runner.name]
                self.deleted.add(runner.uid)

    # --- the ports ----------------------------------------------------------------------------------------------------

    async def observe(self, run: RunKey, *, fresh: bool) -> Children:
        """Without `fresh`, what was seen when a sandbox first stood, as old as it may be."""
        self.move()
        del run
        now = Children(self.world.lease, tuple(self.world.pods.values()), self.world.volume)
        if self.heard is None and now.sandboxes:
            self.heard = now
        return now if fresh or self.heard is None else self.heard

    async def view(self, uid: str) -> RunView:
        self.move()
        del uid
        return RunView(self.world.spec, self.world.state, START)

    async def run(self, tenant: str, name: str) -> dict[str, Any]:
        del tenant, name
        return BODY

    def gatherer(self) -> Gatherer:
        ports: Any = self
        return Gatherer(
            objects=ports,
            substrate=ports,
            gateway=ports,
            roll=Roll(5),
            defaults=Defaults(),
            drivers=frozenset({"command"}),
            signs=Signs(StepClock(self.world.now, self.world.now)),
        )


MOVES = st.lists(st.sampled_from(["pass", "half a pass", "start", "finish", "delete", "nothing"]), max_size=14)


@pytest.mark.rule("R1", "F7")
@given(moves=MOVES)
def test_no_sandbox_counts_as_lost_that_stands_or_has_told_its_result(moves: list[str]) -> None:
    scene = Scene(moves)
    while scene.moves:
        try:
            gathered = asyncio.run(scene.gatherer().gather(KEY))
        except Conflict:
            continue
        state = gathered.observed.journal
        assert state is not None
        plan = decide(gathered.observed, scene.world.now)
        losses = [dict(r.payload) for r in plan.actions if getattr(r, "type", None) == T.ATTEMPT_ENDED]
        for loss in losses:
            ref = state.sandbox(loss["epoch"], loss["role"])
            assert ref is not None
            assert (loss["reason"], ref.pod_uid in scene.deleted) == ("SandboxDeleted", True)


@pytest.mark.parametrize(
    ("before", "moves", "lost"),
    [
        (0, ["nothing", "pass"], False),  # made and registered between the two reads
        (1, ["delete"], True),  # really gone
    ],
)
def test_what_the_journal_names_is_looked_for_once_more(before: int, moves: list[str], lost: bool) -> None:
    scene = Scene(["pass"] * before + moves)
    for _ in range(before):
        scene.move()
    reads: list[str] = []
    scene.observe = _counted(scene.observe, reads)  # type: ignore[method-assign]
    gathered = asyncio.run(scene.gatherer().gather(KEY))
    plan = decide(gathered.observed, scene.world.now)
    assert len(reads) == 2
    assert any(getattr(r, "type", None) == T.ATTEMPT_ENDED for r in plan.actions) is lost


def _counted(call: Callable[..., Any], reads: list[str]) -> Any:
    async def counted(run: RunKey, *, fresh: bool) -> Children:
        reads.append(run.name)
        found: Children = await call(run, fresh=fresh)
        return found

    return counted
