"""One exchange with a model: noted before it leaves, passed on as it comes, noted again before it is acted on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from starlette.responses import Response

from moorage.api.wire import ResolvedModel, ResolvedPrices
from moorage.core.approvals.resolving import HOLDS_EACH_CALL
from moorage.core.journal.record import BlobRef, Draft, RecordType, named_content
from moorage.core.models.passing import Passing
from moorage.core.models.prices import cost_micros
from moorage.core.models.rates import Limits
from moorage.core.models.reading import EVENT_STREAM, Reading
from moorage.core.models.retries import Failed, refused
from moorage.core.models.usage import against_rate
from moorage.gateway.ask import Answered, Ask, retried
from moorage.gateway.breakers import Breakers
from moorage.gateway.constraints import Asking, Exhausted, of_calls
from moorage.gateway.errors import Refusal
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.given import Given
from moorage.gateway.headers import budget_headers, content_type, returned
from moorage.gateway.http import JSON, Cut, Piped, at_once
from moorage.gateway.kept import Kept
from moorage.gateway.ledger import Run
from moorage.gateway.providers import SILENT, Coming, Unheard
from moorage.gateway.questions import Gone, Questions
from moorage.gateway.turns import Turn, Turns
from moorage.gateway.undoing import unless_done
from moorage.gateway.unread import Unread
from moorage.points import Point, reached
from moorage.store.errors import RunSealed

CALLS = "TooManyCalls"
HOPELESS = frozenset({"TooLarge", "Stopped", CALLS, SILENT})
"""Problems that sending the same again can't help."""
OURS = {
    "TooLarge": ("the answer is longer than this gateway takes: ask for less at once", "AnswerTooLarge"),
    "Stopped": ("the run is over, or about to be: it asks no model any more", "RunStopped"),
    CALLS: ("the model wants more tool calls than the run may make", Exhausted.reason),
}
"""Problems that are none of the provider's, and what the agent hears."""
FAILED = "ProviderFailed"
"""The problem of an answer that begins, and ends, with an error: it costs nothing."""


@dataclass(frozen=True)
class Shared:
    """What the exchanges of one process share."""

    questions: Questions
    turns: Turns
    breakers: Breakers
    given: Given


@dataclass(frozen=True)
class Unanswered:
    """A try of which the agent has heard nothing yet: why it failed, and what it hears if there is no other one."""

    failed: Failed
    told: Response | Refusal


