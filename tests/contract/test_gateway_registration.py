"""F2: whoever is journaled is let in, also where the gateway died before it had told the store."""

import pytest
from tests.gateway_script import Operator, ok, refused, resolved

from moorage import points
from moorage.points import Point
from moorage.store.errors import StoreUnavailable
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer


@pytest.fixture
async def operator(gateway: LocalGateway, upstream: GitServer) -> Operator:
    made = Operator(gateway, resolved(upstream))
    await made.admit()
    await made.fence(1)
    return made


@pytest.mark.rule("F2", "K1")
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_sandbox_whose_registration_was_journaled_and_no_more_is_let_in_at_the_operators_next_look(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    def dies(there: Point) -> None:
        if there is Point.POD_WITHIN:
            raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(points._Armed, "hook", staticmethod(dies))
    body = {"pod_uid": "p1", "pod_name": "pod-p1", "epoch": 1, "role": "runner"}
    assert (await operator.http.post(f"{operator.door}/pods", json=body)).status_code == 503
    monkeypatch.setattr(points._Armed, "hook", None)
    if restarted:
        operator.gateway.restart()
    sandbox = operator.gateway.sandbox("p1", "team-a")
    refused(await sandbox.get("/v1/self"), 425, "NotRegistered")
    assert [ref["pod_uid"] for ref in (await operator.state())["sandboxes"]] == ["p1"], "the journal has it"
    assert (await ok(await sandbox.get("/v1/self")))["epoch"] == 1
    assert (await operator.types()).count("POD_REGISTERED") == 1


async def test_who_is_let_in_once_is_looked_for_no_more(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    await operator.register("p1", 1)
    monkeypatch.setattr(operator.gateway.deps.store, "find_pod", None)
    await operator.view()
