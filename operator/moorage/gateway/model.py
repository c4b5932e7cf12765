"""The model doors: the run's own model, the real credential added on the way out, both directions journaled.

One mechanism for all protocols; what they differ in is in `moorage.core.models`.

Order (R2, M1): the request is durable before it leaves; the answer is durable before its last event reaches the agent,
so that no decision is acted on that the journal doesn't have. A stream passes chunk by chunk. What a client that went
away doesn't read is still read here, and given to it when it asks again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.wire import ResolvedModel, Role
from moorage.core.constraints.limits import DECISION
from moorage.core.journal.canonical import canonical
from moorage.core.journal.errors import JournalError, NotCanonical
from moorage.core.journal.record import RecordType
from moorage.core.models.anthropic import MESSAGES
from moorage.core.models.breaker import Policy
from moorage.core.models.prices import worst
from moorage.core.models.protocol import Protocol
from moorage.core.models.spoken import PROTOCOLS
from moorage.gateway.addresses import is_http, leads_to_metadata
from moorage.gateway.ask import Ask
from moorage.gateway.breakers import Breakers
from moorage.gateway.consents import Consents
from moorage.gateway.constraints import Asking, Exhausted
from moorage.gateway.contents import ContentLost
from moorage.gateway.credentials import MODEL_KEYS, demand_header_value, unfit
from moorage.gateway.errors import Refusal, TooLarge, Unavailable
from moorage.gateway.exchange import Shared
from moorage.gateway.facts import ModelAnswer
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.given import Given
from moorage.gateway.headers import content_type, forwarded, returned
from moorage.gateway.http import JSON, Piped, at_once, read_body
from moorage.gateway.kept import Kept
from moorage.gateway.ledger import Run
from moorage.gateway.pausing import Pauses
from moorage.gateway.ports import SecretMissing
from moorage.gateway.providers import Unheard
from moorage.gateway.questions import Questions
from moorage.gateway.room import Held
from moorage.gateway.tries import Tries
from moorage.gateway.turns import Turns
from moorage.store.errors import StoreError

PREFIX = "/model"
NO_RETRY = {"x-should-retry": "false"}
RETRY_HEADER = "x-stainless-retry-count"
TURN_HEADER = "x-moorage-turn"
PAUSES_HEADER = "x-moorage-pauses"  # R8: a driver of ours of before this release has a turn, and doesn't know pauses


class ModelRoom:
    """POST at each protocol's own path below /model, and the lists of what may be asked."""

    def __init__(self, gate: Gate, questions: Questions) -> None:
        self._gate, self._questions, self._ledger = gate, questions, gate.ledger
        self._metrics, self._settings = gate.deps.metrics, gate.deps.settings
        self._shared, self._pauses, self._consents = _shared(gate, questions), Pauses(gate), Consents(gate)
        self._coming: WeakKeyDictionary[Run, int] = WeakKeyDictionary()

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        spoken = PROTOCOLS.values()
        asking = [_post(each.path, partial(self.ask, each), "model") for each in spoken]
        counting = [_post(each.counting, partial(self.count, each), "model-count") for each in spoken if each.counting]
        return [
            *asking,
            *counting,
            Route(f"{PREFIX}/v1/models", self.models, methods=["GET"], name="models"),
            Route(f"{PREFIX}/v1/models/{{name:path}}", self.model, methods=["GET"], name="models"),
            Route(f"{PREFIX}/{{path:path}}", self.unknown, methods=["GET", "POST"], name="model-unknown"),
        ]

    async def unknown(self, _: Request) -> Response:
        """What the protocols have and these doors haven't: told in a protocol's own words."""
        known = ", ".join(each.path for each in PROTOCOLS.values())
        return refused(MESSAGES, Refusal(f"this gateway relays POST to {known} only", status=404))

    async def ask(self, protocol: Protocol, request: Request) -> Response:
        """One request; every refusal in the provider's own shape, so that SDKs understand it."""
        return await self._told(protocol, self._answer(protocol, request))

    async def _told(self, protocol: Protocol, answer: Awaitable[Response]) -> Response:
        try:
            return await answer
        except Refusal as error:
            self._metrics.model_requests.labels(protocol.name, error.reason).inc()
            return refused(protocol, error)
        except (StoreError, JournalError) as error:
            self._gate.deps.log.warning("model_request_not_journaled", reason=type(error).__name__)
            return refused(protocol, Unavailable("the journal can't take the request now; ask again"))

    async def _answer(self, protocol: Protocol, request: Request) -> Response:
        caller = await self._gate.sandbox(request, "model", Role.RUNNER)
        model = _demand_model(caller.run, protocol)
        with self._admitted(caller.run):
            decided = partial(self._decided, caller, model, protocol, request)
            return await self._gate.room.holding(caller.run.uid, decided)

    @contextlib.contextmanager
    def _admitted(self, run: Run) -> Iterator[None]:
        """I6: a body is held here for as long as its request waits."""
        most, coming = self._settings.model_open, self._coming.setdefault(run, 0)
        if coming >= most:
            why = f"{most} model requests of this run wait or are unanswered: ask again once one has ended"
            raise Refusal(why, status=429, reason="TooManyOpen", headers={"retry-after": "5"})
        self._coming[run] += 1
        try:
            yield
        finally:
            self._coming[run] -= 1

    async def _decided(
        self, caller: Caller, model: ResolvedModel, protocol: Protocol, request: Request, held: Held
    ) -> Response:
        ask = await self._read(protocol, request, model, held)
        recorded = await self._recorded(caller, ask)
        if recorded is not None and (answer := await self._again(caller, ask, recorded, request, held)) is not None:
            return answer
        await self._questions.settle(caller.run)
        await self._gate.judge.admit(caller.run, Asking(DECISION))
        await self._consents.demand_spending(caller, request.is_disconnected)
        await self._pauses.demand_going(caller.run, request.is_disconnected, native=PAUSES_HEADER in request.headers)
        await _demand_address(model)
        credential = await self._credential(protocol, caller.run, model)
        return await Tries(self._gate, caller, self._shared, request.is_disconnected).run(ask, model, credential)

    # --- what is no decision ------------------------------------------------------------------------------------------

    async def count(self, protocol: Protocol, request: Request) -> Response:
        """How many tokens a request would have, by the provider's word. It decides nothing, and nothing is recorded."""
        return await self._told(protocol, self._count(protocol, request))

    async def _count(self, protocol: Protocol, request: Request) -> Response:
        caller = await self._gate.sandbox(request, "model", Role.RUNNER)
        model = _demand_model(caller.run, protocol)
        with self._admitted(caller.run):
            return await self._gate.room.holding(
                caller.run.uid, partial(self._measured, caller, model, protocol, request)
            )

    async def _measured(
        self, caller: Caller, model: ResolvedModel, protocol: Protocol, request: Request, held: Held
    ) -> Response:
        ask = await self._read(protocol, request, model, held)
        await _demand_address(model)
        credential = await self._credential(protocol, caller.run, model)
        return await self._counted(ask, model, credential)

    async def _counted(self, ask: Ask, model: ResolvedModel, credential: Mapping[str, str]) -> Response:
        kept = Kept(self._settings.max_content_bytes)
        asking = ask.outgoing(ask.protocol.counting or "", model, credential, self._settings)
        try:
            answer = await self._gate.deps.providers.post(asking)
            try:
                async for piece in answer.pieces():
                    kept.add(piece)
            finally:
                await answer.close()
        except Unheard as error:
            why = f"the model provider can't be reached ({error.problem})"
            raise Refusal(why, status=502, reason="ProviderUnreachable") from None
        kind = content_type(answer.headers, JSON)
        headers = returned(answer.headers, decoded=True, credential=credential)
        return Response(kept.without(credential).content(), answer.status, headers, kind)

    async def models(self, request: Request) -> Response:
        """The models that the run may use, as its provider would list them."""
        protocol = MESSAGES
        try:
            protocol, names = await self._offered(request)
        except Refusal as error:
            return refused(protocol, error)
        return Response(protocol.listed(names), 200, media_type=JSON)

    async def model(self, request: Request) -> Response:
        """One of them."""
        protocol, name = MESSAGES, request.path_params["name"]
        try:
            protocol, names = await self._offered(request)
            _demand_allowed(name, names)
        except Refusal as error:
            return refused(protocol, error)
        return Response(protocol.entry(name), 200, media_type=JSON)

    async def _offered(self, request: Request) -> tuple[Protocol, tuple[str, ...]]:
        caller = await self._gate.sandbox(request, "model", Role.RUNNER)
        model = _demand_model(caller.run)
        return PROTOCOLS[model.protocol], _allowed(model)

    # --- the request --------------------------------------------------------------------------------------------------

    async def _read(self, protocol: Protocol, request: Request, model: ResolvedModel, held: Held) -> Ask:
        try:
            body = await read_body(request, self._settings.model_body_bytes, held.take)
        except TooLarge as error:
            raise Refusal(error.message, status=413, reason="TooLarge") from None
        asked = _parse(body)
        _demand_here(protocol, asked)
        name = _demand_allowed(asked.get("model"), _allowed(model))
        turn = request.headers.get(TURN_HEADER, "")
        return Ask(
            protocol=protocol,
            request_id=uuid4().hex,
            body=body,
            asked=asked,
            sent=protocol.sent(asked, body),
            bytes_hash=_hash(asked, body),
            model=name,
            prices=model.prices.get(name),
            worst=worst(len(body), protocol.cap(asked) or model.max_output_tokens.get(name), model.prices.get(name)),
            query=request.url.query,
            turn=int(turn) if turn.isascii() and turn.isdigit() and len(turn) < 10 else None,
            again=request.headers.get(RETRY_HEADER, "0") != "0",
            headers=forwarded(request.headers),
        )

    async def _credential(self, protocol: Protocol, run: Run, model: ResolvedModel) -> dict[str, str]:
        """T2: read at use, kept by nobody."""
        if model.credentials is None:
            return {}
        ref, of = model.credentials, f"provider {model.provider}"
        keys = (ref.key,) if ref.key else MODEL_KEYS
        try:
            key = (await self._gate.deps.secrets.read(run.tenant, ref)).text(*keys)
        except SecretMissing:
            key = None
        except UnicodeDecodeError:
            raise unfit(of, ref.name, keys, 401) from None
        if not key:
            raise Refusal(
                f"the credential of {of} is missing: Secret {ref.name}", status=401, reason="CredentialMissing"
            )
        demand_header_value(key, of, ref.name, keys, 401)
        return protocol.credential(key)

    # --- R2 -----------------------------------------------------------------------------------------------------------

    async def _recorded(self, caller: Caller, ask: Ask) -> ModelAnswer | None:
        """The answer to these bytes since the last safe point, where this agent hasn't heard it.

        An earlier attempt's agent is another one. Of this attempt's, a client says that it asks again; others are known
        by what became of the answer: a process that died may have kept it to itself. Who had it and asks once more
        wants another one.
        """
        found = caller.run.facts.answers.get(ask.bytes_hash)
        if found is None or caller.epoch not in found.had or ask.again:
            return found
        return None if await self._heard(found) else found

    async def _heard(self, found: ModelAnswer) -> bool:
        gateway = found.question.gateway
        if gateway is None:  # an older version, which didn't say whose it was
            return True
        if gateway == self._questions.me:
            return self._shared.given.heard(found.request_id)
        return self._shared.given.heard(found.request_id) or not await self._gate.deps.peers.gone(gateway)

    async def _again(
        self, caller: Caller, ask: Ask, found: ModelAnswer, request: Request, held: Held
    ) -> Response | None:
        """Give the recorded answer, unbilled; None where its content was erased, and the model has to be asked."""
        held.take(found.content.size)
        try:
            content = await self._gate.contents.read(caller.run.tenant, found.content)
        except ContentLost as error:
            why = {"run_uid": caller.run.uid, "request_id": found.request_id, "why": str(error)}
            self._gate.deps.log.warning("recorded_answer_lost", **why)
            return None
        payload = {"status": found.status, "replayed": True, "of": found.request_id, "usage": {}}
        draft = self._ledger.observed(
            RecordType.MODEL_RESPONSE,
            payload,
            "replayed",
            uuid4().hex,
            request_id=found.request_id,
            attempt=caller.run.state.attempt,
        )
        await self._ledger.append(caller.run, caller.epoch, [draft])
        self._metrics.model_requests.labels(ask.protocol.name, "replayed").inc()
        given = self._shared.given
        given.begin(found.request_id)
        first = (
            caller.epoch not in found.had
        )  # a second time it isn't asked whether it is heard: nothing goes in circles
        heard = partial(given.sent, found.request_id, request.is_disconnected) if first else None
        headers, log = {"x-moorage-replayed": "true"}, self._gate.deps.log
        return Piped(at_once(content), found.status, headers, found.content_type, log, heard=heard)


