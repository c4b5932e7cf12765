"""C4, B3: where a constraint of a run's own would see too late what its children use.

A share counts as used in each dimension in which it is reserved, so an expression sees it from the start there; what a
child may use without a limit is only seen once it has ended. So what an expression reads has to have a hard limit: that
of the parent, out of which all its children have their shares, or the child's own.
"""

from __future__ import annotations

from moorage.api.budget import ResolvedLimits
from moorage.core.constraints.cel import NUMBERS, names_in
from moorage.core.constraints.limits import SHARED, Dimension
from moorage.core.run.limits import WRITTEN
from moorage.core.run.observed import Problem

NONE = ResolvedLimits()


def limit_missing(theirs: ResolvedLimits, where: str, own: ResolvedLimits = NONE) -> Problem | None:
    """Which limit a run needs whose children are given shares of `theirs`, or a child that has its `own`."""
    missing = [each for each in _unseen(theirs) if each.hard(own) is None]
    if not missing:
        return None
    what = " and ".join(WRITTEN[each.limit].path for each in missing)
    why = f"an expression of constraints.custom reads what children use as well: set {what} {where}"
    return Problem("LimitMissing", why, stalled=True)


def _unseen(limits: ResolvedLimits) -> list[Dimension]:
    """What an expression that stops the run reads, and that has no hard limit."""
    stopping = (each.cel for each in limits.custom if each.cel is not None and each.on_violation != "Warn")
    read = {NUMBERS[name] for text in stopping for name in names_in(text) if name in NUMBERS}
    return [each for each in SHARED if each.uses in read and each.hard(limits) is None]
