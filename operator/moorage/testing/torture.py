"""K2: a run on this machine, killed again and again at named points, and what came of it.

A `Bench` is where that happens: a manifest, an environment, and a way to count what the remote got. A trial takes a
fresh bench, starts `moorage run` until it ends, with all its shots armed, and judges. All that is random follows from a
seed, so that each finding can be seen again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from moorage.core.run.phases import RunPhase
from moorage.points import Point
from moorage.testing import leftovers
from moorage.testing.judge import Finding, Journal, Kind, Opened, Outcome, Outside, judge, look, outcome
from moorage.testing.killpoints import Fault, Shot, begin, environment, fired, often, passed

PROGRAM = (sys.executable, "-c", "from moorage.cli.main import main; main()")
STOPPED_S = 0.3
MOST_SHOTS = 8  # in one trial; each attempt that is lost lets the next one wait longer (R6)
SPARE_STARTS = 3
LOOK_S = 0.02
SETTLED_S = 10.0  # until what a run leaves has ended by itself
TOLD_EVERY = 20


class NothingToCompare(ValueError):
    """The undisturbed run is no measure, or shares no point with the disturbed ones."""


@dataclass(frozen=True)
class Bench:
    """One fresh place for one trial. `outside`: what the world beyond it has got so far."""

    root: Path
    manifest: Path
    env: Mapping[str, str]
    outside: Callable[[], Outside]
    store: Opened

    @property
    def state(self) -> Path:
        """Moorage's own."""
        return self.root / "state"

    @property
    def trace(self) -> Path:
        """Which points were passed."""
        return self.root / "trace"

    @property
    def temporary(self) -> Path:
        """TMPDIR of what runs here."""
        return self.root / "tmp"


class Started(Protocol):
    """A process; `returncode` is None while it lives."""

    @property
    def returncode(self) -> int | None:
        """See `asyncio.subprocess.Process`."""

    async def wait(self) -> int:
        """Its exit code, or the number of the signal that ended it, negative."""

    def kill(self) -> None:
        """SIGKILL."""


Start = Callable[[Sequence[str], Mapping[str, str], Path], Awaitable[Started]]
"""Starts `moorage` with arguments, an environment, and a file that all its output is added to."""


@dataclass(frozen=True)
class Executed:
    """Starts a program as anybody does."""

    program: Sequence[str] = PROGRAM

    async def __call__(self, argv: Sequence[str], env: Mapping[str, str], output: Path) -> Started:
        """See Start."""
        with output.open("ab") as said:
            return await asyncio.create_subprocess_exec(
                *(*self.program, *argv),
                env=env,
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C at a terminal is for us; it would be asked to cancel its run
            )


Benches = Callable[[str], AbstractAsyncContextManager[Bench]]
"""A fresh bench of that name, gone with its context."""


@dataclass(frozen=True)
class Reference:
    """The undisturbed run: how it ends, and how often it passes each point."""

    outcome: Outcome
    points: Counter[Point]


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
    """Sums over trials. `points`: where processes were killed; `missed`: trials in a row that no shot hit in."""

    trials: int = 0
    shots: Counter[Fault] = field(default_factory=Counter)
    points: Counter[Point] = field(default_factory=Counter)
    found: Counter[Kind] = field(default_factory=Counter)
    unknown: int = 0
    given_up: int = 0
    missed: int = 0

    def add(self, verdict: Verdict) -> None:
        """One trial more."""
        self.trials += 1
        self.shots.update(shot.fault for shot in verdict.shots)
        self.points.update(shot.point for shot in verdict.shots if shot.fault is Fault.KILL)
        self.found.update(finding.kind for finding in verdict.findings)
        self.unknown += verdict.outcome is not None and verdict.outcome.unknown
        self.given_up += verdict.outcome is not None and verdict.outcome.phase == "Failed" and not verdict.findings
        self.missed = 0 if verdict.shots else self.missed + 1

    @property
    def kills(self) -> int:
        """Processes that were killed."""
        return self.shots[Fault.KILL]

    @property
    def clean(self) -> bool:
        """Nothing was found."""
        return not self.found.total()

    @property
    def by_point(self) -> str:
        """Kills at each point."""
        return ", ".join(f"{point} {times}" for point, times in sorted(self.points.items()))

    def __str__(self) -> str:
        others = "".join(f", {self.shots[f]} {f}s" for f in Fault if f is not Fault.KILL and self.shots[f])
        found = ", ".join(f"{self.found[kind]} {kind}{'es' if kind is Kind.LOSS else 's'}" for kind in Kind)
        given_up = f", {self.given_up} given up" if self.given_up else ""
        return f"{self.kills} kills{others} in {self.trials} runs: {found}, {self.unknown} unknown{given_up}"


