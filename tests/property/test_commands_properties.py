"""M2, M3 over any history: each command is decided once, closes once, and its receipt never goes back; what was given
to an agent isn't given to another.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.run_world import START, T, record

from moorage.api.commands import CommandRequest, Receipt
from moorage.core.commands.admission import Abilities, Accepted, Rejected, decide
from moorage.core.commands.command import KEPT_CLOSED, MESSAGES, MOST_OPEN, digest_of, known, last_waiting
from moorage.core.journal.plain import plain, restored
from moorage.core.run.phases import TERMINAL, IllegalMove
from moorage.core.run.reducer import reduce, replay
from moorage.core.run.state import RunState

ALL = Abilities(steer=True, follow_up=True, safe_points=True)
RANK = {"Accepted": 0, "Delivered": 1, "Done": 1, "Rejected": 1, "Expired": 1}
TYPES = st.sampled_from(["Steer", "FollowUp", "Checkpoint", "Cancel", "Approve"])
NAMES = st.integers(0, 8).map(lambda n: f"c{n}")
STEPS = st.one_of(
    st.tuples(st.just("ask"), NAMES, TYPES),
    st.tuples(st.just("deliver"), NAMES),
    st.tuples(st.sampled_from(["iterate", "lose", "end", "read again"])),
)


@dataclass
class History:
    """A run's journal, and every receipt that anybody was told, by id."""

    state: RunState = field(default_factory=RunState)
    records: list[Any] = field(default_factory=list)
    told: dict[str, list[Receipt]] = field(default_factory=dict)
    asked: dict[str, CommandRequest] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)

    def append(self, kind: str, payload: dict[str, Any]) -> None:
        new = record(self.state.offset + 1, kind, payload, epoch=self.state.epoch, at=START)
        self.state = reduce(self.state, new)
        self.records.append(new)

    def ask(self, name: str, kind: str) -> None:
        """As the gateway does: the same id asks the same, whenever it comes again."""
        asked = self.asked.setdefault(name, CommandRequest(command_id=name, type=kind))  # type: ignore[arg-type]
        if known(self.state.commands, name) is None and self.state.end is None:
            decision = decide(asked, self.state, ALL)
            payload = {"command_id": name, "type": asked.type, "digest": digest_of(asked), "issuer": "ada"}
            if isinstance(decision, Accepted):
                self.append(T.COMMAND_ACCEPTED, payload)
                if asked.type == "Cancel":
                    self.append(T.CANCEL_REQUESTED, {"reason": "user"})
            elif isinstance(decision, Rejected):
                self.append(T.COMMAND_REJECTED, payload | {"reason": decision.reason})
        self.look()

    def deliver(self, name: str) -> None:
        """Whoever passes messages on takes only what waits."""
        command = known(self.state.commands, name)
        if command is not None and command.waits and self.state.end is None:
            self.given.append(name)
        if self.state.end is None:
            self.append(T.COMMAND_DELIVERED, {"command_id": name, "iteration": self.state.iteration + 1})

    def step(self, what: str) -> None:
        if self.state.end is not None and what != "read again":
            return
        match what:
            case "iterate":
                self.append(T.ITERATION_COMPLETE, {"iteration": self.state.iteration + 1})
            case "lose" if self.state.cancel_stage is None:
                self.append(T.ATTEMPT_ENDED, {"epoch": self.state.epoch, "role": "runner", "reason": "NodeLost"})
                self.raised()
            case "end":
                kind = T.RUN_FAILED if self.state.cancel_stage is None else T.RUN_CANCELLED
                self.append(kind, {"reason": "Over", "message": ""})
            case "read again":
                assert replay(self.records) == self.state
                assert restored(RunState, plain(self.state)) == self.state

    def raised(self) -> None:
        epoch = self.state.epoch + 1
        self.append(T.EPOCH_RAISED, {"epoch": epoch, "attempt": epoch, "holder": "h"})

    def look(self) -> None:
        for command in self.state.commands:
            self.told.setdefault(command.command_id, []).append(command.receipt())


def begun() -> History:
    made = History()
    made.append(T.RUN_ADMITTED, {"spec_hash": "s"})
    made.raised()
    made.append(T.AGENT_STARTED, {})
    return made


@pytest.mark.rule("M2", "M3", "S1")
@given(st.lists(STEPS, max_size=60))
def test_each_command_is_decided_once_and_closes_once(steps: list[tuple[Any, ...]]) -> None:
    run = begun()
    for step in steps:
        match step:
            case ("ask", name, kind):
                run.ask(name, kind)
            case ("deliver", name):
                run.deliver(name)
            case (what,):
                run.step(what)
        run.look()
    run.step("read again")
    for receipts in run.told.values():
        assert len({(r.type, r.offset, r.issuer, r.at) for r in receipts}) == 1
        assert all(RANK[before.state] <= RANK[after.state] for before, after in pairwise(receipts))
        assert len({r.state for r in receipts if r.final}) <= 1
    assert len(run.given) == len(set(run.given))
    if run.state.phase in TERMINAL:
        assert not any(c.open for c in run.state.commands)
        assert last_waiting(run.state.commands) == -1


@pytest.mark.rule("M2")
@given(st.lists(st.tuples(st.booleans(), TYPES), min_size=40, max_size=90))
def test_what_is_kept_is_bounded_and_nothing_open_is_forgotten(asked: list[tuple[bool, str]]) -> None:
    run = begun()
    for n, (delivered, chosen) in enumerate(asked):
        kind = "Steer" if chosen == "Cancel" else chosen
        if sum(c.open for c in run.state.commands) < MOST_OPEN:
            run.ask(f"c{n}", kind)
            if delivered and kind in MESSAGES:
                run.deliver(f"c{n}")
    opened = {name for name, receipts in run.told.items() if not receipts[-1].final}
    kept = {c.command_id for c in run.state.commands if c.open}
    assert opened - {n for n in opened if n not in kept} == kept
    assert sum(not c.open for c in run.state.commands) <= KEPT_CLOSED


def test_a_second_decision_on_one_id_is_refused_by_the_reducer() -> None:
    run = begun()
    run.ask("c1", "Steer")
    before = run.state
    with pytest.raises(IllegalMove, match="has its receipt already"):
        run.append(T.COMMAND_REJECTED, {"command_id": "c1", "type": "Steer", "digest": "d", "reason": "X"})
    assert run.state == before
