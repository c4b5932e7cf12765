"""What programs say that pose as the agents of our drivers: the words that the test kit wants of a subject."""

import json
from collections.abc import Callable, Mapping

from moorage.api.wire import ResolvedAgent, ResolvedModel
from moorage.drivers.registry import load
from moorage.testing.drivers import Subject, spoken


def agent(driver: str, protocol: str = "anthropic-messages", *command: str) -> Callable[[str], ResolvedAgent]:
    """The agent's definition, by the PATH on which its program lies."""

    def made(path: str) -> ResolvedAgent:
        model = ResolvedModel(provider="p", protocol=protocol, base_url="http://127.0.0.1:9", name="m")
        return ResolvedAgent(driver=driver, env={"PATH": path}, command=command, model=model)

    return made


COMMAND = """
def begin():
    with open(os.environ["MOORAGE_GOAL_FILE"], encoding="utf-8", newline="") as file:
        return file.read()
def call(name): pass
def result(name): say('{"moorage": {"event": "iteration"}}')
def refused(): pass
def end(): say('{"moorage": {"event": "summary", "text": "Done."}}')
"""

CLAUDE_CODE = """
heard = []
def read():
    told = json.loads(sys.stdin.readline())
    if told["type"] == "user":
        heard.append(told["message"]["content"][0]["text"])
    return told
def hear():
    while not heard:
        read()
    return heard.pop(0)
def begin():
    goal = hear()
    say(json.dumps({"type": "system", "subtype": "init", "session_id": "s-1"}))
    return goal
def call(name):
    use = {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": "x"}}
    say(json.dumps({"type": "assistant", "message": {"content": [use]}, "parent_tool_use_id": None}))
    asked = {"tool_use_id": name, "tool_name": "Bash", "tool_input": {"command": "x"}}
    asked = {"subtype": "hook_callback", "input": asked}
    say(json.dumps({"type": "control_request", "request_id": name, "request": asked}))
    while read().get("response", {}).get("request_id") != name:
        pass
def result(name):
    done = {"type": "tool_result", "tool_use_id": name, "content": "ok"}
    say(json.dumps({"type": "user", "message": {"content": [done]}}))
def refused():
    say('{"type":"system","subtype":"api_retry","error_status":401,"error":"authentication_failed"}')
def end():
    say('{"type":"result","subtype":"success","is_error":false}')
"""

ACP = """
prompt = None
def answer(number, result):
    say(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}))
def update(told):
    params = {"sessionId": "s", "update": told}
    say(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}))
def hear():
    global prompt
    while True:
        told = json.loads(sys.stdin.readline())
        if told.get("method") == "initialize":
            answer(told["id"], {"protocolVersion": 1, "agentCapabilities": {}})
        if told.get("method") == "session/new":
            answer(told["id"], {"sessionId": "s"})
        if told.get("method") == "session/cancel":
            answer(prompt, {"stopReason": "cancelled"})
        if told.get("method") == "session/prompt":
            prompt = told["id"]
            return told["params"]["prompt"][0]["text"]
begin = hear
def call(name):
    call = {"toolCallId": name, "title": "x", "kind": "execute", "rawInput": {"command": "x"}}
    options = [{"optionId": "no", "kind": "reject_once"}, {"optionId": "yes", "kind": "allow_once"}]
    params = {"sessionId": "s", "toolCall": call, "options": options}
    say(json.dumps({"jsonrpc": "2.0", "id": name, "method": "session/request_permission", "params": params}))
    while True:
        told = json.loads(sys.stdin.readline())
        if told.get("id") == name:
            assert told["result"]["outcome"] == {"outcome": "selected", "optionId": "yes"}
            return
def result(name):
    update({"sessionUpdate": "tool_call_update", "toolCallId": name, "status": "completed"})
def refused():
    error = {"code": -32603, "message": "status 401 Unauthorized"}
    say(json.dumps({"jsonrpc": "2.0", "id": prompt, "error": error}))
def end():
    answer(prompt, {"stopReason": "end_turn"})
"""


def told(role: str, stop: str, **more: object) -> str:
    return json.dumps({"type": "message_end", "message": {"role": role, "stopReason": stop, **more}})


PI_TURN = {"type": "turn_end", "message": {"role": "assistant", "stopReason": "toolUse"}, "toolResults": [{}]}

PI_LAST = {"type": "turn_end", "message": {"role": "assistant", "stopReason": "stop"}, "toolResults": []}


SUBJECTS: Mapping[str, Subject] = {
    "command": Subject(
        driver=lambda: load("command"),
        program="tool",
        agent=agent("command", "anthropic-messages", "tool"),
        words=COMMAND,
        last_word=False,
        calls=False,
        refusals=False,
    ),
    "codex": Subject(
        driver=lambda: load("codex"),
        program="codex",
        agent=agent("codex", "openai-responses"),
        words=spoken(
            call='{"type":"item.started","item":{"id":"NAME","type":"command_execution","command":"x"}}',
            result='{"type":"item.completed","item":{"id":"NAME","type":"command_execution","status":"completed"}}',
            refused='{"type":"error","message":"unexpected status 401 Unauthorized"}',
            end='{"type":"turn.completed","usage":{}}',
        ),
    ),
    "pi": Subject(
        driver=lambda: load("pi"),
        program="pi",
        agent=agent("pi"),
        words=spoken(
            call='{"type":"tool_execution_start","toolCallId":"NAME","toolName":"bash","args":{"command":"x"}}',
            result='{"type":"tool_execution_end","toolCallId":"NAME","toolName":"bash"}\n' + json.dumps(PI_TURN),
            refused=told("assistant", "error", errorMessage="401 no"),
            end="\n".join((told("assistant", "stop"), json.dumps(PI_LAST), '{"type":"agent_end"}')),
        ),
    ),
    "claude-code": Subject(
        driver=lambda: load("claude-code"),
        program="claude",
        agent=agent("claude-code"),
        words=CLAUDE_CODE,
        hears=True,
    ),
    "acp": Subject(
        driver=lambda: load("acp"),
        program="tool",
        agent=agent("acp", "anthropic-messages", "tool"),
        words=ACP,
        hears=True,
    ),
}
"""By the name of the driver."""
