"""The door of commands (M2): decided on the run's state, durable before its receipt, and the same receipt for the same
id ever after.

Who may send which command is decided before it comes here: on a cluster by the API server, which admits a RunCommand,
and on one's own machine by whose process it is. The operator alone passes commands on; its word on the issuer is
journaled with what vouches for it (O8).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.commands import MAX_TEXT_BYTES, CommandRequest, Receipt, ResolveRequest
from moorage.core.approvals.choosing import Unfit, meant
from moorage.core.approvals.consent import APPROVED, REJECTED
from moorage.core.commands.admission import Abilities, Accepted, Decision, Rejected, decide
from moorage.core.commands.command import (
    MESSAGES,
    MOST_JOINED,
    MOST_OPEN,
    Command,
    crowd,
    digest_of,
    forgetful,
    known,
    leading,
)
from moorage.core.journal.chain import MAX_ID
from moorage.core.journal.record import BlobRef, Draft, Record, RecordType
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Effect, PauseReason
from moorage.gateway.errors import Invalid, Refusal, Unavailable
from moorage.gateway.gate import Gate
from moorage.gateway.http import answer, read_model
from moorage.gateway.ledger import Ledger, Overtaken, Run
from moorage.gateway.pausing import Pauses, demand_pausable, is_news
from moorage.gateway.resolve import Settling, chosen, demand_unsettled
from moorage.points import Point, reached
from moorage.store.errors import DuplicateMismatch

TRIES = 16  # decisions that a run's next record made another one of
CROWDED = "TooManyCommands"
BEGINS_ANEW = (
    "the run's driver has no safe point of its own: an agent that reports none within timeouts.pause begins anew"
)
TOLD = ("authority", "input_source", "effect", "outcome", "note", "approval", "question", "observed_offset")


class Changed(Exception):
    """The run has moved on, and what was decided doesn't hold any more."""


@dataclass(frozen=True)
class Taking:
    """One command on its way into the journal. `beside`: what the record of its acceptance brings about with it."""

    asked: CommandRequest
    digest: str
    decide: Callable[[Run], Decision]
    beside: Callable[[Run], list[Draft]]
    text: BlobRef | None = None

    def known(self, run: Run) -> Command | None:
        """What the run holds under its id. Raise Refusal where that is another command."""
        found = known(run.state.commands, self.asked.command_id)
        if found is not None:
            self.demand_same(found.digest)
        return found

    def demand_same(self, digest: object) -> None:
        """Raise Refusal where what the journal has under its id is another command."""
        if digest != self.digest:
            raise self.taken()

    def taken(self) -> Refusal:
        """Its id is another command's."""
        why = f"{self.asked.command_id} is the id of another command to this run: an id is used for one command alone"
        return Refusal(why, status=409, reason="CommandIdTaken")

    def drafts(self, ledger: Ledger, run: Run, decision: Decision) -> list[Draft]:
        """All that the decision appends."""
        if isinstance(decision, Rejected):
            said = {"reason": decision.reason, "message": decision.message}
            return [self._draft(ledger, RecordType.COMMAND_REJECTED, said)]
        told = {"done": decision.done, "message": decision.about, "joins": decision.joins}
        accepted = self._draft(ledger, RecordType.COMMAND_ACCEPTED, {name: said for name, said in told.items() if said})
        files = {"text": self.text} if self.text is not None else None
        return [replace(accepted, attachments=files), *self.beside(run)]

    def _draft(self, ledger: Ledger, kind: RecordType, said: dict[str, Any]) -> Draft:
        """One record per command, whatever was decided on it."""
        asked = self.asked
        payload = {
            "command_id": asked.command_id,
            "type": asked.type,
            "digest": self.digest,
            "issuer": asked.issuer,
            **{name: value for name in TOLD if (value := getattr(asked, name)) not in {"", None}},
            **said,
        }
        draft = ledger.observed(kind, payload, command_id=asked.command_id)
        named = record_id(asked.command_id)
        return replace(draft, record_id=named, actor=asked.issuer or None, surface_id=asked.surface or None)


