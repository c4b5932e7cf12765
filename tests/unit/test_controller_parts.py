"""The small parts around the engine: roll, API words, Events, settings, probes."""

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.property.run_world import START, T, World

from moorage.api.runstatus import AgentRunStatus
from moorage.controller.events import told
from moorage.controller.gather import status_of
from moorage.controller.health import Duty, Pulse, health_app
from moorage.controller.measures import Measures
from moorage.controller.operator import run_of_child
from moorage.controller.roll import Roll
from moorage.controller.settings import OperatorSettings
from moorage.controller.told import Standing, settled
from moorage.core.run.actions import Plan, Report
from moorage.core.run.observed import SandboxPhase
from moorage.core.scheduling.explain import Slots, recheck_ms, wait_of
from moorage.core.tenancy.contract import Contract
from moorage.sandbox.kube import ApiUnavailable, Exists, KubeError, Missing, Stale, error_of, path_of, resource_of
from moorage.sandbox.pods import lease_view, refusal
from moorage.sandbox.port import RunKey
from moorage.telemetry.metrics import OperatorMetrics


def body(name: str, *, uid: str | None = None, version: int = 1, created: int = 0, **more: Any) -> dict[str, Any]:
    meta = {
        "name": name,
        "namespace": "t",
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": f"2026-01-01T00:00:{created:02d}Z",
    }
    return {"metadata": meta, "spec": {}, **more}


ENDED = {"status": {"phase": "Succeeded", "observedGeneration": 1, "finishedAt": "2026-01-01T00:00:00Z"}}


# --- roll -------------------------------------------------------------------------------------------------------------


def test_only_a_run_created_under_our_eyes_is_new_and_only_once() -> None:
    roll = Roll(limit=2)
    roll.saw(body("old"))
    roll.saw(body("new"), created=True)
    roll.saw(body("new", version=2))
    old, new = RunKey("uid-old", "t", "old"), RunKey("uid-new", "t", "new")
    assert [roll.first_look(key) for key in (old, new, new)] == [False, True, False]
    roll.saw(body("new", version=3), created=True)
    assert not roll.first_look(new), "told again by a watch that began anew"
    roll.saw(body("new", uid="another", version=4), created=True)
    assert not roll.first_look(new)
    assert roll.first_look(RunKey("another", "t", "new"))


def test_the_queue_is_by_age_and_counts_only_who_waits_for_a_slot() -> None:
    roll = Roll(limit=2)
    for at, name in enumerate(["a", "b", "c", "d"]):
        roll.saw(body(name, created=at))
    keys = {name: RunKey(f"uid-{name}", "t", name) for name in "abcd"}
    roll.note(keys["a"], Standing.LIVE)
    roll.note(keys["b"], Standing.BLOCKED)
    slots = roll.slots(keys["d"])
    assert (slots.live, slots.place, slots.free, slots.first_to_end) == (1, 2, False, "a")
    assert roll.slots(keys["c"]).free
    assert roll.next_waiting() == [keys["c"]]
    assert roll.note(keys["a"], Standing.ENDED)
    assert not roll.note(keys["a"], Standing.ENDED)
    assert list(roll.blocked("t")) == [keys["b"]]


@pytest.mark.rule("C3")
def test_a_paused_run_takes_no_slot_and_keeps_its_age_when_it_waits_for_one() -> None:
    roll = Roll(limit=1)
    roll.saw(body("old", created=1, status={"phase": "Paused", "reason": "Suspended"}))
    roll.saw(body("new", created=2))
    old, new = RunKey("uid-old", "t", "old"), RunKey("uid-new", "t", "new")
    assert (roll.queue.live, roll.slots(new).free) == (0, True)
    assert not roll.note(old, Standing.WAITING), "nobody moves up by it"
    assert (roll.slots(new).place, roll.slots(new).free) == (2, False)
    assert roll.slots(old).free
    assert roll.note(old, Standing.BLOCKED), "who waited behind it may go on"
    assert list(roll.blocked("other")) == []


def test_what_nobody_waits_for_comes_after_what_somebody_does() -> None:
    roll = Roll(limit=1)
    old, new = RunKey("uid-old", "t", "old"), RunKey("uid-new", "t", "new")
    roll.saw(body("old") | {"spec": {"scheduling": {"class": "background"}}})
    assert roll.slots(old).free
    roll.saw(body("new", created=5))
    assert (roll.slots(new).free, roll.slots(old).place) == (True, 2)
    assert roll.next_waiting() == [new]
    roll.saw(body("odd", created=9) | {"spec": {"scheduling": "background"}})
    assert roll.slots(old).place == 3


