"""Role runner: prepare the worktree, drive the agent, hand over what it proposes.

The order is the contract: nothing of the agent's runs before the network is shut and the worktree stands; nothing is
proposed before the agent's whole tree is gone; nothing is reported before its objects are in the gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from moorage.api.work import Assignment, Orders, ResultReport
from moorage.core.continuation.chain import NO_PROGRESS
from moorage.drivers.port import Driver, Guarantees, Outcome, Past, Recorded, State, Task
from moorage.drivers.program import CIRCLING
from moorage.drivers.registry import UnknownDriver, load
from moorage.points import Point, reached
from moorage.runner.client import Fenced, GatewayClient, GatewayError
from moorage.runner.disk import disk_named
from moorage.runner.exitcodes import Exit
from moorage.runner.followups import FollowUps
from moorage.runner.host import AgentPaths, RunnerHost, home_on, iterations_used
from moorage.runner.mcp import ChildTools
from moorage.runner.probe import isolated
from moorage.runner.processes import kill_everything
from moorage.runner.relay import Relay
from moorage.runner.report import Reporter, now_ms, plain
from moorage.runner.settings import RunnerSettings
from moorage.runner.watch import Watch, background
from moorage.workspace.errors import ContentRefused, DiskFull, WorkspaceError
from moorage.workspace.statefiles import StateFiles
from moorage.workspace.worktree import Drift, Proposal, RunWorktree, WorktreeOptions

DUMMY_KEY = "moorage-dummy"
MAX_TEXT = 4096
MAX_LEFT_OUT = 64
NAMED = 4
T = TypeVar("T")
REASONS = {"fenced": "Fenced", "terminal": "RunEnded", "deadline": "DeadlineExceeded"}


class Leave(Exception):
    """The attempt ends here without a result: exit code, typed reason, message."""

    def __init__(self, code: Exit, reason: str, message: str) -> None:
        self.code, self.reason, self.message = code, reason, message
        super().__init__(f"{reason}: {message}")


@dataclass
class Work:
    """One attempt. `terminated` is set by SIGTERM."""

    settings: RunnerSettings
    client: GatewayClient
    assignment: Assignment
    relay: Relay
    terminated: asyncio.Event
    watch: Watch
    reporter: Reporter = field(init=False)

    def __post_init__(self) -> None:
        self.reporter = Reporter(self.client, self.assignment)

    async def run(self) -> None:
        """Do the attempt's work. Raises Leave where it ends without a result.

        Its caller lets the watch's heartbeats go on meanwhile: a large repository must not cost the Lease.
        """
        watch = self.watch
        watch.assigned(self.assignment, self.reporter)
        async with background(watch.long_poll()):
            match await self._unless_told(self._prepare(), watch.stopped, watch.pausing, self.terminated):
                case None:
                    await self._end_early(watch)
                case Outcome() as refused:
                    await self._report(refused)
                case RunWorktree() as worktree:
                    await self._attempt_on(worktree, watch)

    async def _attempt_on(self, worktree: RunWorktree, watch: Watch) -> None:
        try:
            with disk_named():
                await self._attempt_or_refused(worktree, watch)
        except DiskFull as error:
            await kill_everything()
            await self._report(Outcome("failed", "DiskFull", f"{error}; what the last checkpoint holds is kept"))

    async def _attempt_or_refused(self, worktree: RunWorktree, watch: Watch) -> None:
        """What git refuses once it refuses again: no other attempt is made for it."""
        try:
            await self._attempt(worktree, watch)
        except ContentRefused as error:
            await kill_everything()
            await self._report(await self._kept(worktree, Outcome("failed", error.reason, str(error))))

    async def _prepare(self) -> RunWorktree | Outcome:
        """T3, then R3: the network shut and the worktree standing, or why there will be none."""
        still_open = await isolated(self.settings.probe, self.settings.probe_patience_s)
        if still_open:
            why = f"{still_open} can be reached from the sandbox: no network policy is enforced here"
            return Outcome("failed", "NetworkNotIsolated", why)
        try:
            with disk_named():
                return await self.client.patiently(self._worktree)
        except WorkspaceError as error:
            if error.retryable:
                raise Leave(Exit.WORKSPACE, error.reason, str(error)) from error
            return Outcome("failed", error.reason, str(error))

    async def _unless_told(self, coroutine: Coroutine[Any, Any, T], *events: asyncio.Event) -> T | None:
        """Its result; None where one of the events came before it, and then nothing of it goes on."""
        work = asyncio.ensure_future(coroutine)
        stops = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait({work, *stops}, return_when=asyncio.FIRST_COMPLETED)
            return None if any(event.is_set() for event in events) else await work
        finally:
            for each in (work, *stops):
                each.cancel()
            await asyncio.gather(work, *stops, return_exceptions=True)

    async def _end_early(self, watch: Watch) -> None:
        """No agent has run: a pause is told, a cancel acknowledged and done, anything else leaves the attempt."""
        stop = watch.stop
        if stop is None and watch.pause is not None:
            await self._report(Outcome("paused", "Paused", "stopped on request before the agent began"))
            return
        if stop is None or stop.stop != "cancel":
            raise _leaving(stop)
        await self._acknowledge(stop)
        await self._report(Outcome("cancelled", "Cancelled", "stopped on request before the agent began"))

    async def _acknowledge(self, stop: Orders) -> None:
        """X1; told twice it is one record."""
        reached(Point.CANCEL_ACK_BEFORE)
        await self.reporter.emit("CANCEL_ACKNOWLEDGED", {"reason": stop.reason}, record_id="cancel")
        reached(Point.CANCEL_ACK_AFTER)

    async def _worktree(self) -> RunWorktree:
        git = self.assignment.git
        return await RunWorktree.prepare(
            self.settings.volume,
            self.relay.url + git.path,
            run=self.assignment.run_uid,
            epoch=self.assignment.epoch,
            base=git.base,
            branch=git.branch,
            resume=git.resume.commit if git.resume else None,
            options=WorktreeOptions(
                depth=git.depth,
                filter=git.filter,
                sparse=git.sparse,
                submodules=git.submodules,
                alternates=self.settings.alternates,
                state=self._state(),
            ),
        )

    def _state(self) -> StateFiles:
        """P2: what the driver's program keeps in HOME."""
        promised = self._guarantees()
        state = promised.state if promised is not None else State()
        return StateFiles(home_on(self.settings.volume), state.paths, state.derived)

    def _guarantees(self) -> Guarantees | None:
        """Of a driver that isn't there `_drive` tells."""
        try:
            return load(self.assignment.agent.driver).guarantees
        except UnknownDriver:
            return None

    def _serve_children(self, host: RunnerHost) -> None:
        """O2: the tools of children, for a program that isn't ours."""
        promised = self._guarantees()
        if self.assignment.agent.children is not None and promised is not None:
            self.relay.tools = ChildTools(host.child_runs, lambda: host.budget, call_s=promised.call_s).answer

    async def _attempt(self, worktree: RunWorktree, watch: Watch) -> None:
        paths = AgentPaths(self.settings.volume, self.relay.url, DUMMY_KEY, proxied=bool(self.assignment.egress))
        await asyncio.to_thread(paths.prepare, self.assignment.goal)
        host = RunnerHost(self.client, self.reporter, self.assignment, worktree, paths, hold=self.relay.hold)
        host.tell_remaining()
        self._serve_children(host)
        async with background(host.log.pump(), host.messages.follow(watch.mail)):
            await self._tell_start(worktree)
            try:
                outcome = await self._drive(worktree, host, paths, watch)
            except WorkspaceError:  # what the agent wrote before it is told, too
                await kill_everything()
                await host.log.flush(last=True)
                raise
            await kill_everything()
            await host.log.flush(last=True)
            await self._settle(worktree, outcome, watch)

    async def _settle(self, worktree: RunWorktree, outcome: Outcome, watch: Watch) -> None:
        """What the attempt comes to. An agent that completed its work on the way to a pause has completed it."""
        if watch.stop is not None:
            await self._obey(worktree, outcome, watch.stop)
        elif outcome.outcome == "completed":
            await self._hand_over(worktree, outcome, watch)
        elif watch.pause is not None or outcome.outcome == "paused":
            await self._pause(worktree, outcome)
        elif not self.terminated.is_set():
            await self._hand_over(worktree, outcome, watch)
        else:
            await self._obey(worktree, outcome, None)

    async def _pause(self, worktree: RunWorktree, outcome: Outcome) -> None:
        """Q5: the next attempt goes on from the last safe point; what stands beyond it is saved as drift."""
        why = "" if outcome.outcome in {"paused", "cancelled"} else f"{outcome.reason}: {outcome.message}"
        stopped = Outcome("paused", "Paused", why, outcome.summary, outcome.exit_code)
        kept = await self._kept(worktree, stopped)
        reached(Point.PAUSE_AFTER)
        await self._report(kept)

    async def _tell_start(self, worktree: RunWorktree) -> None:
        if worktree.drift is not None:
            await self.reporter.emit("DRIFT_SAVED", _drift(worktree.drift))
        git = self.assignment.git
        resumed = git.resume.commit if git.resume else None
        ready = {"base": git.base, "branch": git.branch, "head": worktree.last, "resumed_from": resumed}
        await self.reporter.emit("WORKSPACE_READY", ready)

    async def _drive(self, worktree: RunWorktree, host: RunnerHost, paths: AgentPaths, watch: Watch) -> Outcome:
        """Run the driver; a pause reaches it through `host.pausing`, a stop from the gateway or SIGTERM through
        `host.stopping`.
        """
        try:
            driver = load(self.assignment.agent.driver)
        except UnknownDriver as error:
            return Outcome("failed", "UnknownDriver", str(error))
        await self.reporter.emit("AGENT_STARTED", {"driver": driver.name})
        task = replace(
            self._task(worktree, paths, await self._recorded()),
            past=await self._past() if driver.guarantees.recalls else None,
        )
        work = asyncio.create_task(_driven(driver, task, host))
        try:
            await _first(work, watch.pausing, watch.stopped, self.terminated)
            if watch.pause is not None:
                await self._park(host, watch, work, native=driver.guarantees.pauses)
            if not work.done():
                await self._stop(host, watch.stop, work)
            return await self._outcome(work, watch)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _park(self, host: RunnerHost, watch: Watch, work: asyncio.Task[Outcome], *, native: bool) -> None:
        """Q5: until the driver has ended at its safe point by itself, or may be stopped: one has been taken, the grace
        is over, or something graver is asked for.
        """
        host.pausing.set()
        grace = watch.pause.grace_ms / 1000 if watch.pause is not None else 0
        events = [watch.stopped, self.terminated] if native else [host.parked, watch.stopped, self.terminated]
        await _first(work, *events, within_s=grace)

    async def _outcome(self, work: asyncio.Task[Outcome], watch: Watch) -> Outcome:
        """The driver's word; what broke because we stopped it (a checkpoint killed half-way) is no fault."""
        try:
            return await work
        except (WorkspaceError, GatewayError) as error:
            if watch.stop is None and watch.pause is None and not self.terminated.is_set():
                raise
            return Outcome("cancelled", "Stopped", str(error))

    async def _stop(self, host: RunnerHost, order: Orders | None, work: asyncio.Task[Outcome]) -> None:
        """X2: the driver is told, has the order's grace to end its agent, and then nothing of it is left."""
        host.stopping.set()
        grace = self.settings.stop_grace_s
        if order is not None:
            grace = min(grace, order.grace_ms / 1000)
        if order is not None and order.stop == "cancel":
            await self._acknowledge(order)
        await asyncio.wait({work}, timeout=grace)
        if not work.done():
            await kill_everything()

    async def _recorded(self) -> Recorded | None:
        """R2: the decision to begin with. Where its words were erased meanwhile, the model has to be asked anew."""
        told = self.assignment.recorded
        if told is None:
            return None
        try:
            return Recorded(told.iteration, json.loads(await self.client.decision()))
        except Fenced:
            raise
        except GatewayError:
            return None

    async def _past(self) -> Past | None:
        """O2, R4: the conversation that goes on. Where its words were erased, the handoff has to do."""
        if not self.assignment.conversation:
            return None
        try:
            told = await self.client.conversation()
            came = {each.index: each for each in told.results}
            return Past(json.loads(told.request), told.answer.encode(), came)
        except Fenced:
            raise
        except (GatewayError, ValueError):
            return None

    def _task(self, worktree: RunWorktree, paths: AgentPaths, recorded: Recorded | None) -> Task:
        a = self.assignment
        return Task(
            run_uid=a.run_uid,
            goal=a.goal,
            goal_file=paths.goal,
            agent=a.agent,
            limits=a.limits,
            tree=worktree.tree,
            home=paths.home,
            tmp=paths.tmp,
            relay_url=self.relay.url,
            dummy_key=DUMMY_KEY,
            next_iteration=a.next_iteration,
            handoff=a.handoff,
            tokens_used=a.tokens_used,
            iterations_used=iterations_used(a),
            recorded=recorded,
            judged=bool(a.acceptance),
            continues=a.continues,
        )

    async def _obey(self, worktree: RunWorktree, outcome: Outcome, stop: Orders | None) -> None:
        """A cancel is this attempt's result. With anything else there is none and another one goes on; after SIGTERM
        (None) we may still write, so what stands in no checkpoint is saved first."""
        if stop is not None and stop.stop != "cancel":
            raise _leaving(stop)
        await self._save_drift(worktree)
        if stop is None:
            raise _leaving(stop)
        await self._acknowledge(stop)
        await self._report(Outcome("cancelled", "Cancelled", "stopped on request", outcome.summary, outcome.exit_code))

    async def _save_drift(self, worktree: RunWorktree) -> None:
        drift = await self.client.patiently(lambda: worktree.save_drift(self.assignment.epoch))
        if drift is not None:
            await self.reporter.emit("DRIFT_SAVED", _drift(drift))

    async def _kept(self, worktree: RunWorktree, outcome: Outcome) -> Outcome:
        """Save what a failed agent left beyond its last checkpoint; that it can't be saved is told beside its end."""
        try:
            await self._save_drift(worktree)
        except DiskFull:
            raise
        except WorkspaceError as error:
            return replace(outcome, message=f"{outcome.message}; what it left could not be saved: {error}")
        return outcome

    async def _hand_over(self, worktree: RunWorktree, outcome: Outcome, watch: Watch) -> None:
        """Report the end; a stop that comes meanwhile is obeyed, and acknowledged also where the result was faster."""
        if outcome.outcome != "completed":
            await self._report(await self._kept(worktree, outcome))
        else:
            proposal = await self._unless_told(self._propose(worktree, outcome), watch.stopped)
            if proposal is None:
                await self._obey(worktree, outcome, watch.stop)
                return
            if proposal.lost:
                await self._report(await self._kept(worktree, _unlike(proposal, outcome)))
            else:
                await self._report(outcome, proposal)
        if watch.stop is not None and watch.stop.stop == "cancel":
            await self._acknowledge(watch.stop)

    async def _propose(self, worktree: RunWorktree, outcome: Outcome) -> Proposal:
        delivery = self.assignment.delivery
        message = (delivery.message if delivery else None) or _commit_message(self.assignment, outcome)
        proposal = await worktree.propose(message)
        if not proposal.empty and not proposal.lost:
            await self.client.patiently(lambda: worktree.push_candidate(proposal))
        return proposal

    async def _report(self, outcome: Outcome, proposal: Proposal | None = None) -> None:
        left_out = proposal.left_out if proposal else ()
        report = ResultReport(
            epoch=self.assignment.epoch,
            outcome=outcome.outcome,
            reason=outcome.reason,
            message=plain(outcome.message)[:MAX_TEXT],
            summary=plain(outcome.summary)[:MAX_TEXT],
            exit_code=outcome.exit_code,
            commit=proposal.commit if proposal else None,
            tree=proposal.tree if proposal else None,
            base=self.assignment.git.base,
            empty=proposal.empty if proposal else True,
            files=proposal.files if proposal else 0,
            left_out=tuple(plain(str(entry)) for entry in left_out[:MAX_LEFT_OUT]),
            left_out_count=len(left_out),
            recorded_at=now_ms(),
        )
        reached(Point.RESULT_BEFORE)
        await self.client.result(report)
        reached(Point.RESULT_AFTER)