def _shared(gate: Gate, questions: Questions) -> Shared:
    deps, settings = gate.deps, gate.deps.settings
    policy = Policy(settings.breaker_failures, settings.breaker_open_ms, settings.breaker_longest_ms)
    return Shared(questions, Turns(deps.clock), Breakers(policy, deps.clock, deps.metrics, deps.log), Given())


def _post(path: str, door: Any, name: str) -> Route:
    return Route(f"{PREFIX}{path}", door, methods=["POST"], name=name)


def refused(protocol: Protocol, error: Refusal) -> Response:
    """A refusal that the provider's SDKs understand, and don't repeat where repeating can't help."""
    passing = error.status >= 500 or error.status in {425, 429}
    headers = dict(error.headers) if passing else NO_RETRY
    status = 400 if error.status == 409 or isinstance(error, Exhausted) else error.status
    return Response(protocol.error(status, error.reason, error.message), status, headers, JSON)


def _demand_model(run: Run, protocol: Protocol | None = None) -> ResolvedModel:
    """The run's model, which speaks that protocol, or any that is passed on."""
    model = run.spec.agent.model
    if model is None:
        raise Refusal("this run has no model: give its agent one", status=403, reason="NoModel")
    spoken = PROTOCOLS.get(model.protocol)
    if spoken is None or (protocol is not None and spoken is not protocol):
        asked = spoken.path if spoken else "no path here"
        raise Refusal(f"the run's model speaks {model.protocol}: ask at {asked}", status=404, reason="OtherProtocol")
    return model


