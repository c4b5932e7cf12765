"""C1: the context of a run, from its journal's state."""

from __future__ import annotations

from collections.abc import Mapping

from moorage.core.constraints.judging import Context, Snapshot
from moorage.core.run.state import RunState
from moorage.core.run.usage import used_in_session


def used(s: RunState, *, iterations: int, wall_ms: int, asking: Mapping[str, int]) -> Context:
    """What the state says was used, with what was given to its children, and what the runs before it in its session
    have used (B3). `iterations`: complete ones, of which it knows only the last number. A question that waits has been
    put to somebody, and may be answered at any moment: it counts as one that was.
    """
    share, waiting = used_in_session(s, iterations), sum(each.pending for each in s.consents)
    return Context(
        iterations=share.iterations,
        tokens=share.tokens,
        cost_micros=share.cost_micros,
        wall_ms=wall_ms,
        model_requests=s.usage.model_requests,
        tool_calls=share.tool_calls,
        effects=share.effects,
        egress_bytes=share.egress_bytes,
        disk_bytes=s.disk_bytes,
        human_approvals=share.human_approvals + waiting,
        state=Snapshot(s.phase, s.attempt),
        asking=asking,
    )


def lived_ms(s: RunState, now: int) -> int:
    """What counts against wallClock: the time since admission, without that in which the run was paused; and as much of
    the runs before it in its session.
    """
    until = now if s.idle_since is None else s.idle_since
    return s.carried_ms + (max(0, until - s.admitted_at - s.idle_ms) if s.admitted_at is not None else 0)


def clock_end(s: RunState, clock_ms: int) -> int | None:
    """When that will have been `clock_ms` (ms since the epoch), if it isn't paused again; None before its admission."""
    return None if s.admitted_at is None else s.admitted_at + s.idle_ms + clock_ms - s.carried_ms
