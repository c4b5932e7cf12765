"""A what-if asks in the protocol of the recorded request, once and in one piece."""

import asyncio
import json
from typing import Any

import pytest
from tests.property.run_world import record

from moorage.cli.exits import CliError
from moorage.cli.replaying import Asked, demand_readable
from moorage.core.journal.record import BlobRef, RunIdentity
from moorage.core.recovery.counterfactual import Fork
from moorage.core.run.state import RunState
from moorage.testing.models import Reply, Script, StandIn
from moorage.testing.models.script import Usage

USER = [{"role": "user", "content": "mend it"}]
ASKED: dict[str, dict[str, object]] = {
    "anthropic-messages": {"max_tokens": 10, "messages": USER},
    "openai-responses": {"input": "mend it"},
    "openai-chat": {"messages": USER, "stream_options": {"include_usage": True}},
}


def forked(payload: dict[str, Any], retention: str = "erasable") -> Fork:
    run = RunIdentity(tenant="team-a", run_uid="u1", session_id="u1", workspace="w1")
    content = BlobRef(sha256="a" * 64, size=1, privacy="content", retention=retention)
    return Fork(run, RunState(), record(1, "MODEL_REQUEST", payload), content, None)


@pytest.mark.rule("P4")
@pytest.mark.parametrize("protocol", ASKED)
async def test_a_what_if_speaks_the_protocol_of_what_was_asked(protocol: str) -> None:
    reply = Reply(text="Otherwise.", usage=Usage(input_tokens=7, output_tokens=5, cache_read_input_tokens=100))
    async with StandIn(Script(replies=(reply,))).serving() as model:
        content = json.dumps({"model": "m", "stream": True, **ASKED[protocol]}).encode()
        asked = Asked(model.url, "other", "k-1", content)
        answer = await asyncio.to_thread(asked, forked({"protocol": protocol}))
    (entry,) = model.log
    assert (entry.status, entry.model, entry.stream, entry.api_key) == (200, "other", False, "k-1")
    assert {name: n for name, n in answer.usage.items() if n} == {
        "input_tokens": 7,
        "output_tokens": 5,
        "cache_read_tokens": 100,
    }


@pytest.mark.rule("T5")
def test_what_is_kept_for_a_recovery_alone_is_asked_nobody() -> None:
    demand_readable(forked({}))
    with pytest.raises(CliError, match="for a recovery alone") as refused:
        demand_readable(forked({}, "replay"))
    assert "capture: true" in str(refused.value.hint)
