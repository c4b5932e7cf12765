"""B1, B3: all that a run has used, as it counts for whoever gave it its budget."""

from __future__ import annotations

from moorage.core.run.family import Share
from moorage.core.run.state import RunState


def used_by(s: RunState, iterations: int) -> Share:
    """With its own children, and without what earlier runs of its session have used. `iterations`: those that it
    completed.
    """
    own = Share(
        iterations=iterations,
        tokens=s.usage.tokens,
        cost_micros=s.usage.cost_micros,
        tool_calls=s.usage.tool_calls,
        effects=s.usage.effects,
        egress_bytes=s.usage.egress_bytes,
        human_approvals=s.usage.human_approvals,
    )
    return own.plus(s.given_away)


def used_in_session(s: RunState, iterations: int) -> Share:
    """The same, with what the runs before it in its session have used: what its limits are held against."""
    return used_by(s, iterations).plus(s.carried)
