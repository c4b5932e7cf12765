"""The doors of sandboxes: assignment, records, heartbeat, orders, checkpoint, result, verification.

What a sandbox says is kept apart from what the gateway saw: commits, trees, bases and emptiness are read from the
mirror (V4); that a checkpoint is durable is known because its objects are there (P5).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.budget import Budget
from moorage.api.commands import ConsentRequest
from moorage.api.wire import Reported, ReportedRecord, ReportRequest, Role
from moorage.api.work import CheckpointReport, Heartbeat, ResultReport, VerificationReport
from moorage.core.journal.record import Assurance, Draft, RecordType, Source
from moorage.gateway.assignment import Assignments, refuse_idle
from moorage.gateway.bases import Bases
from moorage.gateway.consents import Consents
from moorage.gateway.constraints import Asking, Exhausted, of_calls
from moorage.gateway.contents import ContentLost
from moorage.gateway.errors import Forbidden, Invalid, Refusal
from moorage.gateway.errors import NotFound as NothingRecorded
from moorage.gateway.gate import PROPOSAL_PIN, Caller, Gate, base_of, branch_of, mirror_key
from moorage.gateway.heartbeat import LeaseTarget
from moorage.gateway.http import JSON, answer, query_int, read_model
from moorage.gateway.ledger import Condition, Run
from moorage.gateway.messages import waiting_messages
from moorage.gateway.orders import OrderBook
from moorage.gateway.recalled import conversation
from moorage.gateway.records import bounded, refuse_foreign, sandbox_drafts, says, scoped_id
from moorage.gateway.verification import verdict
from moorage.points import Point, reached
from moorage.workspace.errors import NotFound
from moorage.workspace.refs import candidate_ref, checkpoint_ref

MAX_NAME = 4096
LEFT_OUT_NAMED = 256  # names of left-out files in a record; their number is told whole


class SandboxRoom:
    """Doors below /v1/self."""

    def __init__(self, gate: Gate, bases: Bases) -> None:
        self._gate = gate
        self._ledger = gate.ledger
        self._mirrors = gate.deps.mirrors
        self._settings = gate.deps.settings
        self._assignments = Assignments(gate, bases)
        self._orders, self._consents = OrderBook(gate), Consents(gate)

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        return [
            Route("/v1/self", self.assignment, methods=["GET"], name="self"),
            Route("/v1/self/decision", self.decision, methods=["GET"], name="decision"),
            Route("/v1/self/conversation", self.conversation, methods=["GET"], name="conversation"),
            Route("/v1/self/records", self.records, methods=["POST"], name="records"),
            Route("/v1/self/heartbeat", self.heartbeat, methods=["POST"], name="heartbeat"),
            Route("/v1/self/orders", self.orders, methods=["GET"], name="orders"),
            Route("/v1/self/consent", self.consent, methods=["POST"], name="consent"),
            Route("/v1/self/messages", self.messages, methods=["GET"], name="messages"),
            Route("/v1/self/checkpoint", self.checkpoint, methods=["POST"], name="checkpoint"),
            Route("/v1/self/result", self.result, methods=["POST"], name="result"),
            Route("/v1/self/verification", self.verification, methods=["POST"], name="verification"),
        ]

    async def assignment(self, request: Request) -> Response:
        """GET Assignment."""
        caller = await self._gate.sandbox(request, "self", Role.RUNNER, Role.VERIFIER)
        return answer(await self._assignments.assign(caller))

    async def decision(self, request: Request) -> Response:
        """GET the request, word by word, that the Assignment's recorded decision answers."""
        caller = await self._gate.sandbox(request, "decision", Role.RUNNER)
        found = caller.run.facts.decision(caller.epoch)
        if found is None or found.question.content is None:
            raise NothingRecorded("no decision is left to be acted on")
        try:
            content = await self._gate.contents.read(caller.run.tenant, found.question.content)
        except ContentLost:
            raise NothingRecorded("the decision that is left is kept no more") from None
        return Response(content, media_type=JSON)

    async def conversation(self, request: Request) -> Response:
        """GET Conversation: what goes on of an earlier attempt's, or of the run's before."""
        caller = await self._gate.sandbox(request, "conversation", Role.RUNNER)
        return answer(await conversation(self._gate, caller.run))

    async def records(self, request: Request) -> Response:
        """POST ReportRequest: facts that a sandbox tells (J1: reported)."""
        caller = await self._gate.sandbox(request, "records", Role.RUNNER, Role.VERIFIER)
        body = await read_model(request, ReportRequest, self._settings.max_body_bytes)
        await self._own_epoch(caller, body.epoch, "records")
        bounded(body.records, self._settings.max_records)
        refuse_foreign(body.records, says(caller.pod.role), caller.pod.role)
        for record in body.records:
            if record.type == RecordType.WORKSPACE_READY:
                await self._demand_assigned(caller.run, record)
        told = tuple(_stamped(record, caller) for record in body.records)
        drafts = await sandbox_drafts(told, caller.run, caller.epoch, self._gate.deps.blobs)
        if calls := frozenset(r.tool_call_id for r in told if r.type == RecordType.TOOL_REQUEST and r.tool_call_id):
            return await self._begin_calls(caller, drafts, Asking(of_calls(len(calls)), calls=calls))
        return await self._append(caller, drafts)

    async def _begin_calls(self, caller: Caller, drafts: list[Draft], ask: Asking) -> Response:
        """B2: judged by the very state that they follow. What may not be made is told as well: it may have begun."""
        await self._gate.judge.judge(caller.run, ask)
        try:
            return await self._append(caller, drafts, condition=partial(self._gate.judge.demand, ask=ask))
        except Exhausted:
            await self._gate.judge.judge(caller.run, ask)
            return await self._append(caller, drafts)

    async def heartbeat(self, request: Request) -> Response:
        """POST Heartbeat: alive, and asks for orders on the way."""
        caller = await self._gate.pod(request)
        beat = await read_model(request, Heartbeat, self._settings.heartbeat_bytes)
        orders = self._orders.of(caller, pauses=beat.pauses)
        if orders.stop not in {"fenced", "terminal"} and caller.pod.role == Role.RUNNER:
            self._gate.heartbeats.hear(caller.run.uid, beat.model_copy(update={"epoch": caller.epoch}), _lease(caller))
        orders = await self._orders.hand_over(caller, orders)
        return answer(orders.model_copy(update={"budget": self._budget(caller)}))

    async def orders(self, request: Request) -> Response:
        """GET Orders, held open until there is one above `after`, or a message above `heard`."""
        caller = await self._gate.pod(request)
        heard = query_int(request, "heard", -1) if "heard" in request.query_params else None
        return answer(await self._orders.wait(caller, query_int(request, "after", 0), heard))

    async def consent(self, request: Request) -> Response:
        """POST ConsentRequest -> ConsentAnswer, held open while nobody answers (T6)."""
        caller = await self._gate.sandbox(request, "consent", Role.RUNNER)
        body = await read_model(request, ConsentRequest, self._settings.max_body_bytes)
        await self._own_epoch(caller, body.epoch, "consent")
        refuse_idle(caller.run)
        return answer(await self._consents.of_call(caller, body))

    async def messages(self, request: Request) -> Response:
        """GET WaitingMessages: what people say to the agent and it hasn't got (M3)."""
        caller = await self._gate.sandbox(request, "messages", Role.RUNNER)
        return answer(await waiting_messages(self._ledger, caller.run))

    async def checkpoint(self, request: Request) -> Response:
        """POST CheckpointReport: the safe point counts once its objects are here (P5)."""
        caller = await self._gate.sandbox(request, "checkpoint", Role.RUNNER)
        body = await read_model(request, CheckpointReport, self._settings.max_body_bytes)
        await self._own_epoch(caller, body.epoch, "checkpoint")
        drafts = [await self._checkpoint_seen(caller, body)] if body.changed else []
        return await self._append(caller, [*drafts, _iteration(caller, body)], judged=True)

    async def result(self, request: Request) -> Response:
        """POST ResultReport: the agent's end, and what it proposes, looked at in the mirror."""
        caller = await self._gate.sandbox(request, "result", Role.RUNNER)
        body = await read_model(request, ResultReport, self._settings.max_body_bytes)
        await self._own_epoch(caller, body.epoch, "result")
        drafts = [_agent_finished(caller, body)]
        if body.outcome == "completed":
            drafts.append(await self._proposal_seen(caller, body))
        return await self._append(caller, drafts)

    async def verification(self, request: Request) -> Response:
        """POST VerificationReport: what the verifier saw on exactly the commit that it was registered for (V3)."""
        caller = await self._gate.sandbox(request, "verification", Role.VERIFIER)
        body = await read_model(request, VerificationReport, self._settings.max_body_bytes)
        await self._own_epoch(caller, body.epoch, "verification")
        if body.commit != caller.pod.commit:
            raise Forbidden(f"this verifier is for {caller.pod.commit} and no other commit")
        demand_key(caller, body.key)
        payload, outputs = verdict(body, caller.run.spec.acceptance, isolated=self._settings.sandboxes_isolated)
        attachments = {name: await self._ledger.attach(caller.run, text.encode()) for name, text in outputs.items()}
        draft = _told(
            caller,
            RecordType.VERIFICATION_RESULT,
            f"verification:{caller.pod.pod_uid}",
            body.recorded_at,
            payload,
        )
        reached(Point.VERDICT_BEFORE)
        answer = await self._append(caller, [replace(draft, attachments=attachments or None)])
        reached(Point.VERDICT_AFTER)
        return answer

    # --- what the mirror says -----------------------------------------------------------------------------------------

    async def _checkpoint_seen(self, caller: Caller, body: CheckpointReport) -> Draft:
        key, run = mirror_key(caller.run), caller.run
        if body.commit is None:
            raise Invalid("commit: a changed iteration has one")
        ref = checkpoint_ref(run.uid, caller.epoch)
        await self._gate.refs.current(run)
        if not await self._holds(run, ref, body.commit):
            why = f"{body.commit} is not on {ref} here: push it, then report it"
            raise Refusal(why, status=409, reason="CheckpointMissing")
        tree = await self._mirrors.tree_of(key, body.commit)
        payload = {"commit": body.commit, "tree": tree, "iteration": body.iteration, "ref": ref} | _left_out(
            body, len(body.left_out)
        )
        return _seen(caller, RecordType.CHECKPOINT, f"checkpoint:{body.iteration}", body.recorded_at, payload)

    async def _holds(self, run: Run, ref: str, commit: str) -> bool:
        """The ref is at the commit or went on from it: its objects were synced before the push was answered."""
        key = mirror_key(run)
        try:
            at = await self._mirrors.ref(key, ref)
            if at is None or not await self._mirrors.has_commit(key, commit):
                return False
            return at == commit or await self._mirrors.is_ancestor(key, commit, at)
        except NotFound:
            return False

    async def _proposal_seen(self, caller: Caller, body: ResultReport) -> Draft:
        """The candidate as it stands here; without a candidate the agent changed nothing."""
        key, run = mirror_key(caller.run), caller.run
        await self._gate.refs.current(run)
        base = await base_of(self._mirrors, run)
        if base is None:
            raise Refusal("there is no base yet: ask for the assignment first", status=409, reason="NotAssigned")
        commit = body.commit or base
        if commit != base and await self._mirrors.ref(key, candidate_ref(run.uid, caller.epoch)) != commit:
            why = f"{commit} is not this attempt's candidate here: push it to {branch_of(run)}, then report it"
            raise Refusal(why, status=409, reason="CandidateMissing")
        if not await self._mirrors.is_ancestor(key, base, commit):
            raise Refusal(f"{commit} does not build on the base {base}", status=409, reason="NotDescended")
        tree = await self._mirrors.tree_of(key, commit)
        empty = tree == await self._mirrors.tree_of(key, base)
        files = 0 if empty else len(await self._mirrors.diff_stat(key, base, commit))
        await self._gate.refs.pin(run, caller.epoch, PROPOSAL_PIN, commit)  # the candidate's ref may still move on
        payload = {"commit": commit, "tree": tree, "base": base, "empty": empty, "files": files}
        payload |= _left_out(body, max(body.left_out_count, len(body.left_out)))
        return _seen(caller, RecordType.RESULT_PROPOSED, "proposal", body.recorded_at, payload)

    async def _demand_assigned(self, run: Run, record: ReportedRecord) -> None:
        """A runner works where it was told to: base and branch are the gateway's word, not its own."""
        base = await base_of(self._mirrors, run)
        if record.payload.get("base") != base or record.payload.get("branch") != branch_of(run):
            raise Invalid(f"WORKSPACE_READY: base and branch are not the assigned ones ({base}, {branch_of(run)})")

    # --- shared -------------------------------------------------------------------------------------------------------

    async def _own_epoch(self, caller: Caller, epoch: int, door: str) -> None:
        """A body speaks for its own pod's epoch."""
        if epoch != caller.epoch:
            raise await self._ledger.refuse_fenced(caller.run, epoch, door, caller.pod.pod_uid)

    async def _append(
        self, caller: Caller, drafts: list[Draft], *, judged: bool = False, condition: Condition | None = None
    ) -> Response:
        """`judged`: the constraints are, by what these lead to. `condition`: as the ledger has it."""
        refuse_late(caller.run, drafts)
        result = await self._ledger.append(caller.run, caller.epoch, drafts, condition)
        if judged:
            await self._gate.judge.judge(caller.run, Asking())
        return answer(Reported(offset=result.offset, hash=result.hash, budget=self._budget(caller)))

    def _budget(self, caller: Caller) -> Budget | None:
        """C7: for an agent's runner."""
        run = caller.run
        return self._gate.judge.budget(run) if caller.pod.role == Role.RUNNER and run.at is not None else None


