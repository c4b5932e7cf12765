"""The real agents, as npm has them, and a model for them that is none: what the drivers' contract tests share."""

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from e2e.cluster.console import Console
from e2e.cluster.npm import TESTED, installed, present
from e2e.cluster.paths import cache_root
from moorage.api.wire import ResolvedAgent, ResolvedModel
from moorage.runner.relay import Relay
from moorage.testing.host import LocalHost
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.models.script import Conversation, Usage
from moorage.testing.serving import listening

AGENTS = ("claude-code", "codex", "opencode", "pi")
PROTOCOLS = {**dict.fromkeys(AGENTS, "anthropic-messages"), "codex": "openai-responses"}
DRIVERS = {"opencode": "acp"}
PROGRAMS = {  # as the images have them; npm's own `codex` is a script that starts the static binary
    "claude-code": {"claude": "@anthropic-ai/claude-code-linux-*/claude"},
    "codex": {"codex": "@openai/codex-linux-*/vendor/*/bin/codex"},
    "opencode": {"opencode": "opencode-linux-*/bin/opencode"},
    "pi": {"pi": ".bin/pi", "node": "node-linux-*/bin/node"},
}
TOOLS = {
    "claude-code": ("Bash", {}, "command"),
    "codex": ("exec_command", {}, "cmd"),
    "opencode": ("bash", {"description": "Work."}, "command"),
    "pi": ("bash", {}, "command"),
}
USAGE = Usage(input_tokens=100, output_tokens=10, cache_read_input_tokens=1_000)
OPENCODE = {
    "OPENCODE_CONFIG_CONTENT": json.dumps(
        {
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "ask", "task": "deny"},
            "model": "moorage/$(MOORAGE_MODEL)",
            "small_model": "moorage/$(MOORAGE_MODEL)",
            "agent": {"title": {"disable": True}},
            "provider": {
                "moorage": {
                    "npm": "@ai-sdk/anthropic",
                    "options": {"baseURL": "$(MOORAGE_MODEL_URL)", "apiKey": "$(MOORAGE_MODEL_KEY)"},
                    "models": {"$(MOORAGE_MODEL)": {"tool_call": True, "limit": {"context": 200000, "output": 16384}}},
                }
            },
        }
    ),
    **dict.fromkeys(("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD"), "1"),
}
DONE = Reply(text="All done.", usage=USAGE)


def path_with(agent: str, folder: Path) -> str:
    """A PATH on which the agent's programs are found; `make test-unit` has had npm bring them, without a time limit.

    One that comes by request only is skipped unless it has been asked for.
    """
    if agent not in TESTED and not present(agent, cache_root()):
        pytest.skip(f"python -m e2e.cluster agents --with {agent} brings it; docs/not-run-here.md says why only then")
    modules = installed(agent, cache_root(), Console())
    folder.mkdir(exist_ok=True)
    for name, place in PROGRAMS[agent].items():
        (folder / name).symlink_to(next(modules.glob(place)))
    return f"{folder}:{os.environ['PATH']}"


def resolved(agent: str, path: str, protocol: str = "", url: str = "http://127.0.0.1:9") -> ResolvedAgent:
    """The agent with a model. It gives up soon."""
    model = ResolvedModel(provider="p", protocol=protocol or PROTOCOLS[agent], base_url=url, name="scripted")
    env = {"PATH": path, "CLAUDE_CODE_MAX_RETRIES": "1"}
    if agent == "opencode":
        return ResolvedAgent(driver="acp", command=("opencode", "acp"), env={**env, **OPENCODE}, model=model)
    return ResolvedAgent(driver=agent, env=env, model=model)


def run(agent: str, *commands: str, text: str = "") -> Reply:
    """A decision to run shell commands, by the tool that the agent has for that."""
    tool, more, argument = TOOLS[agent]
    calls = tuple(ToolCall(name=tool, input={**more, argument: command}) for command in commands)
    return Reply(text=text, tools=calls, usage=USAGE)


@contextlib.asynccontextmanager
async def model_door(
    host: LocalHost, *replies: Reply, conversations: tuple[Conversation, ...] = ()
) -> AsyncIterator[tuple[str, StandIn]]:
    """A stand-in where the gateway has the model door, behind a relay that holds requests for the host; its URL."""
    model = StandIn(Script(replies=replies, conversations=conversations))
    token = host.tree.parent / "token"
    token.write_text("the run's")
    async with listening(Starlette(routes=[Mount("/model", app=model.app)])) as url:
        relay = Relay(url, token, host.hold)
        await relay.start()
        try:
            yield relay.url, model
        finally:
            await relay.stop()
