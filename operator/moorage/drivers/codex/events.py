"""What the lines of `codex exec --json` mean. Pure; seen with Codex 0.169.

Codex tells tool calls as items, and nothing of the decisions between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moorage.core.models.protocol import Carried
from moorage.drivers.facts import Answered, Asked, Began, Ended, Fact, Noted, Said, Settled, Trouble
from moorage.drivers.telling import ToolResult
from moorage.drivers.untrusted import counts, mapping, number, text

CUT = "reason: max_output_tokens"  # how it tells of an answer that was cut by its length
ITEMS = frozenset(
    {"exec_command", "shell", "shell_command", "local_shell", "apply_patch"}
)  # each is an item, if it ran
NOT_RUN = ("failed to parse", "unsupported call", "apply_patch verification failed")  # how one that didn't is answered
ONGOING = "Process running with session ID"
WORDS = {"reasoning": "text", "error": "message"}
USAGE = {"cached_input_tokens": "cache_read_tokens", "cache_write_input_tokens": "cache_write_tokens"}


class CodexEvents:
    """Implements jsonlines.Dialect. `resumed`: the conversation is older than this program; what Codex tells of its use
    is then the sum of all, which earlier attempts have told of in part, so none of it is passed on.
    """

    def __init__(self, *, resumed: bool = False) -> None:
        self._resumed = resumed
        self._open: set[str] = set()
        self._meanings: Mapping[str, Callable[[Mapping[str, Any]], Sequence[Fact] | None]] = {
            "thread.started": lambda event: [Began(text(event.get("thread_id")))],
            "turn.started": lambda _: [],
            "item.started": lambda event: self._started(mapping(event.get("item"))),
            "item.updated": lambda _: [],
            "item.completed": lambda event: self._completed(mapping(event.get("item"))),
            "turn.completed": self._over,
            "turn.failed": lambda event: [_failed(text(mapping(event.get("error")).get("message")))],
            "error": lambda event: [Trouble(text(event.get("message")))],
        }

    def facts(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        """See Dialect."""
        meaning = self._meanings.get(text(event.get("type")))
        return meaning(event) if meaning else None

    def _over(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        usage = {} if self._resumed else _usage(mapping(event.get("usage")))
        return [Settled(usage, more=False), Ended()]

    def _started(self, item: Mapping[str, Any]) -> Sequence[Fact] | None:
        call, tool = text(item.get("id")), _tool(item)
        if tool is None:
            return [] if text(item.get("type")) in {"agent_message", "todo_list", *WORDS} else None
        self._open.add(call)
        return [Asked(call, tool, _arguments(item))]

    def _completed(self, item: Mapping[str, Any]) -> Sequence[Fact] | None:
        kind = text(item.get("type"))
        if kind == "agent_message":
            return [Said(text(item.get("text")))]
        if kind == "todo_list":
            return []
        if kind in WORDS:
            return [Noted(text(item.get(WORDS[kind])))]
        call, tool = text(item.get("id")), _tool(item)
        if tool is None:
            return None
        self._open.discard(call)
        done = Answered(call, tool, _arguments(item), _result(item))
        return [done] if self._open else [done, Settled({}, more=True)]

    def telling(self, results: Sequence[Carried]) -> int:
        """See Dialect. A command that goes on in the background is told of when it ends."""
        return sum(
            each.tool in ITEMS and not each.text.startswith(NOT_RUN) and ONGOING not in each.text for each in results
        )


def _failed(message: str) -> Ended:
    return Ended(message or "the turn failed", cut=CUT in message)


def _tool(item: Mapping[str, Any]) -> str | None:
    """The tool that an item is a call of; None where it is none."""
    match item.get("type"):
        case "command_execution" | "file_change" | "web_search" | "collab_tool_call" as kind:
            return str(kind)
        case "mcp_tool_call":
            return f"{text(item.get('server'))}.{text(item.get('tool'))}"
    return None


def _arguments(item: Mapping[str, Any]) -> Mapping[str, Any]:
    told = {name: item[name] for name in ("command", "changes", "query", "prompt") if name in item}
    return told or mapping(item.get("arguments"))


def _result(item: Mapping[str, Any]) -> ToolResult:
    said = text(item.get("aggregated_output"))
    failure = text(mapping(item.get("error")).get("message"))
    return ToolResult(
        ok=item.get("status") == "completed",
        text=said or failure,
        exit_code=number(item.get("exit_code")),
        size=len((said or failure).encode()),
    )


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    """Codex counts cached tokens within the input, we beside it."""
    cached = counts(usage, USAGE)
    whole = counts(usage, {"input_tokens": "input_tokens", "output_tokens": "output_tokens"})
    fresh = max(0, whole.pop("input_tokens", 0) - sum(cached.values()))
    return {**({"input_tokens": fresh} if fresh else {}), **whole, **cached}
