"""A pass: gather, decide, apply, and one status write when something is worth telling. Nothing is remembered between
passes but what the writing of statuses needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moorage.clock import Clock
from moorage.controller.apply import Applier, Known
from moorage.controller.gateway_client import GatewayAway, GatewayRefused
from moorage.controller.gather import Gathered, Gatherer
from moorage.controller.measures import Measures
from moorage.controller.ports import Objects, Telling
from moorage.controller.roll import Roll
from moorage.controller.statuses import Statuses
from moorage.controller.tenancy.rooms import Rooms
from moorage.controller.told import Standing
from moorage.core.journal.record import RecordType
from moorage.core.run.actions import Action, Admit, Begin, Plan, RaiseEpoch, Report, StartSandbox
from moorage.core.run.observed import Observed, Problem
from moorage.core.run.pauses import pausable
from moorage.core.run.phases import RunPhase
from moorage.core.run.plan import GATEWAY_RETRY_MS, decide
from moorage.core.run.status import project
from moorage.core.run.words import fail
from moorage.core.scheduling.rate import Rate
from moorage.sandbox.port import NameTaken, Refused, RunKey
from moorage.telemetry.metrics import OperatorMetrics

REFUSED_RETRY_MS = 10_000


@dataclass(frozen=True)
class Outcome:
    """What a pass came to: when to look again, and whether the queue moved."""

    requeue_ms: int | None
    freed: bool = False
    gone: bool = False


class Engine:
    """One pass over one run; the queue sees to it that a run has one at a time."""

    def __init__(
        self,
        *,
        gatherer: Gatherer,
        applier: Applier,
        objects: Objects,
        roll: Roll,
        clock: Clock,
        telling: Telling,
        metrics: OperatorMetrics,
        rooms: Rooms | None = None,
        recoveries: Rate[RunKey] | None = None,
    ) -> None:
        self._recoveries = recoveries
        self._gatherer, self._applier = gatherer, applier
        self._roll, self._clock, self._metrics, self._rooms = roll, clock, metrics, rooms
        self._measures = Measures(metrics, roll)
        self._statuses = Statuses(objects, roll, clock, telling)
        self._troubled: dict[str, int] = {}  # by UID: since when a problem that time counts against is seen

    async def run_pass(self, key: RunKey) -> Outcome:
        """Raises Unavailable, and Conflict where somebody else was faster: the queue backs off and looks again."""
        gathered, plan = await self._look(key)
        freed = False
        if any(_takes_slot(action) for action in plan.actions) and not self._roll.is_live(key):
            freed = self._roll.note(key, Standing.LIVE)  # before any await: two passes can't share a slot
            if self._rooms is not None:
                self._rooms.took(key, gathered.observed)
        known, plan, refused = await self._act(key, plan, gathered)
        standing = standing_of(known.observed, plan, refused=refused)
        joins = False
        if standing is not None:
            s, why = known.observed.journal, known.observed.slots.kept or plan.reason
            joins = standing is Standing.WAITING and not self._roll.is_waiting(key) and s is not None
            since, may_stop = (s.stopped_since, pausable(s)) if s is not None else (None, False)
            freed |= self._roll.note(key, standing, why, since=since, may_stop=may_stop)
        if self._rooms is not None and standing is not None:
            self._rooms.passed(key, known.observed, live=standing is Standing.LIVE)
            if self._rooms.moved(key.tenant):  # it is somebody else's turn now
                self._roll.contracts_changed()
                freed = True
        self._measures.passed(key, plan, gathered.observed, known.observed, self._clock.now_ms())
        wait = None if known.observed.gone else await self._tell(key, plan, gathered, known.observed)
        if not _counts(known.observed.problem):
            self._troubled.pop(key.uid, None)
        gone = known.observed.gone and plan.requeue_ms is None and not plan.actions
        if gone:
            self._forget(key)
        again = 1 if joins and known.observed.slots.closed else None  # C6: it is in line now, and may be its first
        return Outcome(_sooner(plan.requeue_ms, wait, again), freed, gone)

    async def _look(self, key: RunKey) -> tuple[Gathered, Plan]:
        """The picture and what follows from it. That nothing stands is assumed of a new run for no more than its begin,
        since admission says where that is a mistake; whatever else would follow is decided on all there is.
        """
        gathered = self._dated(await self._gatherer.gather(key, new=self._roll.first_look(key)))
        plan = decide(gathered.observed, self._clock.now_ms())
        if gathered.observed.untouched and not any(isinstance(action, Begin) for action in plan.actions):
            gathered = self._dated(await self._gatherer.gather(key))
            plan = decide(gathered.observed, self._clock.now_ms())
        return gathered, self._in_time(key, gathered.observed, plan)

    def _in_time(self, key: RunKey, o: Observed, plan: Plan) -> Plan:
        """Q3: attempts after the first one begin at a rate of their own, however many a lost node brings."""
        again = any(isinstance(action, RaiseEpoch) and action.attempt > 1 for action in plan.actions)
        if not again or self._recoveries is None:
            return plan
        wait = self._recoveries.wait_ms(key, self._clock.now_ms())
        if not wait:
            return plan
        phase = o.journal.phase.value if o.journal is not None else ""
        why = f"its next attempt begins in {-(-wait // 1000)} s: many recover at once (admission.recoveriesPerSecond)"
        return Plan(requeue_ms=wait, reason=phase, message=why)

    def _dated(self, gathered: Gathered) -> Gathered:
        return replace(gathered, observed=self._since(gathered.observed))

    def _since(self, o: Observed) -> Observed:
        """F5: time in which a run waited for its turn, or for what its tenant may use, counts against nobody. A process
        that starts anew has seen no problem yet, and gives each its whole time.
        """
        if not _counts(o.problem):
            return o
        return replace(o, problem_since=self._troubled.setdefault(o.uid, self._clock.now_ms()))

    async def _act(self, key: RunKey, plan: Plan, gathered: Gathered) -> tuple[Known, Plan, bool]:
        """Apply the plan; what keeps it from being applied becomes what people are told. True where what stands for a
        run is refused for now.
        """
        known = Known(gathered.observed, gathered.view)
        try:
            async for learned in self._applier.apply(key, plan.actions, known):
                known = learned
        except GatewayAway as e:
            self._metrics.gateway_failures.inc()
            away = Plan(plan.actions, GATEWAY_RETRY_MS, "GatewayUnavailable", "the gateway can't be reached")
            if e.reason == "DiskFull":  # it is there, and says what to do
                away = replace(away, reason=e.reason, message=e.message)
            return replace(known, observed=replace(known.observed, journal=None)), away, False
        except NameTaken as e:
            return known, Plan(plan.actions, REFUSED_RETRY_MS, "NameTaken", str(e)), True
        except Refused as e:
            return *await self._refused(key, plan, known, e), not e.permanent
        except GatewayRefused as e:
            if e.status == 409:  # the run moved on meanwhile
                raise
            if any(isinstance(action, Admit | Begin) for action in plan.actions):
                return *await self._not_let_in(key, known, e), False
            return known, Plan(plan.actions, REFUSED_RETRY_MS, e.reason, str(e)), False
        return known, plan, False

    async def _not_let_in(self, key: RunKey, known: Known, error: GatewayRefused) -> tuple[Known, Plan]:
        """What the run names can't be used yet, by the gateway's word: it waits as for any other missing reference, and
        what was made beside its admission goes again.
        """
        problem = Problem(error.reason, error.message, stalled=False)
        known = replace(known, observed=self._since(replace(known.observed, problem=problem)))
        plan = decide(known.observed, self._clock.now_ms())
        async for learned in self._applier.apply(key, plan.actions, known):
            known = learned
        return known, plan

    async def _refused(self, key: RunKey, plan: Plan, known: Known, error: Refused) -> tuple[Known, Plan]:
        """C6: over quota and the like is waited out; what no waiting mends fails the run."""
        if not error.permanent:
            return known, Plan(plan.actions, REFUSED_RETRY_MS, error.reason, str(error))
        end = (fail(error.reason, str(error)),)
        async for learned in self._applier.apply(key, end, known):
            known = learned
        return known, Plan(end, 1, error.reason, str(error))

    async def _tell(self, key: RunKey, plan: Plan, gathered: Gathered, after: Observed) -> int | None:
        """Write the status if it is time; else say in how many milliseconds it will be."""
        if after.closed_without_journal:
            return None
        new = project(after, plan, gathered.previous, self._clock.now_ms())
        return await self._statuses.tell(key, gathered.previous, new, after.journal, gathered.version)

    def _forget(self, key: RunKey) -> None:
        self._statuses.forget(key)
        self._measures.forget(key)
        self._roll.forget(key)
        self._troubled.pop(key.uid, None)


def _counts(problem: Problem | None) -> bool:
    """Whether time counts against it."""
    return problem is not None and not problem.stalled and not problem.held


def standing_of(o: Observed, plan: Plan, *, refused: bool = False) -> Standing | None:
    """What a run counts as for admission, after a pass. None where its journal couldn't be asked: as before, since else
    an outage of the gateway would make a queued run live, or free the slot of a live one. `refused`: what stands for a
    run; one without any sandbox gives its slot back then, and is in line for one again once it looks (C6).
    """
    s = o.journal
    if plan.verdict is not None or o.closed_without_journal:
        return Standing.ENDED
    if s is None:
        return None
    if refused and s.end is None and not o.live_sandboxes:
        return Standing.BLOCKED
    if s.phase in {RunPhase.PENDING, RunPhase.PAUSED} or (s.end is None and plan.reason == "Queued"):
        return Standing.WAITING if plan.reason == "Queued" and not o.slots.kept else Standing.BLOCKED
    return Standing.ENDED if s.end is not None else Standing.LIVE


def _takes_slot(action: Action) -> bool:
    if isinstance(action, Admit | Begin | StartSandbox):
        return True
    return isinstance(action, Report) and action.type == RecordType.RESUMED


def _sooner(*delays: int | None) -> int | None:
    return min((d for d in delays if d is not None), default=None)
