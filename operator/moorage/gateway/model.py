"""The model door: the run's own model, the real credential added on the way out, both directions journaled.

Order (R2, M1): the request is durable before it leaves; the answer is durable before its last event reaches the agent,
so that no decision is acted on that the journal doesn't have. A stream passes chunk by chunk. What a client that went
away doesn't read is still read here, and given to it when it asks again.
"""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import uuid4

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.wire import ResolvedModel, Role
from moorage.core.journal.canonical import canonical
from moorage.core.journal.errors import JournalError, NotCanonical
from moorage.core.journal.record import RecordType
from moorage.gateway import anthropic
from moorage.gateway.addresses import is_http, leads_to_metadata
from moorage.gateway.credentials import MODEL_KEYS, demand_header_value, unfit
from moorage.gateway.errors import Refusal, TooLarge, Unavailable
from moorage.gateway.exchange import Ask, Exchange
from moorage.gateway.facts import ModelAnswer
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.headers import forwarded
from moorage.gateway.http import JSON, read_body
from moorage.gateway.ledger import Run
from moorage.gateway.ports import SecretMissing
from moorage.store.errors import BlobCorrupted, BlobMissing, StoreError

NO_RETRY = {"x-should-retry": "false"}
RETRY_HEADER = "x-stainless-retry-count"
TURN_HEADER = "x-moorage-turn"


class ModelRoom:
    """POST /model/v1/messages."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._ledger = gate.ledger
        self._metrics = gate.deps.metrics
        self._settings = gate.deps.settings

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        return [
            Route("/model/v1/messages", self.messages, methods=["POST"], name="model"),
            Route("/model/{path:path}", self.unknown, methods=["GET", "POST"], name="model-unknown"),
        ]

    async def unknown(self, _: Request) -> Response:
        """What the protocol has and this door hasn't: told in the protocol's own words."""
        return refused(Refusal("this gateway relays POST /v1/messages only", status=404))

    async def messages(self, request: Request) -> Response:
        """One request; every refusal in the provider's own shape, so that SDKs understand it."""
        try:
            caller = await self._gate.sandbox(request, "model", Role.RUNNER)
            model = _demand_model(caller.run)
            ask = await self._read(request, model)
            recorded = self._recorded(caller, ask)
            if recorded is not None and (answer := await self._again(caller, recorded)) is not None:
                return answer
            _demand_budget(caller.run)
            await _demand_address(model)
            credential = await self._credential(caller.run, model)
            return await Exchange(self._gate, caller, ask).run(model, credential)
        except Refusal as error:
            self._metrics.model_requests.labels(anthropic.PROTOCOL, error.reason).inc()
            return refused(error)
        except (StoreError, JournalError) as error:
            self._gate.deps.log.warning("model_request_not_journaled", reason=type(error).__name__)
            return refused(Unavailable("the journal can't take the request now; ask again"))

    # --- the request --------------------------------------------------------------------------------------------------

    async def _read(self, request: Request, model: ResolvedModel) -> Ask:
        try:
            body = await read_body(request, self._settings.model_body_bytes)
        except TooLarge as error:
            raise Refusal(error.message, status=413, reason="TooLarge") from None
        asked = _parse(body)
        name = asked.get("model")
        allowed = model.allowed or (model.name,)
        if not isinstance(name, str) or name not in allowed:
            why = f"this run may use {', '.join(allowed)} and no other model"
            raise Refusal(why, status=404, reason="ModelNotAllowed")
        turn = request.headers.get(TURN_HEADER, "")
        return Ask(
            request_id=uuid4().hex,
            body=body,
            bytes_hash=_hash(asked, body),
            model=name,
            stream=asked.get("stream") is True,
            query=request.url.query,
            turn=int(turn) if turn.isascii() and turn.isdigit() and len(turn) < 10 else None,
            again=request.headers.get(RETRY_HEADER, "0") != "0",
            headers=forwarded(request.headers),
        )

    async def _credential(self, run: Run, model: ResolvedModel) -> dict[str, str]:
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
        return {"x-api-key": key}

    # --- R2 -----------------------------------------------------------------------------------------------------------

    def _recorded(self, caller: Caller, ask: Ask) -> ModelAnswer | None:
        """The answer that an earlier attempt got since the last safe point, or that this very request got already."""
        found = caller.run.facts.answers.get(ask.bytes_hash)
        if found is None or not (found.epoch < caller.epoch or ask.again):
            return None
        return found

    async def _again(self, caller: Caller, found: ModelAnswer) -> Response | None:
        """Give the recorded answer, unbilled; None where its content was erased, and the model has to be asked."""
        try:
            content = await self._gate.deps.blobs.get(caller.run.tenant, found.content)
        except (BlobMissing, BlobCorrupted):
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
        self._metrics.model_requests.labels(anthropic.PROTOCOL, "replayed").inc()
        return Response(content, found.status, {"x-moorage-replayed": "true"}, found.content_type)


def refused(error: Refusal) -> Response:
    """A refusal that the provider's SDKs understand, and don't repeat where repeating can't help."""
    passing = error.status >= 500 or error.status in {425, 429}
    headers = dict(error.headers) if passing else NO_RETRY
    status = error.status if error.status != 409 else 400
    return Response(anthropic.error_body(status, f"{error.reason}: {error.message}"), status, headers, JSON)


def _demand_model(run: Run) -> ResolvedModel:
    model = run.spec.agent.model
    if model is None:
        raise Refusal("this run has no model: give its agent one", status=403, reason="NoModel")
    if model.protocol != anthropic.PROTOCOL:
        raise Refusal(f"the run's model speaks {model.protocol}, not this protocol", status=404, reason="OtherProtocol")
    return model


async def _demand_address(model: ResolvedModel) -> None:
    if not is_http(model.base_url):
        raise Refusal(f"the address of provider {model.provider} is no http(s) URL", status=404, reason="BadAddress")
    if await leads_to_metadata(model.base_url):
        raise Refusal("the provider's address is a metadata service's", status=403, reason="AddressForbidden")


def _demand_budget(run: Run) -> None:
    """B3: a hard limit stops; 0 left means 0."""
    limit, used = run.spec.limits.tokens_hard, run.state.usage.tokens
    if limit is not None and used >= limit:
        raise Refusal(f"the run's token limit of {limit} is used up ({used})", status=400, reason="BudgetExhausted")


def _parse(body: bytes) -> dict[str, Any]:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refusal("the body is no JSON", status=400, reason="Invalid") from None
    if not isinstance(asked, dict):
        raise Refusal("the body is no JSON object", status=400, reason="Invalid")
    return asked


def _hash(asked: dict[str, Any], body: bytes) -> str:
    """Over the canonical bytes; over the bytes as they are where there is no canonical form."""
    try:
        return hashlib.sha256(canonical(asked)).hexdigest()
    except NotCanonical:
        return hashlib.sha256(body).hexdigest()
