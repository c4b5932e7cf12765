"""E1, E8: one HTTP effect. Intent, dispatch, receipt, and only then the answer; reads have all of these too.

Whatever dies on the way: what was never sent is known not to have happened; a keyed request is sent again under the
same key, and its authority drops a second one; any other one whose receipt is missing stays unknown, is sent by nobody
again, and a person says what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from starlette.responses import Response
from starlette.types import Receive

from moorage.api.wire import ResolvedEgress
from moorage.core.effects import http
from moorage.core.effects.calls import Call, Chosen, Question, Way, choose, limit, named
from moorage.core.effects.http import Asked
from moorage.core.effects.levels import Level
from moorage.core.journal.record import BlobRef, RecordType
from moorage.core.run import state
from moorage.gateway.constraints import NONE, Asking, outward
from moorage.gateway.effects import EffectLog, known
from moorage.gateway.errors import Refusal
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.headers import returned
from moorage.gateway.ledger import Condition, Overtaken, Run
from moorage.gateway.outward import Heard, Lost, Outgoing, Unreached, unreachable
from moorage.gateway.reading import Passed, Passing, Toll
from moorage.gateway.room import Held
from moorage.gateway.sending import Came, Effect, Sending
from moorage.gateway.underway import UnderWay
from moorage.gateway.watching import Ended, Watch, demand_working, idle, not_at_work, unwanted
from moorage.points import Point, reached
from moorage.store.errors import BlobCorrupted, BlobMissing, StoreBusy, StoreUnavailable

EFFECT_HEADER = "x-moorage-effect"


@dataclass(frozen=True)
class Demand:
    """What an agent asks for: the host that allows it, the request as meant and as it goes out.

    `name`: the relay's, for the same request as often as it asks. `receive`: of its client, whose request is read.
    `held`: what it has of the gateway's memory.
    """

    entry: ResolvedEgress
    asked: Asked
    outgoing: Outgoing
    name: str | None
    receive: Receive
    held: Held


class Calls:
    """HTTP effects of all runs."""

    def __init__(self, gate: Gate, under_way: UnderWay) -> None:
        self._gate, self._settings = gate, gate.deps.settings
        self._log, self._sending = EffectLog(gate), Sending(gate.deps)
        self._under_way, self._peers = under_way, gate.deps.peers
        self._choosing: WeakKeyDictionary[Run, asyncio.Lock] = WeakKeyDictionary()

    async def call(self, caller: Caller, demand: Demand) -> Response:
        """Send what may be sent; else the recorded answer, or a Refusal that says why not."""
        entry = demand.entry
        watch = self._watch(caller.run, lambda run: idle(run, caller.epoch), demand.receive)
        await self._sending.check(caller.run, entry)  # what is missing is said before anything is meant
        level = http.level(entry, demand.asked.method)
        if level is Level.READ_ONLY:
            return await self._read(caller, demand, watch)
        own = demand.outgoing.headers.pop(entry.key_header.lower(), None) if level is Level.KEYED else None
        return await self._effect(caller, level, named(own), demand, watch)

    def _watch(self, run: Run, why: Callable[[Run], str | None], receive: Receive | None = None) -> Watch:
        now = asyncio.get_running_loop().time()
        return Watch(self._gate.ledger, run, self._settings, why, now, receive)

    # --- reads --------------------------------------------------------------------------------------------------------

    async def _read(self, caller: Caller, demand: Demand, watch: Watch) -> Response:
        run = caller.run
        effect = self._new(run, uuid4().hex, Level.READ_ONLY, demand)
        with contextlib.ExitStack() as until_read:
            until_read.enter_context(self._under_way.here(effect.effect_id))
            await self._mean(caller, effect, demand.asked)
            heard = await self._answered(run, effect, watch)
            answer, credential = heard.answer, heard.credential
            headers = returned(answer.headers.raw, credential=credential) | {EFFECT_HEADER: effect.effect_id}
            passing = until_read.enter_context(self._gate.judge.carrying(run))
            noted = partial(self._read_ended, run, effect, answer.status_code, until_read.pop_all())
            return Passing(answer, headers, watch, Toll(passing, noted), self._gate.deps.log)

    async def _answered(self, run: Run, effect: Effect, watch: Watch) -> Heard:
        try:
            return await watch.read(self._sending.send(run, effect))
        except (Unreached, Lost) as error:
            await self._log.receipt(run, effect.effect_id, "not_dispatched", str(error))
            raise unreachable(str(error)) from None
        except Ended as error:
            await self._log.receipt(run, effect.effect_id, http.unanswered(effect.level), f"cut: {error}")
            raise Refusal(f"the read was cut: {error}", status=409, reason="ReadCut") from None

    async def _read_ended(
        self, run: Run, effect: Effect, status: int, until_read: contextlib.ExitStack, passed: Passed
    ) -> None:
        """The receipt: what the host said, and how much of it there was."""
        with until_read:
            reached(Point.EGRESS_WITHIN)
            told: dict[str, Any] = {"status": status, "size": passed.size, "body_sha256": passed.digest.hexdigest()}
            told["usage"] = {"egress_bytes": passed.size}
            outcome = http.outcome(status, Level.READ_ONLY)
            await self._log.receipt(run, effect.effect_id, outcome, passed.cut or f"status {status}", **told)
            reached(Point.EGRESS_AFTER)
        await self._gate.judge.look(run, Asking(outward() if passed.spent else NONE))

    # --- effects ------------------------------------------------------------------------------------------------------

    async def _effect(self, caller: Caller, level: Level, own: str | None, demand: Demand, watch: Watch) -> Response:
        run = caller.run
        with contextlib.ExitStack() as until_answered:
            async with self._choosing.setdefault(run, asyncio.Lock()):
                decided = None
                while decided is None:
                    with contextlib.suppress(Overtaken):
                        decided = await self._decided(caller, (level, own), demand, watch)
                if isinstance(decided, Response):
                    return decided
                until_answered.enter_context(self._under_way.here(decided.effect_id))
            return await self._finish(run, decided, watch, again=decided.again)

    async def _decided(
        self, caller: Caller, kind: tuple[Level, str | None], demand: Demand, watch: Watch
    ) -> Effect | Response:
        """The effect to send, durably meant; or the answer that is there. Raise Refusal, and Overtaken: decide anew."""
        run, busy = caller.run, await self._under_way.of(caller.run)
        question = _question(caller, *kind, demand)  # a safe point may have been since it came
        chosen = choose(question, run.facts.calls, busy)
        if chosen.call is not None and chosen.way in {Way.GIVE, Way.REPEAT}:
            await self._adopt(caller, chosen.call, question.asked)
        if chosen.call is not None and chosen.way is Way.GIVE:
            return await self._given(run, chosen.call, demand.held)
        effect = await self._chosen(run, chosen, question, demand)
        if chosen.way is Way.REPEAT and (why := watch.why(run)):
            raise not_at_work(why)
        if chosen.way is Way.SEND:

            def unchanged(run: Run) -> None:
                """Raise Overtaken where another gateway was asked for the same at the same moment."""
                if choose(question, run.facts.calls, busy) != chosen:
                    raise Overtaken(run.uid)

            with self._under_way.here(effect.effect_id):
                await self._mean(caller, effect, demand.asked, question, unchanged)
        return effect

    async def _chosen(self, run: Run, chosen: Chosen, question: Question, demand: Demand) -> Effect:
        """The effect to send, new or the same again. Raise Refusal."""
        if chosen.way is Way.REPEAT and chosen.call is not None:
            key, me = chosen.key, self._peers.me
            return Effect(
                chosen.call.effect_id,
                key,
                Level.KEYED,
                demand.entry,
                demand.outgoing,
                gateway=me,
                again=True,
                held=demand.held,
            )
        if chosen.way is Way.REFUSE_UNKNOWN and chosen.call is not None and chosen.call.open:
            await self._give_up(run, chosen.call.effect_id, "the gateway died before its receipt")
        if chosen.way is not Way.SEND:
            raise _refused(chosen)
        if why := limit(question, chosen.key, run.facts.calls):
            raise Refusal(why, status=403, reason="TooManyEffects")
        return self._new(run, chosen.key, question.level, demand)

    async def _give_up(self, run: Run, effect_id: str, why: str) -> None:
        """E4: said as soon as it is known that nobody can know. Raise Overtaken where somebody has found out."""

        def doubtful(run: Run) -> None:
            if known(run, effect_id):
                raise Overtaken(run.uid)

        given_up = self._log.settled(run, effect_id, "unknown", why)
        await self._log.append(run, None, given_up, condition=doubtful)

    def _new(self, run: Run, key: str, level: Level, demand: Demand) -> Effect:
        return Effect(
            f"http-{key[:16]}-{run.state.offset + 1}",
            key,
            level,
            demand.entry,
            demand.outgoing,
            self._peers.me,
            held=demand.held,
        )

    async def _mean(
        self,
        caller: Caller,
        effect: Effect,
        asked: Asked,
        question: Question | None = None,
        unchanged: Condition = lambda _: None,
    ) -> None:
        """E1, only while an agent is at work: its body may have taken hours to come. Nothing stands between the intent
        and its dispatch, so they are one. With `question` the call is known again; with a key it can be sent again.
        `unchanged` sees what it would follow.
        """
        ask = _asking(effect)
        payload: dict[str, Any] = {
            "effect_id": effect.effect_id,
            "kind": http.KIND,
            "key": effect.key,
            "level": effect.level.value,
            "target": http.described(effect.entry, asked),
            "usage": {"effects": ask.amounts.get("effects", 0), "egress_bytes": len(effect.outgoing.body)},
        }
        if question is not None:
            payload |= {"fingerprint": question.fingerprint, "since": question.since, "name": question.name}
        attachments = None
        if effect.level is Level.KEYED:
            attachments = {"request": await self._gate.ledger.attach(caller.run, effect.outgoing.packed())}
        intent = self._log.note(
            RecordType.EFFECT_INTENT,
            payload,
            effect.effect_id,
            attachments=attachments,
            request_id=question.asked if question else None,
        )

        def still_wanted(run: Run) -> None:
            demand_working(run, self._settings.egress_open)
            self._gate.judge.demand(run, ask)
            unchanged(run)

        sent = self._log.dispatched(effect.effect_id)
        async with self._gate.judge.noting(caller.run, ask):
            await self._log.mean(caller.run, caller.epoch, intent, sent, condition=still_wanted)

    async def _adopt(self, caller: Caller, call: Call, asked: str | None) -> None:
        """This attempt has asked for it too: what it asks for next is the one after."""
        if call.epoch < caller.epoch:
            key = (call.effect_id, caller.epoch)
            draft = self._log.note(RecordType.EFFECT_ADOPTED, {"effect_id": call.effect_id}, *key, request_id=asked)
            await self._log.append(caller.run, caller.epoch, draft)

    async def _given(self, run: Run, call: Call, held: Held | None) -> Response:
        """E3: the recorded result. Its target hears nothing."""
        answer = call.answer
        if answer is None or answer.content is None:
            raise _refused(Chosen(Way.REFUSE_DONE, call.key, call))
        if held is not None:
            held.take(answer.content.size)
        try:
            content = await self._gate.deps.blobs.get(run.tenant, answer.content)
        except (BlobMissing, BlobCorrupted):
            raise _refused(Chosen(Way.REFUSE_DONE, call.key, call)) from None
        headers = {EFFECT_HEADER: call.effect_id, "x-moorage-replayed": "true"}
        if answer.content_encoding:
            headers["content-encoding"] = answer.content_encoding
        return Response(content, answer.status, headers, answer.content_type or None)

    # --- reconciliation -----------------------------------------------------------------------------------------------

    async def reconcile(self, run: Run, effect: state.Effect) -> None:
        """E4: the same again, under the same key."""
        again = await self._remembered(run, effect.effect_id)
        if again is not None:
            with self._under_way.here(effect.effect_id):
                await self._sent(run, again, self._watch(run, unwanted), again=True)
        elif effect.open:
            await self._give_up(run, effect.effect_id, "what was asked is kept no more")

    async def _remembered(self, run: Run, effect_id: str) -> Effect | None:
        call = next((c for c in run.facts.calls if c.effect_id == effect_id), None)
        if call is None or call.request is None:
            return None
        try:
            outgoing = Outgoing.unpacked(await self._gate.deps.blobs.get(run.tenant, call.request))
        except (BlobMissing, BlobCorrupted):
            return None
        entry = next((e for e in run.spec.sandbox.egress if e.host == outgoing.host), None)
        if entry is None:
            return None
        return Effect(effect_id, call.key, Level(call.level), entry, outgoing, self._peers.me)

    # --- sending ------------------------------------------------------------------------------------------------------

    async def _finish(self, run: Run, effect: Effect, watch: Watch, *, again: bool) -> Response:
        """Send it, write down what came of it, and tell the agent: in doubt, what another gateway was told."""
        came = await self._sent(run, effect, watch, again=again)
        if effect.level is Level.KEYED and came.outcome == "unknown":
            await self._gate.ledger.refresh(run)
            if (call := _answered_elsewhere(run, effect)) is not None:
                return await self._given(run, call, effect.held)
        if came.status is None or not came.whole:
            raise _unanswered(effect, came)
        return Response(came.content, came.status, came.headers | {EFFECT_HEADER: effect.effect_id}, came.kind or None)

    async def _sent(self, run: Run, effect: Effect, watch: Watch, *, again: bool) -> Came:
        try:
            came = await watch.effect(self._sending.finish(run, effect, doubt=again, wanted=watch.wanted))
        except Ended as error:
            came = Came(http.unanswered(effect.level), f"cut: {error}")
        reached(Point.EGRESS_WITHIN)
        await self._close(run, effect, came, again=again)
        reached(Point.EGRESS_AFTER)
        await self._gate.judge.look(run, Asking())
        return came

    async def _close(self, run: Run, effect: Effect, came: Came, *, again: bool) -> None:
        """The receipt: status and hash; the answer itself lies beside the journal, where it may be asked for again."""
        told: dict[str, Any] = {}
        if came.status is not None:
            told = {"status": came.status, "size": len(came.content), "content_type": came.kind[:128]}
            told["usage"] = {"egress_bytes": len(came.content)}
            told["content_encoding"] = came.headers.get("content-encoding")
            if came.whole:
                told["body_sha256"] = hashlib.sha256(came.content).hexdigest()
                told["attachments"] = await self._kept(run, came.content)
        close = self._log.found if again else self._log.receipt
        await close(run, effect.effect_id, came.outcome, came.detail, **told)

    async def _kept(self, run: Run, content: bytes) -> dict[str, BlobRef] | None:
        """Where the answer lies; None where it can't be kept soon: that it came is worth more, and is told after it."""
        try:
            async with asyncio.timeout(self._settings.answer_patience_ms / 1000):
                return {"answer": await self._gate.ledger.attach(run, content)}
        except (StoreBusy, StoreUnavailable, TimeoutError) as error:
            self._gate.deps.log.warning("answer_not_kept", run_uid=run.uid, reason=type(error).__name__)
            return None


