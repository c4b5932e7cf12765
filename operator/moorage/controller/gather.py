"""All reads of one pass, in the order that makes them one picture: the object, what stands for it, the gateway last.

A sandbox seen ended before the journal was read has no result still on its way, since a runner reports before it exits.
A sandbox that the journal names counts as gone only where it was looked for after the journal had named it: another
operator may have made it between the two reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.budget import ResolvedLimits
from moorage.api.meta import Resource
from moorage.api.modelprovider import ModelProvider
from moorage.api.parse import InvalidSpec, parse
from moorage.api.runstatus import AgentRunStatus
from moorage.api.wire import ResolvedRun, ResolvedTimeouts
from moorage.api.workspace import Workspace
from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from moorage.controller.ports import Body, Objects
from moorage.controller.relatives import Kin, Relatives
from moorage.controller.roll import Roll
from moorage.controller.signs import Signs
from moorage.controller.tenancy.rooms import Rooms, too_big
from moorage.controller.told import key_of
from moorage.core.run.admission import JOURNAL_LOST
from moorage.core.run.limits import in_force
from moorage.core.run.observed import Observed, Problem
from moorage.core.run.phases import RunPhase
from moorage.core.run.resolve import (
    Broken,
    Defaults,
    References,
    amended,
    limits,
    model_choice,
    read_run,
    resolve,
    timeouts,
)
from moorage.core.run.state import RunState, SandboxRef
from moorage.core.run.status import ENDS
from moorage.core.run.view import RunView
from moorage.core.scheduling.explain import Slots
from moorage.core.tenancy.admission import full, under_contract, wanted_limits
from moorage.core.tenancy.contract import Contract, per_day
from moorage.sandbox.port import Children, Conflict, RunKey, Substrate

MOST_LOOKS = 5  # each one more is for a sandbox that somebody else registered meanwhile
Found = ResolvedRun | Problem | None


@dataclass(frozen=True)
class Gathered:
    """What the pass decides on, and the status that it may have to replace."""

    observed: Observed
    previous: AgentRunStatus
    view: RunView | None
    version: str = ""  # the object's resourceVersion; empty where there is none


@dataclass(frozen=True)
class Journal:
    """The gateway's answer. `trouble`: why it could not be asked. `view` None: it doesn't know the run."""

    view: RunView | None = None
    trouble: str | None = None

    @property
    def away(self) -> bool:
        """It could not be asked."""
        return self.trouble is not None


class Gatherer:
    """Reads; never changes anything. `cancelled`: whether a command is to cancel the run of that UID unbegun.
    `contract`: what counts in a namespace now; `rooms`: what its quotas have room for.
    """

    def __init__(
        self,
        *,
        objects: Objects,
        substrate: Substrate,
        gateway: GatewayClient,
        roll: Roll,
        defaults: Defaults,
        drivers: frozenset[str],
        constraints: frozenset[str] = frozenset(),
        signs: Signs,
        cancelled: Callable[[str], bool] = lambda _: False,
        contract: Callable[[str], Contract] = lambda _: Contract(),
        rooms: Rooms | None = None,
    ) -> None:
        self._objects, self._substrate, self._gateway = objects, substrate, gateway
        self._roll, self._defaults, self._drivers, self._constraints = roll, defaults, drivers, constraints
        self._signs, self._cancelled, self._contract, self._rooms = signs, cancelled, contract, rooms
        self._relatives = Relatives(objects, gateway, roll)

    async def gather(self, key: RunKey, *, new: bool = False) -> Gathered:
        """One picture of the run. `new`: nobody has worked on it yet, so nothing stands for it and no journal knows it.

        Where that is a mistake, admission says so (it answers with the run as it is) before any sandbox starts.
        """
        body = await self._body(key)
        previous = status_of(body)
        if new and body is not None and previous.observed_generation is None and not spec_of(body).get("parentRef"):
            return self._picture(key, body, Children(), Journal(), await self.resolve(body), untouched=True)
        children, journal = await self._look(key)
        found = None
        if body is not None and journal.view is None and not journal.away and not previous.epoch:
            found = await self.resolve(body)
        kin = await self._relatives.of(key, body, journal.view) if not journal.away else Kin()
        return self._picture(key, body, children, journal, found, kin=kin)

    async def _body(self, key: RunKey) -> Body | None:
        """The object, from the watch where it was seen: each of our own writes is seen there too."""
        entry = self._roll.get(key)
        if entry is not None and entry.body is not None:
            return entry.body
        body = await self._objects.run(key.tenant, key.name)
        if body is None or key_of(body).uid != key.uid:
            return None
        self._roll.saw(body)
        return body

    async def _look(self, key: RunKey) -> tuple[Children, Journal]:
        """What stands, then the journal; again while the journal names a sandbox that wasn't looked for since it did.

        Raises Conflict where new ones keep coming.
        """
        named: frozenset[str] = frozenset()
        for look in range(MOST_LOOKS):
            children = await self._substrate.observe(key, fresh=look > 0)
            journal = await self._journal(key)
            if unseen(journal.view, children) <= named:
                return children, journal
            named |= {ref.pod_uid for ref in current(journal.view)}
        raise Conflict("somebody else keeps starting sandboxes of this run")

    async def _journal(self, key: RunKey) -> Journal:
        try:
            found = Journal(await self._gateway.view(key.uid))
        except GatewayAway:
            return Journal(trouble="the gateway can't be reached")
        except GatewayRefused as e:  # no token, a wrong audience, a broken journal: people must hear of it
            found = Journal(trouble=f"the gateway refuses: {e}")
        self._signs.heard()
        return found

    def _picture(
        self,
        key: RunKey,
        body: Body | None,
        children: Children,
        journal: Journal,
        found: Found,
        *,
        kin: Kin | None = None,
        untouched: bool = False,
    ) -> Gathered:
        view, previous, kin = journal.view, status_of(body), kin or Kin()
        run = read_run(body, self._defaults.placement) if body is not None else None
        asked = spec_of(body)
        begun = previous.epoch is not None or bool(children.sandboxes)  # F2: none is made before its epoch is journaled
        lost = view is None and not journal.away and begun and previous.phase not in ENDS
        problem = JOURNAL_LOST if lost else found if isinstance(found, Problem) else None
        meta = (body or {}).get("metadata") or {}
        spec = _spec(view, found, run)
        slots, short = Slots(), None
        if asked.get("suspend") is not True:
            slots, short = self._turn(key, spec, view, body, volume=children.volume)
        problem = problem or short
        observed = Observed(
            uid=key.uid,
            tenant=key.tenant,
            name=key.name,
            generation=int(meta.get("generation") or 0),
            created_at=_created_at(run, self._roll, key),
            spec=spec,
            problem=problem,
            cancel=asked.get("cancel") is True or self._cancelled(key.uid),
            suspend=asked.get("suspend") is True,
            closed_without_journal=view is None and not journal.away and previous.phase in ENDS,
            slots=slots,
            per_day=per_day(self._contract(key.tenant)),
            makes_room_for=self._roll.makes_room_for(key),
            journal=None if journal.away else view.state if view else RunState(),
            gateway_up_since=view.up_since if view else None,
            lease=children.lease,
            sandboxes=children.sandboxes,
            volume=children.volume,
            wanted=self._wanted(run, spec),
            iterations=view.iterations if view else None,
            asked=timeouts(run) if isinstance(run, AgentRun) else ResolvedTimeouts(),
            heartbeat=view.heartbeat if view else None,
            gone=body is None or bool(meta.get("deletionTimestamp")),
            gateway_trouble=journal.trouble or "",
            untouched=untouched,
            orphaned=kin.orphaned,
            owed=kin.owed,
            children_over=kin.over,
            children_gone=kin.gone,
            children_why=kin.why,
            children_wanted=kin.wanted,
            children_made=kin.made,
            released=view.released if view else True,
            signature=view.signature if view else None,
        )
        return Gathered(self._signs.dated(observed), previous, view, str(meta.get("resourceVersion") or ""))

    def _turn(
        self,
        key: RunKey,
        spec: ResolvedRun | None,
        view: RunView | None,
        body: Body | None,
        *,
        volume: bool,
    ) -> tuple[Slots, Problem | None]:
        """Whether it may begin, or go on; C6: and whether constraints with a selector and the namespace's quotas have
        room for it then.
        """
        slots = self._roll.slots(key)
        phase = view.state.phase if view is not None else RunPhase.PENDING
        if spec is None or phase not in {RunPhase.PENDING, RunPhase.PAUSED}:
            return slots, None
        labels = ((body or {}).get("metadata") or {}).get("labels") or {}
        problem = full(labels, self._contract(key.tenant), self._roll.live(key.tenant))
        if problem is None and slots.free and self._rooms is not None:
            waiting = phase is RunPhase.PENDING or self._roll.is_waiting(key)
            short = self._rooms.short(key, spec, volume=volume, waiting=waiting)
            if short is not None and not short.never:
                place = self._roll.queue.place(key) or 1
                return Slots(free=False, place=place, tenant=key.tenant, closed=short.message), None
            problem = too_big(short) if short is not None else None
        if problem is not None and phase is RunPhase.PAUSED:
            return Slots(free=False, tenant=key.tenant, closed=problem.message, kept=problem.reason), None
        return slots, problem

    # --- references ---------------------------------------------------------------------------------------------------

    async def resolve(self, body: Body) -> ResolvedRun | Problem:
        """What the run would be admitted as now (O6), under its tenant's contract (C4)."""
        run = read_run(body, self._defaults.placement)
        if isinstance(run, Problem):
            return run
        found = resolve(run, await self._references(run), self._defaults)
        if isinstance(found, Problem):
            return found
        return under_contract(found, run.metadata.labels or {}, self._contract(found.tenant), self._constraints)

    def _wanted(self, run: AgentRun | Problem | None, spec: ResolvedRun | None) -> ResolvedLimits | None:
        """The limits as they are to be by now. A child's are its share, and never raised."""
        if not isinstance(run, AgentRun) or run.spec.parent_ref is not None:
            return None
        contract = self._contract(run.metadata.namespace).of(run.metadata.labels or {})
        return wanted_limits(limits(run.spec.constraints, None), spec, contract)

    async def _references(self, run: AgentRun) -> References:
        """Only what the run names is read, in parallel; the model's provider may follow from the agent."""
        tenant, spec = run.metadata.namespace, run.spec
        workspace, (agent, provider), goal, classes, parent, origin = await asyncio.gather(
            self._read(Workspace, tenant, spec.workspace_ref.name if spec.workspace_ref else None),
            self._agent(run),
            self._goal(run),
            self._objects.runtime_classes(),
            self._relatives.parent(tenant, spec.parent_ref.name if spec.parent_ref else None),
            self._relatives.origin(tenant, spec.continue_from.name if spec.continue_from else None),
        )
        refs = References(goal=goal, runtime_classes=classes, drivers=self._drivers, constraints=self._constraints)
        return replace(refs, workspace=workspace, agent=agent, provider=provider, parent=parent, origin=origin)

    async def _agent(self, run: AgentRun) -> tuple[Any, Any]:
        tenant, ref = run.metadata.namespace, run.spec.agent_ref
        agent = await self._read(Agent, tenant, ref.name if ref else None)
        choice = model_choice(run, agent)
        return agent, await self._read(ModelProvider, tenant, choice.provider_ref.name if choice else None)

    async def _goal(self, run: AgentRun) -> str | None:
        source = run.spec.goal_from.config_map_key_ref if run.spec.goal_from else None
        if source is None:
            return None
        found = await self._objects.get("ConfigMap", run.metadata.namespace, source.name)
        text = ((found or {}).get("data") or {}).get(source.key)
        return text if isinstance(text, str) else None

    async def _read(self, model: type[Resource], tenant: str, name: str | None) -> Any:
        """The object as its model, Broken where it can't be read as such, None where nothing is named or there."""
        if name is None:
            return None
        body = await self._objects.get(model.__name__, tenant, name)
        if body is None:
            return None
        found = parse(model, body, self._defaults.placement, "tell")
        return Broken(found.message) if isinstance(found, InvalidSpec) else found