def _stamped(record: ReportedRecord, caller: Caller) -> ReportedRecord:
    """Which verifier began is the gateway's word, and only the hash of its key is kept."""
    if record.type != RecordType.VERIFICATION_STARTED:
        return record
    digest = record.payload.get("key_sha256")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise Invalid("VERIFICATION_STARTED: key_sha256 is the SHA-256 of the verifier's key, in hexadecimal")
    payload = {"commit": caller.pod.commit, "pod_uid": caller.pod.pod_uid, "key_sha256": digest}
    return record.model_copy(update={"payload": payload})


def demand_key(caller: Caller, key: str) -> None:
    """V3: the verdict is the verifier's own, not that of a command which runs beside it and can read its token."""
    told = caller.run.state.verifier_key
    mine = (caller.pod.pod_uid, hashlib.sha256(key.encode()).hexdigest())
    if told is None or told[0] != mine[0] or not hmac.compare_digest(told[1], mine[1]):
        raise Forbidden("the verdict doesn't bring the key that its verifier told before its first command")


def refuse_late(run: Run, drafts: list[Draft]) -> None:
    """I6: after the end nothing is taken; told as what it is, not as an illegal move."""
    if drafts and run.state.end is not None:
        refuse_idle(run)


def _lease(caller: Caller) -> LeaseTarget | None:
    name = caller.run.facts.lease
    return LeaseTarget(caller.run.tenant, name, caller.epoch) if name else None


