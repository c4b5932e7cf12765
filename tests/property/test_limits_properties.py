"""B2, B3, I4: effects, bytes, tool calls and questions to people, of parallel work by gateways and attempts that die:
no limit is passed by what is asked for before it is done, and what the journal says is the sum of what was let through.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.property.run_world import a_spec, record

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedRun
from moorage.core.journal.plain import plain, restored
from moorage.core.run.limits import in_force
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import reduce
from moorage.core.run.state import RunState
from moorage.gateway.constraints import Asking, Exhausted, Judge, of_calls, of_people, outward
from moorage.gateway.facts import Facts, fold
from moorage.testing.clock import StepClock

SIZES = st.integers(min_value=0, max_value=400)


@dataclass(eq=False)
class Run:
    """What the judge looks at of a run."""

    spec: ResolvedRun
    state: RunState = field(default_factory=lambda: RunState(phase=RunPhase.RUNNING, epoch=1, attempt=1, admitted_at=0))
    facts: Facts = field(default_factory=Facts)

    @property
    def limits(self) -> ResolvedLimits:
        return in_force(self.spec.limits, self.state.raised)


class Limits(RuleBasedStateMachine):
    """One run, gateways that carry for it, an agent that does many things at once."""

    @initialize(
        effects=st.none() | st.integers(min_value=0, max_value=6),
        egress=st.none() | st.integers(min_value=0, max_value=1_500),
        tools=st.none() | st.integers(min_value=0, max_value=6),
        humans=st.none() | st.integers(min_value=0, max_value=4),
    )
    def begin(self, effects: int | None, egress: int | None, tools: int | None, humans: int | None) -> None:
        limits = ResolvedLimits(
            effects_hard=effects, egress_hard_bytes=egress, tool_calls_hard=tools, human_approvals_hard=humans
        )
        self.run: Any = Run(a_spec(limits=limits))
        self.judge = Judge(None, StepClock(), {}, None)  # type: ignore[arg-type] # nothing is written here
        self.effects: dict[str, int] = {}
        self.calls: set[str] = set()
        self.waiting: set[str] = set()
        self.answered = 0
        self.charged, self.sent, self.done, self.asked = 0, 0, 0, 0
        self.largest = 0

    def _append(self, kind: str, payload: dict[str, Any], **ids: Any) -> None:
        said = record(self.run.state.offset + 1, kind, payload, epoch=self.run.state.epoch)
        said = type(said)(**{**said.__dict__, **ids})
        self.run.state, self.run.facts = reduce(self.run.state, said), fold(self.run.facts, said)

    def _let_through(self, ask: Asking) -> bool:
        try:
            self.judge.demand(self.run, ask)
        except Exhausted:
            return False
        return True

    @rule(size=SIZES, writes=st.booleans())
    def request(self, size: int, writes: bool) -> None:
        if not self._let_through(Asking(outward(size, effect=writes))):
            return
        self.asked += 1
        effect, level = f"e{self.asked}", "opaque" if writes else "read_only"
        usage = {"effects": int(writes), "egress_bytes": size}
        known = {"effect_id": effect, "kind": "http_request", "key": effect, "target": "host", "level": level}
        more = {"fingerprint": "f", "since": 0} if writes else {}
        self._append("EFFECT_INTENT", {**known, **more, "usage": usage}, effect_id=effect)
        self._append("EFFECT_DISPATCHED", {"effect_id": effect}, effect_id=effect)
        self.effects[effect] = size
        self.sent += int(writes)
        self.charged += size

    @precondition(lambda self: self.effects)
    @rule(data=st.data(), size=SIZES)
    def answer(self, data: st.DataObject, size: int) -> None:
        effect = data.draw(st.sampled_from(sorted(self.effects)))
        del self.effects[effect]
        told = {"effect_id": effect, "outcome": "confirmed", "usage": {"egress_bytes": size}}
        self._append("EFFECT_RECEIPT", told, effect_id=effect)
        self.charged += size
        self.largest += size

    @precondition(lambda self: self.effects)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """The gateway that sent it died: nobody saw an answer."""
        effect = data.draw(st.sampled_from(sorted(self.effects)))
        del self.effects[effect]
        self._append("EFFECT_RECONCILED", {"effect_id": effect, "outcome": "unknown"}, effect_id=effect)

    @rule(count=st.integers(min_value=1, max_value=3))
    def call_tools(self, count: int) -> None:
        """Several at once, as many as are let through."""
        for _ in range(count):
            self.asked += 1
            call = f"c{self.asked}"
            if self._let_through(Asking(of_calls(), calls=frozenset({call}))):
                self._append("TOOL_REQUEST", {"tool": "bash"}, tool_call_id=call)
                assert self._let_through(Asking(of_calls(), calls=frozenset({call}))), "told again, it is the same call"
                self.calls.add(call)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def result(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(sorted(self.calls)))
        self.calls.remove(call)
        self._append("TOOL_RESPONSE", {"ok": True}, tool_call_id=call)
        self.done += 1

    @rule()
    def ask_somebody(self) -> None:
        self.asked += 1
        key = f"host:{self.asked}"
        if self._let_through(Asking(of_people())):
            self._append("APPROVAL_REQUESTED", {"key": key, "name": "ways", "before": "Egress"})
            self.waiting.add(key)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), outcome=st.sampled_from(["approved", "rejected"]), late=st.booleans())
    def told_by_somebody(self, data: st.DataObject, outcome: str, late: bool) -> None:
        """Or by nobody, in time."""
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(key)
        by = {"outcome": "rejected", "by": "timeout"} if late else {"outcome": outcome, "by": "ada"}
        usage = {} if late else {"usage": {"human_approvals": 1}}
        self._append("APPROVAL_DECIDED", {"key": key, **by, **usage})
        self.answered += not late

    @rule()
    def recover(self) -> None:
        """The attempt dies: calls without a result never come to one. Another one owns the run, from the journal."""
        epoch = self.run.state.epoch + 1
        self._append("ATTEMPT_ENDED", {"epoch": epoch - 1, "role": "runner", "reason": "NodeLost"})
        self._append("EPOCH_RAISED", {"epoch": epoch, "attempt": epoch, "holder": "h"})
        self._append("AGENT_STARTED", {})
        self.calls.clear()
        self.waiting.clear()

    @rule(more=st.integers(min_value=1, max_value=3))
    def raise_effects(self, more: int) -> None:
        if (most := self.run.limits.effects_hard) is not None:
            self._append("LIMITS_RAISED", {"limits": {"effects_hard": most + more}, "by": "spec"})

    @invariant()
    def no_limit_is_passed_by_what_is_asked_for_first(self) -> None:
        used, limits = self.run.state.usage, self.run.limits
        if limits.effects_hard is not None:
            assert used.effects <= limits.effects_hard
        if limits.tool_calls_hard is not None:
            assert used.tool_calls + len(self.calls) <= limits.tool_calls_hard
        if limits.human_approvals_hard is not None:
            assert used.human_approvals + len(self.waiting) <= limits.human_approvals_hard
        if limits.egress_hard_bytes is not None:
            assert used.egress_bytes <= limits.egress_hard_bytes + self.largest, "answers alone come unasked"

    @invariant()
    def what_was_used_is_the_sum_of_what_was_let_through(self) -> None:
        used = self.run.state.usage
        assert (used.effects, used.egress_bytes, used.tool_calls) == (self.sent, self.charged, self.done)
        left = self.judge.budget(self.run).left
        assert used.human_approvals == self.answered
        if self.run.limits.human_approvals_hard is not None:
            assert left["humanApprovals"] == self.run.limits.human_approvals_hard - self.answered - len(self.waiting)
        assert all(amount >= 0 for amount in left.values())
        if self.run.limits.effects_hard is not None:
            assert left["effects"] == self.run.limits.effects_hard - self.sent

    @invariant()
    def a_restart_judges_the_same(self) -> None:
        again: Any = Run(self.run.spec)
        again.state = restored(RunState, json.loads(json.dumps(plain(self.run.state))))
        again.facts = restored(Facts, json.loads(json.dumps(plain(self.run.facts))))
        ask = Asking({**outward(1, effect=True), **of_calls(), **of_people()})
        assert self.judge.verdict(again, ask) == self.judge.verdict(self.run, ask)


Limits.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestLimits = pytest.mark.rule("B2", "B3", "I4")(Limits.TestCase)