@dataclass(frozen=True)
class Rig:
    """Runs trials. `patience_s`: the longest that one start may take; one that takes longer hangs."""

    benches: Benches
    patience_s: float = 120.0
    same_tree: bool = True
    start: Start = Executed()

    async def reference(self) -> Reference:
        """Run once, undisturbed. Raises NothingToCompare where that doesn't succeed."""
        async with self._bench("undisturbed") as bench:
            code = await self._start(bench, ())
            seen = (await look(bench.store)).journals
            if code != 0 or len(seen) != 1:
                why = f"the undisturbed run must succeed first (exit code {code}): {_said(bench)[-2000:]}"
                raise NothingToCompare(why)
            return Reference(outcome(seen[0].state), often(passed(bench.trace)))

    async def trial(self, name: str, shots: Sequence[Shot], reference: Reference) -> Verdict:
        """Start until it has ended, and meet each shot once on the way."""
        async with self._bench(name) as bench:
            seen, findings, code = list[tuple[Journal, ...]](), list[Finding](), None
            while len(seen) < len(shots) + SPARE_STARTS:
                code = await self._start(bench, shots)
                if code is None:
                    findings.append(Finding(Kind.DIVERGENCE, f"start {len(seen) + 1} hung for {self.patience_s:.0f} s"))
                looked = await look(bench.store, (journal for journals in seen for journal in journals))
                findings += looked.findings
                seen.append(looked.journals)
                if code == 0 or _failed(looked.journals):
                    break
            findings += judge(seen, reference.outcome, bench.outside(), same_tree=self.same_tree)
            if code is not None and code >= 0:  # what a killed owner leaves is for the next one to clear away
                findings += await _left(bench, whole=code == 0)
            if code == 0 and not any(journal.uid in _said(bench) for journal in seen[-1]):
                findings.append(Finding(Kind.LOSS, "its end was never told"))
            hit = tuple(shot for shot in shots if fired(bench.trace, shot))
            ended = outcome(seen[-1][0].state) if len(seen[-1]) == 1 else None
            return Verdict(hit, len(seen), ended, tuple(findings), _said(bench) if findings else "")

    @contextlib.asynccontextmanager
    async def _bench(self, name: str) -> AsyncIterator[Bench]:
        """A fresh one; nothing runs on in it when it goes, however that comes about."""
        async with self.benches(name) as bench:
            begin(bench.trace)
            try:
                yield bench
            finally:
                await leftovers.end(bench.root)

    async def _start(self, bench: Bench, shots: Sequence[Shot]) -> int | None:
        """One `moorage run`: its exit code, or None where it hung and had to be killed."""
        said = bench.root / "said"
        said.unlink(missing_ok=True)
        argv = ("run", "-f", str(bench.manifest), "--state", str(bench.state), "-o", "json")
        armed = {**bench.env, **environment(bench.trace, *shots)}
        process = await self.start(argv, armed, said)
        stops = [asyncio.create_task(waken(bench.trace, shot)) for shot in shots if shot.fault is Fault.STOP]
        try:
            async with asyncio.timeout(self.patience_s):
                return await process.wait()
        except TimeoutError:
            return None
        finally:
            for waker in stops:
                waker.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()


def _said(bench: Bench) -> str:
    """What the last start wrote."""
    said = bench.root / "said"
    return said.read_text(errors="replace") if said.is_file() else ""


def _failed(journals: tuple[Journal, ...]) -> bool:
    """It has ended, and the command again would begin another run."""
    ends = [each.state.phase for each in journals if each.state.end]
    return any(phase is not RunPhase.SUCCEEDED for phase in ends)


async def _left(bench: Bench, *, whole: bool) -> list[Finding]:
    """X2, W5: what of an ended run is still there. `whole`: it succeeded, so that no folder of its own is kept."""
    kept = ("runs", "owners") if whole else ()
    left = {
        "processes": await leftovers.still_running(bench.root, SETTLED_S),
        "mounts": leftovers.mounted(bench.root),
        "temporary files": leftovers.entries(bench.temporary),
        **{f"entries in {name}": leftovers.entries(bench.state / name) for name in kept},
    }
    return [Finding(Kind.LEFTOVER, f"{what}: {names}") for what, names in left.items() if names]


