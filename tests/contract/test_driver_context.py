"""N5 with R2: an attempt whose context was made smaller dies, and the next one goes on with the context as it was."""

import asyncio
import json
from pathlib import Path

import pytest

from moorage.api.wire import ResolvedAgent
from moorage.drivers.builtin.driver import CONVERSATIONS
from moorage.testing.models import Reply, Script, ToolCall
from moorage.testing.world import World

PATIENCE_S = 200.0  # of a machine that does much else
pytestmark = pytest.mark.timeout(600)

LONG = "".join(f"line {n}: {'words ' * 12}\n" for n in range(100))  # some thousand tokens
READS = tuple(Reply(tools=(ToolCall(name="read", input={"path": "long.txt", "offset": n + 1}),)) for n in range(6))
HOLD = "echo lost > half.txt; while [ ! -e ../go ]; do sleep 0.05; done; cat a.txt"
HELD = Reply(tools=(ToolCall(name="bash", input={"command": HOLD}),))
DONE = Reply(text="All done.")


@pytest.mark.rule("N5", "R2", "J9")
@pytest.mark.parametrize("protocol", CONVERSATIONS)
async def test_a_compacted_context_is_gone_on_with_word_by_word(tmp_path: Path, protocol: str) -> None:
    script = Script(replies=(*READS, HELD, DONE), by="requests")
    async with World(tmp_path / "world", script=script, files={"a.txt": "one\n", "long.txt": LONG}) as world:
        assert world.model
        model = world.scripted().model_copy(update={"protocol": protocol, "context_window": 24_000})
        run = await world.admit(agent=ResolvedAgent(driver="builtin", model=model))
        first = await run.start()
        async with asyncio.timeout(PATIENCE_S):
            while not (first.tree / "half.txt").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await first.kill()
        await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "power"})
        told = await run.content("CONTEXT_COMPACTED")
        assert told, "it had outgrown its context before it died"
        assert all(0 < each["tokens_after"] < each["tokens_before"] for each in told)
        records = [r for r in await run.records() if r.type == "CONTEXT_COMPACTED"]
        measures = {"stage", "tokens_before", "tokens_after", "context_hash"}
        assert measures <= set(records[0].payload or {}), "kept in the record, beside the erasable content"
        (first.volume / "go").touch()
        second = await run.start(epoch=2)
        assert await second.ended(PATIENCE_S) == 0, second.said.read_text()
        assert (await run.state())["phase"] == "Verifying"
        assert len(world.model.log) == len({entry.key for entry in world.model.log}) == 8, "nothing is asked for twice"
        before, last = (json.dumps(world.model.bodies[at]) for at in (6, 7))
        assert "left out" in before
        assert before.count("left out") <= last.count("left out"), "as it was made smaller, so it stays"
        assert "make the tests pass" in last
        assert "<handoff>" in last
        assert all("words words" in str(each) for each in await run.content("TOOL_RESPONSE") if each["tool"] == "read")
