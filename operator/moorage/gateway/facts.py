"""What the doors need to know of a run beyond its state: reduced from the journal too, so that a restart loses nothing.

`fold` is pure. Sizes are bounded: answers of models are kept since the last safe point only (R2), intents while their
effect is kept, calls as far as they may be asked for again, and no more of them are begun than `calls.limit` allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from moorage.core.effects.calls import Answer, Call
from moorage.core.effects.http import KIND as HTTP
from moorage.core.effects.levels import Level
from moorage.core.effects.pulls import KIND as PULL
from moorage.core.journal.record import BlobRef, Record, RecordType, content_of
from moorage.core.models.prices import Reserve
from moorage.core.run.reducing.usage import add_usage
from moorage.core.run.state import Usage

FACTS_VERSION = 7
"""Rises when `fold` makes something else of the same records: snapshots of older facts are ignored then."""
KEPT_ANSWERS = 256
KEPT_DAYS = 62
"""Days with any spending: two months of them."""
DAY_MS = 86_400_000
KEPT_INTENTS = 16
KEPT_TOOLS = 256
MOST_TRIES = 3
"""R6: so many attempts act on one decision. Where all of them died at it, the model hears of that and decides anew."""


@dataclass(frozen=True)
class Intent:
    """E1, E5: a push as it was meant: `old` is what the branch must be at (None: it must not exist)."""

    effect_id: str
    commit: str
    branch: str
    old: str | None


@dataclass(frozen=True)
class Question:
    """A model request on its way: what was asked, by hash, in which epoch and iteration, and where its words lie.

    `reserve`: what it may come to (B2). `gateway`: whose it is, by name.
    """

    bytes_hash: str
    epoch: int
    turn: int | None = None
    content: BlobRef | None = None
    reserve: Reserve = field(default_factory=Reserve)
    gateway: str | None = None


@dataclass(frozen=True)
class ModelAnswer:
    """A complete answer of a model: to what, where it lies, and the epochs of the attempts that had it."""

    question: Question
    content: BlobRef
    status: int
    content_type: str
    request_id: str
    had: tuple[int, ...]

    @property
    def epoch(self) -> int:
        """The epoch that asked."""
        return self.question.epoch


@dataclass(frozen=True)
class Sender:
    """The gateway that has an effect under way, by its name."""

    effect_id: str
    gateway: str


@dataclass(frozen=True)
class Segment:
    """P3: the part of the journal that records go to now: its number, from 1, and its first offset."""

    number: int = 1
    first: int = 0


@dataclass(frozen=True)
class Facts:
    """S1's neighbours."""

    lease: str | None = None
    holder: str | None = None
    intents: tuple[Intent, ...] = ()
    asked: Mapping[str, Question] = field(default_factory=lambda: MappingProxyType({}))  # by request_id, unanswered
    turn: int = 0  # the highest iteration that any record names, complete or not
    segment: Segment = field(default_factory=Segment)
    completed: int = 0  # iterations: fewer than the number of the last one, where lost attempts began some in vain
    answers: Mapping[str, ModelAnswer] = field(default_factory=lambda: MappingProxyType({}))  # bytes_hash -> answer
    calls: tuple[Call, ...] = ()  # HTTP effects, oldest first, the last one of each key
    senders: tuple[Sender, ...] = ()  # of effects that aren't closed
    failed: BlobRef | None = None  # N4: what the acceptance command wrote that the last verdict failed by
    base: str | None = None  # the commit that attempts start from, once it is fixed
    resume: str | None = None  # the checkpoint of another run of its session that attempts begin at (O2)
    root: str | None = None  # the commit of upstream beyond which its base lies, where that is an earlier run's (O2)
    last: ModelAnswer | None = None  # what was asked and answered last in an iteration, for who goes on with it (O2)
    into: str | None = None  # the branch that the last pull request was meant for
    days: Mapping[int, Usage] = field(default_factory=lambda: MappingProxyType({}))  # B3: what models took
    tools: tuple[str, ...] = ()  # calls of this iteration that were asked for and have no result yet

    def intent(self, effect_id: str) -> Intent | None:
        """The push of that effect."""
        return next((i for i in self.intents if i.effect_id == effect_id), None)

    def decision(self, epoch: int) -> ModelAnswer | None:
        """R2: what an earlier attempt's model decided in the iteration that was begun last, and that none completed."""
        asked = [a for a in self.answers.values() if a.question.turn == self.turn and a.question.content is not None]
        last = asked[-1] if asked else None
        return last if last and last.epoch < epoch and len(last.had) < MOST_TRIES else None


