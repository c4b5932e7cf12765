"""N5: a conversation that outgrows its model's context, made smaller in four stages. Pure.

What the journal holds is untouched by this: a context is a projection of it. Each stage takes from what is old, and the
last turns stay as they are. Never taken from: what was said to the model (the goal, constraints, orders), and results
that tell of an effect whose end isn't known; of the calls that they are of, long arguments are. A person's no stays as
it is until its turn becomes lines, and is one of them from then on, beside whatever summary.

snip      long results lose their middle
micro     old results become a line each, and long arguments lose their middle
collapse  old turns become a line per call
auto      old turns become a summary that the model writes (see `summarised`)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from moorage.drivers.builtin.answer import Call
from moorage.drivers.telling import REFUSED, ToolResult, brief

LATEST = 4  # turns that no stage but the last one takes from
SNIPPED = 2_000  # characters of a result that are left alone
LINE = 200
PERSONS = 2_000  # characters of a refusal with its reason
LINES = 200  # of old turns, the last ones
NO = 400  # characters of a refusal in its line
NOES = 30  # such lines, the last ones
SUMMARY = 16_000
WORTH = 50  # a stage counts where it frees a fiftieth of the room
OPEN_EFFECT = "EffectUnknown"
OPENING, CLOSING = "<earlier-work>\n", "\n</earlier-work>"
NOTE = re.compile(f"({re.escape(OPENING)}.*?{re.escape(CLOSING)})", re.DOTALL)
REFUSAL = re.compile(rf"- .*: {re.escape(REFUSED)}")  # a line of a note
LEFT = re.compile(r"Left: [^\n]*")  # what is left is told again and again; the last word counts


class Stage(StrEnum):
    """How much is taken, from least to most."""

    SNIP = "snip"
    MICRO = "micro"
    COLLAPSE = "collapse"
    AUTO = "auto"


AT: Mapping[Stage, int] = MappingProxyType({Stage.SNIP: 60, Stage.MICRO: 70, Stage.COLLAPSE: 80, Stage.AUTO: 90})
"""Percent of the room that must be used before a stage is taken."""


@dataclass(frozen=True)
class Said:
    """Words to the model."""

    text: str

    @property
    def note(self) -> bool:
        """It stands for turns that were taken."""
        return self.text.startswith(OPENING)


@dataclass(frozen=True)
class Turn:
    """An answer of the model's, with what its calls came to."""

    text: str
    done: tuple[tuple[Call, ToolResult], ...] = ()

    @property
    def pinned(self) -> bool:
        """It has a result that no stage takes."""
        return any(_open(result) for _, result in self.done)


Entry = Said | Turn
Entries = tuple[Entry, ...]


@dataclass(frozen=True)
class Compaction:
    """A stage that was taken. Tokens as `measure` counts them."""

    stage: Stage
    before: int
    after: int


