"""O2, X2: what an operator makes of its runs' children that never begin."""

from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from tests.property.run_world import START, T, World
from tests.run_plans import running

from moorage.api.children import ChildOrder, SettleRequest
from moorage.controller.apply import Applier, Known
from moorage.controller.gateway_client import GatewayClient, GatewayRefused
from moorage.controller.objects import KubeObjects
from moorage.controller.ports import Body
from moorage.controller.relatives import Relatives
from moorage.controller.roll import Roll
from moorage.core.run import actions as a
from moorage.core.run.view import RunView
from moorage.sandbox.kube import KubeApi, KubeError
from moorage.sandbox.port import Refused, RunKey
from moorage.telemetry.metrics import OperatorMetrics

KEY = RunKey("u-1", "team-a", "fix")
PARENT: dict[str, Any] = {"metadata": {"name": "fix", "namespace": "team-a", "uid": "u-1"}, "spec": {"goal": "all"}}
INVALID = KubeError(422, "Invalid", "spec.agent: no such field")
QUOTA = KubeError(403, "Forbidden", "exceeded quota: runs")


class Api:
    """Refuses all that is to be created, and has the parent and perhaps its child."""

    def __init__(self, refusal: KubeError | None = None, child: Body | None = None) -> None:
        self.refusal, self.child = refusal, child

    async def create(self, path: str, body: Body) -> None:  # noqa: ARG002  as KubeApi has it
        if self.refusal is not None:
            raise self.refusal

    async def get(self, path: str) -> Body | None:
        return PARENT if path.endswith("/fix") else self.child


class Gateway:
    """Knows one run, and notes what it is to settle."""

    def __init__(self, view: RunView, error: GatewayRefused | None = None) -> None:
        self.known, self.error = view, error
        self.settled: list[SettleRequest] = []

    async def child_order(self, uid: str, name: str) -> ChildOrder:  # noqa: ARG002  as GatewayClient has it
        if self.error is not None:
            raise self.error
        return ChildOrder(name=name, goal="the parser", start="Base", reserve={})

    async def settle(self, uid: str, request: SettleRequest) -> RunView:  # noqa: ARG002  as GatewayClient has it
        self.settled.append(request)
        return self.known


def asked() -> World:
    world = running()
    world.report("asked", T.CHILD_REQUESTED, {"key": "1.0", "name": "fix-1", "reserve": {"tokens": 5}})
    return world


def view(world: World) -> RunView:
    return RunView(spec=world.spec, state=world.state, up_since=START)


async def make(world: World, api: Api, gateway: Gateway) -> None:
    unused: Any = {"substrate": None, "deliveries": None, "clock": None}
    applier = Applier(
        gateway=cast("GatewayClient", gateway),
        objects=KubeObjects(cast("KubeApi", api)),
        metrics=OperatorMetrics(CollectorRegistry()),
        **unused,
    )
    async for _ in applier.apply(KEY, [a.CreateChild("fix-1")], Known(world.observed(), view(world))):
        pass


@pytest.mark.rule("O2")
@pytest.mark.parametrize("where", ["object", "order"])
async def test_a_child_that_cannot_be_made_is_no_trouble_of_its_parents(where: str) -> None:
    world = asked()
    lost = GatewayRefused(404, "NotFound", "it is kept no more") if where == "order" else None
    gateway = Gateway(view(world), lost)
    await make(world, Api(INVALID), gateway)
    (said,) = gateway.settled
    assert said.gone == ("fix-1",)
    assert ("kept no more" if lost else "no such field") in said.why["fix-1"]


@pytest.mark.rule("C6", "O2")
async def test_a_child_that_waiting_may_make_is_waited_for_and_told_by_its_name() -> None:
    world = asked()
    gateway = Gateway(view(world))
    with pytest.raises(Refused, match=r"its child fix-1 .* exceeded quota") as told:
        await make(world, Api(QUOTA), gateway)
    assert (told.value.reason, told.value.permanent, gateway.settled) == ("QuotaExceeded", False, [])


@pytest.mark.rule("X2")
@pytest.mark.parametrize(
    ("conditions", "uid", "gone"),
    [
        ([{"type": "Ready", "status": "False"}, {"type": "Stalled", "status": "True"}], "", True),
        ([{"type": "Stalled", "status": "False"}], "", False),
        ([{"type": "Stalled", "status": "True"}], "u-9", False),
        (None, "", False),
        (["Stalled", {"type": "Stalled", "status": "True"}], "", True),
    ],
)
async def test_a_child_that_only_a_person_could_mend_is_gone_where_an_agent_asked_for_it(
    conditions: object, uid: str, *, gone: bool
) -> None:
    """Somebody else may have written what isn't a condition."""
    world = asked()
    if uid:
        world.report("child started", T.CHILD_STARTED, {"uid": uid, "name": "fix-1", "reserve": {"tokens": 5}})
    told = {"phase": "Pending", "reason": "AgentInvalid", "message": "mend it"}
    body = {
        "metadata": {"name": "fix-1", "namespace": "team-a", "uid": "u-9", "ownerReferences": [{"uid": "u-1"}]},
        "status": told | {"conditions": conditions},
    }
    objects = KubeObjects(cast("KubeApi", Api(child=body)))
    relatives = Relatives(objects, cast("GatewayClient", Gateway(view(world))), Roll(limit=2))
    kin = await relatives.of(KEY, PARENT, view(world))
    assert (kin.gone, kin.wanted) == (("fix-1",) if gone else (), ())
    assert kin.why == ((("fix-1", "AgentInvalid: mend it"),) if gone else ())


@pytest.mark.rule("O2")
@pytest.mark.parametrize(("seen", "there"), [(False, False), (False, True), (True, True), (True, False)])
async def test_an_object_that_was_seen_is_not_made_again_where_a_person_deletes_it(*, seen: bool, there: bool) -> None:
    world = asked()
    if seen:
        world.report("made", T.CHILD_MADE, {"name": "fix-1", "uid": "u-9"})
    body = {"metadata": {"name": "fix-1", "namespace": "team-a", "uid": "u-9", "ownerReferences": [{"uid": "u-1"}]}}
    objects = KubeObjects(cast("KubeApi", Api(child=body if there else None)))
    relatives = Relatives(objects, cast("GatewayClient", Gateway(view(world))), Roll(limit=2))
    kin = await relatives.of(KEY, PARENT, view(world))
    assert kin.wanted == (("fix-1",) if not seen and not there else ())
    assert kin.made == ((("fix-1", "u-9"),) if not seen and there else ())
    assert kin.gone == (("fix-1",) if seen and not there else ())