def day_of(ms: int) -> int:
    """The day, in UTC, as a number that rises by one at midnight."""
    return ms // DAY_MS


def _spent(f: Facts, r: Record, more: Mapping[str, int]) -> Facts:
    """B3: charged to the day of the record that says so, whatever day it was asked on. The newest days are kept."""
    day = day_of(r.recorded_at)
    days = {**f.days, day: add_usage(f.days.get(day, Usage()), more)}
    for old in sorted(days)[:-KEPT_DAYS]:
        del days[old]
    return replace(f, days=MappingProxyType(days))


def fold(facts: Facts, record: Record) -> Facts:
    """The facts after `record`."""
    if record.turn is not None and record.turn > facts.turn:
        facts = replace(facts, turn=record.turn)
    step = STEPS.get(record.type)
    return step(facts, record, record.payload or {}) if step else facts


def _epoch_raised(f: Facts, _r: Record, p: Mapping[str, Any]) -> Facts:
    return replace(f, lease=p.get("lease") or f.lease, holder=p.get("holder"), tools=())


def _tool_request(f: Facts, r: Record, _p: Mapping[str, Any]) -> Facts:
    others = tuple(each for each in f.tools if each != r.tool_call_id)
    return replace(f, tools=(*others, r.tool_call_id)[-KEPT_TOOLS:]) if r.tool_call_id else f


def _tool_response(f: Facts, r: Record, _p: Mapping[str, Any]) -> Facts:
    return replace(f, tools=tuple(each for each in f.tools if each != r.tool_call_id)) if f.tools else f


def _base_fixed(f: Facts, _r: Record, p: Mapping[str, Any]) -> Facts:
    return f if f.base else replace(f, base=p["base"], resume=p.get("resume"), root=p.get("root"))


def _sent_by(f: Facts, p: Mapping[str, Any]) -> Facts:
    """Whose an effect is, until it is closed. Older versions didn't say, and were alone."""
    others = tuple(s for s in f.senders if s.effect_id != p["effect_id"])
    mine = (Sender(p["effect_id"], p["gateway"]),) if "gateway" in p else ()
    return replace(f, senders=others + mine) if f.senders or mine else f


