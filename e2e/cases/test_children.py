"""An agent shares its work between two children, in gVisor, by the tools that its own sandbox serves over MCP."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.system import SANDBOX_IMAGE, Tenant

AGENT = Path(__file__).with_name("sharing_agent.py")
TOKENS = 20_000


def parental() -> dict[str, Any]:
    """A program that speaks ACP, as any other; its children run the same one."""
    return {
        "driver": "acp",
        "image": SANDBOX_IMAGE,
        "command": ["python3", "-c", AGENT.read_text()],
        "model": {"providerRef": {"name": "stand-in"}, "name": "scripted"},
        "children": {"max": 2, "concurrent": 2},
    }


@pytest.mark.rule("O2", "W7", "B2", "B3")
def test_an_agent_starts_two_children_waits_for_both_and_merges_one(tenant: Tenant, moorage):
    tenant.run(
        "share",
        agent=parental(),
        goal="Share the work.",
        constraints={"tokens": {"hard": TOKENS}},
        acceptance=[{"name": "one", "run": "test -e one.txt && test ! -e two.txt", "timeout": "1m"}],
    )
    status = tenant.ended("share", within_s=240)
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert tenant.world.git("diff", "--name-only", "main", status["result"]["commit"]).split() == ["one.txt"]
    children = [each for each in tenant.get("ar") if each["spec"].get("parentRef", {}).get("name") == "share"]
    assert [each["status"]["phase"] for each in children] == ["Succeeded"] * 2
    assert {each["spec"]["goal"] for each in children} == {"Write one.", "Write two."}
    spent = [each["status"]["usage"]["tokens"] for each in children]
    assert all(spent), "each has asked its model"
    assert sum(spent) + status["usage"]["tokens"] <= TOKENS
    timeline = moorage("-n", tenant.namespace, "timeline", "share")
    assert all(each["metadata"]["name"] in timeline for each in children)