@pytest.mark.rule("Q2")
def test_a_change_of_class_or_deadline_moves_a_run_at_once() -> None:
    roll = Roll(limit=1)
    for name, created in (("first", 1), ("second", 2)):
        roll.saw(body(name, created=created))
    first, second = (RunKey(f"uid-{name}", "t", name) for name in ("first", "second"))
    assert roll.next_waiting() == [first]
    roll.saw(body("first", created=1, version=2) | {"spec": {"scheduling": {"class": "background"}}})
    assert roll.next_waiting() == [second]
    roll.saw(body("first", created=1, version=3) | {"spec": {"scheduling": {"class": "background", "deadline": "5m"}}})
    assert roll.next_waiting() == [first]


@pytest.mark.rule("Q1")
def test_after_a_restart_a_tenant_is_charged_for_what_its_objects_tell() -> None:
    now = 1_767_225_600_000 + 300_000
    roll = Roll(limit=2, now=lambda: now)
    used = {"status": {**ENDED["status"], "startedAt": "2025-12-31T23:58:00Z"}}
    roll.saw(body("used", **used))
    for tenant in ("t", "u"):
        for n in range(2):
            each = body(f"{tenant}{n}", created=n)
            each["metadata"]["namespace"] = tenant
            roll.saw(each)
    assert [key.tenant for key in roll.next_waiting()] == ["u", "u"], "the other one had two minutes"
    roll.forget(RunKey("uid-used", "t", "used"))
    assert [key.tenant for key in roll.next_waiting()] == ["u", "u"], "and its deletion doesn't undo that"


def test_a_child_that_was_made_anew_without_a_parent_is_no_child_any_more() -> None:
    roll = Roll(limit=1)
    roll.saw(body("elder"))
    roll.note(RunKey("uid-elder", "t", "elder"), Standing.LIVE)
    roll.saw(body("young") | {"spec": {"parentRef": {"name": "elder"}}})
    roll.saw(body("young", uid="other"))
    assert roll.children(RunKey("uid-elder", "t", "elder")) == []
    roll.forget(RunKey("uid-young", "t", "young"))  # the old one's end is heard late
    roll.forget(RunKey("other", "t", "young"))
    assert roll.next_waiting() == []


