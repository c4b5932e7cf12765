"""A small ACP agent that starts children by the tools of an MCP server; as a child it writes the file of its goal."""

import json
import os
import sys
import urllib.request
from pathlib import Path


def post(url, body, **headers):
    """A JSON answer."""
    headers = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def say(**message):
    """One line of the protocol."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def think():
    """A question to the model, whose answer changes nothing."""
    body = {
        "model": os.environ["MOORAGE_MODEL"],
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "What now?"}],
    }
    post(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body, **{"x-api-key": os.environ["ANTHROPIC_API_KEY"]})


def share(server):
    """Two children; both are waited for, and the first one's work is taken."""

    def call(tool, **given):
        params = {"name": tool, "arguments": given}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        result = post(server, body)["result"]
        text = result["content"][0]["text"]
        if result["isError"]:
            raise SystemExit(text)
        return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)

    names = [call("spawn_run", goal=goal, tokens=5000)["child"] for goal in ("Write one.", "Write two.")]
    for name in names:
        while call("wait_run", name=name)["status"] in {"requested", "started"}:
            pass
    call("merge_run", name=names[0])


server = ""
for line in sys.stdin:
    asked = json.loads(line)
    params = asked.get("params", {})
    match asked.get("method"):
        case "initialize":
            say(id=asked["id"], result={"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": True}}})
        case "session/new":
            server = params["mcpServers"][0]["url"]
            say(id=asked["id"], result={"sessionId": "s"})
        case "session/prompt":
            think()
            words = params["prompt"][0]["text"]
            for name in ("one", "two"):
                if f"Write {name}." in words:
                    Path(f"{name}.txt").write_text(f"{name}\n")
            if "Share the work." in words:
                share(server)
            say(id=asked["id"], result={"stopReason": "end_turn"})