def current(view: RunView | None) -> tuple[SandboxRef, ...]:
    """The sandboxes that a live run's journal counts on: the newest of each role under its epoch."""
    if view is None or view.state.end is not None:
        return ()
    state = view.state
    newest = {ref.role: ref for ref in state.sandboxes if ref.epoch == state.epoch}
    return tuple(newest.values())


def unseen(view: RunView | None, children: Children) -> frozenset[str]:
    """UIDs of those that don't stand, as far as was seen."""
    return frozenset(ref.pod_uid for ref in current(view)) - {v.uid for v in children.sandboxes}


def spec_of(body: Body | None) -> Mapping[str, Any]:
    """The spec as it stands, however malformed the rest of it is."""
    spec = (body or {}).get("spec")
    return spec if isinstance(spec, Mapping) else {}


def status_of(body: Body | None) -> AgentRunStatus:
    """The status as it stands; one that can't be read counts as none, and is written anew."""
    try:
        return AgentRunStatus.model_validate(dict((body or {}).get("status") or {}))
    except (ValidationError, TypeError, ValueError):
        return AgentRunStatus()


def _spec(view: RunView | None, found: Found, run: AgentRun | Problem | None) -> ResolvedRun | None:
    """O6: after admission the journaled spec counts, but for what its author may still change. One that has joined its
    session and whose journal hasn't begun is admitted as it joined.
    """
    if view is not None and view.state.phase is RunPhase.PENDING:
        return view.spec
    if view is not None:
        admitted = view.spec.model_copy(update={"limits": in_force(view.spec.limits, view.state.raised)})
        return amended(admitted, run) if isinstance(run, AgentRun) else admitted
    return found if isinstance(found, ResolvedRun) else None


def _created_at(run: AgentRun | Problem | None, roll: Roll, key: RunKey) -> int:
    if isinstance(run, AgentRun):
        return run.metadata.created_at
    entry = roll.get(key)
    return entry.created_at if entry else 0
