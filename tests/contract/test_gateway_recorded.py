"""R2 over all protocols: what was answered since the last safe point is answered again from the record, unbilled, and
lies encrypted until nobody can ask for it any more."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs
from tests.gateway_script import PASSWORD, Operator, agent_at_work, ok, resolved
from tests.model_place import ANTHROPIC, CHAT, KEY, MODEL, REPLY, RESPONSES, Place, Spoken, last, place, script

from moorage.api.wire import ResolvedAgent, ResolvedModel, ResolvedOrigin, SecretRef
from moorage.core.journal.ciphers import MAGIC, ContentKeys
from moorage.core.journal.record import BlobRef
from moorage.gateway.app import app_of
from moorage.gateway.gate import Gate
from moorage.gateway.housekeeping import Housekeeping
from moorage.store.blobs import FileBlobs
from moorage.store.errors import StoreUnavailable
from moorage.store.peers import Alone
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway

__all__ = ["place", "script"]  # fixtures

KEYS = ContentKeys.of([b"k" * 32])
ALL = pytest.mark.parametrize("spoken", [ANTHROPIC, RESPONSES, CHAT], ids=lambda spoken: spoken.name)
STREAMING = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@pytest.fixture
async def gateway(tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    """Over files, with keys."""
    store = SqliteStore(tmp_path / "journal.db")
    blobs = FileBlobs(tmp_path / "blobs", clock.now_ms)
    made = LocalGateway(tmp_path, store=store, blobs=blobs, clock=clock, lot=lambda: 0, content_keys=KEYS)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving():
        yield made
    await store.close()


async def taken_over(operator: Operator) -> None:
    """The attempt is lost, and another one begins."""
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)


def on_disk(tmp_path: Path) -> bytes:
    return b"".join(path.read_bytes() for path in tmp_path.glob("**/*") if path.is_file() and "srv" not in path.parts)


@ALL
@STREAMING
@pytest.mark.rule("R2", "T5")
async def test_an_agent_that_starts_again_gets_what_was_answered_and_the_disk_doesnt_tell_what(
    place: Place, spoken: Spoken, tmp_path: Path, *, stream: bool
) -> None:
    operator = await place.run(spoken)
    first = await place.ask(spoken, stream=stream)
    used = (await operator.state())["usage"]
    await taken_over(operator)
    place.gateway.restart()
    again = await place.ask(spoken, "p2", stream=stream)
    assert (again.content, again.headers["content-type"]) == (first.content, first.headers["content-type"])
    assert again.headers["x-moorage-replayed"] == "true"
    assert len(place.model.log) == 1
    assert (await operator.state())["usage"] == used
    held = on_disk(tmp_path)
    assert MAGIC in held
    assert REPLY.text.encode() not in held
    assert b"mend it" not in held


@ALL
@pytest.mark.rule("R2")
async def test_an_agent_whose_gateway_died_gets_what_it_may_have_missed(place: Place, spoken: Spoken) -> None:
    """Of the same attempt, without a word of its client's that it asks again."""
    operator = await place.run(spoken)
    first = await place.ask(spoken, stream=True)
    place.gateway.restart()
    again = await place.ask(spoken, stream=True)
    assert again.content == first.content
    assert len(place.model.log) == 1
    await place.ask(spoken, stream=True)
    assert len(place.model.log) == 2, "it had that answer, and asked for another"
    assert (await operator.state())["usage"]["model_requests"] == 2


@pytest.mark.rule("R2")
async def test_another_attempts_agent_gets_it_once_and_then_another_one(place: Place) -> None:
    operator = await place.run(ANTHROPIC)
    await place.ask(ANTHROPIC)
    await taken_over(operator)
    answers = [await place.ask(ANTHROPIC, "p2") for _ in range(3)]
    assert [each.headers.get("x-moorage-replayed") for each in answers] == ["true", None, None]
    assert len(place.model.log) == 3


class Lively(Alone):
    """Whoever went by another name lives."""

    async def gone(self, name: str) -> bool:  # noqa: ARG002  the port's
        return False


@pytest.mark.rule("R2")
async def test_what_another_gateway_answered_that_lives_is_taken_for_heard_unless_the_client_says_otherwise(
    place: Place,
) -> None:
    await place.run(ANTHROPIC)
    await place.ask(ANTHROPIC)
    place.gateway.deps = replace(place.gateway.deps, peers=Lively())
    place.gateway.gate = Gate(place.gateway.deps)
    place.gateway._app = app_of(place.gateway.gate)
    await place.ask(ANTHROPIC)
    assert len(place.model.log) == 2
    headers = {"x-stainless-retry-count": "1"}
    again = await place.client().post(ANTHROPIC.path, json=ANTHROPIC.ask(), headers=headers)
    assert again.headers["x-moorage-replayed"] == "true"
    assert len(place.model.log) == 2


