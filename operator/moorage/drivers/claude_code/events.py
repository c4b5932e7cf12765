"""What the lines of `claude -p --output-format stream-json` mean. Pure; seen with Claude Code 2.1.

It tells a tool call twice: in the decision (`assistant`), and as a question to us right before it runs, which it waits
for. The second is the intent; it is answered once that is durable and, where a person has to allow it, they have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moorage.core.models.protocol import Carried
from moorage.drivers.claude_code.speech import ALLOWED, answer, denied, forbidden, refusal, user
from moorage.drivers.facts import Answered, Asked, Began, Ended, Fact, Permission, Reply, Said, Settled, Trouble
from moorage.drivers.jsonlines import MAX_OPEN
from moorage.drivers.telling import ToolResult
from moorage.drivers.untrusted import counts, mapping, text

QUIET = frozenset({"control_response", "control_cancel_request", "keep_alive", "tool_progress"})
HELPER = "local_agent"  # a task that comes to its end; a server that was left running may not
TASKS = frozenset({"task_started", "task_progress", "task_notification"})  # how a long call comes along
USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_tokens",
    "cacheCreationInputTokens": "cache_write_tokens",
}
EXIT = re.compile(r"Exit code (\d{1,3})$", re.MULTILINE)  # how its `Bash` begins to tell of a failure


class ClaudeCodeEvents:
    """Implements facts.Dialect. `names` makes a new UUID each time.

    What is said to it while it works waits until it has a use for it: beside the results of a call, else in a turn of
    its own. What its helpers come to in the background is a turn of its own, too. So an end is none while something
    waits, or a helper works.
    """

    def __init__(self, names: Callable[[], str]) -> None:
        self._names = names
        self._waiting: set[str] = set()  # of what was said, as far as it tells
        self._tells = False  # what becomes of that
        self._helped = False  # by an agent of its own, in the background
        self._calls: dict[str, tuple[str, Mapping[str, Any]]] = {}  # decided, and without a result yet
        self._told: dict[str, int] = {}  # of its use, which it sums up over its turns
        self._meanings: Mapping[str, Callable[[Mapping[str, Any]], Sequence[Fact] | None]] = {
            **dict.fromkeys(QUIET, lambda _: []),
            "system": self._system,
            "assistant": self._decided,
            "user": self._results,
            "control_request": lambda event: _question(text(event.get("request_id")), mapping(event.get("request"))),
            "result": self._over,
            "command_lifecycle": self._moved,
        }

    def user(self, words: str) -> bytes:
        """Words of the user's, for its stdin."""
        name = self._names()
        self._waiting.add(name)
        return user(words, name)

    def facts(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        """See Dialect."""
        meaning = self._meanings.get(text(event.get("type")))
        return meaning(event) if meaning else None

    def _decided(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        parts = _parts(event)
        said = "\n".join(text(part.get("text")) for part in parts if part.get("type") == "text")
        if event.get("is_api_error_message") is True:
            return [Trouble(said or text(event.get("error")))]
        for part in parts:
            if part.get("type") == "tool_use" and len(self._calls) < MAX_OPEN:
                self._calls[text(part.get("id"))] = text(part.get("name")), mapping(part.get("input"))
        own = event.get("parent_tool_use_id") is None  # and no helper's of its own
        return [Said(said)] if said and own else []

    def _results(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        facts: list[Fact] = []
        for part in _parts(event):
            if part.get("type") != "tool_result":
                continue
            call = text(part.get("tool_use_id"))
            tool, arguments = self._calls.pop(call, ("", {}))
            facts.append(Answered(call, tool, arguments, _result(tool, part)))
        return [*facts, Settled({}, more=True)] if facts and not self._calls else facts

    def telling(self, results: Sequence[Carried]) -> int:
        """See Dialect."""
        return len(results)

    def _moved(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        self._tells = True
        if event.get("state") != "queued":
            self._waiting.discard(text(event.get("command_uuid")))
        return []

    def _over(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        self._calls.clear()
        settled = Settled(self._usage(mapping(event.get("modelUsage"))), more=False)
        goes_on = self._helped or (self._tells and self._waiting)
        return [settled] if goes_on else [settled, Ended(_failure(event))]

    def _system(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        if event.get("subtype") != "background_tasks_changed":
            return _system(event)
        tasks = event.get("tasks")
        self._helped = isinstance(tasks, list) and any(mapping(each).get("task_type") == HELPER for each in tasks)
        return []

    def _usage(self, models: Mapping[str, Any]) -> dict[str, int]:
        """What was used since it was told last, by all models together."""
        each = [counts(mapping(model), USAGE) for model in models.values()]
        whole = {name: sum(model.get(name, 0) for model in each) for name in USAGE.values()}
        fresh = {name: whole[name] - self._told.get(name, 0) for name in whole}
        self._told = whole
        return {name: count for name, count in fresh.items() if count > 0}


def _system(event: Mapping[str, Any]) -> Sequence[Fact] | None:
    match event.get("subtype"):
        case "init":
            return [Began(text(event.get("session_id")))]
        case "api_retry":
            status = event.get("error_status")
            return [Trouble(f"the model's door answered {status}: {text(event.get('error'))}; it is asked again")]
    return [] if text(event.get("subtype")) in TASKS else None


def _question(request: str, asked: Mapping[str, Any]) -> Sequence[Fact]:
    """What it asks us and waits for. What its tools may reach, our sandbox decides; so a call may run unless a person
    has to allow it first.
    """
    match asked.get("subtype"):
        case "hook_callback":
            call = mapping(asked.get("input"))
            return _waiting(_intent(call.get("tool_use_id"), call), request, ALLOWED, denied)
        case "can_use_tool":
            arguments = mapping(asked.get("input"))
            call = {"tool_name": asked.get("tool_name"), "tool_input": arguments}
            allowed = {"behavior": "allow", "updatedInput": arguments}
            return _waiting(_intent(asked.get("tool_use_id"), call), request, allowed, forbidden)
    return [Reply(refusal(request, "nobody here can do that"))]


def _intent(call: object, asked: Mapping[str, Any]) -> Asked:
    return Asked(text(call), text(asked.get("tool_name")), mapping(asked.get("tool_input")))


def _waiting(
    intent: Asked, request: str, yes: Mapping[str, Any], no: Callable[[str], Mapping[str, Any]]
) -> Sequence[Fact]:
    def refused(why: str) -> bytes:
        return answer(request, no(why))

    return [intent, Permission(intent.call, intent.tool, intent.arguments, answer(request, yes), refused)]


def _failure(event: Mapping[str, Any]) -> str | None:
    """Its `subtype` is "success" also where the model refused it."""
    subtype = text(event.get("subtype"))
    if subtype == "success" and event.get("is_error") is False:
        return None
    told = event.get("errors")
    errors = "; ".join(text(each) for each in told if text(each)) if isinstance(told, list) else ""
    return text(event.get("result")) or errors or f"it ended with {subtype or 'no result'}"


def _result(tool: str, part: Mapping[str, Any]) -> ToolResult:
    content, failed = part.get("content"), part.get("is_error") is True
    said = content if isinstance(content, str) else _words(content)
    code = EXIT.match(said) if failed and tool == "Bash" else None
    return ToolResult(ok=not failed, text=said, exit_code=int(code[1]) if code else None, size=len(said.encode()))


def _parts(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = mapping(event.get("message")).get("content")
    return [mapping(part) for part in content] if isinstance(content, list) else []


def _words(content: object) -> str:
    parts = content if isinstance(content, list) else []
    return "\n".join(text(mapping(part).get("text")) for part in parts if mapping(part).get("type") == "text")
