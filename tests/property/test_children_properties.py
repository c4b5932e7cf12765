"""B2, B3 over children: a family of runs, each with a journal of its own, operators and gateways that die between any
two records. What is given away is never more than there is; what a tree of runs has used is the sum of what its runs
were billed, counted once; and a share that nobody uses any more comes back.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.property.run_world import record

from moorage.api.budget import ResolvedLimits
from moorage.core.constraints.context import used
from moorage.core.constraints.judging import evaluate
from moorage.core.constraints.limits import DECISION, metered
from moorage.core.journal.plain import plain, restored
from moorage.core.run.family import Share
from moorage.core.run.observed import Problem
from moorage.core.run.parents import asking, divided, reserve_of
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import reduce
from moorage.core.run.state import RunState
from moorage.gateway.children import used_by

CALL = 50  # tokens at most of one request: so much a run's own limit may be passed by


@dataclass
class Kin:
    """One run: its journal, and what its provider has billed."""

    uid: str
    limits: ResolvedLimits
    parent: str | None = None
    state: RunState = field(default_factory=lambda: RunState(phase=RunPhase.RUNNING, epoch=1, attempt=1))
    billed: int = 0
    calls: int = 0
    over: bool = False
    admitted: bool = True

    def append(self, kind: str, payload: dict[str, Any]) -> None:
        self.state = reduce(self.state, record(self.state.offset + 1, kind, payload, epoch=1))

    def fits(self, **more: int) -> bool:
        context = used(self.state, iterations=0, wall_ms=0, asking=more)
        return not evaluate(metered(self.limits), context).action.stops


class Family(RuleBasedStateMachine):
    """A root and whatever grows from it. Every rule may be followed by a crash: the next one starts from journals."""

    @initialize(tokens=st.integers(0, 5_000), calls=st.integers(0, 12))
    def begin(self, tokens: int, calls: int) -> None:
        limits = ResolvedLimits(tokens_hard=tokens, tool_calls_hard=calls)
        self.runs = {"r0": Kin("r0", limits)}

    def _live(self) -> list[Kin]:
        return [run for run in self.runs.values() if run.admitted and not run.over]

    def _pick(self, data: st.DataObject) -> Kin:
        return data.draw(st.sampled_from(self._live()))

    @precondition(lambda self: self._live())
    @rule(data=st.data(), took=st.integers(0, CALL))
    def ask(self, data: st.DataObject, took: int) -> None:
        run = self._pick(data)
        if run.fits(**DECISION):
            run.billed += took
            run.append("MODEL_RESPONSE", {"usage": {"output_tokens": took}})

    @precondition(lambda self: self._live())
    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        run = self._pick(data)
        if run.fits(toolCalls=1):
            run.calls += 1
            run.append("TOOL_RESPONSE", {})

    @precondition(lambda self: self._live() and len(self.runs) < 8)
    @rule(
        data=st.data(),
        tokens=st.none() | st.integers(0, 3_000),
        calls=st.none() | st.integers(0, 9),
        by_agent=st.booleans(),
        dies=st.booleans(),
    )
    def start(self, data: st.DataObject, tokens: int | None, calls: int | None, *, by_agent: bool, dies: bool) -> None:
        """Reserved; then admitted, unless everybody died in between."""
        parent, uid = self._pick(data), f"r{len(self.runs)}"
        context = used(parent.state, iterations=0, wall_ms=0, asking={})
        limits = divided(ResolvedLimits(tokens_hard=tokens, tool_calls_hard=calls), parent.limits, context)
        if isinstance(limits, Problem):
            return
        share = reserve_of(limits)
        assert parent.fits(**asking(share)), "what was divided fits"
        told = {name: amount for name, amount in asdict(share).items() if amount}
        if by_agent:
            parent.append("CHILD_REQUESTED", {"key": uid, "name": uid, "reserve": told})
        parent.append("CHILD_STARTED", {"uid": uid, "name": uid, "reserve": told})
        self.runs[uid] = Kin(uid, limits, parent.uid, admitted=not dies)

    @rule(data=st.data())
    def admit_after_all(self, data: st.DataObject) -> None:
        waiting = [run for run in self.runs.values() if not run.admitted and not run.over]
        if waiting:
            data.draw(st.sampled_from(waiting)).admitted = True

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """X2: whoever has no open children; or one that was never admitted, and won't be."""
        able = [r for r in self.runs.values() if not r.over and not r.state.open_children and r.parent is not None]
        if able:
            data.draw(st.sampled_from(able)).over = True

    @rule(data=st.data(), times=st.integers(1, 2))
    def settle(self, data: st.DataObject, times: int) -> None:
        """Whoever died after it says it again."""
        ended = [run for run in self.runs.values() if run.over and run.parent is not None]
        if not ended:
            return
        run = data.draw(st.sampled_from(ended))
        usage = asdict(used_by(run.state, 0)) if run.admitted else {}
        for _ in range(times):
            told = {"uid": run.uid, "name": run.uid, "outcome": "Failed", "used": usage, "commit": None}
            self.runs[run.parent or ""].append("CHILD_ENDED", told)

    @invariant()
    def nobody_gives_away_more_than_there_is(self) -> None:
        for run in self.runs.values():
            most = run.limits.tokens_hard or 0
            reserved = sum(child.reserve.tokens for child in run.state.open_children)
            beyond = sum(CALL for kin in self.runs.values() if self._above(kin, run.uid) or kin is run)
            assert run.state.usage.tokens + run.state.children_used.tokens + reserved <= most + beyond
            calls = used(run.state, iterations=0, wall_ms=0, asking={}).tool_calls
            assert calls <= (run.limits.tool_calls_hard or 0)

    @invariant()
    def a_tree_has_used_what_its_runs_were_billed(self) -> None:
        for run in self.runs.values():
            unsettled = {child.uid for child in run.state.open_children}
            below = [k for k in self.runs.values() if k.parent == run.uid and k.uid not in unsettled]
            settled = Share()
            for kin in below:
                settled = settled.plus(used_by(kin.state, 0))
            assert run.state.children_used == settled
            assert (run.state.usage.tokens, run.state.usage.tool_calls) == (run.billed, run.calls)
        assert sum(r.state.usage.tokens for r in self.runs.values()) == sum(r.billed for r in self.runs.values())

    @invariant()
    def a_restart_loses_nothing(self) -> None:
        for run in self.runs.values():
            assert restored(RunState, plain(run.state)) == run.state

    def _above(self, run: Kin, uid: str) -> bool:
        while run.parent is not None:
            if run.parent == uid:
                return True
            run = self.runs[run.parent]
        return False

    def teardown(self) -> None:
        """Once all have ended and everything is settled, only what was used is gone."""
        for run in reversed(list(getattr(self, "runs", {}).values())):
            if run.parent is None:
                continue
            usage = asdict(used_by(run.state, 0)) if run.admitted else {}
            told = {"uid": run.uid, "name": run.uid, "outcome": "Failed", "used": usage, "commit": None}
            self.runs[run.parent].append("CHILD_ENDED", told)
        if runs := getattr(self, "runs", {}):
            root = runs["r0"].state
            assert not root.open_children
            assert root.usage.tokens + root.given_away.tokens == sum(run.billed for run in runs.values())
            assert root.usage.tool_calls + root.given_away.tool_calls == sum(run.calls for run in runs.values())


Family.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFamily = pytest.mark.rule("B2", "B3")(Family.TestCase)
