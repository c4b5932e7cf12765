"""Contracts as the operator knows them, and what it does where it can't."""

from random import Random
from typing import Any

import kopf
import pytest

from moorage.api.wire import AllowanceRequest, AllowanceUse
from moorage.controller.gateway_client import GatewayAway, GatewayRefused
from moorage.controller.tenancy.contracts import Contracts
from moorage.controller.tenancy.rooms import Rooms
from moorage.controller.tenancy.tenancy import Tenancy
from moorage.sandbox.kube import ApiUnavailable, Body, KubeError, Missing


def rcon(name: str = "team", generation: int = 1, **spec: Any) -> Body:
    meta = {"name": name, "namespace": "team-a", "uid": name, "generation": generation}
    meta["resourceVersion"] = str(generation)
    return {"kind": "ResourceConstraint", "metadata": meta, "spec": spec}


def test_a_contract_counts_from_its_first_word_to_its_last() -> None:
    contracts = Contracts()
    assert contracts.of("team-a").sandboxes is None
    assert contracts.saw("ADDED", rcon(concurrency={"sandboxes": 2}))
    assert (contracts.of("team-a").sandboxes, contracts.of("team-b").sandboxes) == (2, None)
    assert contracts.saw("MODIFIED", rcon(generation=2, concurrency={"sandboxes": 3}))
    assert contracts.of("team-a").sandboxes == 3
    assert contracts.saw("DELETED", rcon())
    assert contracts.of("team-a").sandboxes is None
    assert contracts.tenants() == frozenset()


def test_a_status_is_no_news() -> None:
    contracts = Contracts()
    contracts.saw("ADDED", rcon(weight=2))
    assert not contracts.saw("MODIFIED", {**rcon(weight=2), "status": {"sandboxes": "1/2"}})
    (known,) = contracts.constraints("team-a")
    assert known.status is not None
    assert known.status.sandboxes == "1/2"
    assert not contracts.saw("DELETED", rcon("another"))


def test_one_that_cant_be_read_takes_nobody_elses_lines_away() -> None:
    contracts = Contracts()
    contracts.saw("ADDED", rcon("a", weight=2))
    contracts.saw("ADDED", rcon("b", weight="many"))
    assert contracts.of("team-a").weight == 2


