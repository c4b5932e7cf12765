"""What a pass reads of a run's parent and of its children: each is a run of its own, with a journal of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from moorage.api.meta import parse_time
from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from moorage.controller.ports import Body, Objects
from moorage.controller.roll import Roll
from moorage.controller.told import Standing, key_of, parent_of, truth
from moorage.core.run.family import Child, ChildStatus, Share
from moorage.core.run.limits import in_force
from moorage.core.run.parents import Parent, closed_to_children
from moorage.core.run.resolving.references import Broken
from moorage.core.run.status import ENDS
from moorage.core.run.view import RunView
from moorage.sandbox.port import RunKey

Fate = Literal["ended", "gone"]


@dataclass(frozen=True)
class Kin:
    """What follows from a run's relatives; the names are those of Observed."""

    orphaned: bool = False
    owed: bool = False
    over: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    why: tuple[tuple[str, str], ...] = ()
    wanted: tuple[str, ...] = ()
    made: tuple[tuple[str, str], ...] = ()


class Relatives:
    """Reads; never changes anything."""

    def __init__(self, objects: Objects, gateway: GatewayClient, roll: Roll) -> None:
        self._objects, self._gateway, self._roll = objects, gateway, roll

    async def of(self, key: RunKey, body: Body | None, view: RunView | None) -> Kin:
        """Of a run without relatives nothing is read. Raises Unavailable."""
        below = await self._below(key, view)
        return replace(below, orphaned=await self._above(body, view), owed=await self._owed(view))

    async def parent(self, tenant: str, name: str | None) -> Parent | None:
        """The run of that name, once the gateway knows it. Raises Unavailable."""
        body = await self._body(tenant, name) if name else None
        view = await self._view(key_of(body).uid) if body is not None else None
        return _as_known(body, view) if body is not None and view is not None else None

    async def origin(self, tenant: str, name: str | None) -> Parent | Broken | None:
        """The same of a run that is to be gone on with; Broken where nothing can come of that. Raises Unavailable."""
        body = await self._body(tenant, name) if name else None
        if body is None:
            return None
        try:
            view = await self._gateway.view(key_of(body).uid)
        except GatewayAway:
            return None
        except GatewayRefused as error:
            return Broken(error.message)
        if view is not None:
            return _as_known(body, view)
        if (body.get("status") or {}).get("phase") not in ENDS:
            return None
        return Broken(
            "it ended before it began, and there is nothing to go on with: create a run that names no other one"
        )

    async def _body(self, tenant: str, name: str) -> Body | None:
        key = self._roll.find(tenant, name)
        entry = self._roll.get(key) if key is not None else None
        return entry.body if entry is not None and entry.body is not None else await self._objects.run(tenant, name)

    async def _above(self, body: Body | None, view: RunView | None) -> bool:
        """Whether its parent is over, or tells its children to end. A parent that can't be asked says nothing."""
        if view is None:
            named = parent_of(body) if body is not None else None
            elder = await self.parent(*named) if named is not None else None
            return elder is not None and closed_to_children(elder.state)
        if view.spec.parent is None or view.state.cancel_stage is not None or view.state.end is not None:
            return False
        found = await self._view(view.spec.parent.uid)
        return found is not None and closed_to_children(found.state)

    async def _owed(self, view: RunView | None) -> bool:
        """Whether it has ended and its parent has still to hear what it used, and to keep its commit."""
        if view is None or view.spec.parent is None or view.state.end is None or view.released:
            return False
        found = await self._view(view.spec.parent.uid)
        child = found.state.child(view.spec.uid, view.spec.name) if found is not None else None
        return found is not None and found.state.end is None and child is not None and child.open

    async def _below(self, key: RunKey, view: RunView | None) -> Kin:
        """Which of the open children have ended, won't be admitted any more, are still to be made, or are seen first.
        One whose object was seen isn't made again: somebody has deleted it.
        """
        found = Kin()
        for child in view.state.open_children if view is not None else ():
            entry = self._roll.get(RunKey(child.uid, key.tenant, child.name))
            if entry is not None and entry.standing is not Standing.ENDED:
                continue
            body = await self._objects.run(key.tenant, child.name)
            asked = child.status == ChildStatus.REQUESTED
            if body is None and asked and view is not None and not closed_to_children(view.state):
                found = replace(found, wanted=(*found.wanted, child.name))
            elif (fate := _fate(body, child, key)) is not None:
                found = _with(found, child, fate, body)
            elif body is not None and asked:
                found = replace(found, made=(*found.made, (child.name, key_of(body).uid)))
        return found

    async def _view(self, uid: str) -> RunView | None:
        """None where the gateway doesn't know it, or can't be asked: whoever asks comes again."""
        try:
            return await self._gateway.view(uid)
        except (GatewayAway, GatewayRefused):
            return None


def _as_known(body: Body, view: RunView) -> Parent:
    spec = view.spec.model_copy(update={"limits": in_force(view.spec.limits, view.state.raised)})
    created = parse_time(str((body.get("metadata") or {}).get("creationTimestamp")))
    return Parent(spec, view.state, created, view.iterations or 0, view.reserved or Share(), view.released)


def _with(found: Kin, child: Child, fate: Fate, body: Body | None) -> Kin:
    over = (*found.over, child.ref)
    if fate == "ended":
        return replace(found, over=over)
    status = (body or {}).get("status") or {}
    said = ": ".join(str(each) for each in (status.get("reason"), status.get("message")) if each)
    why = ((child.ref, said or "its AgentRun is gone, or somebody else's"),)
    return replace(found, over=over, gone=(*found.gone, child.ref), why=(*found.why, *why))


def _fate(body: Body | None, child: Child, parent: RunKey) -> Fate | None:
    """What an open child's object says. One that ended without an epoch has no journal, and none will begin; and so it
    is with one that an agent asked for and that only a person could mend.
    """
    if body is None or (child.uid and key_of(body).uid != child.uid) or not (child.uid or _is_of(body, parent)):
        return "gone"
    status = body.get("status") or {}
    if status.get("phase") not in ENDS:
        stalled = truth(status, "Stalled") == "True"
        return "gone" if not child.uid and status.get("epoch") is None and stalled else None
    return "gone" if status.get("epoch") is None else "ended"


def _is_of(body: Body, parent: RunKey) -> bool:
    """Whether it was made for that very run: somebody else may have taken the name."""
    owners = (body.get("metadata") or {}).get("ownerReferences") or []
    return any(each.get("uid") == parent.uid for each in owners)
