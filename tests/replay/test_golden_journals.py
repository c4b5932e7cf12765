"""Journals that earlier versions wrote: every later version verifies them and reduces them to the same state (S1, J10).

A golden journal is only ever added. One that no longer reduces to its state means that the reducer changed its mind on
the past, which asks for a new reducer version instead.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from moorage.core.journal.chain import Intact
from moorage.core.journal.export import parse_header, parse_record, read_lines, verify_export
from moorage.core.journal.record import Record, decode
from moorage.core.recovery.replays import state_hash
from moorage.core.run.reducer import replay
from moorage.core.run.state import RunState

GOLDEN = Path(__file__).parent / "golden"
STATES = {
    "children-and-repair": ("Failed", 1, "29eb8914d6abd556e97f28633999ab3d53aa2c16b245658570cef59f074e33c1"),
    "commands-and-constraints": ("Succeeded", 3, "f41e96da38d45bef13a1b32bee3f116e0a5812bf7460c6b67fb110e79326d754"),
    "continued": ("Succeeded", 1, "72529c86faff2b37dec6103c2918270064a2baee9248b7598857127d54e86a26"),
    "last-release": ("Succeeded", 1, "59d321183c52e0bcff744d745d71a286a50745c4d12cfd1e37ce0cb96c7fc73f"),
    "local-command": ("Succeeded", 2, "af2b9ba43c49c6b607e44b8f938289e07c79ad1895284a2074d872a544bc647d"),
    "paused-and-raised": ("Succeeded", 4, "beef8197d3963854131992616ce20232009a2b17059d78d01c955e2d18b6086a"),
    "segments-and-repair": ("Failed", 12, "e605941a9502d5d295ec89619aca220316f4e6126761a962256789824102d690"),
}
"""`last-release` was written, and its hash taken, by the last version whose reducer was 2."""

LATER = frozenset({"model_retries", "effects", "egress_bytes", "human_approvals"})
"""Amounts that the vector has got since these hashes were taken."""
LATER_SAID = frozenset({"lost"})
"""What a state says of the same records since then."""


def records(path: Path) -> list[Record]:
    lines = read_lines([path.read_bytes()])
    parse_header(next(lines))
    return [decode(parse_record(line)) for line in lines]


OLDER = frozenset(STATES) - {"children-and-repair", "commands-and-constraints", "continued"}
"""Whose hashes leave out defaults of the state alone, and not of what it consists of."""


def hash_of(name: str, state: RunState) -> str:
    """As it was taken when that journal was added."""
    return older_hash(state) if name in OLDER else state_hash(state)


def older_hash(state: object) -> str:
    """Fields at their default are left out, so that a new one changes nothing for journals that know nothing of it."""
    usual = asdict(RunState())
    told = asdict(state)  # type: ignore[call-overload]
    said = {name: value for name, value in told.items() if value != usual[name] and name not in LATER_SAID}
    if "usage" in said:
        said["usage"] = {name: amount for name, amount in said["usage"].items() if amount or name not in LATER}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def test_every_golden_journal_has_its_state():
    assert {path.stem for path in GOLDEN.glob("*.journal")} == set(STATES)


@pytest.mark.rule("S1", "J5", "P4")
@pytest.mark.parametrize("name", STATES)
def test_verifies_and_reduces_to_the_same_state(name: str):
    phase, iterations, expected = STATES[name]
    path = GOLDEN / f"{name}.journal"
    assert isinstance(verify_export([path.read_bytes()]).chain, Intact)
    state = replay(records(path))
    assert (state.phase, state.iteration) == (phase, iterations)
    assert hash_of(name, state) == expected
    assert replay(records(path)) == state