def _answered_elsewhere(run: Run, effect: Effect) -> Call | None:
    """The same call, where another gateway that sent it under its key has heard its answer."""
    calls = (call for call in run.facts.calls if call.effect_id == effect.effect_id)
    return next((call for call in calls if call.status == "confirmed" and not call.untold), None)


def _asking(effect: Effect) -> Asking:
    """What it takes of the run's limits, as far as that is known before its answer."""
    return Asking(outward(len(effect.outgoing.body), effect=effect.level is not Level.READ_ONLY))


def _question(caller: Caller, level: Level, own: str | None, demand: Demand) -> Question:
    return Question(
        run_uid=caller.run.uid,
        fingerprint=http.fingerprint(demand.entry, demand.asked, demand.outgoing.body),
        level=level,
        since=caller.run.state.iteration,
        epoch=caller.epoch,
        name=own,
        asked=demand.name,
    )


def _refused(chosen: Chosen) -> Refusal:
    """Why a call isn't made, and what to do."""
    effect = chosen.call.effect_id if chosen.call else chosen.key[:16]
    match chosen.way:
        case Way.REFUSE_OTHER:
            return Refusal("this key was used for another request: take a new one", status=409, reason="KeyReused")
        case Way.REFUSE_BUSY:
            return Refusal(f"effect {effect}, the same one, is under way: wait for it", status=409, reason="EffectBusy")
        case Way.REFUSE_DONE:
            why = f"effect {effect} happened, and its answer isn't kept: look at the target instead of asking again"
            return Refusal(why, status=409, reason="EffectDone")
        case _:
            return Refusal(_look(effect), status=409, reason="EffectUnknown")


def _unanswered(effect: Effect, came: Came) -> Refusal:
    match came.outcome:
        case "not_dispatched":
            return unreachable(f"nothing was sent: {came.detail}")
        case "unknown":
            what = _ask_again(effect.effect_id) if effect.level is Level.KEYED else _look(effect.effect_id)
            return Refusal(f"{came.detail}. {what}", status=409, reason="EffectUnknown")
        case _:
            return _refused(Chosen(Way.REFUSE_DONE, effect.key))


def _ask_again(effect: str) -> str:
    return f"nobody knows whether effect {effect} happened: ask for the same again, and it goes out under the same key"


def _look(effect: str) -> str:
    return (
        f"nobody knows whether effect {effect} happened, and it isn't sent again: look at the target, go on without it,"
        " and leave it to a person (moorage resolve)"
    )
