"""One exchange with a model: noted before it leaves, passed on as it comes, noted again before it is acted on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
from starlette.responses import Response

from moorage.api.quantity import dollars
from moorage.api.wire import ResolvedModel, ResolvedPrices
from moorage.core.journal.record import Draft, RecordType
from moorage.core.models.passing import Passing
from moorage.core.models.prices import Reserve, cost_micros
from moorage.core.models.protocol import Protocol
from moorage.core.models.reading import EVENT_STREAM, Reading
from moorage.gateway.errors import Refusal
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.headers import returned
from moorage.gateway.http import JSON, Cut, Piped
from moorage.gateway.ledger import Run
from moorage.gateway.questions import Gone, Questions
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.turns import Turns
from moorage.gateway.unread import Unread
from moorage.points import Point, reached
from moorage.store.errors import RunSealed

TOKENS_LEFT_HEADER = "x-moorage-tokens-left"
COST_LEFT_HEADER = "x-moorage-cost-left"
COST_USED_HEADER = "x-moorage-cost-used"
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL)


@dataclass(frozen=True)
class Ask:
    """One model request as it came.

    `asked` is what `body` says, `sent` the body that leaves, `bytes_hash` is over the canonical bytes of what came,
    `headers` are those to send on.
    """

    protocol: Protocol
    request_id: str
    body: bytes
    asked: Mapping[str, Any]
    sent: bytes
    bytes_hash: str
    model: str
    prices: ResolvedPrices | None
    worst: Reserve
    query: str
    turn: int | None
    again: bool
    headers: dict[str, str]

    @property
    def stream(self) -> bool:
        """Whether events are asked for."""
        return self.asked.get("stream") is True

    def outgoing(
        self, path: str, model: ResolvedModel, credential: Mapping[str, str], settings: GatewaySettings
    ) -> dict[str, Any]:
        """What `httpx.AsyncClient.build_request` takes, for a path of the provider's."""
        base = model.base_url.rstrip("/").removesuffix("/v1")
        connect = settings.model_connect_ms / 1000
        # As bytes: agents may put into a header what HTTP takes and a library's text encoding doesn't.
        headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in (self.headers | dict(credential)).items()]
        return {
            "method": "POST",
            "url": f"{base}{path}" + (f"?{self.query}" if self.query else ""),
            "content": self.sent,
            "headers": headers,
            "timeout": httpx.Timeout(settings.model_read_ms / 1000, connect=connect, pool=connect),
        }


@dataclass(frozen=True)
class Answered:
    """How an exchange ended: HTTP status (0: no answer), and why it isn't whole, if it isn't.

    `billed`: it may have cost something.
    """

    status: int
    content_type: str
    problem: str | None = None
    billed: bool = False

    @property
    def good(self) -> bool:
        """The provider answered what was asked."""
        return 200 <= self.status < 300


class Kept:
    """What has passed by, up to a limit; `over` once there was more."""

    def __init__(self, limit: int) -> None:
        self._data, self._limit, self.over = bytearray(), limit, False

    def add(self, chunk: bytes) -> None:
        """Keep it, where there is room for all of it."""
        self.over = self.over or len(self._data) + len(chunk) > self._limit
        if not self.over:
            self._data += chunk

    def content(self) -> bytes:
        """All that was kept."""
        return bytes(self._data)


@dataclass(frozen=True)
class Shared:
    """What the exchanges of one process share."""

    questions: Questions
    turns: Turns = field(default_factory=Turns)


