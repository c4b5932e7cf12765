"""How records change the commands of a run: admitted, delivered, done, expired. Each closes once (M2, S1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moorage.api.commands import CommandState
from moorage.core.commands.command import MESSAGES, Command, kept, known
from moorage.core.journal.record import Record, RecordType
from moorage.core.run import pauses
from moorage.core.run.phases import TERMINAL, IllegalMove, RunPhase
from moorage.core.run.state import RunState

Changes = Mapping[str, Any]
ENDED_BY = {RecordType.PAUSED.value: "Pause", RecordType.RESUMED.value: "Resume"}


def accepted(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """M2: durable before its receipt. `done` in the payload: with this record nothing is left to be done."""
    state: CommandState = "Done" if "done" in p else "Accepted"
    return _admitted(s, r, p, state, p.get("done", ""))


def rejected(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The same id gets the same receipt, also of what was not taken on."""
    return _admitted(s, r, p, "Rejected", p["reason"])


def _admitted(s: RunState, r: Record, p: Mapping[str, Any], state: CommandState, reason: str) -> Changes:
    if known(s.commands, p["command_id"]) is not None:
        raise IllegalMove(s.phase, s.phase, f"command {p['command_id']} has its receipt already")
    command = Command(
        command_id=p["command_id"],
        type=p["type"],
        digest=p["digest"],
        state=state,
        offset=r.seq,
        issuer=p.get("issuer", ""),
        at=r.recorded_at,
        reason=reason,
        message=p.get("message", ""),
        text=(r.attachments or {}).get("text"),
        joins=p.get("joins", ""),
    )
    commands = (*s.commands, command)
    return {"commands": commands if command.open else kept(commands, {command.command_id})}


def delivered(s: RunState, _: Record, p: Mapping[str, Any]) -> Changes:
    """M3: the agent's, once. A message that isn't open any more, or isn't known, changes nothing."""
    command = known(s.commands, p["command_id"])
    if command is None or not command.waits:
        return {}
    return {
        "commands": _closing(
            s.commands, {command.command_id: replace(command, state="Delivered", reason="", message="")}
        )
    }


def after(s: RunState, r: Record, phase: RunPhase) -> tuple[Command, ...]:
    """The commands as any other record leaves them; `phase` is the run's after it."""
    outrun = r.type == RecordType.RESULT_PROPOSED and pauses.outrun(s)
    closed = {c.command_id: end for c in s.commands if c.open and (end := _closed(c, r, phase, outrun)) is not None}
    return _closing(s.commands, closed) if closed else s.commands


def _closed(c: Command, r: Record, phase: RunPhase, outrun: bool) -> Command | None:
    if c.type == "Checkpoint" and r.type == RecordType.ITERATION_COMPLETE:
        return replace(c, state="Done", reason="SafePoint", message=f"iteration {(r.payload or {}).get('iteration')}")
    if c.type == ENDED_BY.get(r.type):
        return replace(c, state="Done", reason=c.type)
    if (late := _too_late(c, phase, outrun)) is not None or phase not in TERMINAL:
        return late
    if c.type == "Cancel":
        return replace(c, state="Done", reason=str(phase))
    why = "the run ended before the agent could hear it" if c.type in MESSAGES else "the run ended before"
    return replace(c, state="Expired", reason="RunEnded", message=why)


def _too_late(c: Command, phase: RunPhase, outrun: bool) -> Command | None:
    """The agent was done before it stopped: who wanted that doesn't get it, and who had taken it back does."""
    if c.type == "Pause" and phase in {RunPhase.VERIFYING, RunPhase.DELIVERING}:
        why = "the agent was done before its next safe point"
        return replace(c, state="Expired", reason="AgentFinished", message=why)
    if c.type == "Resume" and outrun:
        why = "the agent was done before its next safe point: nothing has stopped"
        return replace(c, state="Done", reason="AgentFinished", message=why)
    return None


def _closing(commands: tuple[Command, ...], closed: Mapping[str, Command]) -> tuple[Command, ...]:
    return kept(tuple(closed.get(each.command_id, each) for each in commands), closed)