@pytest.mark.rule("Q4", "I7")
def test_the_further_back_a_run_waits_the_more_seldom_its_place_is_told() -> None:
    """Thousands that wait would else cost a write each, every two minutes."""
    minutes = [recheck_ms(Slots(free=False, place=place)) // 60_000 for place in (1, 10, 11, 40, 150, 5_000)]
    assert minutes == [2, 2, 4, 8, 30, 30]


@pytest.mark.rule("C5", "Q4")
def test_a_tenant_has_no_more_sandboxes_than_its_contract_says_and_hears_so() -> None:
    contract = Contract(sandboxes=1, set_by={"concurrency.sandboxes": "team"})
    roll = Roll(limit=5, contract=lambda tenant: contract if tenant == "t" else Contract())
    for at, name in enumerate(["a", "b", "c"]):
        roll.saw(body(name, created=at))
    a, c = RunKey("uid-a", "t", "a"), RunKey("uid-c", "t", "c")
    assert roll.next_waiting() == [a]
    roll.note(a, Standing.LIVE)
    assert roll.next_waiting() == []
    told = wait_of(roll.slots(RunKey("uid-b", "t", "b")))
    assert told == "1st in t; t uses 1 of 1 sandboxes; next when a ends or rcon/team is raised"
    assert wait_of(roll.slots(c)).startswith("2nd in t; t uses 1 of 1 sandboxes; next when runs of it end or ")
    contract = Contract(sandboxes=3)
    assert roll.next_waiting() == []
    roll.contracts_changed()
    assert len(roll.next_waiting()) == 2


def test_an_older_word_of_the_watch_does_not_undo_a_newer_write() -> None:
    roll = Roll(1)
    assert roll.saw(body("a", version=9))
    assert roll.saw(body("a", version=5)) is None
    assert roll.saw(body("a", uid="other", version=1))


def test_the_echo_of_a_write_is_no_news_but_what_it_overtook_is() -> None:
    roll = Roll(1)
    told = {"status": {"phase": "Running", "observedGeneration": 1}}
    assert roll.saw(body("a", version=9, **told))
    assert roll.saw(body("a", version=9, **told)) is None
    changed = body("a", version=10, **told)
    changed["metadata"]["generation"] = 2  # cancelled just before our write
    assert roll.saw(changed)
    assert roll.saw(changed)
    deleted = body("a", version=11, **told)
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert roll.saw(deleted)
    assert roll.saw(deleted)


def test_a_settled_run_keeps_no_body_and_knows_when_it_is_due() -> None:
    roll = Roll(1)
    entry = roll.saw(body("a", **ENDED))
    assert entry
    assert (entry.standing, entry.body, entry.succeeded) == (Standing.ENDED, None, True)
    assert entry.due_at == 1_767_225_600_000 + 168 * 3_600_000


def test_what_is_journaled_of_an_ended_run_is_news_only_while_an_effect_is_told_as_open() -> None:
    roll, key = Roll(1), RunKey("uid-a", "t", "a")
    assert not roll.heeds(key)
    roll.saw(body("a", status={"phase": "Running"}))
    assert roll.heeds(key)
    roll.note(key, Standing.ENDED)
    assert not roll.heeds(key)
    unknown = ENDED["status"] | {"conditions": [{"type": "EffectsClosed", "status": "False"}]}
    roll.saw(body("a", version=2, status=unknown))
    assert roll.heeds(key), "somebody may resolve it"
    roll.saw(body("a", version=3, **ENDED))
    assert not roll.heeds(key)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"status": {"phase": "Running", "observedGeneration": 1}}, False),
        ({"status": {"phase": "Succeeded", "observedGeneration": 0}}, False),
        ({"status": ENDED["status"] | {"conditions": [{"type": "EffectsClosed", "status": "False"}]}}, False),
        ({"status": ENDED["status"] | {"conditions": [{"type": "EffectsClosed", "status": "True"}, "odd"]}}, True),
        ({"status": "odd"}, False),
        ({"status": None}, False),
    ],
)
def test_only_an_end_that_is_told_for_this_generation_is_settled(changed: dict[str, Any], expected: bool) -> None:
    assert settled(body("a", **(ENDED | changed))) is expected


def test_a_child_belongs_to_its_controller_and_to_no_label() -> None:
    owner = {"apiVersion": "moorage.dev/v1alpha1", "kind": "AgentRun", "name": "a", "uid": "u", "controller": True}
    assert run_of_child({"metadata": {"namespace": "t", "ownerReferences": [owner]}}) == RunKey("u", "t", "a")
    assert run_of_child({"metadata": {"namespace": "t", "labels": {"moorage.dev/run": "u"}}}) is None
    assert run_of_child({"metadata": {"ownerReferences": [{**owner, "kind": "Pod"}]}}) is None


@pytest.mark.parametrize("status", [None, 7, "x", [], {"phase": 7}, {"conditions": "x"}, {"usage": []}])
def test_a_status_that_cannot_be_read_counts_as_none(status: Any) -> None:
    assert status_of({"status": status}) == AgentRunStatus()


# --- the API server's words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (404, "NotFound", Missing),
        (409, "AlreadyExists", Exists),
        (409, "Conflict", Stale),
        (429, "TooManyRequests", ApiUnavailable),
        (500, "InternalError", ApiUnavailable),
        (403, "Forbidden", KubeError),
    ],
)
def test_refusals_of_the_api_server_are_typed(status: int, reason: str, kind: type[KubeError]) -> None:
    assert type(error_of(status, {"reason": reason, "message": "m"})) is kind


