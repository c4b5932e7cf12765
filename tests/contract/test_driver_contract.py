"""All our drivers of somebody else's programs, put through the test kit that we give to others."""

import json

import pytest
from tests.contract.posing_agents import ACP, CLAUDE_CODE, COMMAND, agent

from moorage.drivers.registry import load
from moorage.testing.drivers import DriverContract, Subject, spoken

pytestmark = pytest.mark.timeout(240)  # real processes; the suite's own limit is below that


class TestCommand(DriverContract):
    subject = Subject(
        driver=lambda: load("command"),
        program="tool",
        agent=agent("command", "anthropic-messages", "tool"),
        words=COMMAND,
        last_word=False,
        calls=False,
        refusals=False,
    )


class TestCodex(DriverContract):
    subject = Subject(
        driver=lambda: load("codex"),
        program="codex",
        agent=agent("codex", "openai-responses"),
        words=spoken(
            call='{"type":"item.started","item":{"id":"NAME","type":"command_execution","command":"x"}}',
            result='{"type":"item.completed","item":{"id":"NAME","type":"command_execution","status":"completed"}}',
            refused='{"type":"error","message":"unexpected status 401 Unauthorized"}',
            end='{"type":"turn.completed","usage":{}}',
        ),
    )


def told(role: str, stop: str, **more: object) -> str:
    return json.dumps({"type": "message_end", "message": {"role": role, "stopReason": stop, **more}})


PI_TURN = {"type": "turn_end", "message": {"role": "assistant", "stopReason": "toolUse"}, "toolResults": [{}]}

PI_LAST = {"type": "turn_end", "message": {"role": "assistant", "stopReason": "stop"}, "toolResults": []}


class TestPi(DriverContract):
    subject = Subject(
        driver=lambda: load("pi"),
        program="pi",
        agent=agent("pi"),
        words=spoken(
            call='{"type":"tool_execution_start","toolCallId":"NAME","toolName":"bash","args":{"command":"x"}}',
            result='{"type":"tool_execution_end","toolCallId":"NAME","toolName":"bash"}\n' + json.dumps(PI_TURN),
            refused=told("assistant", "error", errorMessage="401 no"),
            end="\n".join((told("assistant", "stop"), json.dumps(PI_LAST), '{"type":"agent_end"}')),
        ),
    )


class TestClaudeCode(DriverContract):
    subject = Subject(
        driver=lambda: load("claude-code"),
        program="claude",
        agent=agent("claude-code"),
        words=CLAUDE_CODE,
        hears=True,
    )


class TestAcp(DriverContract):
    subject = Subject(
        driver=lambda: load("acp"),
        program="tool",
        agent=agent("acp", "anthropic-messages", "tool"),
        words=ACP,
        hears=True,
    )