class CommandsRoom:
    """For the operator."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._ledger = gate, gate.ledger
        self._settling, self._pauses = Settling(gate), Pauses(gate)

    def routes(self) -> list[BaseRoute]:
        """The door."""
        return [Route("/v1/runs/{uid}/commands", self.command, methods=["POST"], name="commands")]

    async def command(self, request: Request) -> Response:
        """POST CommandRequest -> Receipt. Repeated, it is no more than a question after that."""
        run = await self._gate.run_for_operator(request)
        body = await read_model(request, CommandRequest, self._gate.deps.settings.max_body_bytes)
        if len(body.text.encode()) > MAX_TEXT_BYTES:
            raise Invalid(f"text: a message has at most {MAX_TEXT_BYTES // 1024} KiB")
        receipt = await self._receipt(run, body)
        told = {"run_uid": run.uid, "command": body.command_id, "type": body.type}
        self._gate.deps.log.info("command", state=receipt.state, reason=receipt.reason, **told)
        return answer(receipt)

    async def _receipt(self, run: Run, asked: CommandRequest) -> Receipt:
        taking = Taking(asked, digest_of(asked), self._decider(run, asked), lambda now: self._begun(now, asked))
        if (found := taking.known(run)) is not None:
            return found.receipt()
        if asked.type == "Resolve":
            return await self._resolve(run, taking)
        if asked.type in MESSAGES:
            taking = replace(taking, text=await self._ledger.attach(run, asked.text.encode()))
        return await self._admit(run, taking)

    def _decider(self, run: Run, asked: CommandRequest) -> Callable[[Run], Decision]:
        """By the run's state, and then by what only this door knows."""
        can = self._gate.deps.abilities(run.spec.agent.driver)
        doors: dict[str, Callable[[Run], Decision]]
        doors = {"Pause": partial(pausable, can), "Resume": self._resumable}
        further = doors.get(asked.type)

        def decided(now: Run) -> Decision:
            decision = decide(asked, now.state, can)
            if further is None or isinstance(decision, Rejected):
                return self._joining(now, asked, decision)
            try:
                return self._joining(now, asked, further(now))
            except Refusal as refused:
                return Rejected(refused.reason, refused.message)

        return decided

    def _joining(self, run: Run, asked: CommandRequest, decision: Decision) -> Decision:
        """What another one has begun isn't begun again: this one ends as that does, with a receipt of its own."""
        if isinstance(decision, Rejected) or decision.done:
            return decision
        leader = leading(run.state.commands, asked.type)
        return replace(decision, joins=leader) if leader and not self._begun(run, asked) else decision

    def _resumable(self, run: Run) -> Decision:
        """Raise Refusal where no word lets it go on."""
        self._pauses.demand_resumable(run)
        return Accepted()

    def _begun(self, run: Run, asked: CommandRequest) -> list[Draft]:
        """X1, Q5: what is asked begins with the record that accepts it."""
        who = asked.issuer or "somebody"
        match asked.type:
            case "Cancel" if run.state.cancel_stage is None:
                return [self._ledger.observed(RecordType.CANCEL_REQUESTED, {"reason": "user"}, "command")]
            case "Pause" if is_news(run.state, PauseReason.COMMAND):
                return [self._pauses.request_draft(run, PauseReason.COMMAND, f"paused by {who}", by=who)]
            case "Resume" if run.state.pause is not None and not run.state.pause.released:
                return [self._pauses.resume_draft(run, by=who)]
            case "Approve" | "Reject":
                return self._answer(run, asked, who)
        return []

    def _answer(self, run: Run, asked: CommandRequest, who: str) -> list[Draft]:
        """T6: the answer; what was parked for it goes on by that."""
        consent = meant(run.state.consents, asked.approval, asked.question, asked.observed_offset)
        if isinstance(consent, Unfit):
            return []
        outcome = APPROVED if asked.type == "Approve" else REJECTED
        said: dict[str, Any] = {"key": consent.key, "outcome": outcome, "by": who, "reason": asked.note}
        said["usage"] = {"human_approvals": 1}
        return [self._ledger.observed(RecordType.APPROVAL_DECIDED, said, consent.offset, actor=asked.issuer or None)]

    async def _admit(self, run: Run, taking: Taking) -> Receipt:
        """Append what is decided, on the very state that the record follows."""
        for _ in range(TRIES):
            if (found := taking.known(run)) is not None:
                return found.receipt()
            decision = taking.decide(run)
            if isinstance(decision, Rejected) and run.state.end is not None:
                return await self._earlier(run, taking) or _late(taking.asked, decision, run.state.end.at)
            if isinstance(decision, Accepted) and not decision.done:
                _demand_room(run, taking.asked.type, joins=bool(decision.joins))
            try:
                return await self._append(run, taking, decision)
            except Changed:
                continue
        raise Overtaken(run.uid)

    async def _append(self, run: Run, taking: Taking, decision: Decision) -> Receipt:
        def unchanged(now: Run) -> None:
            if taking.known(now) is not None or not _alike(taking.decide(now), decision):
                raise Changed

        drafts = taking.drafts(self._ledger, run, decision)
        reached(Point.COMMAND_BEFORE)
        try:
            result = await self._ledger.append(run, None, drafts, unchanged, led=True)
        except DuplicateMismatch:
            if (earlier := await self._earlier(run, taking)) is not None:
                return earlier
            raise taking.taken() from None
        reached(Point.COMMAND_AFTER)
        found = known(run.state.commands, taking.asked.command_id)
        return found.receipt() if found else _forgotten(taking.asked, result.records[0], run)

    async def _earlier(self, run: Run, taking: Taking) -> Receipt | None:
        """What the journal says of one that the state has forgotten, whatever would be decided on it by now. Raise
        Refusal where that was another command.
        """
        if not forgetful(run.state.commands):
            return None
        record = await self._recorded(run, record_id(taking.asked.command_id))
        if record is None:
            return None
        taking.demand_same((record.payload or {}).get("digest"))
        return _forgotten(taking.asked, record, run)

    async def _recorded(self, run: Run, name: str) -> Record | None:
        """The record of that id, looked for page by page."""
        store, at = self._ledger.store, 0
        while page := await store.read(run.uid, at):
            found = next((each for each in page if each.record_id == name), None)
            if found is not None:
                return found
            at = page[-1].seq + 1
        return None

    async def _resolve(self, run: Run, taking: Taking) -> Receipt:
        """E4. Raise Refusal while the target is being asked: nothing is decided then."""
        async with self._settling.alone(run):
            try:
                effect, drafts = self._chosen(run, taking.asked)
            except Refusal as refused:
                no: Decision = Rejected(refused.reason, refused.message)
                return await self._admit(run, replace(taking, decide=_first(taking.decide, no)))
            yes = Accepted("Resolved" if drafts else "AlreadySettled")
            self._gate.deps.log.info("effect_resolved", run_uid=run.uid, effect=effect.effect_id)
            return await self._admit(run, replace(taking, decide=_first(taking.decide, yes), beside=lambda _: drafts))

    def _chosen(self, run: Run, asked: CommandRequest) -> tuple[Effect, list[Draft]]:
        """The effect, and what is to be recorded of it. Raise Refusal."""
        effect = chosen(run.state.effects, asked.effect)
        outcome = asked.outcome or "confirmed"
        body = ResolveRequest(effect=effect.effect_id, outcome=outcome, note=asked.note, user=asked.issuer)
        return effect, [self._settling.said(effect, body, "operator")] if demand_unsettled(effect, outcome) else []


