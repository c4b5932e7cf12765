"""B2, B3 over children: a family of runs, each with a journal of its own, operators and gateways that die between any
two records. What is given away is never more than there is; what a tree of runs has used is the sum of what its runs
were billed, counted once; and a share that nobody uses any more comes back.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.property.run_world import record

from moorage.api.budget import ResolvedLimits
from moorage.core.constraints.context import used
from moorage.core.constraints.judging import Context
from moorage.core.constraints.limits import DECISION
from moorage.core.journal.plain import plain, restored
from moorage.core.run.family import Share
from moorage.core.run.observed import Problem
from moorage.core.run.parents import asking, divided, reserve_of, same_share
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import reduce
from moorage.core.run.state import RunState
from moorage.core.run.usage import used_by
from moorage.gateway.budget import beside, lacking
from moorage.gateway.facts import Facts, fold

CALL = 50  # tokens at most of one request: so much a run's own limit may be passed by
ASKED = st.none() | st.integers(0, 900)
OTHERS = st.lists(ASKED, max_size=2)


@dataclass
class Kin:
    """One run: its journal, and what its provider has billed."""

    uid: str
    limits: ResolvedLimits
    parent: str | None = None
    state: RunState = field(default_factory=lambda: RunState(phase=RunPhase.RUNNING, epoch=1, attempt=1))
    facts: Facts = field(default_factory=Facts)
    billed: int = 0
    calls: int = 0
    over: bool = False
    admitted: bool = True

    def append(self, kind: str, payload: dict[str, Any], request_id: str | None = None) -> None:
        said = record(self.state.offset + 1, kind, payload, epoch=1)
        said = replace(said, request_id=request_id) if request_id else said
        self.state, self.facts = reduce(self.state, said), fold(self.facts, said)

    def context(self, **more: int) -> Context:
        return used(self.state, iterations=0, wall_ms=0, asking=more)

    def fits(self, **more: int) -> bool:
        """Beside all that requests under way may come to."""
        return lacking(self.limits, self.context(**more), self.facts) is None

    def answered(self, key: str, took: int) -> None:
        self.billed += took
        self.append("MODEL_RESPONSE", {"status": 200, "usage": {"output_tokens": took}}, key)

    def charged(self) -> None:
        """What nobody answers for any more comes to its worst case."""
        for key, question in dict(self.facts.asked).items():
            self.answered(key, question.reserve.output_tokens)


@dataclass(frozen=True)
class Draft:
    """A child that somebody is about to note in its parent's journal, by what there was to see before."""

    parent: str
    uid: str
    limits: ResolvedLimits
    by_agent: bool

    @property
    def share(self) -> Share:
        return reserve_of(self.limits)


