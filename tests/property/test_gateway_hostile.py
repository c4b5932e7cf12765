"""Whatever is sent to a door, what comes back is a typed answer, and the journal still stands."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.api.wire import ResolvedAgent, ResolvedRun, ResolvedWorkspace
from moorage.core.journal.chain import Intact
from moorage.core.journal.export import verify_export
from moorage.core.journal.record import RecordType
from moorage.core.run.reducer import replay
from moorage.testing.gateway import LocalGateway

pytestmark = pytest.mark.timeout(240)  # sixty examples against one gateway

DOORS = [
    ("operator", "PUT", "/v1/runs/u1"),
    ("operator", "POST", "/v1/runs/u1/fence"),
    ("operator", "POST", "/v1/runs/u1/pods"),
    ("operator", "POST", "/v1/runs/u1/records"),
    ("operator", "POST", "/v1/runs/u1/deliver"),
    ("operator", "GET", "/v1/runs/u1"),
    ("operator", "GET", "/v1/runs?pending=true"),
    ("operator", "GET", "/v1/runs/u1/logs"),
    ("operator", "GET", "/v1/runs/u1/diff"),
    ("runner", "POST", "/v1/self/records"),
    ("runner", "POST", "/v1/self/heartbeat"),
    ("runner", "POST", "/v1/self/checkpoint"),
    ("runner", "POST", "/v1/self/result"),
    ("runner", "POST", "/v1/self/verification"),
    ("runner", "POST", "/model/v1/messages"),
    ("runner", "POST", "/git/run.git/git-receive-pack"),
    ("runner", "POST", "/git/run.git/git-upload-pack"),
    ("runner", "GET", "/git/run.git/info/refs?service=git-upload-pack"),
    ("runner", "GET", "/git/run.git/../../etc/passwd"),
]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
junk = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner))
ids = st.sampled_from(["a", "b", "x" * 128])
shas = st.sampled_from(["a" * 40, "0" * 40, "b" * 64])
records = st.fixed_dictionaries(
    {
        "record_id": ids,
        "type": st.sampled_from([t.value for t in RecordType]) | st.text(max_size=9),
        "payload": st.dictionaries(
            st.sampled_from(["epoch", "reason", "role", "base", "branch", "commit", "effect_id", "tool", "text"]), junk
        ),
        "recorded_at": st.integers(min_value=-1, max_value=2**60),
    }
)
likely = st.fixed_dictionaries(
    {},
    optional={
        "epoch": st.integers(min_value=-1, max_value=3),
        "attempt": st.integers(min_value=0, max_value=3),
        "holder": st.text(max_size=5),
        "records": st.lists(records, max_size=3),
        "pod_uid": ids,
        "pod_name": ids,
        "role": st.sampled_from(["runner", "verifier", "king"]),
        "commit": shas,
        "iteration": st.integers(min_value=0, max_value=3),
        "changed": st.booleans(),
        "outcome": st.sampled_from(["completed", "failed", "unknown"]),
        "reason": st.text(max_size=20),
        "checks": st.lists(junk, max_size=2),
        "recorded_at": st.integers(min_value=0, max_value=2**53),
        "work_id": ids,
        "progress_seq": st.integers(),
        "observed_at": st.integers(),
    },
)
bodies = (likely | junk).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200)
calls = st.lists(st.tuples(st.sampled_from(DOORS), bodies), min_size=1, max_size=12)


def spec() -> ResolvedRun:
    return ResolvedRun(
        uid="u1",
        tenant="team-a",
        name="n",
        session_id="u1",
        placement="cluster",
        goal="x",
        workspace=ResolvedWorkspace(key="w", kind="ephemeral"),
        agent=ResolvedAgent(driver="command"),
    )


async def started(folder: Path) -> tuple[LocalGateway, dict[str, Any]]:
    gateway = LocalGateway(folder)
    operator = gateway.operator
    await operator.put("/v1/runs/u1", content=spec().model_dump_json())
    await operator.post("/v1/runs/u1/fence", json={"epoch": 1, "attempt": 1, "holder": "h"})
    pod = {"pod_uid": "p1", "pod_name": "p1", "epoch": 1, "role": "runner"}
    await operator.post("/v1/runs/u1/pods", json=pod)
    return gateway, {"operator": operator, "runner": gateway.sandbox("p1", "team-a")}


@pytest.mark.rule("J12", "S2")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls)
async def test_hostile_bodies_get_typed_answers_and_leave_a_whole_journal(tmp_path: Path, sent: list[Any]) -> None:
    gateway, clients = await started(tmp_path)
    async with gateway:
        for (who, method, path), body in sent:
            answer = await clients[who].request(method, path, content=body)
            assert answer.status_code in {200, 400, 403, 404, 405, 409, 413, 422, 424}, (path, body, answer.text)
            if answer.status_code >= 400 and path.startswith("/v1"):
                assert answer.json()["reason"]
                assert answer.json()["message"]
        exported = (await clients["operator"].get("/v1/runs/u1/journal")).content
        assert isinstance(verify_export([exported]).chain, Intact)
        before = (await clients["operator"].get("/v1/runs/u1")).json()["state"]
        gateway.restart()
        assert (await clients["operator"].get("/v1/runs/u1")).json()["state"] == before
        assert replay(await gateway.deps.store.read("u1")).offset == before["offset"]
