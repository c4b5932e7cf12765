"""How programs that aren't ours are told of the tools of children, which the runner serves at its loopback port (O2).

It is a server of the Model Context Protocol (`moorage.runner.mcp`). Each program has a way of its own to be told of
one; pi has none, and gets an extension that does the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moorage.drivers.port import Task

SERVER = "moorage"
PATIENCE_S = 3_700  # a little longer than wait_run takes at the most

_PI = """\
// Written anew at each start: the tools of child runs, as the runner serves them.
import { request } from "node:http"; // which has no time limit of its own: a child may take an hour

function ask(method, params, signal) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    const asked = request(%s, { method: "POST", headers, signal }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("error", reject);
      answer.on("end", () => {
        try {
          const told = JSON.parse(Buffer.concat(parts).toString());
          told.error ? reject(new Error(told.error.message)) : resolve(told.result);
        } catch (error) {
          reject(error);
        }
      });
    });
    asked.on("error", reject);
    asked.end(body);
  });
}

export default async function (pi) {
  for (const { name, description, inputSchema } of (await ask("tools/list", {})).tools) {
    const execute = async (_id, given, signal) => {
      const { content, isError } = await ask("tools/call", { name, arguments: given }, signal);
      if (isError) throw new Error(content[0].text);
      return { content, details: {} };
    };
    pi.registerTool({ name, label: name, description, parameters: inputSchema, execute });
  }
}
"""


def door(task: Task) -> str | None:
    """The server's URL; None where the agent may have no children."""
    return f"{task.relay_url}/mcp" if task.agent.children is not None else None


def codex(url: str) -> str:
    """A part of config.toml. TOML's basic strings are JSON's."""
    return f"\n[mcp_servers.{SERVER}]\nurl = {json.dumps(url)}\ntool_timeout_sec = {PATIENCE_S}\n"


def claude_code(url: str) -> Sequence[str]:
    """Options of `claude`."""
    return ("--mcp-config", json.dumps({"mcpServers": {SERVER: {"type": "http", "url": url}}}))


CLAUDE_CODE_PATIENCE: Mapping[str, str] = {"MCP_TOOL_TIMEOUT": str(PATIENCE_S * 1000)}


def pi(url: str) -> str:
    """The text of an extension. JavaScript's strings are JSON's."""
    return _PI % json.dumps(url)


def acp(url: str) -> Mapping[str, Any]:
    """One of session/new's mcpServers."""
    return {"type": "http", "name": SERVER, "url": url, "headers": []}
