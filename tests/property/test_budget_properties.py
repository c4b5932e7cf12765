"""B2, B3: many requests at once, gateways that die, answers that are cut or never come: no limit is passed by more than
the one request that was let through last, and the run's usage is the sum of its answers'.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.property.run_world import record

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedPrices
from moorage.core.constraints.judging import Context, evaluate
from moorage.core.constraints.limits import DECISION, metered
from moorage.core.journal.plain import plain, restored
from moorage.core.models.prices import Reserve, cost_micros, worst
from moorage.core.models.reading import Reading
from moorage.core.models.usage import total
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import reduce
from moorage.core.run.state import RunState
from moorage.gateway.budget import AllReserved, demand_free
from moorage.gateway.constraints import Exhausted, refuse
from moorage.gateway.facts import Facts, fold

PRICES = ResolvedPrices(
    input=3_000_000, output=15_000_000, cache_read=300_000, cache_write=3_750_000, cache_write_1h=6_000_000
)
GATEWAYS = ("a", "b")


@dataclass(frozen=True)
class Sent:
    """A request under way at a provider."""

    id: str
    size: int
    reserve: Reserve
    gateway: str


class Budget(RuleBasedStateMachine):
    """One run, two gateways, one journal."""

    @initialize(
        tokens=st.none() | st.integers(min_value=0, max_value=40_000),
        cost=st.none() | st.integers(min_value=0, max_value=400_000),
    )
    def begin(self, tokens: int | None, cost: int | None) -> None:
        self.limits = ResolvedLimits(tokens_hard=tokens, cost_hard_micros=cost)
        self.state, self.facts = RunState(phase=RunPhase.RUNNING, epoch=1, attempt=1), Facts()
        self.sent: dict[str, Sent] = {}
        self.lost: set[str] = set()
        self.billed: list[dict[str, int]] = []
        self.largest = Reserve()
        self.asked = 0

    def _append(self, kind: str, payload: dict[str, Any], request_id: str) -> None:
        said = record(self.state.offset + 1, kind, payload, epoch=1)
        said = type(said)(**{**said.__dict__, "request_id": request_id})
        self.state, self.facts = reduce(self.state, said), fold(self.facts, said)

    def _respond(self, sent: Sent, usage: dict[str, int]) -> None:
        self.billed.append(usage)
        self._append("MODEL_RESPONSE", {"status": 200, "usage": usage, "complete": False}, sent.id)
        del self.sent[sent.id]
        self.lost.discard(sent.id)

    @rule(
        size=st.integers(min_value=2, max_value=6_000),
        cap=st.integers(min_value=1, max_value=8_000),
        gateway=st.sampled_from(GATEWAYS),
    )
    def ask(self, size: int, cap: int, gateway: str) -> None:
        reserve = worst(size, cap, PRICES)
        used, limits = self.state.usage, self.limits
        context = Context(tokens=used.tokens, cost_micros=used.cost_micros, asking=DECISION)
        try:
            refuse(evaluate(metered(limits), context))
            demand_free(limits, context, self.facts)
        except Exhausted:
            assert used.tokens >= (limits.tokens_hard or 0) or used.cost_micros >= (limits.cost_hard_micros or 0)
            return
        except AllReserved:
            assert self.sent, "nobody waits where nothing is under way"
            return
        self.asked += 1
        sent = Sent(f"q{self.asked}", size, reserve, gateway)
        self._append("MODEL_REQUEST", {"reserved": asdict(reserve), "gateway": gateway}, sent.id)
        self.sent[sent.id] = sent
        self.largest = Reserve(
            0, max(self.largest.tokens, reserve.tokens), max(self.largest.cost_micros, reserve.cost_micros)
        )

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), thought=st.integers(min_value=0, max_value=100))
    def answer(self, data: st.DataObject, thought: int) -> None:
        """Also of one whose gateway was thought to be dead and that nobody has settled yet."""
        sent = data.draw(st.sampled_from(list(self.sent.values())))
        read, written, fresh = (data.draw(st.integers(min_value=0, max_value=sent.size // 3)) for _ in range(3))
        said = data.draw(st.integers(min_value=0, max_value=sent.reserve.output_tokens))
        usage = {"input_tokens": fresh, "cache_read_tokens": read, "cache_write_tokens": written}
        usage |= {"output_tokens": said, "reasoning_tokens": min(thought, said)}
        self._respond(sent, usage | {"cost_micros": cost_micros(usage, PRICES)})

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), characters=st.integers(min_value=0, max_value=200_000))
    def cut(self, data: st.DataObject, characters: int) -> None:
        sent = data.draw(st.sampled_from(list(self.sent.values())))
        usage, estimated = Reading(characters=characters).settled(sent.size, sent.reserve.output_tokens)
        assert estimated
        self._respond(sent, usage | {"cost_micros": cost_micros(usage, PRICES)})

    @rule(gateway=st.sampled_from(GATEWAYS))
    def crash(self, gateway: str) -> None:
        self.lost |= {sent.id for sent in self.sent.values() if sent.gateway == gateway}

    @rule()
    def settle(self) -> None:
        """What died with its gateway is charged at its worst case, as the facts have it."""
        for request_id in sorted(self.lost):
            reserve = self.facts.asked[request_id].reserve
            self._respond(self.sent[request_id], asdict(reserve))

    @invariant()
    def no_limit_is_passed_by_more_than_one_request(self) -> None:
        used, limits = self.state.usage, self.limits
        if limits.tokens_hard is not None:
            assert used.tokens <= max(0, limits.tokens_hard - 1 + self.largest.tokens)
        if limits.cost_hard_micros is not None:
            assert used.cost_micros <= max(0, limits.cost_hard_micros - 1 + self.largest.cost_micros)
        if limits.tokens_hard == 0 or limits.cost_hard_micros == 0:
            assert self.asked == 0, "nothing left means nothing"

    @invariant()
    def the_runs_usage_is_the_sum_of_its_answers(self) -> None:
        used = self.state.usage
        assert used.tokens == sum(total(usage) for usage in self.billed)
        assert used.cost_micros == sum(usage["cost_micros"] for usage in self.billed)
        assert used.model_requests == self.asked
        assert list(self.facts.days.values()) == ([used] if self.asked else []), "and of its days"
        assert set(self.facts.asked) == set(self.sent)

    @invariant()
    def a_restart_forgets_no_reserve(self) -> None:
        assert restored(Facts, json.loads(json.dumps(plain(self.facts)))) == self.facts


Budget.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBudget = pytest.mark.rule("B2", "B3")(Budget.TestCase)
