"""What a run is to do (O6)."""

from __future__ import annotations

from moorage.api.agentrun import MAX_GOAL_BYTES, AgentRun
from moorage.core.run.resolving.references import References, Unresolved


def goal_of(run: AgentRun, refs: References) -> str:
    """The text. Raise Unresolved where there is none, or too much."""
    spec = run.spec
    if spec.goal is not None:
        return spec.goal
    source = spec.goal_from.config_map_key_ref if spec.goal_from else None
    if source is None:
        raise Unresolved("GoalNotFound", "set goal or goalFrom", stalled=True)
    if refs.goal is None:
        why = f"ConfigMap {source.name} with the key {source.key} isn't there: create it in this namespace"
        raise Unresolved("GoalNotFound", why)
    size = len(refs.goal.encode(errors="replace"))
    if size > MAX_GOAL_BYTES:
        why = f"the goal in ConfigMap {source.name} has {size} bytes, at most {MAX_GOAL_BYTES} are taken: shorten it"
        raise Unresolved("GoalTooLarge", why)
    if not refs.goal.strip():
        raise Unresolved("GoalNotFound", f"the goal in ConfigMap {source.name} is empty: write what is to be done")
    return refs.goal
