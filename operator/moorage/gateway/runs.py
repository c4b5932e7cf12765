"""The operator's doors: admit, look, fence, register, report, deliver, release."""

from __future__ import annotations

import asyncio

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.children import SettleRequest
from moorage.api.wire import (
    Admission,
    DeliverRequest,
    FenceRequest,
    PodRegistration,
    Released,
    ReportRequest,
    ResolvedRun,
    Role,
)
from moorage.core.journal.record import BlobRef, RecordType
from moorage.core.run.phases import RunPhase
from moorage.core.run.view import RUN_LIST, RUN_VIEW, RunBrief, RunList, RunView
from moorage.gateway.bases import Bases
from moorage.gateway.budget import share_reserved
from moorage.gateway.children import Shares
from moorage.gateway.credentials import demand_credentials
from moorage.gateway.delivery import Delivery
from moorage.gateway.errors import Invalid, Refusal
from moorage.gateway.gate import Gate
from moorage.gateway.http import JSON, answer, query_flag, read_model
from moorage.gateway.ledger import STATUSES, Run
from moorage.gateway.questions import Questions
from moorage.gateway.records import OPERATOR_SAYS, bounded, operator_drafts, refuse_foreign
from moorage.gateway.registration import let_in, let_in_journaled
from moorage.gateway.roll import Roll, all_rows
from moorage.gateway.sessions import Sessions
from moorage.points import Point, reached
from moorage.store import errors as store_errors
from moorage.store.port import Execution, ExecutionStatus, Pod

PHASES = {ExecutionStatus.RUNNING: RunPhase.RUNNING} | {status: phase for phase, status in STATUSES.items()}