@pytest.mark.parametrize(
    ("status", "message", "reason", "permanent"),
    [
        (422, "spec.containers[0].image: Required value", "SandboxInvalid", True),
        (403, "exceeded quota: q, requested: pods=1", "QuotaExceeded", False),
        (403, 'pod rejected: RuntimeClass "kata" not found', "RuntimeClassNotFound", False),
        (403, "namespace t because it is being terminated", "NamespaceTerminating", False),
        (403, 'violates PodSecurity "restricted:latest"', "PodSecurity", False),
        (403, "admission webhook denied the request", "AdmissionRefused", False),
        (400, "bad", "ApiRefused", False),
    ],
)
def test_what_keeps_a_pod_out_says_what_to_do(status: int, message: str, reason: str, permanent: bool) -> None:
    found = refusal(KubeError(status, "R", message))
    assert (found.reason, found.permanent) == (reason, permanent)


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (path_of("v1", "pods", "t", "p"), "pods"),
        (path_of("v1", "pods", "t"), "pods"),
        (path_of("coordination.k8s.io/v1", "leases", "t", "l"), "leases"),
        (path_of("moorage.dev/v1alpha1", "agentruns", "t", "a") + "/status", "agentruns/status"),
        (path_of("v1", "namespaces", None, "t"), "namespaces"),
    ],
)
def test_writes_are_counted_by_resource(path: str, resource: str) -> None:
    assert resource_of(path) == resource


@pytest.mark.parametrize("annotation", ["x", "", "-1", "1.5"])
def test_a_lease_whose_epoch_is_no_number_counts_as_none(annotation: str) -> None:
    found = lease_view({"metadata": {"annotations": {"moorage.dev/epoch": annotation}}, "spec": {}})
    assert (found.epoch, found.duration_ms) == (0, 40_000)


# --- Events -----------------------------------------------------------------------------------------------------------


AGAIN = [("Normal", "AttemptStarted"), ("Normal", "Provisioning")]


def status(phase: Any, reason: str = "", epoch: int | None = None) -> AgentRunStatus:
    return AgentRunStatus(phase=phase, reason=reason, epoch=epoch, attempt=epoch)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (AgentRunStatus(), status("Provisioning", "Provisioning", 1), [("Normal", "Provisioning")]),
        (status("Provisioning", "QuotaExceeded"), status("Provisioning", "", 1), [("Normal", "AttemptStarted")]),
        (status("Running"), status("Failed", "AcceptanceFailed"), [("Warning", "Failed")]),
        (status("Running"), status("Running"), []),
        (status("Provisioning", "Provisioning"), status("Provisioning", "Evicted"), [("Warning", "Evicted")]),
        (status("Provisioning", "ImagePullFailed"), status("Provisioning", "Provisioning"), []),
        (status("Running", "Running", 1), status("Provisioning", "Provisioning", 2), AGAIN),
    ],
)
def test_one_event_for_each_thing_that_happened(old: Any, new: Any, expected: list[tuple[str, str]]) -> None:
    assert [(kind, reason) for kind, reason, _ in told(old, new)] == expected


# --- measures ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("H2")
def test_reasons_from_sandboxes_make_no_metric_without_bound() -> None:
    metrics, roll = OperatorMetrics(CollectorRegistry()), Roll(3)
    measures = Measures(metrics, roll)
    key = RunKey("u", "t", "a")
    for at in range(200):
        world = World()
        world.step()
        before = world.observed()
        world.apply(Report("end", T.RUN_FAILED, {"reason": f"made up {at}"}))
        measures.passed(key, Plan(), before, world.observed(), START)
    labels = {s.labels["reason"] for m in metrics.runs_ended.collect() for s in m.samples if "reason" in s.labels}
    assert len(labels) == 65
    assert "Other" in labels


@pytest.mark.rule("H2")
def test_since_when_an_end_is_unknown_and_how_long_a_cancel_took() -> None:
    metrics = OperatorMetrics(CollectorRegistry())
    measures, world = Measures(metrics, Roll(3)), World()
    world.step()
    intent = {"effect_id": "e1", "kind": "http", "key": "k", "target": "POST https://x", "level": "opaque"}
    world.apply(Report("i", T.EFFECT_INTENT, intent))
    world.apply(Report("u", T.EFFECT_RECEIPT, {"effect_id": "e1", "outcome": "unknown", "detail": ""}))
    since, key = world.state.effects[-1].at, RunKey("u", "t", "a")
    measures.passed(key, Plan(), world.observed(), world.observed(), world.now)
    told = partial(metrics.registry.get_sample_value)
    assert told("moorage_operator_oldest_unknown_effect_timestamp_seconds") == since / 1000
    measures.forget(key)
    assert told("moorage_operator_oldest_unknown_effect_timestamp_seconds") == 0
    before = world.observed()
    world.apply(Report("c", T.CANCEL_REQUESTED, {"reason": "user"}))
    world.apply(Report("f", T.RUN_FAILED, {"reason": "x", "message": ""}))
    asked = world.state.cancel_at
    assert asked is not None
    measures.passed(key, Plan(), before, world.observed(), asked + 2_000)
    assert told("moorage_operator_cancel_seconds_sum") == 2


