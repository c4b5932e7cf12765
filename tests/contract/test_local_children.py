"""O2: a local run has no children, and says so at once instead of running without what was asked for."""

from typing import Any

import pytest
import yaml
from tests.contract.local_machine import Machine

PROVIDER = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "ModelProvider",
    "metadata": {"name": "models"},
    "spec": {"protocol": "anthropic-messages", "baseURL": "http://127.0.0.1:9"},
}


@pytest.mark.rule("O2")
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"parentRef": {"name": "elder"}}, "spec.parentRef"),
        (
            {
                "agent": {
                    "driver": "builtin",
                    "model": {"providerRef": {"name": "models"}, "name": "m-1"},
                    "children": {"max": 2},
                }
            },
            "agent.children",
        ),
    ],
)
def test_a_local_run_refuses_children_in_words_and_begins_nothing(
    machine: Machine, spec: dict[str, Any], field: str
) -> None:
    machine.write()
    run = yaml.safe_load(machine.manifest.read_text())
    run["spec"] |= spec
    machine.manifest.write_text(yaml.safe_dump_all([run, PROVIDER]))
    code, result, err = machine.run()
    assert code != 0
    assert field in f"{result}{err}"
    assert "local run" in f"{result}{err}"
    assert machine.told("AGENT_STARTED") == 0
