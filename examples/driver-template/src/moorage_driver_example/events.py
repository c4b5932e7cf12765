"""What the lines of `example-agent` mean. Pure.

{"type": "tool", "id": "1", "name": "bash", "input": {…}}      a call begins
{"type": "tool-done", "id": "1", "ok": true, "output": "…"}    it has ended
{"type": "text", "text": "…"}                                  words; the last ones are the summary
{"type": "error", "message": "…"}                              something failed, and it tries again
{"type": "done"}  or  {"type": "done", "error": "…"}           the last word
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moorage.core.models.protocol import Carried
from moorage.drivers.facts import Answered, Asked, Ended, Fact, Said, Settled, Trouble
from moorage.drivers.telling import ToolResult
from moorage.drivers.untrusted import mapping, text


class ExampleEvents:
    """Implements moorage.drivers.facts.Dialect: never raises, whatever the agent says."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def facts(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        """None for what isn't known: it is kept in the log as it is."""
        match event.get("type"):
            case "tool":
                return self._asked(event)
            case "tool-done":
                return self._answered(event)
            case "text":
                return [Said(text(event.get("text")))]
            case "error":
                return [Trouble(text(event.get("message")))]
            case "done":
                return [Settled({}, more=False), Ended(text(event.get("error")) or None)]
        return None

    def telling(self, results: Sequence[Carried]) -> int:
        """Of how many of the calls whose results it brings to its model it tells that they are over: of all."""
        return len(results)

    def _asked(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        call = text(event.get("id"))
        self._open.add(call)
        return [Asked(call, text(event.get("name")), mapping(event.get("input")))]

    def _answered(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        call, said = text(event.get("id")), text(event.get("output"))
        self._open.discard(call)
        result = ToolResult(ok=event.get("ok") is True, text=said, size=len(said.encode()))
        done = Answered(call, text(event.get("name")), {}, result)
        return [done] if self._open else [done, Settled({}, more=True)]  # no call is under way: a safe point
