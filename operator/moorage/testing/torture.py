"""K2: a run on this machine, killed again and again at named points, and what came of it.

A `Bench` is where that happens: a manifest, an environment, and a way to count what the remote got. A trial takes a
fresh bench, starts `moorage run` once per shot and then until it ends, and judges. All that is random follows from a
seed, so that each finding can be seen again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from moorage.core.run.phases import RunPhase
from moorage.points import Point
from moorage.testing.judge import Finding, Journal, Kind, Outcome, judge, look, older_owners, outcome
from moorage.testing.killpoints import Fault, Shot, begin, environment, fired, often, passed

PROGRAM = (sys.executable, "-c", "from moorage.cli.main import main; main()")
STOPPED_S = 0.3
MOST_SHOTS = 4  # in one trial; an attempt that is lost counts (R6), and a run bears five
LOOK_S = 0.02
TOLD_EVERY = 20


class NothingToCompare(ValueError):
    """The undisturbed run is no measure, or shares no point with the disturbed ones."""


@dataclass(frozen=True)
class Bench:
    """One fresh place for one trial. `pushes`: every commit that the delivered branch was moved to, at its remote."""

    root: Path
    manifest: Path
    env: Mapping[str, str]
    pushes: Callable[[], Sequence[str]]

    @property
    def state(self) -> Path:
        """Moorage's own."""
        return self.root / "state"

    @property
    def trace(self) -> Path:
        """Which points were passed."""
        return self.root / "trace"


Benches = Callable[[str], AbstractAsyncContextManager[Bench]]
"""A fresh bench of that name, gone with its context."""


@dataclass(frozen=True)
class Reference:
    """The undisturbed run: how it ends, and how often it passes each point."""

    outcome: Outcome
    points: Counter[Point]

    def chances(self, faults: Sequence[Fault]) -> list[Shot]:
        """Every shot that can hit."""
        return [
            Shot(point, number, fault)
            for point in sorted(self.points)
            for number in range(1, self.points[point] + 1)
            for fault in faults
        ]


@dataclass(frozen=True)
class Verdict:
    """What came of one trial. `shots` are those that hit; `starts`: how often the command had to be given."""

    shots: tuple[Shot, ...]
    starts: int
    outcome: Outcome | None
    findings: tuple[Finding, ...]
    said: str = ""


@dataclass
class Tally:
    """Sums over trials."""

    trials: int = 0
    shots: Counter[Fault] = field(default_factory=Counter)
    found: Counter[Kind] = field(default_factory=Counter)
    unknown: int = 0

    def add(self, verdict: Verdict) -> None:
        """One trial more."""
        self.trials += 1
        self.shots.update(shot.fault for shot in verdict.shots)
        self.found.update(finding.kind for finding in verdict.findings)
        self.unknown += verdict.outcome is not None and verdict.outcome.unknown

    @property
    def kills(self) -> int:
        """Processes that were killed."""
        return self.shots[Fault.KILL]

    @property
    def clean(self) -> bool:
        """Nothing was found."""
        return not self.found.total()

    def __str__(self) -> str:
        others = "".join(f", {self.shots[f]} {f}s" for f in Fault if f is not Fault.KILL and self.shots[f])
        found = ", ".join(f"{self.found[kind]} {kind}{'es' if kind is Kind.LOSS else 's'}" for kind in Kind)
        return f"{self.kills} kills{others} in {self.trials} runs: {found}, {self.unknown} unknown"