class Api:
    """Answers by what is asked for, each in turn."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers

    async def items(self, path: str, **_: Any) -> list[Body]:
        answer = self.answers.get(path.rsplit("/", 1)[-1], [[]]).pop(0)
        if isinstance(answer, KubeError):
            raise answer
        return list(answer)


class Log:
    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def warning(self, event: str, **keys: Any) -> None:
        self.said.append((event, keys["reason"]))


class Gateway:
    """What it was told, and what it says was taken; `refusal` is raised instead."""

    def __init__(self, refusal: Exception | None = None, *, knows: tuple[str, ...] = ()) -> None:
        self.told: dict[str, AllowanceRequest] = {}
        self.refusal, self.knows = refusal, knows

    async def allow(self, namespace: str, allowance: AllowanceRequest) -> AllowanceUse:
        if self.refusal is not None:
            raise self.refusal
        self.told[namespace] = allowance
        return AllowanceUse(tokens=70, reserved_tokens=5, cost_micros=1_500_000, requests=1)

    async def allowed(self) -> tuple[str, ...]:
        return self.knows


def tenancy(api: Api, log: Log, changed: list[str], gateway: Gateway | None = None) -> Tenancy:
    live = {"team-a": [{"team": "x"}]}
    return Tenancy(
        api,  # type: ignore[arg-type]
        (),
        Contracts(),
        Rooms(lambda *_: {}, lambda: 0),
        roomier=lambda: None,
        live=lambda tenant: live.get(tenant, []),
        gateway=gateway or Gateway(),
        changed=changed.append,
        now=lambda: 0,
        log=log,
        chance=Random(1),
    )


def watched(of: Tenancy) -> set[str]:
    registry = kopf.OperatorRegistry()
    of.watch(registry)
    return {handler.selector.any_name or "" for handler in registry._watching.get_all_handlers()}


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Missing(404, "NotFound", "no such kind"), "DefinitionsMissing"),
        (KubeError(403, "Forbidden", "no"), "Forbidden"),
    ],
)
async def test_nobody_waits_for_contracts_that_cant_be_read(refusal: KubeError, reason: str) -> None:
    log, changed = Log(), list[str]()
    it = tenancy(Api(resourceconstraints=[refusal]), log, changed)
    await it.load()
    assert log.said == [("contracts_not_enforced", reason)]
    assert "resourceconstraints" not in watched(it)
    assert {"resourcequotas", "limitranges"} <= watched(it)


async def test_an_api_server_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.controller.tenancy.tenancy.PAUSE_S", 0)
    log, changed = Log(), list[str]()
    away = ApiUnavailable(0, "NoAnswer", "no answer")
    it = tenancy(Api(resourceconstraints=[away, [rcon(concurrency={"sandboxes": 1})]]), log, changed)
    await it.load()
    assert it.contracts.of("team-a").sandboxes == 1
    assert changed == ["team-a"]
    assert "resourceconstraints" in watched(it)


# --- words that come late, twice, or never ----------------------------------------------------------------------------


def quota(version: int, used: str = "0", uid: str = "q", name: str = "theirs") -> Body:
    meta = {"name": name, "namespace": "team-a", "uid": uid, "resourceVersion": str(version)}
    return {
        "metadata": meta,
        "spec": {"hard": {"pods": "2"}},
        "status": {"hard": {"pods": "2"}, "used": {"pods": used}},
    }


@pytest.mark.rule("C5")
async def test_an_older_answer_undoes_no_newer_word() -> None:
    it = tenancy(Api(), Log(), [])
    await it.load()
    it._constraint("ADDED", rcon(generation=1, concurrency={"sandboxes": 1}))
    it._constraint("MODIFIED", rcon(generation=3, concurrency={"sandboxes": 3}))
    it._answered(None, rcon(generation=2, concurrency={"sandboxes": 2}))
    assert it.contracts.of("team-a").sandboxes == 3
    it._constraint("DELETED", rcon(generation=4))
    it._answered(None, rcon(generation=3, concurrency={"sandboxes": 3}))
    assert it.contracts.of("team-a").sandboxes is None, "nor brings it back"


@pytest.mark.rule("C5", "C6")
async def test_what_no_watch_told_of_is_found_by_comparing() -> None:
    """A constraint and a quota that went, one that came, and one that is as it was."""
    stays, went, came = (rcon(name, 1, weight=at + 2) for at, name in enumerate(("stays", "went", "came")))
    changed: list[str] = []
    it = tenancy(
        Api(resourceconstraints=[[stays, went], [stays, came]], resourcequotas=[[quota(1)], []]), Log(), changed
    )
    await it.load()
    assert {c.metadata.name for c in it.contracts.constraints("team-a")} == {"stays", "went"}
    assert it._rooms._quotas["team-a"]
    changed.clear()
    await it.compare()
    assert {c.metadata.name for c in it.contracts.constraints("team-a")} == {"stays", "came"}
    assert not it._rooms._quotas["team-a"]
    assert changed == ["team-a"] * 3


@pytest.mark.rule("C6")
async def test_a_word_that_came_while_a_list_was_on_its_way_is_no_delete() -> None:
    it = tenancy(Api(resourcequotas=[[quota(1)], []]), Log(), [])
    await it.load()
    before = it._news["resourcequotas"].standing()
    it._rendered("ResourceQuota", "MODIFIED", quota(2))
    assert it._news["resourcequotas"].missing(before, []) == []
    it._rendered("ResourceQuota", "DELETED", quota(1, uid="earlier"))
    assert it._rooms._quotas["team-a"], "that of an earlier one of its name"
    it._rendered("ResourceQuota", "DELETED", quota(3))
    assert not it._rooms._quotas["team-a"]


# --- what the gateway keeps -------------------------------------------------------------------------------------------


class Patching(Api):
    """Takes statuses as well."""

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__(**answers)
        self.statuses: list[Any] = []

    async def get(self, _: str) -> None:
        return None

    async def patch(self, _: str, body: Any) -> Body:
        self.statuses.append(body["status"])
        raise Missing(404, "NotFound", "enough is seen")


async def looked(gateway: Gateway, *constraints: Body) -> tuple[Tenancy, list[Any]]:
    api = Patching(resourceconstraints=[list(constraints), list(constraints)])
    it = tenancy(api, Log(), [], gateway)
    await it.load()
    await it.reconciler._work("team-a")
    return it, api.statuses


@pytest.mark.rule("C5")
async def test_the_gateway_is_told_what_models_may_take_and_says_what_they_took() -> None:
    gateway = Gateway()
    it, statuses = await looked(gateway, rcon(perDay={"tokens": "1k", "cost": "2"}))
    assert gateway.told == {"team-a": AllowanceRequest(tokens=1_000, cost_micros=2_000_000)}
    assert [(line["name"], line["used"]) for line in statuses[0]["lines"]] == [
        ("perDay.tokens", "75"),
        ("perDay.cost", "$1.50"),
    ]
    it._constraint("DELETED", rcon(generation=2))
    await it.reconciler._work("team-a")
    assert gateway.told == {"team-a": AllowanceRequest()}
    gateway.told.clear()
    await it.reconciler._work("team-a")
    assert gateway.told == {}, "nobody is told of nothing again and again"


@pytest.mark.rule("C5")
async def test_an_allowance_whose_contract_went_while_nobody_looked_is_taken_back() -> None:
    gateway = Gateway(knows=("team-a",))
    it, _ = await looked(gateway)
    assert gateway.told == {}
    await it.compare()
    assert it.reconciler.queue.waiting == 1
    await it.reconciler._work("team-a")
    assert gateway.told == {"team-a": AllowanceRequest()}


@pytest.mark.rule("C5", "C6")
@pytest.mark.parametrize(
    ("refusal", "reason"),
    [(GatewayAway("no answer"), "GatewayUnavailable"), (GatewayRefused(404, "NotFound", "no door"), "NotEnforced")],
)
async def test_what_the_gateway_doesnt_keep_is_told_by_who_says_it(refusal: Exception, reason: str) -> None:
    _, statuses = await looked(Gateway(refusal), rcon(perDay={"tokens": "1k"}), rcon("other", weight=2))
    told = {
        len(status["lines"]) and status["lines"][0]["name"]: {c["type"]: c for c in status["conditions"]}["Ready"]
        for status in statuses
    }
    assert (told["perDay.tokens"]["status"], told["perDay.tokens"]["reason"]) == ("False", reason)
    assert told["weight"]["status"] == "True"