class RunsRoom:
    """Doors below /v1/runs that only the operator may open, and the view that readers may see too."""

    def __init__(self, gate: Gate, bases: Bases, delivery: Delivery, questions: Questions) -> None:
        self._gate, self._bases, self._questions = gate, bases, questions
        self._ledger = gate.ledger
        self._limit = gate.deps.settings.max_body_bytes
        self._delivery, self._shares = delivery, Shares(gate, questions)
        self._sessions = Sessions(gate, questions)
        self._roll = Roll(gate.deps.store)

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        run = "/v1/runs/{uid}"
        return [
            Route("/v1/runs", self.index, methods=["GET"], name="runs"),
            Route(run, self.admit, methods=["PUT"], name="admit"),
            Route(f"{run}/as-child", self.admit, methods=["PUT"], name="admit-child"),  # R8: who lacks it refuses
            Route(f"{run}/as-next", self.admit, methods=["PUT"], name="admit-next"),  # likewise
            Route(run, self.look, methods=["GET"], name="run"),
            Route(f"{run}/fence", self.fence, methods=["POST"], name="fence"),
            Route(f"{run}/pods", self.register, methods=["POST"], name="pods"),
            Route(f"{run}/records", self.report, methods=["POST"], name="operator-records"),
            Route(f"{run}/deliver", self.deliver, methods=["POST"], name="deliver"),
            Route(f"{run}/children", self.children, methods=["POST"], name="children"),
            Route(f"{run}/release", self.release, methods=["POST"], name="release"),
        ]

    async def admit(self, request: Request) -> Response:
        """PUT Admission: idempotent on the spec's hash (O6), and on the epoch where it brings one (F2); refused by name
        while a Secret is missing.
        """
        await self._gate.operator(request)
        body = await read_model(request, Admission, self._limit)
        if body.uid != request.path_params["uid"]:
            raise Invalid("uid: the path and the body name different runs")
        spec = body.run
        content = None if await self._known(spec.uid) else await self._welcome(spec)
        return await self._view(await self._ledger.admit(spec, body.fence, content, await self._sessions.join(spec)))

    async def _welcome(self, spec: ResolvedRun) -> BlobRef:
        """A new run that can be worked on, and that its parent has something left for."""
        content = await self._usable(spec)
        await self._shares.reserve(spec)
        return content

    async def _usable(self, spec: ResolvedRun) -> BlobRef:
        """Keep a new run's spec while its Secrets are looked for; both are over when this raises.

        What a refused run leaves is swept up, since no record names it.
        """
        kept, lacking = await asyncio.gather(
            self._ledger.keep_spec(spec), demand_credentials(spec, self._gate.deps.secrets), return_exceptions=True
        )
        if lacking is not None:
            raise lacking
        if isinstance(kept, BaseException):
            raise kept
        return kept

    async def _known(self, uid: str) -> bool:
        try:
            await self._gate.deps.store.get(uid)
        except store_errors.UnknownRun:
            return False
        return True

    async def look(self, request: Request) -> Response:
        """GET RunView."""
        run = await self._gate.run_for_reader(request)
        await let_in_journaled(self._gate.deps.store, run)
        return await self._view(run)

    async def index(self, request: Request) -> Response:
        """GET RunList: with `pending=true`, the runs that somebody must still push on or clean up after (R7)."""
        await self._gate.operator(request)
        pending = query_flag(request, "pending")
        rows = await self._roll.unsealed() if pending else await all_rows(self._gate.deps.store)
        briefs = [await self._brief(row) for row in rows]
        return Response(RUN_LIST.dump_json(RunList(tuple(briefs))), media_type=JSON)

    async def fence(self, request: Request) -> Response:
        """POST FenceRequest: the epoch rises, durably, together with its record (F2)."""
        run = await self._gate.run_for_operator(request)
        body = await read_model(request, FenceRequest, self._limit)
        if body.epoch < run.state.epoch:
            raise await self._ledger.refuse_fenced(run, body.epoch, "fence", "operator")
        await self._ledger.raise_fence(run, body)
        return await self._view(run)

    async def register(self, request: Request) -> Response:
        """POST PodRegistration: journaled first, then known to authentication; both may be repeated (F2)."""
        run = await self._gate.run_for_operator(request)
        body = await read_model(request, PodRegistration, self._limit)
        await self._gate.demand_epoch(run, body.epoch, "pods")
        payload = body.model_dump(mode="json", exclude_none=True)
        if not self._gate.deps.settings.sandboxes_isolated:
            payload["isolated"] = False
        draft = self._ledger.observed(
            RecordType.POD_REGISTERED, payload, body.pod_uid, attempt=run.state.attempt or None
        )
        reached(Point.POD_BEFORE)
        await self._ledger.append(run, body.epoch, [draft])
        pod = Pod(
            pod_uid=body.pod_uid,
            run_uid=run.uid,
            epoch=body.epoch,
            role=body.role.value,
            pod_name=body.pod_name,
            commit=body.commit,
        )
        await let_in(self._gate.deps.store, run, pod)
        view = await self._view(run)
        if body.role is Role.RUNNER:
            view.background = BackgroundTask(self._bases.ahead, run)
        return view

    async def report(self, request: Request) -> Response:
        """POST ReportRequest: facts that the operator saw in the cluster."""
        run = await self._gate.run_for_operator(request)
        body = await read_model(request, ReportRequest, self._limit)
        bounded(body.records, self._gate.deps.settings.max_records)
        refuse_foreign(body.records, OPERATOR_SAYS, "operator")
        await self._gate.demand_epoch(run, body.epoch, "operator-records")
        await self._ledger.append(run, body.epoch or None, operator_drafts(body.records))
        if run.state.end is not None:
            self._gate.heartbeats.forget(run.uid)
            await self._questions.settle(run)
        return await self._view(run)

    async def deliver(self, request: Request) -> Response:
        """POST DeliverRequest: push, or settle an earlier push whose end isn't known (E5)."""
        run = await self._gate.run_for_operator(request)
        body = await read_model(request, DeliverRequest, self._limit)
        await self._gate.demand_epoch(run, body.epoch, "deliver")
        await self._delivery.deliver(run, body.epoch, body.commit)
        return await self._view(run)

    async def children(self, request: Request) -> Response:
        """POST SettleRequest: what its children have used, of those that ended (B2)."""
        run = await self._gate.run_for_operator(request)
        body = await read_model(request, SettleRequest, self._limit)
        await self._shares.settle(run, body)
        return await self._view(run)

    async def release(self, request: Request) -> Response:
        """POST: the run's refs go, its journal is sealed and stays (W5)."""
        run = await self._gate.run_for_operator(request)
        if run.state.end is None:
            raise Refusal("the run has not ended: cancel it first", status=409, reason="NotEnded")
        async with run.preparing:  # what is still being fetched for it would be pinned afterwards
            refs = await self._gate.refs.drop(run)
        await self._questions.settle(run)
        await self._sessions.closing(run)
        await self._ledger.seal(run, "released")
        self._gate.heartbeats.forget(run.uid)
        return answer(Released(refs=refs))

    async def _view(self, run: Run) -> Response:
        state = run.state
        signed = await self._gate.heads.signed(run.uid, state.offset, state.head)
        heartbeat = await self._gate.heartbeats.last(run.uid)
        view = RunView(
            spec=run.spec,
            state=state,
            up_since=self._ledger.up_since,  # told after the heartbeat was read: it may have been frozen meanwhile (F4)
            heartbeat=heartbeat,
            released=run.now.row.sealed,
            signature=signed.signature if signed else None,
            iterations=run.facts.completed,
            reserved=share_reserved(run.facts),
        )
        return Response(RUN_VIEW.dump_json(view), media_type=JSON)

    async def _brief(self, row: Execution) -> RunBrief:
        """From its row alone: a list takes no replay; one broken journal or old spec hides no other run (J5, R7)."""
        spec = await self._gate.deps.store.spec(row.run_uid)
        return RunBrief(
            uid=row.run_uid,
            tenant=row.tenant,
            name=row.name,
            placement=str(spec.get("placement", "cluster")),
            phase=PHASES[row.status],
            epoch=row.fence_epoch,
            released=row.sealed,
        )