async def waken(trace: Path, shot: Shot) -> None:
    """Let a process go on a while after that shot has stopped it."""
    while (pid := fired(trace, shot)) is None or _runs(pid):  # noqa: ASYNC110  another process's doing
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(STOPPED_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _runs(pid: int) -> bool:
    """It is there, and isn't stopped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    return False


# --- many trials ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """`kills`: faults to be met over all runs, `jobs` of them at a time. With `shots`: those alone, in one run.

    `again` is the command that begins what repeats a run.
    """

    kills: int
    seed: int = 1
    faults: Sequence[Fault] = (Fault.KILL,)
    jobs: int = 1
    shots: tuple[Shot, ...] = ()
    again: str = ""

    def plans(self, points: Counter[Point]) -> Iterator[tuple[int, Sequence[Shot]]]:
        """Seeds, and the shots that follow from each."""
        if self.shots:
            return iter([(self.seed, self.shots)])
        return ((seed, plan(seed, points, self.faults)) for seed in itertools.count(self.seed))


def plan(seed: int, points: Counter[Point], faults: Sequence[Fault]) -> tuple[Shot, ...]:
    """Shots of one trial: every point as likely as any other, at any of the times that it is passed undisturbed."""
    chance, drawn = random.Random(seed), dict[Shot, None]()  # noqa: S311  it has to be the same again
    for _ in range(chance.randint(1, MOST_SHOTS)):
        point = chance.choice(sorted(points))
        drawn[Shot(point, chance.randint(1, points[point]), chance.choice(faults))] = None
    return tuple(drawn)


async def torture(rig: Rig, wanted: Wanted, tell: Callable[[str], None]) -> Tally:
    """Trials until so many shots have hit, each with the seed that repeats it: `wanted.seed` for the first, and on.

    Tells each finding with the command that repeats it, how far it is now and then, and the tally last, also when it is
    interrupted: SIGTERM is the same as Ctrl-C here. Raises NothingToCompare.
    """
    with _interruptible():
        reference = await rig.reference()
        going = _Going(rig, wanted, reference, tell)
        try:
            await going.on()
        finally:
            tell(f"killed at: {going.tally.by_point}")
            tell(str(going.tally))
    if going.idle:
        raise NothingToCompare("no shot hits any more: no run passes a point that the undisturbed one passed")
    return going.tally


@dataclass
class _Going:
    """What the jobs of one torture share."""

    rig: Rig
    wanted: Wanted
    reference: Reference
    tell: Callable[[str], None]
    tally: Tally = field(default_factory=Tally)

    @property
    def idle(self) -> bool:
        """No trial hits any more."""
        return self.tally.missed > len(self.reference.points)

    async def on(self) -> None:
        """Until enough was met."""
        plans = self.wanted.plans(self.reference.points)
        await asyncio.gather(*(self._job(plans) for _ in range(self.wanted.jobs)))

    async def _job(self, plans: Iterator[tuple[int, Sequence[Shot]]]) -> None:
        while self.tally.shots.total() < self.wanted.kills and not self.idle:
            if (planned := next(plans, None)) is None:
                return
            seed, shots = planned
            verdict = await self.rig.trial(f"trial-{seed}", shots, self.reference)
            self.tally.add(verdict)
            for told in _told(self.wanted, seed, shots, verdict):
                self.tell(told)
            if self.tally.trials % TOLD_EVERY == 0:
                self.tell(f"so far: {self.tally}")


def _told(wanted: Wanted, seed: int, shots: Sequence[Shot], verdict: Verdict) -> Iterator[str]:
    """Each finding, and how to see it again."""
    for finding in verdict.findings:
        yield f"seed {seed}, {' '.join(map(str, verdict.shots)) or 'no shot hit'}: {finding}"
    if verdict.findings:
        yield f"  again: {wanted.again} --shots '{' '.join(map(str, shots))}'"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, also where that is ignored (as in a shell's background): this task is cancelled,
    and ends its children on the way.
    """
    task, loop, told = asyncio.current_task(), asyncio.get_running_loop(), False

    def end(*_: object) -> None:
        nonlocal told
        told = True
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if told:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
