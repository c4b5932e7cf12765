"""What an agent does, as every driver tells it: tool calls as records of the journal, words as lines of the log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from moorage.core.journal.canonical import canonical
from moorage.core.journal.errors import NotCanonical
from moorage.drivers.port import Host

MAX_ARGUMENTS = 1 << 20  # bytes of a call's arguments; more fits no report to the journal
RESULT_CHARACTERS = 30_000
NAME_CHARACTERS = 128
DIGEST_CHARACTERS = 12
GIST_CHARACTERS = 240  # a status has 1,024 for it and for what to do
REFUSED = "This call was refused"
"""How the result of a call begins that may not be made."""

FOREMOST = frozenset({"command", "path"})


@dataclass(frozen=True)
class Place:
    """Where a tool call stands. Its ids follow from that, so that a call told twice is one record."""

    tool: str
    iteration: int
    index: int

    @property
    def call_id(self) -> str:
        """Stable over retries (O3)."""
        return f"{self.iteration}.{self.index}"

    def payload(self) -> dict[str, Any]:
        """For both records."""
        return {"tool": self.tool[:NAME_CHARACTERS], "iteration": self.iteration, "index": self.index}


@dataclass(frozen=True)
class ToolResult:
    """What a call came to. `text` goes to the model, capped; `size` is the bytes that there were. A driver that doesn't
    run the tool itself knows no duration.
    """

    ok: bool
    text: str
    exit_code: int | None = None
    timed_out: bool = False
    truncated: bool = False
    size: int = 0
    duration_ms: int | None = None

    def payload(self) -> dict[str, Any]:
        """For TOOL_RESPONSE."""
        told = {"ok": self.ok, "bytes": self.size, "truncated": self.truncated, "content": self.text}
        if self.duration_ms is not None:
            told |= {"duration_ms": self.duration_ms}
        return told if self.exit_code is None else told | {"exit_code": self.exit_code, "timed_out": self.timed_out}

    def capped(self) -> ToolResult:
        """Bounded text: the beginning and the end, and how much is missing between them."""
        over = len(self.text) - RESULT_CHARACTERS
        if over <= 0:
            return self
        half = RESULT_CHARACTERS // 2
        text = f"{self.text[:half]}\n[… {over} characters left out …]\n{self.text[-half:]}"
        return replace(self, text=text, truncated=True)

    @property
    def ending(self) -> str:
        """In a word or two."""
        if self.timed_out:
            return "timed out"
        return f"exit {self.exit_code}" if self.exit_code is not None else ("ok" if self.ok else "refused")


class Telling:
    """Tells one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def asked(self, place: Place, arguments: Mapping[str, Any]) -> int:
        """M1: the arguments are durable when this returns; of those over MAX_ARGUMENTS only the size. Returns that."""
        size = len(json.dumps(arguments))
        kept = journaled(arguments) if size <= MAX_ARGUMENTS else None
        await self._tell("TOOL_REQUEST", place, {"arguments": kept, "bytes": size})
        return size

    async def answered(self, place: Place, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """What became of it, in the journal and, in a line, in the log."""
        await self._tell("TOOL_RESPONSE", place, result.payload())
        await self.said(f"[{place.tool} {brief(arguments)}: {result.ending}]")

    async def said(self, text: str) -> None:
        """Words for the log."""
        if text.strip():
            await self._host.output("stdout", f"{text.rstrip()}\n".encode())

    async def _tell(self, kind: str, place: Place, payload: Mapping[str, Any]) -> None:
        await self._host.emit(
            kind,
            {**place.payload(), **payload},
            record_id=f"{kind}:{place.call_id}",
            turn=place.iteration,
            tool_call_id=place.call_id,
        )


def journaled(arguments: Mapping[str, Any]) -> object:
    """As they are where canonical JSON can hold them; else as text, which is JSON."""
    try:
        canonical(arguments)
    except NotCanonical:
        return json.dumps(arguments)
    return arguments


def question_of(call_id: str, arguments: Mapping[str, Any]) -> str:
    """What a person is asked about a call, over whatever attempts ask again: of other arguments in the same place it is
    another question, and no answer to the one allows the other.
    """
    whole = json.dumps(arguments, sort_keys=True).encode()
    return f"{call_id}:{hashlib.sha256(whole).hexdigest()[:DIGEST_CHARACTERS]}"


def gist(arguments: Mapping[str, Any]) -> str:
    """All of a call in one line, for a person who is to allow it: what matters most first, nothing that shows as
    something else, and of a long one how long it is.
    """
    named = sorted(arguments.items(), key=lambda pair: pair[0] not in FOREMOST)
    shown = visible(" ".join(f"{name}={json.dumps(said, ensure_ascii=False)}" for name, said in named))
    return shown if len(shown) <= GIST_CHARACTERS else f"{shown[:GIST_CHARACTERS]}… ({len(shown)} characters)"


def visible(text: str) -> str:
    """Nothing in it shows as something else, or not at all."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def brief(arguments: Mapping[str, Any]) -> str:
    """The first line of what matters most."""
    told = arguments.get("command") or arguments.get("path") or ""
    text = (" ".join(map(str, told)) if isinstance(told, list) else str(told)).strip()
    return text.splitlines()[0][:120] if text else ""
