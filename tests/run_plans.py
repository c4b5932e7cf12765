"""Worlds at the points that a plan is asked about, and what a plan comes to in few words."""

from dataclasses import replace
from typing import Any

from tests.property.run_world import T, World, a_spec

from moorage.core.run import actions as a
from moorage.core.run.observed import Observed

NO_ACTIONS: tuple[a.Action, ...] = ()
WHERE = {"node": "n", "runtime": "gvisor", "environment": "sha256:e3"}


def observed(world: World, **changes: Any) -> Observed:
    return replace(world.observed(), **changes)


def kinds(plan: a.Plan) -> list[str]:
    return [type(action).__name__ for action in plan.actions]


def records(plan: a.Plan) -> list[tuple[str, str]]:
    """Type and reason of the records that the plan reports."""
    return [(r.type, str(r.payload.get("reason", ""))) for r in plan.actions if isinstance(r, a.Report)]


def provisioning(**spec: Any) -> World:
    world = World(spec=a_spec(**spec))
    world.step()
    return world


def started(**spec: Any) -> World:
    """The runner's pod runs, and nothing has been heard of it."""
    world = provisioning(**spec)
    runner = world.sandbox("runner")
    assert runner
    world.run_pod(runner)
    return world


def running(**spec: Any) -> World:
    world = started(**spec)
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    world.report("agent", T.AGENT_STARTED, {})
    return world


def proposed(**spec: Any) -> World:
    world = running()
    world.spec = world.spec.model_copy(update=spec)
    world.finish()
    return world


def verifying() -> World:
    world = proposed()
    world.step()
    view = world.sandbox("verifier")
    assert view
    world.run_pod(view)
    return world