def _intent(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    f = _sent_by(f, p)
    if p.get("kind") == HTTP:
        return _called(f, r, p)
    if p.get("kind") == PULL:
        return replace(f, into=p.get("base", f.into))
    if "commit" not in p:
        return f
    intent = Intent(p["effect_id"], p["commit"], p["branch"], p.get("old"))
    return replace(f, intents=(*f.intents, intent)[-KEPT_INTENTS:])


def _called(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    if p["level"] == Level.READ_ONLY:
        return f
    call = Call(
        effect_id=p["effect_id"],
        key=p["key"],
        level=p["level"],
        fingerprint=p["fingerprint"],
        since=p["since"],
        epoch=r.epoch,
        name=p.get("name"),
        request=(r.attachments or {}).get("request"),
        asked=r.request_id,
    )
    others = tuple(c for c in f.calls if c.key != call.key)
    return replace(f, calls=(*others, call))


def _went(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    """How far a call got; its answer, where the record brings one."""
    f = _sent_by(f, p)
    if not any(c.effect_id == p["effect_id"] for c in f.calls):
        return f
    changes: dict[str, Any] = {"status": p.get("outcome", "dispatched")}
    if "status" in p:
        content = (r.attachments or {}).get("answer")
        kind, encoding = str(p.get("content_type", "")), str(p.get("content_encoding", ""))
        changes["answer"] = Answer(p["status"], kind, content, encoding)
    return _changed_call(f, p["effect_id"], **changes)


def _adopted(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    return _changed_call(f, p["effect_id"], epoch=r.epoch, asked=r.request_id)


def _changed_call(f: Facts, effect_id: str, **changes: Any) -> Facts:
    return replace(f, calls=tuple(replace(c, **changes) if c.effect_id == effect_id else c for c in f.calls))


def _model_request(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    content = content_of(r)
    told = p.get("reserved", {})
    reserve = Reserve(*(told.get(name, 0) for name in ("input_tokens", "output_tokens", "cost_micros")))
    question = Question(str(p.get("bytes_hash")), r.epoch, r.turn, content, reserve, p.get("gateway"))
    f = _spent(f, r, {"model_retries" if "retry_of" in p else "model_requests": 1})
    return replace(f, asked=_newest({**f.asked, str(r.request_id): question}))


def _model_response(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    if p.get("replayed"):
        return _had_again(f, str(r.request_id), r.epoch)
    f = _spent(f, r, p.get("usage") or {})
    request_id = str(r.request_id)
    question = f.asked.get(request_id)
    content = content_of(r)
    asked = MappingProxyType({key: value for key, value in f.asked.items() if key != request_id})
    if question is None or content is None or not p.get("complete"):
        return replace(f, asked=asked)
    kind = p.get("content_type", "application/json")
    answer = ModelAnswer(question, content, p["status"], kind, request_id, (question.epoch,))
    last = answer if question.turn is not None and question.content is not None else f.last
    return replace(f, asked=asked, answers=_newest({**f.answers, question.bytes_hash: answer}), last=last)


def _had_again(f: Facts, request_id: str, epoch: int) -> Facts:
    answers = {
        key: replace(a, had=(*a.had, epoch)) if a.request_id == request_id and epoch not in a.had else a
        for key, a in f.answers.items()
    }
    return replace(f, answers=MappingProxyType(answers))


def _newest(entries: dict[str, Any]) -> Mapping[str, Any]:
    while len(entries) > KEPT_ANSWERS:
        del entries[next(iter(entries))]
    return MappingProxyType(entries)


def _safe_point(f: Facts, _r: Record, _p: Mapping[str, Any]) -> Facts:
    """R2 looks no further back: what was answered before is in the checkpoint. A call that has a name of the agent's
    own, or whose end isn't known, may still be asked for.
    """
    calls = tuple(c for c in f.calls if c.name is not None or c.doubtful)
    return replace(f, answers=MappingProxyType({}), calls=calls, completed=f.completed + 1, tools=())


def _judged(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    """A verifier stops at the first command that fails, so its output is the last one."""
    outputs = r.attachments or {}
    last = max((name for name in outputs if name.startswith("check-")), key=lambda name: int(name[6:]), default="")
    return replace(f, failed=None if p.get("passed") else outputs.get(last, f.failed))


def _segment(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    return replace(f, segment=Segment(p["segment"], r.seq))


def _repaired(f: Facts, r: Record, p: Mapping[str, Any]) -> Facts:
    """I1: pushes whose records were dropped can still be asked for. Iterations whose ends were count as complete."""
    f = _spent(replace(f, completed=max(f.completed, r.turn or 0)), r, p["usage"])
    for effect in p["effects"]:
        f = _intent(f, r, effect) if effect["kind"] == "git_push" else f
    return f


STEPS = {
    RecordType.BASE_FIXED.value: _base_fixed,
    RecordType.EPOCH_RAISED.value: _epoch_raised,
    RecordType.EFFECT_INTENT.value: _intent,
    RecordType.EFFECT_DISPATCHED.value: _went,
    RecordType.EFFECT_RECEIPT.value: _went,
    RecordType.EFFECT_RECONCILED.value: _went,
    RecordType.EFFECT_ADOPTED.value: _adopted,
    RecordType.MODEL_REQUEST.value: _model_request,
    RecordType.MODEL_RESPONSE.value: _model_response,
    RecordType.TOOL_REQUEST.value: _tool_request,
    RecordType.TOOL_RESPONSE.value: _tool_response,
    RecordType.ITERATION_COMPLETE.value: _safe_point,
    RecordType.VERIFICATION_RESULT.value: _judged,
    RecordType.SEGMENT_STARTED.value: _segment,
    RecordType.JOURNAL_REPAIRED.value: _repaired,
}
