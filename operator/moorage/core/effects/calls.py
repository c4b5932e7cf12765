"""Who an HTTP effect is (E2), and what to do where the same one is asked for again (E3, E4).

An agent that restarts from its last safe point asks again for what it had done since. So a call's identity is that safe
point, what is asked, and how often the same was asked before; the next attempt walks through the same identities. An
agent that names its calls itself, in the key header, is believed: that name is the identity, for as long as the run.
What its relay asks for a second time, having heard nothing, is the same call in any case; so is what anybody asks for
while it isn't known whether the same request happened: a keyed one goes out again under its key, and no other does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from moorage.core.effects.levels import NOT_HAPPENED, Level
from moorage.core.journal.record import BlobRef

MAX_CALLS = 1_024
"""Calls since one safe point, and those of before of which nobody knows whether they happened."""
MAX_NAMED = 4_096
"""Calls of one run that its agent has named: they are remembered for as long as the run."""


@dataclass(frozen=True)
class Answer:
    """What the target said: its status, and where the body lies as it came, if it was kept whole."""

    status: int
    content_type: str
    content: BlobRef | None
    content_encoding: str = ""


@dataclass(frozen=True)
class Call:
    """An HTTP effect. `since` is the safe point before it, `epoch` that of the attempt which asked for it last.

    `name` is what the agent calls it, hashed, and `asked` what its relay called it the last time; `request` is kept
    where it may have to be sent again. `status` is that of its effect.
    """

    effect_id: str
    key: str
    level: str
    fingerprint: str
    since: int
    epoch: int
    name: str | None = None
    request: BlobRef | None = None
    asked: str | None = None
    status: str = "intended"
    answer: Answer | None = None

    @property
    def open(self) -> bool:
        """Its end isn't known yet."""
        return self.status in {"intended", "dispatched"}

    @property
    def doubtful(self) -> bool:
        """It may have happened and may not."""
        return self.open or self.status == "unknown"

    @property
    def untold(self) -> bool:
        """It happened, and there is no answer that anybody could be given."""
        return self.status in {"confirmed", "compensated"} and (self.answer is None or self.answer.content is None)


@dataclass(frozen=True)
class Question:
    """A call that is asked for now."""

    run_uid: str
    fingerprint: str
    level: Level
    since: int
    epoch: int
    name: str | None = None
    asked: str | None = None


class Way(StrEnum):
    """What to do with a question."""

    SEND = "send"  # under a new intent
    GIVE = "give"  # the recorded answer
    REPEAT = "repeat"  # the same effect, under its key
    REFUSE_OTHER = "other"  # the name was used for another request
    REFUSE_BUSY = "busy"  # it is under way
    REFUSE_UNKNOWN = "unknown"  # nobody knows whether it happened
    REFUSE_DONE = "done"  # it happened, and no answer is kept


@dataclass(frozen=True)
class Chosen:
    """The way, the key of the call, and the earlier call that it is about."""

    way: Way
    key: str
    call: Call | None = None


def named(own: str | None) -> str | None:
    """The agent's name of a call, bounded and unreadable."""
    return hashlib.sha256(own.encode()).hexdigest() if own else None


def key_of(run_uid: str, since: int, index: str) -> str:
    """E2: `SHA256(execution_id ":" iteration ":" index)`."""
    return hashlib.sha256(f"{run_uid}:{since}:{index}".encode()).hexdigest()


def choose(question: Question, calls: Iterable[Call], busy: frozenset[str]) -> Chosen:
    """What to do, by what was asked for before. `busy`: effects that a gateway which lives has under way."""
    known = tuple(calls)
    same = [c for c in known if c.fingerprint == question.fingerprint]
    once_more = next((c for c in same if question.asked and c.asked == question.asked), None)
    if once_more is not None:
        return _again(once_more.key, once_more, busy)
    if question.name is not None:
        key = key_of(question.run_uid, 0, f"named:{question.name}")
        mine = [c for c in known if c.key == key]
        if any(c.fingerprint != question.fingerprint for c in mine):
            return Chosen(Way.REFUSE_OTHER, key)
        return _again(key, mine[-1], busy) if mine else Chosen(Way.SEND, key)
    here = [c for c in same if c.name is None and c.since == question.since]
    earlier = next((c for c in here if c.epoch < question.epoch), None)
    if earlier is not None:
        return _again(earlier.key, earlier, busy)
    bar = next((c for c in same if c.name is None and (c.doubtful or c.untold)), None)
    if bar is not None:  # a library that tries again and an agent that orders anew look alike: never twice
        return _again(bar.key, bar, busy)
    count = len({c.key for c in here})
    return Chosen(Way.SEND, key_of(question.run_uid, question.since, f"{question.fingerprint}:{count}"))


def limit(question: Question, key: str, calls: Iterable[Call]) -> str | None:
    """I6: which limit one more call, of that key, would pass; None where there is room."""
    others = [c for c in calls if c.key != key]
    named_ = sum(c.name is not None for c in others)
    if sum(c.since == question.since for c in others) >= MAX_CALLS:
        return f"{MAX_CALLS} effects since the last safe point: no further one before the next"
    if question.name is not None and named_ >= MAX_NAMED:
        return f"{MAX_NAMED} calls of this run have keys of the agent's own: leave the key out"
    if sum(c.doubtful and c.since != question.since for c in others) >= MAX_CALLS:
        return f"of {MAX_CALLS} effects nobody knows whether they happened: a person has to look (moorage resolve)"
    return None


def _again(key: str, call: Call, busy: frozenset[str]) -> Chosen:
    """The same call once more: its answer, or the same effect under its key, or what a person has to say first."""
    if call.effect_id in busy:
        return Chosen(Way.REFUSE_BUSY, key, call)
    if call.status in NOT_HAPPENED:
        return Chosen(Way.SEND, key, call)
    if not call.doubtful:
        return Chosen(Way.REFUSE_DONE if call.untold else Way.GIVE, key, call)
    return Chosen(Way.REPEAT if call.level == Level.KEYED else Way.REFUSE_UNKNOWN, key, call)
