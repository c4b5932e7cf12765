"""Real, unmodified Codex and pi, from npm, driven against the stand-in model: what they do is told as facts."""

from pathlib import Path

import pytest
from tests.contract.real_agents import DONE, model_door, path_with, resolved, run

from moorage.drivers.registry import load
from moorage.testing.host import LocalHost, task_for

AGENTS = ("codex", "pi")
pytestmark = pytest.mark.timeout(300)  # the first one may have to wait for npm


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(agent: str, tmp_path: Path) -> str:
    return path_with(agent, tmp_path / "bin")


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("one\n")
    return LocalHost(tree)


async def test_it_mends_a_file_and_tells_each_call(agent, path, host):
    async with model_door(run(agent, "cat a.txt", text="I look."), run(agent, "echo two > a.txt; exit 3"), DONE) as (
        url,
        model,
    ):
        outcome = await load(agent).run(task_for(host, resolved(agent, path), relay_url=url), host)
    assert (outcome.outcome, outcome.summary) == ("completed", "All done.")
    assert (host.tree / "a.txt").read_text() == "two\n"
    assert [entry.status for entry in model.log] == [200, 200, 200]
    assert [(t.type, t.tool_call_id) for t in host.told] == [
        ("TOOL_REQUEST", "1.0"),
        ("TOOL_RESPONSE", "1.0"),
        ("TOOL_REQUEST", "2.0"),
        ("TOOL_RESPONSE", "2.0"),
    ]
    assert host.iterations == [1, 2, 3]
    total = {name: sum(each.get(name, 0) for each in host.usage) for name in host.usage[-1]}
    assert total == {"input_tokens": 300, "output_tokens": 30, "cache_read_tokens": 3_000}