def compacted(
    entries: Entries, measure: Callable[[Entries], int], room: int, *, forced: bool = False
) -> tuple[Entries, tuple[Compaction, ...]]:
    """The conversation after the stages that it is large enough for, all but the last. `forced`: whatever its size, and
    from the last turns too.
    """
    taken: list[Compaction] = []
    before, latest = measure(entries), 0 if forced else LATEST
    for stage, take in STAGES.items():
        if before * 100 < room * AT[stage] and not forced:
            break
        smaller = take(entries, latest)
        after = measure(smaller)
        if before - after >= max(1, room // WORTH):
            taken.append(Compaction(stage, before, after))
            entries, before = smaller, after
    return entries, tuple(taken)


def wants_summary(used: int, room: int) -> bool:
    """Whether the last stage is due, after the others."""
    return used * 100 >= room * AT[Stage.AUTO]


def summarised(entries: Entries, summary: str) -> Entries:
    """Stage auto: `summary` in the place of all turns but the last two; what was noted before is part of it."""
    old, latest = _parted(entries, 2)
    kept = [entry for entry in old if not _taken(entry) and not (isinstance(entry, Said) and entry.note)]
    noes, lines = _noted(old)
    text = "\n".join((*noes, summary.strip()[:SUMMARY] or "\n".join(lines)))
    return (*_deduplicated(kept), _note(text), *latest)


def read_said(text: str) -> Iterator[Said]:
    """What a protocol has put into one text, told apart again."""
    for part in NOTE.split(text):
        if part.strip():
            yield Said(part.strip() if not part.startswith(OPENING) else part)


# --- the stages -------------------------------------------------------------------------------------------------------


def _snip(entries: Entries, latest: int) -> Entries:
    def cut(turn: Turn) -> Turn:
        return replace(turn, done=tuple((call, _cut(result)) for call, result in turn.done))

    return _on_old(entries, latest, cut)


def _micro(entries: Entries, latest: int) -> Entries:
    def small(turn: Turn) -> Turn:
        done = tuple((_brief_call(call), _told_of(call, result)) for call, result in turn.done)
        return replace(turn, done=done)

    return _on_old(entries, latest, small)


def _collapse(entries: Entries, latest: int) -> Entries:
    old, rest = _parted(entries, latest)
    noes, lines = _noted(old)
    if not noes and not lines:
        return entries
    kept = [entry for entry in old if not _taken(entry) and not (isinstance(entry, Said) and entry.note)]
    return (*_deduplicated(kept), _note("\n".join((*noes, *lines))), *rest)


STAGES: Mapping[Stage, Callable[[Entries, int], Entries]] = MappingProxyType(
    {Stage.SNIP: _snip, Stage.MICRO: _micro, Stage.COLLAPSE: _collapse}
)


# --- parts ------------------------------------------------------------------------------------------------------------


def _parted(entries: Entries, latest: int) -> tuple[Entries, Entries]:
    """What is old, and the last turns with all that was said since."""
    turns = [at for at, entry in enumerate(entries) if isinstance(entry, Turn)]
    first = [*turns, len(entries)][max(0, len(turns) - latest)]
    return entries[:first], entries[first:]


def _on_old(entries: Entries, latest: int, change: Callable[[Turn], Turn]) -> Entries:
    def but_what_stays(turn: Turn) -> Turn:
        pairs = zip(turn.done, change(turn).done, strict=True)
        done = ((call, before if _stays(before) else after) for (_, before), (call, after) in pairs)
        return replace(turn, done=tuple(done))

    old, rest = _parted(entries, latest)
    return (*(but_what_stays(entry) if isinstance(entry, Turn) else entry for entry in old), *rest)


def _stays(result: ToolResult) -> bool:
    """To do that again would be wrong."""
    return _open(result) or _refused(result)


def _open(result: ToolResult) -> bool:
    """It tells of an effect whose end isn't known."""
    return OPEN_EFFECT in result.text


def _refused(result: ToolResult) -> bool:
    """It is a person's no. A protocol keeps but a result's words: what is longer than a person's is a tool's."""
    return result.text.startswith(REFUSED) and len(result.text) <= PERSONS


def _taken(entry: Entry) -> bool:
    return isinstance(entry, Turn) and not entry.pinned


def _noted(entries: Sequence[Entry]) -> tuple[Sequence[str], Sequence[str]]:
    """What a note says of them: each no once, whatever came since, and the last of the other lines."""
    lines = [*_lines(entries)]
    noes = [*dict.fromkeys(line for line in lines if REFUSAL.match(line))]
    return noes[-NOES:], [line for line in lines if not REFUSAL.match(line)][-LINES:]


def _lines(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        match entry:
            case Said() if entry.note:
                yield from entry.text.removeprefix(OPENING).removesuffix(CLOSING).splitlines()
            case Turn() if not entry.pinned:
                if entry.text.strip():
                    yield f"- you: {_first_line(entry.text)}"
                yield from (f"- {call.name} {brief(call.arguments)}: {_ending(result)}" for call, result in entry.done)
            case _:
                pass


def _note(text: str) -> Said:
    return Said(f"{OPENING}{text}{CLOSING}")


def _deduplicated(entries: Sequence[Entry]) -> list[Entry]:
    """Words that were said several times, and those of what is left, once: where they came last."""
    seen: set[str] = set()
    kept: list[Entry] = []
    for entry in reversed(entries):
        key = LEFT.sub("Left", entry.text) if isinstance(entry, Said) else ""
        if key and key in seen:
            continue
        seen.add(key)
        kept.append(entry)
    return kept[::-1]


def _cut(result: ToolResult) -> ToolResult:
    return replace(result, text=_middle(result.text, SNIPPED))


def _middle(text: str, most: int) -> str:
    """The beginning and the end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _told_of(call: Call, result: ToolResult) -> ToolResult:
    if len(result.text) <= LINE:
        return result
    told = f"[{_ending(result)}; {len(result.text)} characters left out: call {call.name} again where they matter]"
    return replace(result, text=told)


def _brief_call(call: Call) -> Call:
    return replace(call, arguments={name: _brief_value(value) for name, value in call.arguments.items()})


def _brief_value(value: Any) -> Any:
    return _middle(value, SNIPPED // 2) if isinstance(value, str) else value


def _ending(result: ToolResult) -> str:
    """How a call ended: a command says it in its last line, a person's no in all it says."""
    if _refused(result):
        return " ".join(result.text.split())[:NO]
    last = result.text.rstrip().rpartition("\n")[2]
    if last.startswith("[") and last.endswith("]"):
        return last[1:-1][:LINE]
    return "ok" if result.ok else f"failed, {_first_line(result.text)}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:LINE]