@pytest.mark.rule("R2")
@STREAMING
async def test_an_agent_that_went_away_before_the_end_gets_it_when_it_asks_again(place: Place, *, stream: bool) -> None:
    async def left(scope: Scope, receive: Receive, send: Send) -> None:
        """The client is gone as soon as it has asked."""
        asked = False

        async def told() -> Message:
            nonlocal asked
            message = {"type": "http.disconnect"} if asked else await receive()
            asked = asked or not message.get("more_body")
            return message

        await place.gateway(scope, told, send)

    await place.run(ANTHROPIC)
    headers = {"authorization": f"Bearer {place.gateway.token_for_pod('p1', 'team-a')}"}
    transport = httpx.ASGITransport(left)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        await client.post(ANTHROPIC.path, json=ANTHROPIC.ask(stream=stream))
        again = [await client.post(ANTHROPIC.path, json=ANTHROPIC.ask(stream=stream)) for _ in range(2)]
    assert [each.headers.get("x-moorage-replayed") for each in again] == ["true", None], "not for ever"
    assert len(place.model.log) == 2


@pytest.mark.rule("T5")
async def test_what_is_captured_is_kept_as_it_is(place: Place) -> None:
    operator = await place.run(ANTHROPIC, capture=True)
    answer = await place.ask(ANTHROPIC)
    ref = (await last(operator, "MODEL_RESPONSE")).attachments["content"]
    assert ref.retention == "erasable"
    assert await place.gateway.deps.blobs.get("team-a", ref) == answer.content
    assert ref.sha256 in await place.gateway.deps.store.referenced_blobs("team-a")


@pytest.mark.rule("R8")
@pytest.mark.parametrize("native", [True, False], ids=["builtin", "another"])
async def test_the_last_release_which_decrypts_nothing_finds_no_content_of_ours(place: Place, *, native: bool) -> None:
    """It gives what an answer's `content` is, as it lies, and hands a sandbox what a request's is."""
    operator = await place.run(ANTHROPIC)
    headers = {"x-moorage-turn": "1"} if native else {}
    await ok(await place.client().post(ANTHROPIC.path, json=ANTHROPIC.ask(), headers=headers))
    request, response = await last(operator, "MODEL_REQUEST"), await last(operator, "MODEL_RESPONSE")
    assert set(response.attachments) == {"sealed"}
    assert set(request.attachments or {}) == ({"sealed"} if native else set())


@pytest.mark.rule("T5")
async def test_what_is_kept_for_a_recovery_is_in_no_bundle(place: Place) -> None:
    operator = await place.run(ANTHROPIC)
    await place.ask(ANTHROPIC)
    ref = (await last(operator, "MODEL_RESPONSE")).attachments["sealed"]
    assert ref.retention == "replay"
    reader = place.gateway.reader("bob", "team-a")
    cited = (await reader.get("/v1/runs/u1/blobs")).content
    assert ref.sha256.encode() not in cited
    assert MAGIC not in cited


@pytest.mark.rule("R2")
@pytest.mark.parametrize("keys", [ContentKeys.of([b"x" * 32]), None])
async def test_without_its_key_the_model_is_asked_again_and_the_log_says_so(
    place: Place, keys: ContentKeys | None
) -> None:
    operator = await place.run(ANTHROPIC)
    await place.ask(ANTHROPIC)
    await taken_over(operator)
    place.gateway.deps = replace(place.gateway.deps, content_keys=keys)
    place.gateway.restart()
    with capture_logs() as logs:
        assert (await place.ask(ANTHROPIC, "p2")).status_code == 200
    assert len(place.model.log) == 2
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["recorded_answer_lost"]
    assert "mend it" not in str(logs)
    assert REPLY.text not in str(logs)


@STREAMING
@pytest.mark.rule("R2", "B2")
async def test_a_store_that_takes_no_answers_fails_no_request_and_charges_for_none(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    async def away(*_: Any) -> BlobRef:
        raise StoreUnavailable("S3 is away")

    operator = await place.run(ANTHROPIC)
    with monkeypatch.context() as hiccup:
        hiccup.setattr(place.gateway.deps.blobs, "put", away)
        assert (await place.ask(ANTHROPIC, stream=stream)).status_code == 200
    used = (await operator.state())["usage"]
    await taken_over(operator)
    assert (await place.ask(ANTHROPIC, "p2", stream=stream)).status_code == 200, "nobody kept the first one"
    assert len(place.model.log) == 2
    again = (await operator.state())["usage"]
    assert used["output_tokens"] > 0
    assert {name: again[name] for name in ("output_tokens", "model_requests")} == {
        name: 2 * used[name] for name in ("output_tokens", "model_requests")
    }


@STREAMING
@pytest.mark.rule("B2", "T5")
@pytest.mark.parametrize("keys", [KEYS, None], ids=["captured", "without keys"])
async def test_an_answer_that_nobody_can_keep_for_people_is_given_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch, keys: ContentKeys | None, *, stream: bool
) -> None:
    """What was asked had to be kept: nothing was paid for then."""
    really = place.gateway.deps.blobs.put

    async def full(tenant: str, content: bytes, *rest: Any) -> BlobRef:
        if b"mend it" not in content:
            raise StoreUnavailable("S3 is away")
        return await really(tenant, content, *rest)

    place.gateway.deps = replace(place.gateway.deps, content_keys=keys)
    place.gateway.restart()
    operator = await place.run(ANTHROPIC, capture=keys is not None)
    monkeypatch.setattr(place.gateway.deps.blobs, "put", full)
    with capture_logs() as logs:
        answer = await place.ask(ANTHROPIC, stream=stream)
    assert (answer.status_code, REPLY.text.split()[0] in answer.text) == (200, True)
    noted = await last(operator, "MODEL_RESPONSE")
    assert (noted.payload["complete"], noted.attachments) == (True, None)
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["answer_not_kept"]
    with monkeypatch.context() as away:
        away.setattr(place.gateway.deps.blobs, "put", lost)
        refused = await place.ask(ANTHROPIC, stream=stream, temperature=0.5)
    assert (refused.status_code, len(place.model.log)) == (503, 1)


