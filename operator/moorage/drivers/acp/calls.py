"""The tool calls of an ACP agent, from what it tells of them in pieces. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage.drivers.facts import Answered, Asked, Fact, Settled
from moorage.drivers.jsonlines import MAX_OPEN
from moorage.drivers.telling import ToolResult
from moorage.drivers.untrusted import mapping, number, text

OVER = {"completed": True, "failed": False}
OTHER = "other"  # the kind of a tool that has none


@dataclass
class _Call:
    """What is known of a call; `asked`: its intent is told."""

    kind: str = ""
    title: str = ""
    given: object = None
    said: str = ""
    output: object = None
    asked: bool = False

    def take(self, told: Mapping[str, Any]) -> None:
        """Add what an update tells; what it leaves out stays."""
        self.kind = text(told.get("kind")) or self.kind
        self.title = text(told.get("title")) or self.title
        self.given = told.get("rawInput") or self.given
        self.said = _words(told.get("content")) or self.said
        self.output = told.get("rawOutput") or self.output

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What it is to do, as far as the agent says so, and whatever it calls that: for the records and for a person's
        question alike, since an answer is told with the record's.
        """
        if isinstance(self.given, dict):
            return self.given or {"title": self.title}
        return {"title": self.title, "input": self.given}


@dataclass
class Calls:
    """Those that are not over, by the agent's own ids."""

    _held: dict[str, _Call] = field(default_factory=dict)
    _begun: int = 0  # since a request brought results last
    _ended: int = 0
    _brought: int = 0  # results, by requests before
    _tells: bool = True  # of each call, as far as we know

    @property
    def open(self) -> bool:
        """Whether a call is under way whose intent is told."""
        return any(call.asked for call in self._held.values())

    def begin(self, told: Mapping[str, Any]) -> Sequence[Fact]:
        """`tool_call`."""
        name = text(told.get("toolCallId"))
        if name not in self._held and len(self._held) < MAX_OPEN:
            self._held[name] = _Call()
        return self.update(told)

    def update(self, told: Mapping[str, Any]) -> Sequence[Fact]:
        """`tool_call_update`; of a call that is over, or was never begun, nothing is new."""
        name, status = text(told.get("toolCallId")), text(told.get("status"))
        call = self._held.get(name)
        if call is None:
            return []
        call.take(told)
        if status in OVER:
            return self._over(name, call, ok=OVER[status])
        return self._intent(name, call) if status == "in_progress" else []

    def permit(self, told: Mapping[str, Any]) -> tuple[Sequence[Fact], Asked]:
        """The agent waits to be allowed a call, which it may not have told of yet: its intent where that is news, and
        what it is to do.
        """
        self.begin({**told, "status": "pending"})
        name = text(told.get("toolCallId"))
        call = self._held.get(name)
        if call is None:  # too many are open
            return [], Asked(name, text(told.get("kind")) or OTHER, {})
        return self._intent(name, call), Asked(name, call.kind or OTHER, call.arguments)

    def telling(self, results: int) -> int:
        """Of how many of the calls whose results a request brings the end is told: of all, as long as it has told of
        all before; else of those at most that it told of as they began.
        """
        self._tells = self._tells and self._ended >= self._brought
        self._brought += results
        begun, self._begun = self._begun, 0
        return results if self._tells else min(begun, results)

    def drop(self) -> Sequence[Fact]:
        """The turn is over, and whatever was under way with it."""
        left, self._held = self._held, {}
        self._ended += len(left)
        ended = ToolResult(ok=False, text="the turn ended before this call did")
        return [Answered(name, call.kind or OTHER, call.arguments, ended) for name, call in left.items() if call.asked]

    def _intent(self, name: str, call: _Call) -> Sequence[Fact]:
        if call.asked:
            return []
        call.asked = True
        self._begun += 1
        return [Asked(name, call.kind or OTHER, call.arguments)]

    def _over(self, name: str, call: _Call, *, ok: bool) -> Sequence[Fact]:
        del self._held[name]
        self._ended += 1
        done = Answered(name, call.kind or OTHER, call.arguments, _result(call, ok=ok))
        return [done] if self.open else [done, Settled({}, more=True)]


def _result(call: _Call, *, ok: bool) -> ToolResult:
    """The exit code stands where the agent puts it: there is no one place."""
    raw = mapping(call.output)
    inner = mapping(raw.get("metadata"))
    code = next(
        (found for each in (raw.get("exit_code"), inner.get("exit")) if (found := number(each)) is not None), None
    )
    said = call.said or text(raw.get("output")) or text(raw.get("aggregated_output")) or text(call.output)
    return ToolResult(ok=ok and code in {None, 0}, text=said, exit_code=code, size=len(said.encode()))


def _words(content: object) -> str:
    parts = content if isinstance(content, list) else []
    return "\n".join(text(mapping(mapping(part).get("content")).get("text")) for part in parts).strip("\n")
