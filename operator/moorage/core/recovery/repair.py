"""I1, J5: what is wrong with a journal, and the record by which a new generation goes on without it.

Nothing is skipped in silence: everything from the first bad record on is dropped, counted and hashed. What was dropped
and can still be read isn't believed, but it is feared: its effects are `unknown` from now on, its usage stays spent,
its iterations aren't numbered again, its children may live. For what can't be read there is one more unknown effect,
which asks for a person.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from moorage.core.effects.levels import Level
from moorage.core.journal.chain import EMPTY, Broken, ChainVerifier, Head, head_at
from moorage.core.journal.errors import Malformed
from moorage.core.journal.lineage import Dropped
from moorage.core.journal.record import Record, RecordType, Stored, decode
from moorage.core.recovery.kin import FearedChildren
from moorage.core.run.account import account_of

KEPT_EFFECTS = 64
"""Effects that are named one by one: a payload has 64 KiB, and an effect some hundred bytes."""
_USAGE = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "cost_micros",
    "effects",
    "egress_bytes",
    "human_approvals",
)


class Survey:
    """Looks at a whole journal, holding no more than one record of it.

    `judge` each in order up to the first bad one, ask for the `end`, then `drop` all that is stored behind the last
    good one.
    """

    def __init__(self, run_uid: str, head: Head) -> None:
        self._head = head
        self._verifier = ChainVerifier(run_uid=run_uid)
        self._digest = hashlib.sha256()
        self._turn = self._readable = self._unreadable = 0
        self._usage = dict.fromkeys((*_USAGE, "model_requests", "tool_calls", "model_retries"), 0)
        self._effects: dict[str, dict[str, Any]] = {}
        self._children = FearedChildren()
        self._joined = False
        self.account: Mapping[str, int] = {}
        """What its session had used as the run joined it, as far as a good record doesn't say so (O7)."""
        self.good = EMPTY
        self.broken: Broken | None = None

    def judge(self, stored: Stored) -> Broken | None:
        """The next record of the present generation, as it is stored; the first fault, where there is one."""
        self.broken = self._verifier.feed(stored)
        record = self._verifier.last
        if self.broken is None and record is not None:
            self.good = head_at(record)
            self._turn = max(self._turn, record.turn or 0)
            self._joined = self._joined or record.type == RecordType.SESSION_JOINED
        return self.broken

    def end(self) -> Broken | None:
        """The first fault; None where there is nothing to repair."""
        if self.broken is None:
            verdict = self._verifier.result(self._head)
            self.broken = verdict if isinstance(verdict, Broken) else None
        return self.broken

    @property
    def dropped(self) -> Dropped:
        """The offsets that a new generation leaves behind."""
        return Dropped(self.good.offset + 1, self._head.offset)

    @property
    def account_unknown(self) -> bool:
        """No record that can be read says what the session had used, if it is one of several runs."""
        return not self._joined and not self.account

    @property
    def turn(self) -> int:
        """E2: no dropped record began a later iteration than this; each that can't be read may have begun one."""
        return self._turn + self._lost

    @property
    def _lost(self) -> int:
        """Records that can't be read, or aren't there."""
        return self._head.offset - self.good.offset - self._readable

    def payload(self, generation: int, epoch: int, status: str, reason: str) -> dict[str, Any]:
        """What JOURNAL_REPAIRED says. `epoch` is the fence's, `status` the store's word for the run (S4)."""
        if self.broken is None:
            raise ValueError("nothing is broken")
        return {
            "generation": generation,
            "follows": {"offset": self.good.offset, "hash": self.good.hash or ""},
            "dropped": self.dropped._asdict(),
            "dropped_sha256": self._digest.hexdigest(),
            "readable": self._readable,
            "unreadable": self._lost,
            "why": f"offset {self.broken.offset} (record {self.broken.record_id or 'unreadable'}): {self.broken.why}",
            "reason": reason,
            "epoch": epoch,
            "status": status,
            "usage": {name: value for name, value in self._usage.items() if value},
            "effects": self._feared(),
            **self._children.told(self._lost),
            **({"account": dict(self.account)} if self.account else {}),
        }

    def drop(self, stored: Stored) -> None:
        """The next record behind the last good one, good or bad, whatever generation it was of."""
        self._digest.update(stored.hash.encode("utf-8", "replace") + b"\n" + stored.body + b"\n")
        try:
            record = decode(stored)
            self._remember(record)
        except (Malformed, KeyError, TypeError, ValueError, AttributeError):
            return
        self._readable += 1

    def _remember(self, record: Record) -> None:
        said = record.payload or {}
        self._turn = max(self._turn, record.turn or 0)
        self._children.remember(record)
        match record.type:
            case RecordType.SESSION_JOINED:
                self.account = account_of(said["account"]).told()
            case RecordType.MODEL_REQUEST:
                self._usage["model_retries" if "retry_of" in said else "model_requests"] += 1
            case RecordType.MODEL_RESPONSE if not said.get("replayed"):
                self._spend(said.get("usage") or {})
            case RecordType.TOOL_RESPONSE:
                self._usage["tool_calls"] += 1
            case RecordType.EFFECT_INTENT:
                self._effects[said["effect_id"]] = _effect(said, record.seq)
                self._spend(said.get("usage") or {})
            case RecordType.EFFECT_RECEIPT | RecordType.EFFECT_RECONCILED | RecordType.APPROVAL_DECIDED:
                self._spend(said.get("usage") or {})

    def _spend(self, usage: Mapping[str, Any]) -> None:
        spent = {name: usage.get(name, 0) for name in _USAGE}
        if any(type(value) is not int or value < 0 for value in spent.values()):
            raise ValueError("no usage")
        for name, value in spent.items():
            self._usage[name] += value

    def _feared(self) -> list[dict[str, Any]]:
        named = list(self._effects.values())
        untold = self._lost + max(len(named) - KEPT_EFFECTS, 0)
        if untold:
            which = f"{untold} dropped records from offset {self.dropped.first} to {self.dropped.last}"
            effect = {"effect_id": f"dropped-{self.dropped.first}", "kind": "unreadable", "key": "", "target": which}
            named = [*named[:KEPT_EFFECTS], effect | {"level": Level.OPAQUE.value, "detail": "nobody can tell"}]
        return named


def _effect(said: Mapping[str, Any], offset: int) -> dict[str, Any]:
    names = ("effect_id", "kind", "key", "target")
    if not all(isinstance(said[name], str) for name in names):
        raise ValueError("no effect")
    level = said.get("level")
    known = level if level in set(Level) else Level.OPAQUE.value
    effect = {name: said[name][:256] for name in names} | {"level": known, "detail": f"its record {offset} was dropped"}
    push = {name: said.get(name) for name in ("commit", "branch", "old")}
    return effect | push if said["kind"] == "git_push" and _is_push(push) else effect


def _is_push(push: Mapping[str, Any]) -> bool:
    old = push["old"]
    return all(isinstance(push[name], str) for name in ("commit", "branch")) and (old is None or isinstance(old, str))