async def lost(*_: Any) -> BlobRef:
    raise StoreUnavailable("S3 is away")


@pytest.mark.rule("J8")
async def test_it_goes_once_no_recovery_can_ask_for_it(place: Place, clock: StepClock) -> None:
    operator = await place.run(ANTHROPIC)
    await place.ask(ANTHROPIC)
    clock.advance(10 * place.gateway.deps.settings.orphan_age_ms)
    await Housekeeping(place.gateway.gate).once()
    blobs = await place.gateway.deps.blobs.digests("team-a")
    assert {ref.sha256 for ref in await contents(operator)} <= set(blobs), "an attempt may ask for them"
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 1}
    await ok(await place.client().post("/v1/self/checkpoint", json=point))
    await Housekeeping(place.gateway.gate).once()
    left = await place.gateway.deps.blobs.digests("team-a")
    assert not {ref.sha256 for ref in await contents(operator)} & set(left)
    assert set(left) == await place.gateway.deps.store.referenced_blobs("team-a")


@pytest.mark.rule("O2", "T5", "J8")
async def test_the_end_of_a_conversation_that_is_in_no_checkpoint_is_kept_for_the_next_run_of_its_session(
    place: Place, clock: StepClock, tmp_path: Path
) -> None:
    place.gateway.secrets.give("team-a", "model", **{"api-key": KEY})
    secret = SecretRef(name="model", key="api-key")
    model = ResolvedModel(
        provider="main", protocol=ANTHROPIC.name, base_url=place.model.url, name=MODEL, credentials=secret
    )
    agent = ResolvedAgent(driver="builtin", model=model)
    first = Operator(place.gateway, resolved(place.upstream, agent=agent))
    await agent_at_work(place.gateway, first)
    headers = {"authorization": "Bearer token-of-p1", "x-moorage-turn": "1"}
    await place.client().post(ANTHROPIC.path, json=ANTHROPIC.ask(), headers=headers)
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 1}
    await ok(await place.client().post("/v1/self/checkpoint", json=point))
    await ok(await first.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "", "commit": None}))
    clock.advance(10 * place.gateway.deps.settings.orphan_age_ms)
    await Housekeeping(place.gateway.gate).once()
    origin = ResolvedOrigin(uid="u1", name="fix")
    more = {"name": "more", "session_id": "u1", "origin": origin, "agent": agent, "delivery": None}
    second = Operator(place.gateway, resolved(place.upstream, "u2", **more))
    await second.admit()
    await ok(await second.report(0, "RUN_FAILED", {"reason": "NoQuota", "message": "", "commit": None}))
    after = more | {"name": "last", "origin": ResolvedOrigin(uid="u2", name="more")}
    third = Operator(place.gateway, resolved(place.upstream, "u3", **after))
    runner = await third.start(pod="p2")
    assert (await ok(await runner.get("/v1/self")))["conversation"] is True
    told = await ok(await runner.get("/v1/self/conversation"))
    assert json.loads(told["request"]) == ANTHROPIC.ask()
    assert "word word" in told["answer"]
    assert b"mend it" not in on_disk(tmp_path), "it lies encrypted"
    for uid in ("u1", "u2"):
        await ok(await place.gateway.operator.post(f"/v1/runs/{uid}/release"))
    await Housekeeping(place.gateway.gate).once()
    assert await ok(await runner.get("/v1/self/conversation")) == told, "it has begun at that"
    await ok(await third.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "", "commit": None}))
    await ok(await place.gateway.operator.post("/v1/runs/u3/release"))
    await Housekeeping(place.gateway.gate).once()
    assert set(await place.gateway.deps.blobs.digests("team-a")) == await place.gateway.deps.store.referenced_blobs(
        "team-a"
    )


async def contents(operator: Operator) -> list[Any]:
    asked = [record for record in await operator.records() if record.type in {"MODEL_REQUEST", "MODEL_RESPONSE"}]
    return [ref for record in asked for ref in (record.attachments or {}).values()]
