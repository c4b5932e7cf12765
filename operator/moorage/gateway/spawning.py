"""The doors by which an agent starts children and waits for them, and the one by which the operator makes them.

A child that was asked for is durable before its answer, under the tool call that asked: whoever asks again, after
whatever restart, hears of the same one.
"""

from __future__ import annotations

import contextlib

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api import names
from moorage.api.budget import ResolvedLimits
from moorage.api.children import ChildAnswer, ChildList, ChildOrder, SpawnRequest
from moorage.api.wire import Role
from moorage.core.journal.errors import JournalError
from moorage.core.journal.record import BlobRef, Draft, RecordType
from moorage.core.run.family import Child
from moorage.core.run.observed import Problem
from moorage.core.run.parents import MAX_DEPTH, closed_to_children, divided, reserve_of
from moorage.gateway.budget import beside
from moorage.gateway.children import NEVER_STARTED, UNREADABLE, divisible, told, ungivable
from moorage.gateway.constraints import Asking
from moorage.gateway.errors import Forbidden, NotFound, Refusal, UnknownRun
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.http import answer, query_int, read_model
from moorage.gateway.ledger import Overtaken, Run
from moorage.gateway.signals import rung_within
from moorage.points import Point, reached
from moorage.store import errors as store_errors
from moorage.store.errors import BlobCorrupted, BlobMissing
from moorage.store.reading import backwards

TRIES = 8
PAGE = 500  # records
MAX_SUMMARY = 8_192


class _Moved(Exception):
    """The run isn't any more as it was when the share was computed."""


class SpawningRoom:
    """Doors below /v1/self/children, and GET /v1/runs/{uid}/children/{name}."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._ledger = gate, gate.ledger
        self._settings = gate.deps.settings

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        return [
            Route("/v1/self/children", self.index, methods=["GET"], name="children-of-self"),
            Route("/v1/self/children", self.spawn, methods=["POST"], name="spawn"),
            Route("/v1/self/children/{name}", self.wait, methods=["GET"], name="child"),
            Route("/v1/runs/{uid}/children/{name}", self.order, methods=["GET"], name="child-order"),
        ]

    async def index(self, request: Request) -> Response:
        """GET ChildList."""
        caller = await self._gate.sandbox(request, "children", Role.RUNNER)
        return answer(ChildList(children=tuple(_briefly(each) for each in caller.run.state.children)))

    async def spawn(self, request: Request) -> Response:
        """POST SpawnRequest."""
        caller = await self._gate.sandbox(request, "children", Role.RUNNER)
        body = await read_model(request, SpawnRequest, self._settings.max_body_bytes)
        if body.epoch != caller.epoch:
            raise await self._ledger.refuse_fenced(caller.run, body.epoch, "children", caller.pod.pod_uid)
        for _ in range(TRIES):
            if (known := _by_key(caller.run, body.key)) is not None:
                return answer(await self._answer(known))
            with contextlib.suppress(_Moved):
                await self._request(caller, body)
        raise Overtaken(caller.run.uid)

    async def _request(self, caller: Caller, body: SpawnRequest) -> None:
        run = caller.run
        _demand_allowed(run)
        number, share = run.state.children_asked + 1, self._share(run, body)  # by the state that doesn't know the key
        content = await self._ledger.attach(run, body.model_dump_json().encode())
        draft = self._draft(run, body, number, share, content)

        def fits(run: Run) -> None:
            if run.state.children_asked + 1 != number or _by_key(run, body.key) is not None:
                raise _Moved
            _demand_allowed(run)
            if ungivable(self._gate.judge, run, reserve_of(share)) is not None:
                raise _Moved

        reached(Point.SPAWN_BEFORE)
        await self._ledger.append(run, caller.epoch, [draft], fits)
        reached(Point.SPAWN_AFTER)

    def _draft(self, run: Run, body: SpawnRequest, number: int, share: ResolvedLimits, content: BlobRef) -> Draft:
        payload = {
            "key": body.key,
            "name": names.hashed(f"{run.spec.name}-{number}", run.uid, number),
            "start": body.start,
            "reserve": told(reserve_of(share)),
        }
        return self._ledger.observed(
            RecordType.CHILD_REQUESTED,
            payload,
            number,
            attempt=run.state.attempt or None,
            attachments={"request": content},
        )

    def _share(self, run: Run, body: SpawnRequest) -> ResolvedLimits:
        """Its limits. Raise Refusal: ParentBudget, also where a constraint of the run's own would stop it by that."""
        own = ResolvedLimits(
            max_iterations=body.iterations,
            tokens_hard=body.tokens,
            cost_hard_micros=body.cost_micros,
            tool_calls_hard=body.tool_calls,
        )
        found = divided(own, divisible(run), beside(self._gate.judge.context(run, Asking()), run.facts))
        if isinstance(found, Problem):
            raise Refusal(found.message, status=403, reason=found.reason)
        if (why := ungivable(self._gate.judge, run, reserve_of(found))) is not None:
            raise Refusal(f"so much can't be given away: {why}: ask for less", status=403, reason="ParentBudget")
        return found

    async def wait(self, request: Request) -> Response:
        """GET ChildAnswer: as soon as it has ended, or as it is when the wait is over: after `within_ms`, or our own
        limit.
        """
        caller = await self._gate.sandbox(request, "children", Role.RUNNER)
        run, name, clock = caller.run, request.path_params["name"], self._gate.deps.clock
        longest = self._settings.orders_wait_ms
        deadline = clock.monotonic_ms() + min(longest, query_int(request, "within_ms", longest))
        while True:
            bell = run.bell.arm()
            await self._ledger.refresh(run)
            child, left = _by_name(run, name), deadline - clock.monotonic_ms()
            if not child.open or left <= 0 or run.state.pausing or run.state.cancel_stage is not None:
                return answer(await self._answer(child))
            await rung_within(bell, min(left, self._settings.keep_alive_ms))

    async def _answer(self, child: Child) -> ChildAnswer:
        said = _briefly(child)
        if child.open:
            return said
        return said.model_copy(update={"summary": child.problem or await self._last_words(child)})

    async def _last_words(self, child: Child) -> str:
        """None of one that never began, or whose journal nobody can read any more."""
        if not child.uid or child.outcome in {NEVER_STARTED, UNREADABLE}:
            return ""
        try:
            end = (await self._ledger.open(child.uid)).state.agent_end
        except (UnknownRun, store_errors.UnknownRun, store_errors.SpecUnreadable, JournalError):
            return ""
        return (end.summary or end.message)[:MAX_SUMMARY] if end is not None else ""

    async def order(self, request: Request) -> Response:
        """GET ChildOrder, for the operator: of one that has no object yet."""
        run, name = await self._gate.run_for_operator(request), request.path_params["name"]
        child = run.state.child("", name)
        if child is None:
            raise NotFound(f"no child {name} was asked for that is still to be made")
        record = await self._requested(run, name)
        try:
            content = await self._gate.deps.blobs.get(run.tenant, record)
        except (BlobMissing, BlobCorrupted):
            raise NotFound(f"what was asked of child {name} is kept no more") from None
        asked = SpawnRequest.model_validate_json(content)
        return answer(ChildOrder(name=name, goal=asked.goal, start=asked.start, reserve=told(child.reserve)))

    async def _requested(self, run: Run, name: str) -> BlobRef:
        """What its record names; it is looked for from the head on, page by page: it is among the newest."""
        store = self._ledger.store
        async with contextlib.aclosing(backwards(store, await store.get(run.uid), PAGE)) as pages:
            async for page in pages:
                for record in reversed(page):
                    if record.type == RecordType.CHILD_REQUESTED and (record.payload or {}).get("name") == name:
                        return (record.attachments or {})["request"]
        raise NotFound(f"no record asks for child {name}")