def _left_out(body: CheckpointReport | ResultReport, count: int) -> dict[str, Any]:
    """What the worktree holds and the commit doesn't: named as far as a record should, counted whole."""
    if not count:
        return {}
    named = [" ".join(name[:MAX_NAME].split()) for name in body.left_out[:LEFT_OUT_NAMED]]  # each stays on its line
    return {"left_out": named, "left_out_count": count}


def _iteration(caller: Caller, body: CheckpointReport) -> Draft:
    payload: dict[str, Any] = {
        "iteration": body.iteration,
        "changed": body.changed if body.tree_changed is None else body.tree_changed,
        "usage": body.usage,
    }
    if body.held_ms is not None:
        payload["held_ms"] = body.held_ms
    if body.disk_bytes is not None:
        payload["disk_bytes"] = body.disk_bytes
    return _told(caller, RecordType.ITERATION_COMPLETE, f"iteration:{body.iteration}", body.recorded_at, payload)


def _agent_finished(caller: Caller, body: ResultReport) -> Draft:
    payload = {
        "outcome": body.outcome,
        "reason": body.reason,
        "message": body.message,
        "summary": body.summary,
        "exit_code": body.exit_code,
    }
    return _told(caller, RecordType.AGENT_FINISHED, "finished", body.recorded_at, payload)


def _told(caller: Caller, kind: RecordType, key: str, at: int, payload: Mapping[str, Any]) -> Draft:
    """What the sandbox tells."""
    return Draft(
        record_id=scoped_id(caller.epoch, f"{kind.value}:{key}"),
        type=kind.value,
        recorded_at=at,
        source=Source.RUNNER,
        assurance=Assurance.REPORTED,
        payload=payload,
        attempt=caller.run.state.attempt or None,
    )


def _seen(caller: Caller, kind: RecordType, key: str, at: int, payload: Mapping[str, Any]) -> Draft:
    """What the gateway saw itself when the sandbox told it."""
    return replace(_told(caller, kind, key, at, payload), source=Source.GATEWAY, assurance=Assurance.OBSERVED)