def record_id(command_id: str) -> str:
    """The id of the record that admits or rejects a command; a long one is hashed."""
    plain = f"command:{command_id}"
    return plain if len(plain) <= MAX_ID else f"command:{hashlib.sha256(command_id.encode()).hexdigest()}"


def pausable(can: Abilities, run: Run) -> Decision:
    """Raise Refusal where no attempt works and none waits to. Who loses work by it is told so."""
    demand_pausable(run.state)
    if run.state.phase is RunPhase.PAUSED:
        return Accepted("AlreadyPaused")
    return Accepted(about="" if can.safe_points or run.state.attempt_safe_points else BEGINS_ANEW)


def _alike(one: Decision, other: Decision) -> bool:
    """The same decision, in whatever words: some tell the time."""
    if isinstance(one, Rejected) or isinstance(other, Rejected):
        return isinstance(one, Rejected) and isinstance(other, Rejected) and one.reason == other.reason
    return one == other


def _first(earlier: Callable[[Run], Decision], then: Decision) -> Callable[[Run], Decision]:
    """What is decided where nothing earlier rejects."""

    def both(run: Run) -> Decision:
        decision = earlier(run)
        return decision if isinstance(decision, Rejected) else then

    return both


def _demand_room(run: Run, kind: str, *, joins: bool) -> None:
    commands = run.state.commands
    open_ones = sum(each.open and bool(each.joins) for each in commands) if joins else crowd(commands, kind)
    if open_ones >= (MOST_JOINED if joins else MOST_OPEN):
        raise Unavailable(f"{open_ones} such commands to this run are still to be done: ask again", reason=CROWDED)


def _late(asked: CommandRequest, decision: Rejected, at: int) -> Receipt:
    """I6: an ended run's journal takes no more of them, and what it says of this one can't change either."""
    return Receipt(
        command_id=asked.command_id,
        type=asked.type,
        state="Rejected",
        reason=decision.reason,
        message=decision.message,
        issuer=asked.issuer,
        at=at,
    )


def _forgotten(asked: CommandRequest, record: Record, run: Run) -> Receipt:
    """One that was closed so long ago that the state has forgotten how: only closed ones are. One that had joined
    another one ended as that did.
    """
    payload = record.payload or {}
    leader = known(run.state.commands, payload.get("joins", ""))
    if leader is not None:
        own = {"command_id": asked.command_id, "offset": record.seq, "issuer": asked.issuer, "at": record.recorded_at}
        return leader.receipt().model_copy(update=own)
    done = "Delivered" if asked.type in MESSAGES else "Done"
    return Receipt.model_validate(
        {
            "command_id": asked.command_id,
            "type": asked.type,
            "state": "Rejected" if record.type == RecordType.COMMAND_REJECTED else done,
            "reason": payload.get("reason", payload.get("done", "")),
            "message": payload.get("message", ""),
            "offset": record.seq,
            "issuer": asked.issuer,
            "at": record.recorded_at,
        }
    )