@pytest.mark.rule("H2")
def test_a_life_is_measured() -> None:
    metrics, roll = OperatorMetrics(CollectorRegistry()), Roll(3)
    measures = Measures(metrics, roll)
    world = World()
    for _ in range(20):
        before, plan = world.observed(), world.plan()
        world.step()
        measures.passed(RunKey("u", "t", "a"), plan, before, world.observed(), world.now)
        runner = world.sandbox("runner")
        if runner and world.state.epoch == 1:
            world.set_pod(runner, phase=SandboxPhase.ENDED, reason="OOMKilled")
    roll.saw(body("a"))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    assert value("moorage_operator_queue_seconds_count") == 1
    assert value("moorage_operator_resumes_total", reason="OOMKilled") == 1
    assert value("moorage_operator_resume_seconds_count") == 1
    assert (value("moorage_operator_sandbox_seconds_count") or 0) >= 2
    assert value("moorage_operator_runs", phase="waiting") == 1
    assert value("moorage_operator_slots") == 3


# --- settings and probes ----------------------------------------------------------------------------------------------

ENV = {
    "MOORAGE_GATEWAY_URL": "http://g:8080",
    "MOORAGE_GATEWAY_TOKEN_FILE": "/t",
    "MOORAGE_NAMESPACE": "moorage-system",
    "MOORAGE_GATEWAY_SERVICE": "gw",
    "MOORAGE_SANDBOX_IMAGE": "base:1",
}


def test_settings_come_from_the_charts_variables() -> None:
    more = {
        "MOORAGE_WATCH_NAMESPACES": "a, b",
        "MOORAGE_MAX_LIVE_RUNS": "7",
        "MOORAGE_SANDBOX_RUNTIME_CLASS": "",
        "MOORAGE_SANDBOX_DRIVERS": "ours,other",
        "MOORAGE_SANDBOX_PRIORITY_INTERACTIVE": "people",
        "MOORAGE_SANDBOX_PRIORITY_BACKGROUND": "",
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "443",
    }
    found = OperatorSettings.from_environment(ENV | more)
    assert (found.watch_namespaces, found.max_live_runs, found.probe) == (("a", "b"), 7, "[fd00::1]:443")
    assert (found.defaults.image, found.defaults.runtime_class) == ("base:1", None)
    assert found.drivers == ("ours", "other")
    assert found.priority_classes == {"interactive": "people"}
    with pytest.raises(KeyError, match="MOORAGE_NAMESPACE"):
        OperatorSettings.from_environment({k: v for k, v in ENV.items() if k != "MOORAGE_NAMESPACE"})


async def test_the_probe_proves_that_the_loop_turns_and_no_pass_is_stuck() -> None:
    pulse, oldest = Pulse(), 0
    duty = Duty(ready=lambda: True)
    duty.works(lambda: oldest, asyncio.Event())
    app = health_app(pulse, duty, CollectorRegistry())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://operator") as http:
        assert (await http.get("/healthz")).status_code == 503
        beating = asyncio.create_task(pulse.beat())
        await asyncio.sleep(0)
        assert (await http.get("/healthz")).status_code == 200
        oldest = 400_000
        assert (await http.get("/healthz")).status_code == 503
        assert (await http.get("/metrics")).status_code == 200
        beating.cancel()


async def test_a_standby_is_alive_and_ready_and_a_leader_is_ready_once_it_watches() -> None:
    pulse, in_touch, watches = Pulse(), False, asyncio.Event()
    duty = Duty(ready=lambda: in_touch)
    app = health_app(pulse, duty, CollectorRegistry())
    beating = asyncio.create_task(pulse.beat())
    await asyncio.sleep(0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://operator") as http:

        async def codes() -> tuple[int, int]:
            return (await http.get("/healthz")).status_code, (await http.get("/readyz")).status_code

        assert await codes() == (200, 503)
        in_touch = True
        assert await codes() == (200, 200)
        duty.works(lambda: 0, watches)
        assert await codes() == (200, 503)
        watches.set()
        assert await codes() == (200, 200)
    beating.cancel()
