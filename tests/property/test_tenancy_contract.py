"""C5: merging is the strictest of all, whatever the order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.parse import parse_resource_constraint
from moorage.api.resourceconstraint import ResourceConstraint
from moorage.core.tenancy.contract import LINES, Contract, contract_of, merge

AMOUNTS = st.sampled_from(["500m", "1", "2", "1k", "64Mi", "1G", "1Gi"])
MEMORY = st.sampled_from(["64Mi", "1G", "1Gi"])
COUNTS = st.integers(0, 9)
NAMES = st.lists(st.sampled_from(["a.example", "b.example", "c.example"]), unique=True)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


SPECS = some(
    weight=st.integers(1, 9),
    concurrency=some(sandboxes=COUNTS, models=COUNTS),
    perDay=some(tokens=st.integers(1, 9), cost=st.sampled_from(["1", "0.50", "2.00"])),
    resources=some(cpu=AMOUNTS, memory=AMOUNTS, storage=AMOUNTS),
    perSandbox=some(cpu=AMOUNTS, memory=MEMORY, disk=AMOUNTS),
    allowed=some(models=NAMES, runtimeClasses=NAMES, hosts=NAMES),
    constraints=some(maxIterations=st.integers(1, 9), effects=some(hard=COUNTS)),
)


def rcon(name: str, spec: dict[str, Any]) -> ResourceConstraint:
    found = parse_resource_constraint({"metadata": {"name": name}, "spec": spec}, unknown="refuse")
    assert isinstance(found, ResourceConstraint), found
    return found


def strict(contract: Contract, field: str) -> Any:
    value = getattr(contract, field)
    return value.amount if hasattr(value, "amount") else value


@pytest.mark.rule("C5")
@given(st.lists(SPECS, max_size=4), st.randoms())
def test_each_line_is_the_strictest_one_and_its_author_said_it(specs: list[dict[str, Any]], chance: Any) -> None:
    every = [rcon(f"c{n}", spec) for n, spec in enumerate(specs)]
    merged = merge(every)
    shuffled = list(every)
    chance.shuffle(shuffled)
    assert merge(shuffled) == merged
    for line in LINES:
        said = [strict(contract_of(each), line.field) for each in every if line.read(each.spec) is not None]
        if not said:
            assert line.name not in merged.set_by
            continue
        found = strict(merged, line.field)
        assert found == (frozenset.intersection(*said) if isinstance(said[0], frozenset) else min(said))
        authors = {each.metadata.name: each for each in every}
        named = [authors[name] for name in merged.set_by[line.name].split(" and ")]
        theirs = [strict(contract_of(each), line.field) for each in named]
        assert (frozenset.intersection(*theirs) if isinstance(found, frozenset) else theirs[0]) == found
    numbers = [each.spec.constraints.max_iterations for each in every if each.spec.constraints]
    assert merged.limits.max_iterations == min((n for n in numbers if n is not None), default=None)
