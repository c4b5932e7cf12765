"""Starts pi on the goal, or on the conversation that an earlier attempt left on the volume."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from moorage.api.wire import ResolvedModel
from moorage.drivers import childtools
from moorage.drivers.jsonlines import Launch, drive
from moorage.drivers.pi.config import APIS, PROVIDER, models
from moorage.drivers.pi.events import PiEvents
from moorage.drivers.port import Guarantees, Host, Outcome, State, Task
from moorage.drivers.sessions import Conversation, Transcript, opening, prepared

SESSIONS = ".pi/agent/sessions"
CHILDREN = ".pi/agent/moorage-children.mjs"
RESULT, CALL = b'"toolResult"', re.compile(rb'"toolCallId":"([^"\\]{1,256})"')
STATE = State(paths=(SESSIONS, Conversation.place("pi")), derived=(".pi",))


class PiDriver:
    """Driver `pi`."""

    name = "pi"
    guarantees = Guarantees(
        safe_points="iterations", resume="session", native_usage=True, steer=True, follow_up=True, state=STATE
    )

    async def run(self, task: Task, host: Host) -> Outcome:
        """Run pi until its loop is over, a limit is reached, or we are told to stop."""
        model = task.agent.model
        if model is None:
            return Outcome("failed", "NoModel", "the driver `pi` needs spec.agent.model")
        if model.protocol not in APIS:
            why = f"pi speaks {', '.join(APIS)}; ModelProvider {model.provider} speaks {model.protocol}"
            return Outcome("failed", "ProtocolNotSupported", why)
        if (refused := prepared(_files(task, model))) is not None:
            return refused
        return await drive(task, host, _launch(task, model.name))


def _files(task: Task, model: ResolvedModel) -> Mapping[Path, str]:
    told = models(model.protocol, model.name, task.relay_url, task.dummy_key, model.context_window)
    files, tools = {task.home / ".pi" / "agent" / "models.json": told}, childtools.door(task)
    return files | ({task.home / CHILDREN: childtools.pi(tools)} if tools else {})


def _launch(task: Task, model: str) -> Launch:
    conversation = Conversation(task.home, "pi")
    known = conversation.known()
    kept = transcript(task.home)
    session = known if known and kept.holds(known) else None
    resume = ["--session", session] if session else []
    more = ["--extension", str(task.home / CHILDREN)] if childtools.door(task) else []
    return Launch(
        argv=["pi", "--mode", "json", "-p", "--provider", PROVIDER, "--model", model, *more, *resume, *task.agent.args],
        env={**task.agent.env, "HOME": str(task.home), "PI_OFFLINE": "1"},
        stdin=opening(task, resumed=session is not None).encode(errors="replace"),
        dialect=PiEvents(),
        remember=conversation.remember,
        results=kept.reader().results,
        settles=True,
    )


def transcript(home: Path) -> Transcript:
    """Its conversations, as it keeps them."""
    return Transcript(home, f"{SESSIONS}/*/*.jsonl", RESULT, CALL)