def _briefly(child: Child) -> ChildAnswer:
    return ChildAnswer(
        name=child.name,
        status=child.status,
        outcome=child.outcome,
        commit=child.commit,
        base=child.base,
        used=told(child.used),
    )


def _demand_allowed(run: Run) -> None:
    """Raise Forbidden, or Refusal where there are enough."""
    allowed, s = run.spec.agent.children, run.state
    if allowed is None:
        raise Forbidden("this run's agent may start no children: agent.children doesn't say so")
    if closed_to_children(s):
        raise Refusal("the run's children are to end: it starts no others", status=403, reason="ParentEnded")
    if s.agent_end is not None:  # what it has left behind asks on, and no agents are to begin for that
        raise Refusal("the agent has ended: it starts no children any more", status=403, reason="ParentEnded")
    if s.pausing:
        raise Refusal("the run is about to pause: ask again once it goes on", status=403, reason="ParentPaused")
    if run.spec.parent is not None and run.spec.parent.depth >= MAX_DEPTH:
        why = f"{MAX_DEPTH} runs are above this one already, and children go no deeper: do it yourself"
        raise Refusal(why, status=403, reason="ParentTooDeep")
    if s.children_asked >= allowed.max:
        raise Refusal(f"all {allowed.max} children were started", status=403, reason="TooManyChildren")
    if len(s.open_children) >= allowed.concurrent:
        why = f"{allowed.concurrent} children live already, as many as may at a time: wait for one"
        raise Refusal(why, status=403, reason="TooManyChildren")


def _by_key(run: Run, key: str) -> Child | None:
    return next((each for each in run.state.children if each.key == key), None)


def _by_name(run: Run, name: str) -> Child:
    found = [each for each in run.state.children if each.name == name]
    if not found:
        raise NotFound(f"this run has no child {name}")
    return found[-1]
