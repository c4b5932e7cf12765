"""A stand-in for model providers: speaks their protocols from a script, misbehaves on request, remembers every call.

Anthropic's Messages (`/v1/messages`), OpenAI's Responses (`/v1/responses`) and Chat Completions
(`/v1/chat/completions`), each whole and streamed; `GET /_log` has what was asked.

    python -m moorage.testing.models [--script FILE] [--host ADDRESS] [--port N]

    async with StandIn(load(path)).serving() as model:   # in a test; `model.url`, `model.log`
        ...

The script is YAML (docs/testing-models.md has every field):

    replies:
      - text: I'll run the tests first.
        tools: [{name: bash, input: {command: python3 -m unittest}}]
        usage: {input_tokens: 812, output_tokens: 64, cache_creation_input_tokens: 640}
      - text: Done.
        faults: [{kind: status, status: 429, retry_after_s: 1}, {kind: cut, after: 2}]

Which reply comes is read from the conversation that is sent, so that a request which is sent again gets the same
answer, whoever sends it and however often the server was restarted in between.
"""

from moorage.testing.models.script import Fault, Reply, Script, ToolCall, load
from moorage.testing.models.server import StandIn

__all__ = ["Fault", "Reply", "Script", "StandIn", "ToolCall", "load"]
