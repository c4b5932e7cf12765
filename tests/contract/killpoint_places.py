"""Which process passes a point, and which points the small job of `moorage.testing.benches` doesn't pass."""

from moorage.points import Point

_RUNNERS = ("worktree/", "staging/", "checkpoint/", "safe-point/", "proposal/", "result/", "acceptance/", "cancel-ack/")
_ELSEWHERE = ("model/stream", "seal/", "release/", "snapshot/", "cancel", "keep/", "follow/")
"""Its agent doesn't stream, nothing of a run that succeeds is kept, its journal is short, nobody cancels it, and it has
one gateway: these have tests of their own."""

NOT_HERE = frozenset(point for point in Point if point.startswith(_ELSEWHERE))
HERE = [point for point in Point if point not in NOT_HERE]
RUNNERS = [point for point in HERE if point.startswith(_RUNNERS)]
OWNERS = [point for point in HERE if not point.startswith(_RUNNERS)]