class Exchange:
    """Used once. `gone`: whether whoever asked has gone away."""

    def __init__(self, gate: Gate, caller: Caller, ask: Ask, shared: Shared, gone: Gone) -> None:
        self._gate, self._caller, self._ask, self._protocol = gate, caller, ask, ask.protocol
        self._questions, self._turns, self._gone = shared.questions, shared.turns, gone
        self._has_turn = False
        self._ledger, self._metrics, self._clock = gate.ledger, gate.deps.metrics, gate.deps.clock
        self._limit = gate.deps.settings.max_content_bytes
        self._kept = Kept(self._limit)
        self._began = self._clock.monotonic_ms()

    async def run(self, model: ResolvedModel, credential: Mapping[str, str]) -> Response:
        """Send the request on; the answer, its body still to come."""
        self._questions.begin(self._ask.request_id)
        try:
            return await self._answer(model, credential)
        except BaseException:
            self._over()
            raise

    async def _answer(self, model: ResolvedModel, credential: Mapping[str, str]) -> Response:
        await self._note_request()
        await self._take_turn(model)
        reached(Point.MODEL_BEFORE)
        self._began = self._clock.monotonic_ms()
        try:
            answer = await self._send(model, credential)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            told = Answered(0, JSON, type(error).__name__, billed=not isinstance(error, NOT_SENT))
            await self._note_answer(told, Reading())
            why = f"the model provider can't be reached ({type(error).__name__})"
            raise Refusal(why, status=502, reason="ProviderUnreachable") from None
        self._metrics.model_first_byte.observe((self._clock.monotonic_ms() - self._began) / 1000)
        told = Answered(answer.status_code, answer.headers.get("content-type", JSON), billed=answer.is_success)
        streams = told.good and told.content_type.startswith(EVENT_STREAM)
        body = self._stream(answer, told) if streams else self._whole(answer, told)
        headers = returned(answer.headers, decoded=True) | _left(self._caller.run)
        return Piped(body, told.status, headers, told.content_type, self._gate.deps.log)

    async def _take_turn(self, model: ResolvedModel) -> None:
        """Raise Refusal where it doesn't come, or comes to nobody's use any more (I5); nothing has left then."""
        if model.max_concurrent is None:
            return
        patience, began = self._gate.deps.settings.model_room_ms / 1000, self._clock.monotonic_ms()
        self._has_turn = await self._turns.take(self._place, self._caller.run.uid, model.max_concurrent, patience)
        self._metrics.model_turn.observe((self._clock.monotonic_ms() - began) / 1000)
        try:
            await self._demand_use(model)
        except Refusal as error:
            await self._note_answer(Answered(0, JSON, error.reason), Reading())
            raise

    async def _demand_use(self, model: ResolvedModel) -> None:
        """Of the turn, which may have come minutes after it was asked for. What others wrote meanwhile counts."""
        if not self._has_turn or await self._gone():
            why = f"ModelProvider {model.provider} has as many requests under way as it may have: ask again"
            raise Refusal(why, status=429, reason="ProviderBusy", headers={"retry-after": "5"})
        run = self._caller.run
        await self._ledger.refresh(run)
        await self._gate.demand_epoch(run, self._caller.epoch, "model", self._caller.pod.pod_uid)
        if _stopped(run):
            raise Refusal("the run is over, or about to be: it asks no model any more", status=409, reason="RunStopped")

    @property
    def _place(self) -> tuple[str, str]:
        """Whose turns these are."""
        model = self._caller.run.spec.agent.model
        return self._caller.run.tenant, model.provider if model else ""

    async def _close(self, answer: httpx.Response) -> None:
        """The provider has nothing under way for this any more."""
        try:
            await answer.aclose()
        finally:
            self._give_back()

    def _over(self) -> None:
        """Whatever it came to; saying it again does nothing."""
        self._questions.end(self._ask.request_id)
        self._give_back()

    def _give_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turns.give_back(self._place)

    async def _send(self, model: ResolvedModel, credential: Mapping[str, str]) -> httpx.Response:
        http, settings = self._gate.deps.http, self._gate.deps.settings
        request = self._ask.outgoing(self._protocol.path, model, credential, settings)
        return await http.send(http.build_request(**request), stream=True)

    # --- bodies -------------------------------------------------------------------------------------------------------

    async def _stream(self, answer: httpx.Response, told: Answered) -> AsyncIterator[bytes]:
        """Pass events on as they come. An agent that doesn't read them holds up neither the provider nor who waits."""
        unread = Unread(self._limit)
        reading = asyncio.create_task(self._read(answer, told, unread))
        reading.add_done_callback(lambda _: unread.end())
        try:
            async for piece in unread.pieces():
                yield piece
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, answer: httpx.Response, told: Answered, unread: Unread) -> None:
        """Read events as they come; what ends the answer waits for its record. Raise Cut where it has no end."""
        passing = Passing(self._protocol, self._limit, altered=self._ask.sent is not self._ask.body)
        noted, problem = False, "EndedEarly"
        try:
            async with contextlib.aclosing(_pieces(answer, passing)) as pieces:
                async for piece in pieces:
                    self._kept.add(piece)
                    if passing.reading.complete and not noted:
                        noted = True
                        await self._note_answer(told, passing.reading)
                    if piece:
                        reached(Point.MODEL_STREAM)
                        unread.put(piece)
                    if unread.over or (not noted and (passing.over or _stopped(self._caller.run))):
                        problem = "TooLarge" if unread.over or passing.over else "Stopped"
                        break
        except httpx.HTTPError as error:
            problem = type(error).__name__
        finally:
            await self._close(answer)
            if not noted:
                await self._note_answer(Answered(told.status, told.content_type, problem, billed=True), passing.reading)
        if not noted:
            raise Cut(problem)

    async def _whole(self, answer: httpx.Response, told: Answered) -> AsyncIterator[bytes]:
        """An answer in one piece: read, noted, then passed on."""
        problem = None
        try:
            async for chunk in answer.aiter_bytes():
                self._kept.add(chunk)
        except httpx.HTTPError as error:
            problem = type(error).__name__
        except BaseException:
            self._over()  # nobody notes this answer: it is settled like one that got lost
            raise
        finally:
            await self._close(answer)
        problem = problem or ("TooLarge" if self._kept.over else None)
        reading = self._protocol.read(self._kept.content()) if told.good else Reading()
        await self._note_answer(Answered(told.status, told.content_type, problem, told.billed), reading)
        if problem:
            raise Cut(problem)
        yield self._kept.content()

    # --- records ------------------------------------------------------------------------------------------------------

    async def _note_request(self) -> None:
        """Content first, then the record with what is reserved (B2), both durable before anything leaves (E1, J8)."""
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
        draft = await self._draft(RecordType.MODEL_REQUEST, payload, ask.body)
        await self._questions.ask(run, self._caller.epoch, draft, self._gone)

    async def _note_answer(self, told: Answered, reading: Reading) -> None:
        """It belongs to no attempt: what was spent is spent, also when the epoch rose meanwhile."""
        try:
            usage, estimated = self._settled(told, reading)
            self._measure(told, usage)
            reached(Point.MODEL_WITHIN)
            await self._append_answer(told, reading, usage, estimated=estimated)
            reached(Point.MODEL_AFTER)
        finally:
            self._questions.end(self._ask.request_id)

    def _settled(self, told: Answered, reading: Reading) -> tuple[dict[str, int], bool]:
        """What the answer used and cost, and whether that is an estimate."""
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
        content = b"" if self._kept.over else self._kept.content()
        try:
            draft = await self._draft(RecordType.MODEL_RESPONSE, payload, content)
            await self._ledger.append(run, None, [draft])
        except RunSealed:
            self._gate.deps.log.warning("model_answer_after_the_release", run_uid=run.uid)

    async def _draft(self, kind: RecordType, payload: Mapping[str, Any], content: bytes) -> Draft:
        """Its content is durable before it is (J8)."""
        run, ask = self._caller.run, self._ask
        attachments = {"content": await self._ledger.attach(run, content)} if content else None
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


async def _pieces(answer: httpx.Response, passing: Passing) -> AsyncGenerator[bytes, None]:
    """What may go on, piece by piece; an empty one is a moment to look up."""
    async for chunk in answer.aiter_bytes():
        yield passing.feed(chunk)
    yield passing.close()


def _left(run: Run) -> dict[str, str]:
    """C7: what is used and left before this answer; costs in dollars."""
    limits, used, told = run.spec.limits, run.state.usage, {}
    if limits.tokens_hard is not None:
        told[TOKENS_LEFT_HEADER] = str(max(0, limits.tokens_hard - used.tokens))
    if limits.cost_hard_micros is not None:
        told[COST_LEFT_HEADER] = dollars(max(0, limits.cost_hard_micros - used.cost_micros))
    if limits.cost_hard_micros is not None or limits.cost_soft_micros is not None:
        told[COST_USED_HEADER] = dollars(used.cost_micros)
    return told


def _stopped(run: Run) -> bool:
    """I5: nobody will act on the rest of this answer."""
    return run.at is not None and (run.at.state.end is not None or run.at.state.cancel_stage is not None)
