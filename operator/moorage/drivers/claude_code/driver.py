"""Starts Claude Code on the goal, or on the conversation that an earlier attempt left on the volume."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from moorage.drivers import childtools
from moorage.drivers.claude_code.events import ClaudeCodeEvents
from moorage.drivers.claude_code.speech import hello
from moorage.drivers.jsonlines import Launch, Speech, drive
from moorage.drivers.port import Guarantees, Host, Outcome, State, Task
from moorage.drivers.sessions import Conversation, Transcript, opening

PROTOCOL = "anthropic-messages"
ALWAYS = (
    *("-p", "--verbose", "--output-format", "stream-json", "--input-format", "stream-json"),
    *("--permission-prompt-tool", "stdio"),  # we are asked also for what its own rules never allow unasked
)
OFF = (  # what it would do beside its work, none of which the sandbox has a way out for
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_AUTOUPDATER",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",  # a helper of its own is a call that is waited for, with its calls within
)
RETRIES = {"CLAUDE_CODE_MAX_RETRIES": "5"}  # its own ten take it minutes; the gateway tries again by itself
MODELS = (  # what it would use by itself for small jobs and for helpers of its own
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)

SESSIONS = ".claude/projects"
RESULT, CALL = b'"tool_result"', re.compile(rb'"tool_use_id":"([^"\\]{1,256})"')
STATE = State(paths=(SESSIONS, Conversation.place("claude-code")), derived=(".claude",))


class ClaudeCodeDriver:
    """Driver `claude-code`."""

    name = "claude-code"
    guarantees = Guarantees(
        safe_points="iterations", resume="session", native_usage=True, steer=True, follow_up=True, state=STATE
    )

    async def run(self, task: Task, host: Host) -> Outcome:
        """Run Claude Code until its turn is over, a limit is reached, or we are told to stop."""
        model = task.agent.model
        if model is None:
            return Outcome("failed", "NoModel", "the driver `claude-code` needs spec.agent.model")
        if model.protocol != PROTOCOL:
            why = f"Claude Code speaks {PROTOCOL} and nothing else; ModelProvider {model.provider} speaks"
            return Outcome("failed", "ProtocolNotSupported", f"{why} {model.protocol}")
        return await drive(task, host, _launch(task, model.name))


def _launch(task: Task, model: str) -> Launch:
    conversation = Conversation(task.home, "claude-code")
    known = conversation.known()
    kept = transcript(task.home)
    session = known if known and kept.holds(known) else None
    resume = ("--resume", session) if session else ()
    events, tools = ClaudeCodeEvents(lambda: str(uuid4())), childtools.door(task)
    told = childtools.claude_code(tools) if tools else ()
    return Launch(
        argv=["claude", *ALWAYS, "--model", model, *told, *resume, *task.agent.args],
        env=_environment(task, model),
        stdin=hello() + events.user(opening(task, resumed=session is not None)),
        dialect=events,
        remember=conversation.remember,
        results=kept.reader().results,
        speech=Speech(message=events.user, steer=events.user),
        nested=True,
    )


def _environment(task: Task, model: str) -> Mapping[str, str]:
    return {
        **RETRIES,
        **childtools.CLAUDE_CODE_PATIENCE,
        **dict.fromkeys(OFF, "1"),
        **dict.fromkeys(MODELS, model),
        **task.agent.env,
        "HOME": str(task.home),
        "CLAUDE_CONFIG_DIR": str(task.home / ".claude"),
        "ANTHROPIC_BASE_URL": f"{task.relay_url}/model",
        "ANTHROPIC_API_KEY": task.dummy_key,
    }


def transcript(home: Path) -> Transcript:
    """Its conversations, as it keeps them."""
    return Transcript(home, f"{SESSIONS}/*/*.jsonl", RESULT, CALL)
