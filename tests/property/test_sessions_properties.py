"""B3, I4, O7: a session's account is spent once, whatever its runs use, whoever wants to be the next one at the same
time, and whatever is forgotten or let go of in between.
"""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway_script import Operator, ok, resolved

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedOrigin
from moorage.testing.gateway import LocalGateway

MOST = 6  # tool calls of the whole session
FAILED = {"reason": "AgentFailed", "message": "", "commit": None}
WANTED = st.lists(st.integers(0, 9), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.tuples(st.integers(0, 3), WANTED)),
        st.tuples(st.just("next"), WANTED),
        st.tuples(st.just("calls"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.none()),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=12,
)


@dataclass
class Line:
    """One session: its runs in the order in which they joined, and what each was seen to use."""

    gateway: LocalGateway
    runs: list[Operator] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)
    told: int = 0
    living: bool = False
    released: set[str] = field(default_factory=set)
    tried: int = 0

    def run(self, after: Operator | None = None) -> Operator:
        self.tried += 1
        uid = f"u{self.tried}"
        limits = ResolvedLimits(tool_calls_hard=MOST)
        origin = ResolvedOrigin(uid=after.spec.uid, name=after.spec.name) if after is not None else None
        told = {"name": uid, "session_id": "u1", "limits": limits, "origin": origin}
        return Operator(self.gateway, resolved("https://git.example/x.git", uid, **told))

    async def began(self, run: Operator) -> None:
        self.runs.append(run)
        self.living = True
        self.made[run.spec.uid] = 0
        await ok(await run.fence(1))
        await run.register(f"p-{run.spec.uid}", 1)

    async def next(self, after: list[int]) -> None:
        """Some want to go on at once, each with one of the runs there are."""
        wanted = [self.run(self.runs[n % len(self.runs)]) for n in after]
        answers = await asyncio.gather(
            *(self.gateway.operator.put(f"{w.door}/as-next", content=w.spec.model_dump_json()) for w in wanted)
        )
        taken = [run for run, answer in zip(wanted, answers, strict=True) if answer.status_code == 200]
        assert all(a.status_code in {200, 403} for a in answers), [a.text for a in answers]
        possible = [n for n in after if self.runs[n % len(self.runs)].spec.uid not in self.released]
        assert len(taken) == (1 if possible and not self.living else 0)
        for run in taken:
            await self.began(run)

    async def turn(self, told: tuple[int, list[int]]) -> None:
        """The living run uses some, and ends; another one goes on."""
        await self.calls(told[0])
        await self.end(None)
        await self.next(told[1])

    async def calls(self, count: int) -> None:
        """What the living run's agent does at once; what is more than allowed is refused."""
        if not self.living:
            return
        run = self.runs[-1]
        client = self.gateway.sandbox(f"p-{run.spec.uid}", run.spec.tenant)

        async def one(number: int) -> bool:
            for kind in ("TOOL_REQUEST", "TOOL_RESPONSE"):
                record = {"record_id": f"{kind}:{number}", "type": kind, "payload": {}, "recorded_at": 7}
                report = {"epoch": 1, "records": [record | {"tool_call_id": f"1.{number}"}]}
                answer = await client.post("/v1/self/records", json=report)
                if kind == "TOOL_REQUEST" and (answer.is_error or answer.json()["budget"]["exhausted"] is not None):
                    return False  # told, and not made
            return True

        first, self.told = self.told, self.told + count
        done = await asyncio.gather(*(one(first + n) for n in range(count)))
        self.made[run.spec.uid] += sum(done)

    async def end(self, _: Any) -> None:
        if self.living:
            await ok(await self.runs[-1].report(1, "RUN_FAILED", FAILED))
            self.living = False

    async def release(self, which: int) -> None:
        run = self.runs[which % len(self.runs)]
        if run is not self.runs[-1] or not self.living:
            await ok(await self.gateway.operator.post(f"{run.door}/release"))
            self.released.add(run.spec.uid)

    async def restart(self, _: Any) -> None:
        self.gateway.restart()

    async def check(self) -> None:
        before = 0
        for run in self.runs:
            state = await run.state()
            assert state["carried"]["tool_calls"] == before, "all that the runs before it have used, once"
            before += state["usage"]["tool_calls"]
        assert before == sum(self.made.values()) <= MOST


async def lived(root: Path, steps: list[tuple[str, Any]]) -> None:
    async with LocalGateway(root) as gateway:
        gateway.secrets.give("team-a", "git", username="ada", password="x")
        line = Line(gateway)
        first = line.run()
        await first.admit()
        await line.began(first)
        for name, told in steps:
            await getattr(line, name)(told)
            await line.check()


@pytest.mark.rule("B3", "I4", "O7")
@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_a_sessions_account_is_spent_once(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(lived(Path(root), steps))
