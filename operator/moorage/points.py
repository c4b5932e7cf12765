"""K1: names for the boundaries at which a process may die, so that tests can make it die exactly there.

Production names a point where a boundary is crossed and does nothing else about it: with nothing armed a point is one
look at an attribute. What happens at an armed point is decided by the module that the environment variable
`MOORAGE_POINTS` names, loaded once when a process starts; in an installation nothing sets it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from enum import StrEnum

VARIABLE = "MOORAGE_POINTS"
Hook = Callable[["Point"], None]


class Point(StrEnum):
    """`<boundary>/<stage>`: before it, within it (begun and not durable, or done and not told), after it."""

    ADMIT_BEFORE = "admission/before"
    ADMIT_WITHIN = "admission/within"  # the spec's content is there, the run isn't
    ADMIT_AFTER = "admission/after"
    EPOCH_BEFORE = "epoch/before"
    EPOCH_AFTER = "epoch/after"
    POD_BEFORE = "registration/before"
    POD_WITHIN = "registration/within"  # journaled, its token opens nothing yet
    POD_AFTER = "registration/after"
    RENEWAL_BEFORE = "renewal/before"
    RENEWAL_AFTER = "renewal/after"  # the Lease is renewed, nobody counted it
    APPEND_BEFORE = "append/before"  # in the transaction, nothing written yet
    APPEND_WITHIN = "append/within"  # rows written, not committed
    APPEND_AFTER = "append/after"  # durable, nobody told
    SNAPSHOT_BEFORE = "snapshot/before"  # the state of the journal's head is to be kept
    SNAPSHOT_AFTER = "snapshot/after"
    TERMINAL_BEFORE = "terminal/before"
    TERMINAL_AFTER = "terminal/after"
    SEAL_BEFORE = "seal/before"
    SEAL_AFTER = "seal/after"
    PRUNE_WITHIN = "prune/within"  # its tombstone stands, some of the journal is still there
    BLOB_BEFORE = "blob/before"
    BLOB_WITHIN = "blob/within"  # written and synced under another name
    BLOB_AFTER = "blob/after"
    KEEP_BEFORE = "keep/before"  # a push's objects are here, and none of them is kept for other gateways
    KEEP_WITHIN = "keep/within"  # they are a blob, the store doesn't know
    KEEP_AFTER = "keep/after"  # the store knows, no ref has moved here
    FOLLOW_BEFORE = "follow/before"  # another gateway has taken pushes
    FOLLOW_WITHIN = "follow/within"  # their objects are here, no ref has moved
    FOLLOW_AFTER = "follow/after"
    MODEL_BEFORE = "model/before"  # the request is journaled and hasn't left
    MODEL_STREAM = "model/stream"  # a part of the answer has come, and is passed on next
    MODEL_WITHIN = "model/within"  # the answer is here and isn't journaled
    MODEL_AFTER = "model/after"
    STREAM_BEFORE = "stream/before"  # a reader is to be told of events
    STREAM_AFTER = "stream/after"  # they are sent, and nobody knows whether they came
    INTENT_BEFORE = "intent/before"
    INTENT_AFTER = "intent/after"
    PUSH_BEFORE = "push/before"  # journaled as dispatched, nothing sent
    PUSH_WITHIN = "push/within"  # the remote has answered, there is no receipt
    PUSH_AFTER = "push/after"
    PULL_BEFORE = "pull-request/before"  # journaled as dispatched, nothing sent
    PULL_WITHIN = "pull-request/within"  # the forge has answered, there is no receipt
    PULL_AFTER = "pull-request/after"
    EGRESS_BEFORE = "egress/before"  # journaled as dispatched, nothing sent
    EGRESS_WITHIN = "egress/within"  # the host has answered, there is no receipt
    EGRESS_AFTER = "egress/after"  # there is one, the agent wasn't told
    SPAWN_BEFORE = "spawn/before"  # an agent asks for a child, and nothing of it is durable
    SPAWN_AFTER = "spawn/after"  # it is, and the agent isn't told
    SHARE_BEFORE = "share/before"  # a child is to be admitted, and its parent's journal doesn't know
    SHARE_AFTER = "share/after"  # its share is reserved, the child isn't admitted
    SETTLE_BEFORE = "settlement/before"  # a child has ended, its commit is its parent's, its share isn't settled
    SETTLE_AFTER = "settlement/after"
    VOLUME_BEFORE = "volume/before"
    VOLUME_AFTER = "volume/after"
    SANDBOX_BEFORE = "sandbox/before"
    SANDBOX_AFTER = "sandbox/after"  # its process runs, nobody was told
    RELEASE_BEFORE = "release/before"
    RELEASE_AFTER = "release/after"
    TOLD_BEFORE = "told/before"  # the run has ended, its owner hasn't said so yet
    TOLD_AFTER = "told/after"  # it has, and the run isn't done with: it is told once more
    WORKTREE_BEFORE = "worktree/before"
    WORKTREE_WITHIN = "worktree/within"  # what was found is saved, the tree isn't put back
    WORKTREE_AFTER = "worktree/after"
    STAGE_BEFORE = "staging/before"  # the tree stands still
    STAGE_WITHIN = "staging/within"  # its files are in our index, no tree of them is written
    STATE_WITHIN = (
        "checkpoint-state/within"  # the tree is staged and the conversation's files are objects; no commit is
    )
    CHECKPOINT_BEFORE = "checkpoint/before"
    CHECKPOINT_WITHIN = "checkpoint/within"  # its commit is written, no ref names it
    CHECKPOINT_AFTER = "checkpoint/after"  # on the volume, not yet in the gateway
    SAFE_POINT_BEFORE = "safe-point/before"  # in the gateway, not yet counted
    SAFE_POINT_AFTER = "safe-point/after"
    END_CHECK_BEFORE = "end-check/before"  # the agent says that it is done
    END_CHECK_WITHIN = "end-check/within"  # the commands have ended beside its worktree, nobody was told
    END_CHECK_AFTER = "end-check/after"  # journaled, the agent hasn't heard it
    MERGE_BEFORE = "merge/before"  # what a child did is merged beside the tree, which doesn't have it
    MERGE_AFTER = "merge/after"  # it has, the agent isn't told
    PROPOSAL_BEFORE = "proposal/before"
    PROPOSAL_AFTER = "proposal/after"
    RESULT_BEFORE = "result/before"
    RESULT_AFTER = "result/after"
    ACCEPTANCE_BEFORE = "acceptance/before"
    ACCEPTANCE_WITHIN = "acceptance/within"  # the commands have ended, nobody was told
    ACCEPTANCE_AFTER = "acceptance/after"
    VERDICT_BEFORE = "verdict/before"  # reported, and its outputs kept
    VERDICT_AFTER = "verdict/after"  # durable, the verifier isn't told
    COMMAND_BEFORE = "command/before"  # decided, and not durable
    COMMAND_AFTER = "command/after"  # durable, and its author has no receipt
    MESSAGE_BEFORE = "message/before"  # the agent is to get it
    MESSAGE_AFTER = "message/after"  # journaled as delivered, the agent hasn't heard it
    PAUSE_BEFORE = "pause/before"  # there is cause to stop softly, nobody has been told
    PAUSE_WITHIN = "pause/within"  # journaled, the runner hasn't heard
    PAUSE_AFTER = "pause/after"  # nothing of the agent runs and what it did is kept, nobody knows
    PARK_BEFORE = "park/before"  # the sandbox is gone, the run isn't paused yet
    PARK_AFTER = "park/after"
    RESUME_BEFORE = "resume/before"
    RESUME_AFTER = "resume/after"  # it goes on, and has no attempt yet
    CANCEL_BEFORE = "cancel/before"  # a runner asks for orders and is to be told
    CANCEL_WITHIN = "cancel/within"  # journaled as propagated, the runner hasn't heard
    CANCEL_ACK_BEFORE = "cancel-ack/before"  # nothing of the agent runs, nobody knows
    CANCEL_ACK_AFTER = "cancel-ack/after"


class _Armed:
    """The one thing in this program that is the process's and no object's: a kill is, too."""

    hook: Hook | None = None


def reached(point: Point) -> None:
    """This process is there now."""
    if _Armed.hook is not None:
        _Armed.hook(point)


def arm(environ: Mapping[str, str]) -> None:
    """Once, when a process starts: let the module that the environment names decide what happens at points."""
    if named := environ.get(VARIABLE):
        _Armed.hook = importlib.import_module(named).hook(environ)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What a child that is not kept in must be told to be armed as well."""
    return {name: value for name, value in environ.items() if name.startswith(VARIABLE)}
