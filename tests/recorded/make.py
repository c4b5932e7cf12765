"""Record what the real agents print: `python -m tests.recorded.make [AGENT…]`, when sandbox-images has other versions.

Each file is one program's stdout against the stand-in model, byte by byte but for the path of its worktree.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.contract.real_agents import AGENTS, DONE, USAGE, model_door, path_with, resolved, run

from moorage.drivers.port import Child
from moorage.drivers.registry import load
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Fault, Reply, ToolCall

FOLDER = Path(__file__).parent
TREE = b"/volume/tree"
PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Update File: a.txt
@@
-one
+two
*** Add File: b.txt
+new
*** End Patch
EOF
"""
EDITS = {
    "claude-code": (
        ToolCall(name="Read", input={"file_path": "a.txt"}),
        ToolCall(name="Write", input={"file_path": "b.txt", "content": "new"}),
    ),
    "codex": (ToolCall(name="exec_command", input={"cmd": PATCH}),),
    "pi": (
        ToolCall(name="edit", input={"path": "a.txt", "edits": [{"oldText": "one", "newText": "two"}]}),
        ToolCall(name="write", input={"path": "b.txt", "content": "new"}),
    ),
}
MUCH = re.compile(rb'(\{"type":"control_response","response":\{"subtype":"success","request_id":"hello"),.*')


def refused(status: int, message: str, times: int = 99) -> Reply:
    return Reply(text="Fine.", faults=(Fault(kind="status", status=status, times=times, message=message),))


def scripts(agent: str) -> Mapping[str, Sequence[Reply]]:
    return {
        "mended": (run(agent, "cat a.txt", text="I look."), run(agent, "echo two > a.txt; exit 3"), DONE),
        "edited": (Reply(tools=EDITS[agent], usage=USAGE), run(agent, "echo 1; sleep 1", "echo 2", "exit 1"), DONE),
        "refused": (refused(401, "no way"),),
        "spent": (refused(400, "BudgetExhausted: the run's token limit of 5 is used up (7)"),),
        "over": (run(agent, "echo two > a.txt"), refused(500, "no way", times=1), DONE),
        "gave-up": (refused(500, "no way"),),
        "cut-short": (Reply(text="Half an", stop_reason="max_tokens", usage=USAGE),),
        "said-nothing": (Reply(usage=USAGE),),
        "no-such-tool": (Reply(tools=(ToolCall(name="nosuch", input={"a": 1}),), usage=USAGE), DONE),
    }


@dataclass
class RecordingHost(LocalHost):
    """Keeps what the program prints in a file."""

    record: Path = FOLDER

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | None = None,
        talk: bool = False,
    ) -> Child:
        """Start it with a copy of its stdout."""
        copied = ["sh", "-c", '"$@" | tee "$0"', str(self.record), *argv]
        return await super().spawn(copied, env=env, cwd=cwd, stdin=stdin, talk=talk)


async def record(agent: str, name: str, replies: Sequence[Reply]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        (tree / "a.txt").write_text("one\n")
        host = RecordingHost(tree, record=Path(folder) / "out")
        path = path_with(agent, Path(folder) / "bin")
        async with model_door(host, *replies) as (url, _):
            outcome = await load(agent).run(task_for(host, resolved(agent, path), relay_url=url), host)
        said = MUCH.sub(rb"\1}}", host.record.read_bytes())  # lists all that it can do
        said = said.replace(str(tree).encode(), TREE).replace(folder.encode(), b"/volume")
        said = said.replace(folder.replace("/", "-").encode(), b"-volume")
        (FOLDER / f"{agent}-{name}.jsonl").write_bytes(said.replace(url.encode(), b"http://127.0.0.1:1"))
        print(agent, name, outcome.outcome, outcome.reason, outcome.message)  # noqa: T201  for who records


async def main() -> None:
    for agent in sys.argv[1:] or AGENTS:
        for name, replies in scripts(agent).items():
            await record(agent, name, replies)


if __name__ == "__main__":
    asyncio.run(main())
