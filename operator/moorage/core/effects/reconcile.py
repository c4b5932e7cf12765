"""E4: the step by which an effect whose end isn't known is settled, by how far it got and how repeatable it is.

| level | never sent | sent, the run at work | sent, the run cancelled or ended | unknown already, the run at work |
|---|---|---|---|---|
| read_only | not sent | harmless | harmless | |
| natural, keyed | not sent | repeat | unknown | repeat |
| conditional, queryable | not sent | ask | ask | ask, also after the end |
| opaque | not sent | unknown | unknown | |

A repetition is reconciliation only while somebody wants the effect: in a run that is being cancelled it could be what
makes it happen (I5).
"""

from __future__ import annotations

from enum import StrEnum

from moorage.core.effects.levels import FREELY, Level, level_of, queryable
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Effect, RunState


class Step(StrEnum):
    """How an effect is settled."""

    NOT_SENT = "not_sent"  # it is known not to have happened
    HARMLESS = "harmless"  # whether it happened or not, nothing changed
    REPEAT = "repeat"  # the same again, under the same key
    ASK = "ask"  # its target knows
    UNKNOWN = "unknown"  # nobody can tell


def steps(state: RunState) -> tuple[tuple[Effect, Step], ...]:
    """What there is to settle, oldest first."""
    wanted = state.end is None and state.phase is not RunPhase.CANCELLING
    found = ((effect, step_of(effect, wanted=wanted)) for effect in state.effects)
    return tuple((effect, step) for effect, step in found if step is not None)


def step_of(effect: Effect, *, wanted: bool) -> Step | None:
    """The step, or None where nothing is left that this program could do. `wanted`: the run is still at work."""
    level = level_of(effect.level)
    if effect.status == "intended":
        return Step.NOT_SENT
    if not effect.open and effect.status != "unknown":
        return None
    if queryable(level):
        return Step.ASK
    if level is Level.READ_ONLY:
        return Step.HARMLESS
    if level in FREELY and wanted:
        return Step.REPEAT
    return Step.UNKNOWN if effect.open else None
