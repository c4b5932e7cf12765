from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api_cases import manifest

from moorage.api.agentrun import AgentRun
from moorage.api.parse import InvalidSpec, parse_agent_run, parse_status
from moorage.api.quantity import dollars, micro_dollars

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FULL = manifest(
    "AgentRun",
    {
        "acceptance": [{"name": "a", "run": "true", "timeout": "1m"}],
        "sandbox": {"runtimeClassName": "gvisor", "resources": {"cpu": 1}, "egress": [{"host": "a.example"}]},
        "constraints": {
            "maxIterations": 3,
            "tokens": {"soft": 1, "hard": "2k"},
            "cost": {"hard": "1"},
            "wallClock": "1h",
        },
        "delivery": {"branch": "b", "push": True},
        "scheduling": {"deadline": "1h"},
        "timeouts": {"attempt": "1h"},
        "retention": {"ttlAfterFinished": "1h"},
    },
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, child in children for found in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    head, *rest = path
    if isinstance(value, dict):
        return {key: replaced(child, tuple(rest), new) if key == head else child for key, child in value.items()}
    return [replaced(child, tuple(rest), new) if at == head else child for at, child in enumerate(value)]


@settings(max_examples=400, deadline=None)
@given(where=st.sampled_from(places(FULL)), junk=JSON)
def test_no_value_anywhere_raises(where: tuple[Any, ...], junk: Any) -> None:
    result = parse_agent_run(replaced(FULL, where, junk))
    assert isinstance(result, AgentRun | InvalidSpec)
    if isinstance(result, InvalidSpec):
        assert result.problems
        assert 0 < len(result.message.encode()) <= 1024


@settings(max_examples=200, deadline=None)
@given(status=JSON)
def test_no_status_raises(status: Any) -> None:
    parse_status({"status": status})


@given(st.integers(min_value=1, max_value=10**15 - 1))
def test_money_goes_there_and_back(micros: int) -> None:
    assert micro_dollars(dollars(micros)) == micros