async def _driven(driver: Driver, task: Task, host: RunnerHost) -> Outcome:
    """The driver's word; a program that can be followed up goes on while the chain wants it to (N1)."""
    going = FollowUps(task, host)
    while True:
        outcome = await driver.run(task, host)
        if not driver.guarantees.can_go_on or host.leaving():
            return replace(outcome, reason=NO_PROGRESS) if outcome.reason == CIRCLING else outcome
        await kill_everything()
        follows = await going.after(task, outcome)
        if isinstance(follows, Outcome) or host.leaving():
            return follows if isinstance(follows, Outcome) else outcome
        task = follows


async def _first(work: asyncio.Task[Any], *events: asyncio.Event, within_s: float | None = None) -> None:
    """Wait for the first of them, for `within_s` seconds at most; the work is left as it is."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait({work, *waits}, return_when=asyncio.FIRST_COMPLETED, timeout=within_s)
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _leaving(stop: Orders | None) -> Leave:
    """The end of an attempt that is told to go, by the gateway or, with None, by SIGTERM."""
    if stop is None:
        return Leave(Exit.TERMINATED, "Terminated", "the sandbox was asked to stop (SIGTERM) before the agent's end")
    code = Exit.FENCED if stop.stop == "fenced" else Exit.NOT_WANTED
    return Leave(code, REASONS.get(stop.stop or "", "Stopped"), stop.message or "told to stop")


def _unlike(proposal: Proposal, outcome: Outcome) -> Outcome:
    """No result: under a name that the repository has it would hold something else than the agent made."""
    too_large = any(entry.too_large for entry in proposal.lost)
    advice = "keep large files out of the repository" if too_large else "leave such names as they were"
    first = "; ".join(plain(str(entry)) for entry in proposal.lost[:NAMED])
    more = f"; and {len(proposal.lost) - NAMED} more" if len(proposal.lost) > NAMED else ""
    why = f"the result can't hold what the agent made of {first}{more}; nothing of it is judged or delivered. {advice}"
    return Outcome("failed", "ResultTooLarge" if too_large else "PathRefused", why, outcome.summary, outcome.exit_code)


def _drift(drift: Drift) -> dict[str, object]:
    return {
        "commit": drift.commit,
        "tree": drift.tree,
        "epoch": drift.epoch,
        "pushed": drift.pushed,
        "left_out_count": len(drift.left_out),
        "aside_count": len(drift.aside),
    }


def _commit_message(assignment: Assignment, outcome: Outcome) -> str:
    """First line from the summary or the goal; trailers say where it came from."""
    said = plain(outcome.summary).strip() or plain(assignment.goal).strip() or assignment.name
    first = said.splitlines()[0][:72]
    return f"{first}\n\nMoorage-Run: {assignment.tenant}/{assignment.name}\nMoorage-Run-Uid: {assignment.run_uid}\n"