def _allowed(model: ResolvedModel) -> tuple[str, ...]:
    return model.allowed or (model.name,)


def _demand_allowed(name: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(name, str) or name not in allowed:
        why = f"this run may use {', '.join(allowed)} and no other model"
        raise Refusal(why, status=404, reason="ModelNotAllowed")
    return name


async def _demand_address(model: ResolvedModel) -> None:
    if not is_http(model.base_url):
        raise Refusal(f"the address of provider {model.provider} is no http(s) URL", status=404, reason="BadAddress")
    if await leads_to_metadata(model.base_url):
        raise Refusal("the provider's address is a metadata service's", status=403, reason="AddressForbidden")


def _parse(body: bytes) -> dict[str, Any]:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refusal("the body is no JSON", status=400, reason="Invalid") from None
    if not isinstance(asked, dict):
        raise Refusal("the body is no JSON object", status=400, reason="Invalid")
    return asked


def _demand_here(protocol: Protocol, asked: Mapping[str, Any]) -> None:
    """B2: all that a request may come to follows from its own body, and its answer tells what it came to."""
    if (why := protocol.elsewhere(asked)) is not None:
        raise Refusal(f"this gateway doesn't pass on {why}", status=400, reason="NotCountable")


def _hash(asked: dict[str, Any], body: bytes) -> str:
    """Over the canonical bytes; over the bytes as they are where there is no canonical form."""
    try:
        return hashlib.sha256(canonical(asked)).hexdigest()
    except NotCanonical:
        return hashlib.sha256(body).hexdigest()
