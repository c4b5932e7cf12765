"""Starts Codex on the goal, or on the conversation that an earlier attempt left on the volume."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from moorage.api.wire import ResolvedModel
from moorage.drivers import childtools
from moorage.drivers.codex.config import KEY_VARIABLE, config
from moorage.drivers.codex.events import CodexEvents
from moorage.drivers.jsonlines import Launch, drive
from moorage.drivers.port import Guarantees, Host, Outcome, State, Task
from moorage.drivers.sessions import Conversation, Transcript, opening, prepared

PROTOCOL = "openai-responses"
# Codex's own sandbox would need rights that ours doesn't give, and ours stands around it
ALWAYS = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
SESSIONS = ".codex/sessions"
RESULT, CALL = b'_call_output"', re.compile(rb'"call_id":"([^"\\]{1,256})"')
# Its databases, which it makes anew from the sessions, tell of what a recovered conversation no longer holds
STATE = State(paths=(SESSIONS, Conversation.place("codex")), derived=(".codex",))


class CodexDriver:
    """Driver `codex`."""

    name = "codex"
    guarantees = Guarantees(
        safe_points="iterations", resume="session", native_usage=True, steer=True, follow_up=True, state=STATE
    )

    async def run(self, task: Task, host: Host) -> Outcome:
        """Run Codex until its turn is over, a limit is reached, or we are told to stop."""
        model = task.agent.model
        if model is None:
            return Outcome("failed", "NoModel", "the driver `codex` needs spec.agent.model")
        if model.protocol != PROTOCOL:
            why = f"Codex speaks {PROTOCOL} and nothing else; ModelProvider {model.provider} speaks {model.protocol}"
            return Outcome("failed", "ProtocolNotSupported", why)
        if (refused := prepared(_files(task, model))) is not None:
            return refused
        return await drive(task, host, _launch(task))


def _files(task: Task, model: ResolvedModel) -> Mapping[Path, str]:
    told, tools = config(model.name, task.relay_url), childtools.door(task)
    return {task.home / ".codex" / "config.toml": told + (childtools.codex(tools) if tools else "")}


def _launch(task: Task) -> Launch:
    conversation = Conversation(task.home, "codex")
    known = conversation.known()
    kept = transcript(task.home)
    session = known if known and kept.holds(known) else None
    resume = ["resume", *ALWAYS, *task.agent.args, session] if session else [*ALWAYS, *task.agent.args]
    return Launch(
        argv=["codex", "exec", *resume, "-"],
        env={
            **task.agent.env,
            "HOME": str(task.home),
            "CODEX_HOME": str(task.home / ".codex"),
            KEY_VARIABLE: task.dummy_key,
        },
        stdin=opening(task, resumed=session is not None).encode(errors="replace"),
        dialect=CodexEvents(resumed=session is not None),
        remember=conversation.remember,
        results=kept.reader().results,
    )


def transcript(home: Path) -> Transcript:
    """Its conversations, as it keeps them."""
    return Transcript(home, f"{SESSIONS}/*/*/*/rollout-*.jsonl", RESULT, CALL)