@dataclass(frozen=True)
class Rig:
    """Runs trials. `patience_s`: the longest that one start may take."""

    benches: Benches
    patience_s: float = 60.0
    same_tree: bool = True

    async def reference(self) -> Reference:
        """Run once, undisturbed. Raises NothingToCompare where that doesn't succeed."""
        async with self.benches("undisturbed") as bench:
            code, said = await self._start(bench, None)
            seen = await look(bench.state)
            if code != 0 or len(seen) != 1:
                raise NothingToCompare(f"the undisturbed run must succeed first (exit code {code}): {said[-2000:]}")
            return Reference(outcome(seen[0].state), often(passed(bench.trace)))

    async def trial(self, name: str, shots: Sequence[Shot], reference: Reference) -> Verdict:
        """Meet each shot in a start of its own, then start until it has ended."""
        async with self.benches(name) as bench:
            hit, seen, starts, code, said = [], list[tuple[Journal, ...]](), 0, 1, ""
            findings: list[Finding] = []
            for shot in (*shots, *[None] * 3):
                begin(bench.trace)
                code, said = await self._start(bench, shot)
                starts += 1
                findings += await older_owners(bench.state)
                seen.append(await look(bench.state))
                hit += [shot] if shot is not None and fired(bench.trace) else []
                if code == 0 or _failed(seen[-1]):
                    break
            findings += judge(seen, reference.outcome, bench.pushes(), same_tree=self.same_tree)
            ended = outcome(seen[-1][0].state) if len(seen[-1]) == 1 else None
            return Verdict(tuple(hit), starts, ended, tuple(findings), said if findings else "")

    async def _start(self, bench: Bench, shot: Shot | None) -> tuple[int, str]:
        """One `moorage run`: its exit code, and what it wrote on standard error."""
        argv = (*PROGRAM, "run", "-f", str(bench.manifest), "--state", str(bench.state), "-o", "json")
        armed = {**bench.env, **environment(bench.trace, shot)}
        with (bench.root / "said").open("wb") as said:
            process = await asyncio.create_subprocess_exec(
                *argv, env=armed, cwd="/", stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said
            )
            waker = asyncio.create_task(_waken(bench.trace)) if shot and shot.fault is Fault.STOP else None
            try:
                code = await asyncio.wait_for(process.wait(), self.patience_s)
            except TimeoutError:
                process.kill()
                code = await process.wait()
            finally:
                if waker is not None:
                    waker.cancel()
        return code, (bench.root / "said").read_text(errors="replace")


def _failed(journals: tuple[Journal, ...]) -> bool:
    """It has ended, and the command again would begin another run."""
    ends = [each.state.phase for each in journals if each.records and each.state.end]
    return any(phase is not RunPhase.SUCCEEDED for phase in ends)


async def _waken(trace: Path) -> None:
    """Let a process that was stopped go on after a while."""
    while (pid := fired(trace)) is None:  # noqa: ASYNC110  another process's doing
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(STOPPED_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def plan(seed: int, chances: Sequence[Shot]) -> list[Shot]:
    """Shots of one trial."""
    chance = random.Random(seed)  # noqa: S311  it has to be the same again
    return [chance.choice(chances) for _ in range(chance.randint(1, MOST_SHOTS))]


async def torture(
    rig: Rig, kills: int, seed: int, faults: Sequence[Fault] = (Fault.KILL,), jobs: int = 1
) -> AsyncIterator[tuple[int, Verdict]]:
    """Trials until so many shots have hit, each with the seed that repeats it: `seed` for the first, and on."""
    reference = await rig.reference()
    chances, done, idle = reference.chances(faults), 0, 0
    while done < kills:
        seeds = range(seed, seed + jobs)
        trials = [rig.trial(f"trial-{each}", plan(each, chances), reference) for each in seeds]
        for each, verdict in zip(seeds, await asyncio.gather(*trials), strict=True):
            hit = len(verdict.shots)
            done, idle = done + hit, 0 if hit else idle + 1
            yield each, verdict
        if idle > len(chances):
            raise NothingToCompare("no shot hits any more: no run passes a point that the undisturbed one passed")
        seed += jobs


async def report(trials: AsyncIterator[tuple[int, Verdict]], tell: Callable[[str], None]) -> Tally:
    """Tell each finding with the seed that repeats it, how far it is now and then, and the tally last."""
    tally = Tally()
    async for seed, verdict in trials:
        tally.add(verdict)
        for finding in verdict.findings:
            tell(f"seed {seed}, {' '.join(map(str, verdict.shots)) or 'no shot hit'}: {finding}")
        if tally.trials % TOLD_EVERY == 0:
            tell(f"so far: {tally}")
    tell(str(tally))
    return tally