class Exchange:
    """One try, used once. `gone`: whether whoever asked has gone away."""

    def __init__(self, gate: Gate, caller: Caller, ask: Ask, shared: Shared, gone: Gone) -> None:
        self._gate, self._caller, self._ask, self._protocol = gate, caller, ask, ask.protocol
        self._shared, self._questions, self._gone = shared, shared.questions, gone
        self._turn: Turn | None = None
        self._used, self._has_left = 0, False
        self._ledger, self._metrics, self._clock = gate.ledger, gate.deps.metrics, gate.deps.clock
        self._limit = gate.deps.settings.max_content_bytes
        self._kept = Kept(self._limit)
        self._began = self._clock.monotonic_ms()
        self._calls = 0  # of its answer, as far as they were looked at
        self._may: int | None = None  # of them, as was known when the first one came: the agent has begun some since

    async def run(self, model: ResolvedModel, credential: Mapping[str, str]) -> Response | Unanswered:
        """Send the request on; the answer, its body perhaps still to come."""
        self._questions.begin(self._ask.request_id)
        with unless_done(self._over):
            await self._note_request(model)
            await self._take_turn(model)
            return await self._passed(model, credential)

    async def _passed(self, model: ResolvedModel, credential: Mapping[str, str]) -> Response | Unanswered:
        """The same, with what it says of the provider's health."""
        place, breakers, heard = self._place, self._shared.breakers, False
        await self._or_noted(partial(breakers.passing, place))
        try:
            outcome = await self._answer(model, credential)
            breakers.ended(place, outcome.failed if isinstance(outcome, Unanswered) else None)
            heard = True
        finally:
            if not heard:
                breakers.dropped(place)
        return outcome

    async def _answer(self, model: ResolvedModel, credential: Mapping[str, str]) -> Response | Unanswered:
        reached(Point.MODEL_BEFORE)
        self._began = self._clock.monotonic_ms()
        try:
            answer = await self._send(model, credential)
        except Unheard as error:
            told = Answered(0, JSON, error.problem, billed=error.left)
            await self._note_answer(told, Reading())
            return self._unreached(told, hopeless=error.problem in HOPELESS)
        self._metrics.model_first_byte.observe((self._clock.monotonic_ms() - self._began) / 1000)
        told = Answered(answer.status, content_type(answer.headers, JSON), billed=200 <= answer.status < 300)
        headers = returned(answer.headers, decoded=True, credential=credential) | self._left(model)
        if told.good and told.content_type.startswith(EVENT_STREAM):
            return await self._streamed(answer, told, headers, credential)
        return await self._whole(answer, told, headers, credential)

    def _left(self, model: ResolvedModel) -> dict[str, str]:
        """C7: of the run's limits, and of its retries."""
        run = self._caller.run
        return budget_headers(self._gate.judge.budget(run)) | retried(run, model, self._ask)

    def _unreached(self, told: Answered, *, hopeless: bool = False) -> Unanswered:
        """No byte of an answer has come. Who was silent for as long as anybody may be isn't asked again."""
        if told.problem in OURS:
            why, reason = OURS[told.problem]
            return Unanswered(Failed(0, hopeless=True, ours=True), Refusal(why, status=400, reason=reason))
        why = f"the model provider can't be reached ({told.problem})"
        return Unanswered(Failed(0, hopeless=hopeless), Refusal(why, status=502, reason="ProviderUnreachable"))

    async def _take_turn(self, model: ResolvedModel) -> None:
        """Raise Refusal where it doesn't come, or comes to nobody's use any more (I5); nothing has left then."""
        limits = _limits(model, self._gate.deps.settings.gateways)
        if limits.none:
            return
        patience, began = self._gate.deps.settings.model_room_ms / 1000, self._clock.monotonic_ms()
        asked, turns = -(-len(self._ask.body) // 4), self._shared.turns
        self._turn = await turns.take(self._place, self._caller.run.uid, limits, asked, patience)
        self._metrics.model_turn.observe((self._clock.monotonic_ms() - began) / 1000)
        await self._or_noted(partial(self._demand_use, model))

    async def _or_noted(self, demand: Callable[[], Awaitable[None] | None]) -> None:
        """What it demands; a Refusal is noted as the answer, and costs nothing."""
        try:
            demanded = demand()
            if demanded is not None:
                await demanded
        except Refusal as error:
            await self._note_answer(Answered(0, JSON, error.reason), Reading())
            raise

    async def _demand_use(self, model: ResolvedModel) -> None:
        """Of the turn, which may have come minutes after it was asked for. What others wrote meanwhile counts."""
        if self._turn is None or await self._gone():
            why = f"ModelProvider {model.provider} takes no more requests at the moment: ask again"
            raise Refusal(why, status=429, reason="ProviderBusy", headers={"retry-after": "5"})
        run = self._caller.run
        await self._ledger.refresh(run)
        await self._gate.demand_epoch(run, self._caller.epoch, "model", self._caller.pod.pod_uid)
        if stopped(run):
            raise Refusal("the run is over, or about to be: it asks no model any more", status=409, reason="RunStopped")

    @property
    def _place(self) -> tuple[str, str]:
        """Whose turns these are."""
        model = self._caller.run.spec.agent.model
        return self._caller.run.tenant, model.provider if model else ""

    async def _close(self, answer: Coming) -> None:
        """The provider has nothing under way for this any more."""
        try:
            await answer.close()
        finally:
            self._give_back()

    def _over(self) -> None:
        """Whatever it came to; saying it again does nothing."""
        self._questions.end(self._ask.request_id)
        self._give_back()

    def _give_back(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self._shared.turns.give_back(turn, self._used, left=self._has_left)

    async def _send(self, model: ResolvedModel, credential: Mapping[str, str]) -> Coming:
        deps = self._gate.deps
        self._has_left = True
        return await deps.providers.post(self._ask.outgoing(self._protocol.path, model, credential, deps.settings))

    # --- bodies -------------------------------------------------------------------------------------------------------

    async def _streamed(
        self, answer: Coming, told: Answered, headers: Mapping[str, str], credential: Mapping[str, str]
    ) -> Response | Unanswered:
        """Once its first event is there: until then another try may follow this one, and nobody knows of either."""
        unread = Unread(self._limit)
        reading = asyncio.create_task(self._read(answer, told, unread, credential))
        reading.add_done_callback(lambda _: unread.end())
        try:
            begun = await unread.beginning()
        except BaseException:
            await _stopped_reading(reading)
            raise
        if not begun:
            return await self._broken(reading, told, headers)
        log, pieces = self._gate.deps.log, self._passed_on(unread, reading)
        return Piped(pieces, told.status, headers, told.content_type, log, heard=self._heard)

    async def _broken(self, reading: asyncio.Task[None], told: Answered, headers: Mapping[str, str]) -> Unanswered:
        """It ended before its first event, or that was an error. What the journal couldn't take is raised."""
        try:
            await reading
            problem = "Empty"
        except Cut as error:
            problem = error.reason
        if problem == FAILED:
            content, log = self._kept.content(), self._gate.deps.log
            return Unanswered(Failed(0), Piped(at_once(content), told.status, headers, told.content_type, log))
        return self._unreached(Answered(0, JSON, problem), hopeless=problem in HOPELESS)

    async def _passed_on(self, unread: Unread, reading: asyncio.Task[None]) -> AsyncIterator[bytes]:
        """Events as they come. An agent that doesn't read them holds up neither the provider nor who waits. What is cut
        after its record is given again to who asks again (R2).
        """
        whole = False
        try:
            async for piece in unread.pieces():
                yield piece
            await reading
            whole = True
        finally:
            if not whole:
                self._shared.given.missed(self._ask.request_id)
            await _stopped_reading(reading)

    async def _read(self, answer: Coming, told: Answered, unread: Unread, credential: Mapping[str, str]) -> None:
        """Read events as they come; what ends the answer waits for its record. Raise Cut where it has no end, and where
        it begins with a refusal, from which the credential is left out.
        """
        passing = Passing(self._protocol, self._limit, altered=self._ask.sent is not self._ask.body)
        noted, problem = False, "EndedEarly"
        try:
            async with contextlib.aclosing(self._pieces(answer, passing)) as pieces:
                async for piece in pieces:
                    self._kept.add(piece)
                    if passing.reading.complete and not noted:
                        noted = True
                        await self._note_answer(told, passing.reading)
                    if passing.reading.error and not unread.begun:
                        problem, self._kept = FAILED, self._kept.without(credential)
                        break
                    if piece:
                        unread.put(piece)
                    if unread.over or (not noted and (passing.over or stopped(self._caller.run))):
                        problem = "TooLarge" if unread.over or passing.over else "Stopped"
                        break
        except Unheard as error:
            problem = error.problem
        finally:
            cut = Answered(told.status, told.content_type, problem, billed=problem != FAILED)
            if not noted:
                self._settle(cut, passing.reading)
            await self._close(answer)
            if not noted:
                await self._note_answer(cut, passing.reading)
        if not noted:
            raise Cut(problem)

    async def _pieces(self, answer: Coming, passing: Passing) -> AsyncGenerator[bytes, None]:
        """What may go on, piece by piece; an empty one is a moment to look up. Raise Unheard where no more may."""
        async with contextlib.aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                reached(Point.MODEL_STREAM)
                may_pass = passing.feed(piece)
                if await self._too_many(passing.reading):
                    raise Unheard(CALLS)
                yield may_pass
        yield passing.close()

    async def _whole(
        self, answer: Coming, told: Answered, headers: Mapping[str, str], credential: Mapping[str, str]
    ) -> Response | Unanswered:
        """An answer in one piece: read, noted, then passed on. A refusal is passed on without the credential."""
        problem = None
        try:
            async for piece in answer.pieces():
                self._kept.add(piece)
        except Unheard as error:
            problem = error.problem
        finally:
            if not told.good:
                self._kept = self._kept.without(credential)
            problem = problem or ("TooLarge" if self._kept.over else None)
            reading = self._protocol.read(self._kept.content()) if told.good else Reading()
            problem = problem or (CALLS if await self._too_many(reading) else None)
            ended = Answered(told.status, told.content_type, problem, told.billed)
            self._settle(ended, reading)
            await self._close(answer)
        await self._note_answer(ended, reading)
        content = self._kept.content()
        if problem:
            return self._unreached(ended, hopeless=problem in HOPELESS)
        log = self._gate.deps.log
        response = Piped(at_once(content), told.status, headers, told.content_type, log, heard=self._heard)
        if told.good:
            return response
        lower = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
        return Unanswered(refused(told.status, lower, content, self._clock.now_ms()), response)

    async def _too_many(self, reading: Reading) -> bool:
        """B3: whether the answer has more tool calls than the run may make. Who is not asked before each of them runs
        them at once, so that they aren't let out; the journal has why.
        """
        run, judge = self._caller.run, self._gate.judge
        if reading.calls <= self._calls or run.spec.agent.driver in HOLDS_EACH_CALL:
            return False
        left = judge.left_of_calls(run)
        self._may = self._may if self._calls else left
        self._calls = reading.calls
        if self._may is None or self._calls <= self._may:
            return False
        begun = max(0, self._may - left) if left is not None else 0
        await judge.look(run, Asking(of_calls(self._calls - begun)))
        return True

    async def _heard(self) -> None:
        """All of it is sent: whether it was heard, too (R2)."""
        await self._shared.given.sent(self._ask.request_id, self._gone)

    # --- records ------------------------------------------------------------------------------------------------------

    async def _note_request(self, model: ResolvedModel) -> None:
        """The record with what is reserved (B2), and what is asked: durable before anything leaves (E1, J8)."""
        run, ask = self._caller.run, self._ask
        payload = {
            "protocol": self._protocol.name,
            "model": ask.model,
            "bytes_hash": ask.bytes_hash,
            "size": len(ask.body),
            "stream": ask.stream,
            "iteration": run.state.iteration + 1,
            "reserved": asdict(ask.worst),
            "gateway": self._questions.me,
        }
        if ask.first is not None:
            payload |= {"retry_of": ask.first, "try": ask.tries}
        budget = None if ask.first is None else model.retries.budget

        async def note(content: BlobRef | None) -> None:
            draft = self._draft(RecordType.MODEL_REQUEST, payload, content)
            await self._questions.ask(run, self._caller.epoch, draft, ask.worst, gone=self._gone, retries=budget)

        body = ask.body if self._ask.turn is not None or self._readable else b""  # other agents' need only the hash
        await self._gate.contents.noted(run.tenant, body, note, captured=self._captured)

    @property
    def _captured(self) -> bool:
        model = self._caller.run.spec.agent.model
        return model is not None and model.capture

    @property
    def _readable(self) -> bool:
        return self._gate.contents.readable(captured=self._captured)

    async def _note_answer(self, told: Answered, reading: Reading) -> None:
        """It belongs to no attempt: what was spent is spent, also when the epoch rose meanwhile."""
        noted: Mapping[str, int] | None = None
        try:
            usage, estimated = self._settle(told, reading)
            self._measure(told, usage)
            reached(Point.MODEL_WITHIN)
            await self._append_answer(told, reading, usage, estimated=estimated)
            reached(Point.MODEL_AFTER)
            noted = usage
        finally:
            self._questions.end(self._ask.request_id)
            await self._gate.allowances.answered(self._ask.request_id, noted)

    def _settle(self, told: Answered, reading: Reading) -> tuple[dict[str, int], bool]:
        """What the answer used and cost, and whether that is an estimate. What it took of a rate is known from now."""
        usage, estimated = self._settled(told, reading)
        self._used = against_rate(usage)
        return usage, estimated

    def _settled(self, told: Answered, reading: Reading) -> tuple[dict[str, int], bool]:
        ask = self._ask
        if not told.billed:
            return {}, False
        if reading.unfinished:
            return ask.worst.charged, True
        usage, estimated = reading.settled(len(ask.body), ask.worst.output_tokens)
        return priced(usage, ask.prices), estimated

    async def _append_answer(
        self, told: Answered, reading: Reading, usage: Mapping[str, int], *, estimated: bool
    ) -> None:
        run = self._caller.run
        payload = {
            "status": told.status,
            "usage": usage,
            "stop_reason": reading.stop_reason,
            "complete": told.good and told.problem is None and reading.complete,
            "estimated": estimated,
            "content_type": told.content_type[:128],
            "problem": told.problem,
            "duration_ms": self._clock.monotonic_ms() - self._began,
        }

        async def note(content: BlobRef | None) -> None:
            await self._ledger.append(run, None, [self._draft(RecordType.MODEL_RESPONSE, payload, content)])

        wanted = not self._kept.over and (payload["complete"] or self._readable)  # nothing else is given again
        content = self._kept.content() if wanted else b""
        try:
            await self._gate.contents.noted(run.tenant, content, note, captured=self._captured, paid=True)
        except RunSealed:
            self._gate.deps.log.warning("model_answer_after_the_release", run_uid=run.uid)

    def _draft(self, kind: RecordType, payload: Mapping[str, Any], content: BlobRef | None) -> Draft:
        run, ask = self._caller.run, self._ask
        attachments = named_content(content) if content else None
        return self._ledger.observed(
            kind,
            payload,
            ask.request_id,
            attachments=attachments,
            request_id=ask.request_id,
            turn=ask.turn,
            attempt=run.state.attempt,
        )

    def _measure(self, told: Answered, usage: Mapping[str, int]) -> None:
        outcome = told.problem or ("ok" if told.good else str(told.status))
        self._metrics.model_requests.labels(self._protocol.name, outcome).inc()
        self._metrics.model_cost.inc(usage.get("cost_micros", 0))
        for name in usage.keys() - {"cost_micros"}:
            self._metrics.model_tokens.labels(name).inc(usage[name])


def priced(usage: Mapping[str, int], prices: ResolvedPrices | None) -> dict[str, int]:
    """The usage with what it costs, where that is known."""
    cost = {} if prices is None or not usage else {"cost_micros": cost_micros(usage, prices)}
    return {**usage, **cost}


def _limits(model: ResolvedModel, gateways: int) -> Limits:
    """What this gateway may ask: its share of what all of them may in a minute, and never nothing."""
    share = [each and max(1, each // gateways) for each in (model.requests_per_minute, model.tokens_per_minute)]
    return Limits(model.max_concurrent, *share)


async def _stopped_reading(reading: asyncio.Task[None]) -> None:
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def stopped(run: Run) -> bool:
    """I5: nobody will act on the rest of this answer."""
    return run.at is not None and (run.at.state.end is not None or run.at.state.cancel_stage is not None)