class Family(RuleBasedStateMachine):
    """A root and whatever grows from it. Every rule may be followed by a crash: the next one starts from journals. What
    a share is computed from and the record that says it are two rules: anything may happen between them.
    """

    @initialize(tokens=st.integers(0, 5_000), calls=st.integers(0, 60))
    def begin(self, tokens: int, calls: int) -> None:
        limits = ResolvedLimits(tokens_hard=tokens, tool_calls_hard=calls)
        self.runs = {"r0": Kin("r0", limits)}
        self.drafts: list[Draft] = []
        self.named = self.asked = 0

    def _live(self) -> list[Kin]:
        return [run for run in self.runs.values() if run.admitted and not run.over]

    def _pick(self, data: st.DataObject) -> Kin:
        return data.draw(st.sampled_from(self._live()))

    @precondition(lambda self: self._live())
    @rule(data=st.data(), worst=st.integers(1, CALL))
    def ask(self, data: st.DataObject, worst: int) -> None:
        run = self._pick(data)
        if run.fits(**DECISION):
            self.asked += 1
            said = {"bytes_hash": "", "reserved": {"output_tokens": worst}, "gateway": "gw"}
            run.append("MODEL_REQUEST", said, f"q{self.asked}")

    @precondition(lambda self: any(run.facts.asked for run in self.runs.values()))
    @rule(data=st.data(), share=st.floats(0, 1))
    def answer(self, data: st.DataObject, share: float) -> None:
        """Also of a run that has ended meanwhile."""
        run = data.draw(st.sampled_from([run for run in self.runs.values() if run.facts.asked]))
        key = data.draw(st.sampled_from(sorted(run.facts.asked)))
        run.answered(key, int(share * run.facts.asked[key].reserve.output_tokens))

    @precondition(lambda self: self._live())
    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        run = self._pick(data)
        if run.fits(toolCalls=1):
            run.calls += 1
            run.append("TOOL_RESPONSE", {})

    @precondition(lambda self: self._live() and self.named < 7)
    @rule(data=st.data(), tokens=ASKED, calls=st.none() | st.integers(0, 9), by_agent=st.booleans(), others=OTHERS)
    def look(
        self, data: st.DataObject, tokens: int | None, calls: int | None, others: list[int | None], *, by_agent: bool
    ) -> None:
        """What the next child of somebody may get, as it is now; and what other operators make of that, each of which
        thinks that it is the only one.
        """
        parent = self._pick(data)
        self.named += 1
        uid = f"r{self.named}"
        self._drafted(parent, uid, tokens, calls, by_agent=by_agent)
        for other in others if not by_agent else ():
            self._drafted(parent, uid, other, calls, by_agent=False)

    def _drafted(self, parent: Kin, uid: str, tokens: int | None, calls: int | None, *, by_agent: bool) -> None:
        asked = ResolvedLimits(tokens_hard=tokens, tool_calls_hard=calls)
        limits = divided(asked, parent.limits, beside(parent.context(), parent.facts))
        if isinstance(limits, Problem):
            return
        draft = Draft(parent.uid, uid, limits, by_agent)
        assert parent.fits(**asking(draft.share)), "what was divided fits"
        self.drafts.append(draft)

    @precondition(lambda self: self.drafts)
    @rule(data=st.data(), dies=st.booleans())
    def note(self, data: st.DataObject, *, dies: bool) -> None:
        """Reserved, by the very state that the record follows; then admitted, unless everybody died in between."""
        draft = self.drafts.pop(data.draw(st.integers(0, len(self.drafts) - 1)))
        parent = self.runs[draft.parent]
        if parent.over:
            return
        if not draft.by_agent:
            self._started(parent, draft, dies=dies)
        elif parent.fits(**asking(draft.share)):
            told = {"key": draft.uid, "name": draft.uid, "reserve": _told(draft.share)}
            parent.append("CHILD_REQUESTED", told)
            self.drafts.append(replace(draft, by_agent=False))
            self._drafted(parent, draft.uid, None, None, by_agent=False)  # who doesn't see that yet

    def _started(self, parent: Kin, draft: Draft, *, dies: bool) -> None:
        known = parent.state.child(draft.uid, draft.uid) or parent.state.child("", draft.uid)
        if known is not None and not (known.open and same_share(draft.share, known.reserve, parent.limits)):
            return
        if known is None and not parent.fits(**asking(draft.share)):
            return
        if known is None or not known.uid:
            told = {"uid": draft.uid, "name": draft.uid, "reserve": _told(draft.share)}
            parent.append("CHILD_STARTED", told)
            self.runs[draft.uid] = Kin(draft.uid, draft.limits, parent.uid, admitted=False)
        kin = self.runs[draft.uid]
        if not (dies or kin.over or kin.admitted):
            kin.admitted, kin.limits = True, draft.limits

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
        if ended:
            run = data.draw(st.sampled_from(ended))
            for _ in range(times):
                self._settled(run)

    def _settled(self, run: Kin) -> None:
        run.charged()
        usage = asdict(used_by(run.state, 0)) if run.admitted else {}
        told = {"uid": run.uid, "name": run.uid, "outcome": "Failed", "used": usage, "commit": None}
        self.runs[run.parent or ""].append("CHILD_ENDED", told)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """One that was asked for, and that nobody will make."""
        waiting = [(run, child) for run in self.runs.values() for child in run.state.open_children if not child.uid]
        if waiting:
            run, child = data.draw(st.sampled_from(waiting))
            _never_started(run, child.name)

    @invariant()
    def nobody_gives_away_more_than_there_is(self) -> None:
        for run in self.runs.values():
            most = run.limits.tokens_hard or 0
            reserved = sum(child.reserve.tokens for child in run.state.open_children)
            beyond = sum(CALL for kin in self.runs.values() if self._above(kin, run.uid) or kin is run)
            under_way = sum(question.reserve.tokens for question in run.facts.asked.values())
            assert run.state.usage.tokens + under_way + run.state.children_used.tokens + reserved <= most + beyond
            calls = used(run.state, iterations=0, wall_ms=0, asking={}).tool_calls
            assert calls <= (run.limits.tool_calls_hard or 0)

    @invariant()
    def a_childs_limits_are_what_is_reserved_for_it(self) -> None:
        for run in self.runs.values():
            child = self.runs[run.parent].state.child(run.uid, run.uid) if run.parent else None
            reserve = Share(tokens=run.limits.tokens_hard or 0, tool_calls=run.limits.tool_calls_hard or 0)
            assert child is None or child.reserve == reserve

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
            run.charged()
            for child in run.state.open_children:
                assert not child.uid
                _never_started(run, child.name)
            if run.parent is not None:
                self._settled(run)
        if runs := getattr(self, "runs", {}):
            root = runs["r0"].state
            assert not root.open_children
            assert root.usage.tokens + root.given_away.tokens == sum(run.billed for run in runs.values())
            assert root.usage.tool_calls + root.given_away.tool_calls == sum(run.calls for run in runs.values())


def _told(share: Share) -> dict[str, int]:
    return {name: amount for name, amount in asdict(share).items() if amount}


def _never_started(run: Kin, name: str) -> None:
    run.append("CHILD_ENDED", {"uid": "", "name": name, "outcome": "NeverStarted", "used": {}, "commit": None})


Family.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFamily = pytest.mark.rule("B2", "B3")(Family.TestCase)
