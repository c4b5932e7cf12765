"""The generated definitions before a real API server: what it takes, refuses, defaults, and lets change."""

import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api_cases import BAD, BAD_BRANCHES, GOOD, GOOD_BRANCHES, Case, manifest

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.errors import CommandFailedError
from moorage.api.crd import DEFINITIONS, write
from moorage.api.crd import manifest as crd_manifest
from moorage.api.parse import InvalidSpec, parse_agent_run
from moorage.api.runstatus import BORN

pytestmark = pytest.mark.integration
PLURALS = {d.model.__name__: d.plural for d in DEFINITIONS}
STRICT = {"fieldValidation": "Strict"}


@dataclass(frozen=True)
class Api:
    """The resources of one namespace by plain HTTP. `cases` only asks: nothing is stored (dryRun)."""

    http: httpx.Client
    namespace: str

    def path(self, kind: str, name: str = "") -> str:
        return f"/apis/moorage.dev/v1alpha1/namespaces/{self.namespace}/{PLURALS[kind]}/{name}".rstrip("/")

    def ask(self, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(self.path(body["kind"]), json=body, params={**STRICT, "dryRun": "All"})

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        response = self.http.post(self.path(body["kind"]), json=body, params=STRICT)
        assert response.status_code == 201, response.text
        return response.json()

    def change(self, name: str, spec: dict[str, Any], kind: str = "AgentRun") -> httpx.Response:
        kept = {"content-type": "application/merge-patch+json"}
        return self.http.patch(self.path(kind, name), json={"spec": spec}, headers=kept, params=STRICT)


@pytest.fixture(scope="session")
def definitions(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> ApiServer:
    folder = tmp_path_factory.mktemp("crds")
    write(folder)
    api_server.kubectl("apply", "--server-side", "-f", str(folder))
    names = [f"crd/{d.name}" for d in DEFINITIONS]
    api_server.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    return api_server


@pytest.fixture(scope="session")
def http(definitions: ApiServer) -> Iterator[httpx.Client]:
    trust = ssl.create_default_context(cafile=str(definitions.ca_file))
    headers = {"authorization": f"Bearer {definitions.token}"}
    with httpx.Client(base_url=definitions.url, verify=trust, headers=headers, timeout=20) as client:
        yield client


@pytest.fixture
def api(http: httpx.Client, namespace: str) -> Api:
    return Api(http, namespace)


@pytest.fixture(scope="session")
def asking(http: httpx.Client) -> Api:
    return Api(http, "default")


def causes(response: httpx.Response) -> list[tuple[str, str]]:
    details = response.json().get("details", {})
    return [(cause.get("field", ""), cause["message"]) for cause in details.get("causes", [])]


@pytest.mark.parametrize("case", GOOD, ids=lambda c: c.name)
def test_good_manifests_are_taken(asking: Api, case: Case) -> None:
    response = asking.ask(case.manifest())
    assert response.status_code == 201, response.text


@pytest.mark.parametrize("case", BAD, ids=lambda c: c.name)
def test_bad_manifests_are_refused_where_they_are_bad_and_with_advice(asking: Api, case: Case) -> None:
    response = asking.ask(case.manifest())
    assert response.status_code == 422, response.text
    assert case.api_at in [field for field, message in causes(response) if case.api_says in message], causes(response)


@pytest.mark.parametrize("branch", BAD_BRANCHES, ids=ascii)
def test_branches_that_git_refuses_are_refused(asking: Api, branch: str) -> None:
    response = asking.ask(manifest("AgentRun", {"delivery": {"branch": branch}}))
    assert [field for field, _ in causes(response)] == ["spec.delivery.branch"]


@pytest.mark.parametrize("branch", GOOD_BRANCHES, ids=ascii)
def test_branches_that_git_accepts_are_accepted(asking: Api, branch: str) -> None:
    assert asking.ask(manifest("AgentRun", {"delivery": {"branch": branch}})).status_code == 201


def test_unknown_fields_are_refused_by_name(asking: Api) -> None:
    response = asking.ask(manifest("AgentRun", {"gaol": "x", "delivery": {"brunch": "a"}}))
    assert response.status_code == 400
    assert 'unknown field "spec.gaol"' in response.text.replace("\\", "")
    assert 'unknown field "spec.delivery.brunch"' in response.text.replace("\\", "")


def test_a_goal_of_300_kib_is_refused_without_being_repeated(asking: Api) -> None:
    response = asking.ask(manifest("AgentRun", {"goal": "é" * (150 * 1024)}))
    assert [(field, "a file of" in message) for field, message in causes(response)] == [("spec.goal", True)]
    assert len(response.content) < 4096
    assert asking.ask(manifest("AgentRun", {"goal": "é" * (128 * 1024)})).status_code == 201


@pytest.mark.parametrize("name", ["a" * 63, "a" * 64, "a" * 253, "fix.login.v1-2"], ids=len)
def test_names_of_any_legal_length_are_taken(asking: Api, name: str) -> None:
    assert asking.ask({**manifest("AgentRun"), "metadata": {"name": name}}).status_code == 201


def test_names_are_generated(api: Api) -> None:
    body = {**manifest("AgentRun"), "metadata": {"generateName": "nightly-"}}
    assert api.create(body)["metadata"]["name"].startswith("nightly-")


@pytest.mark.parametrize("key", ["labels", "annotations"])
def test_values_that_kubernetes_does_not_take_are_refused_by_itself(asking: Api, key: str) -> None:
    value = "ünïcode" if key == "labels" else "ok"
    response = asking.ask(manifest("AgentRun", **{key: {"team": value}}))
    assert response.status_code == (422 if key == "labels" else 201)


def test_defaults_are_filled_in(api: Api) -> None:
    spec = api.create(manifest("AgentRun", {"acceptance": [{"name": "a", "run": "true"}], "delivery": {}}))["spec"]
    assert spec["acceptance"][0]["timeout"] == "10m"
    assert spec["delivery"] == {"push": True, "allowEmpty": False}
    assert spec["scheduling"] == {"class": "interactive", "preemptible": False}
    others = {"noProgress": "10m", "delivery": "30m", "settle": "1m", "pause": "5m"}
    assert spec["timeouts"] == {"scheduleToStart": "1h", "attempt": "2h", **others}
    assert spec["recovery"] == {"maxAttempts": 5}
    assert spec["retention"] == {"ttlAfterFinished": "168h", "keepWorktree": "OnFailure", "deleteObject": False}
    assert (spec["constraints"], spec["suspend"], spec["cancel"]) == ({}, False, False)
    assert api.create(manifest("Workspace"))["spec"]["branchPrefix"] == "moorage/"


def test_a_part_of_a_group_leaves_the_other_defaults(api: Api) -> None:
    spec = api.create(manifest("AgentRun", {"timeouts": {"attempt": "5m"}, "retention": None}))["spec"]
    others = {"noProgress": "10m", "delivery": "30m", "settle": "1m", "pause": "5m"}
    assert spec["timeouts"] == {"scheduleToStart": "1h", "attempt": "5m", **others}


IMMUTABLE: list[tuple[str, Any]] = [
    ("workspaceRef", {"name": "other"}),
    ("goal", "Something else."),
    ("agent", {"command": ["false"]}),
    ("acceptance", [{"name": "b", "run": "true"}]),
    ("sandbox", {"runtimeClassName": "kata"}),
    ("delivery", {"branch": "elsewhere"}),
    ("scheduling", {"class": "background"}),
    ("timeouts", {"attempt": "9h"}),
    ("recovery", {"maxAttempts": 9}),
    ("parentRef", {"name": "p"}),
    ("continueFrom", {"name": "c"}),
]


@pytest.mark.parametrize(("field", "value"), IMMUTABLE, ids=[f for f, _ in IMMUTABLE])
def test_what_was_asked_for_stays(api: Api, field: str, value: Any) -> None:
    api.create(manifest("AgentRun", {"acceptance": [{"name": "a", "run": "true"}]}))
    response = api.change("it", {field: value})
    assert response.status_code == 422
    assert [(at, "create a new AgentRun" in message) for at, message in causes(response)] == [(f"spec.{field}", True)]


def test_a_field_cannot_be_taken_out_either(api: Api) -> None:
    api.create(manifest("AgentRun", {"delivery": {"branch": "a"}}))
    assert [at for at, _ in causes(api.change("it", {"delivery": None}))] == ["spec.delivery"]


def test_what_may_change_does(api: Api) -> None:
    api.create(manifest("AgentRun"))
    assert api.change("it", {"suspend": True}).status_code == 200
    assert api.change("it", {"suspend": False}).status_code == 200
    assert api.change("it", {"retention": {"ttlAfterFinished": "1h", "keepWorktree": "Always"}}).status_code == 200
    assert api.change("it", {"cancel": True}).status_code == 200
    assert api.change("it", {"cancel": True}).status_code == 200


def test_cancel_is_never_taken_back(api: Api) -> None:
    api.create(manifest("AgentRun", {"cancel": True}))
    for spec in ({"cancel": False}, {"cancel": None}):
        response = api.change("it", spec)
        assert [(at, "create a new AgentRun" in text) for at, text in causes(response)] == [("spec.cancel", True)]


LIMITS = {"maxIterations": 60, "tokens": {"soft": "300k", "hard": 500000}, "cost": {"hard": "8.00"}, "wallClock": "2h"}


@pytest.mark.parametrize("change", ["121m", "120m", "2h0s", "99h"])
def test_the_wall_clock_may_be_raised(api: Api, change: str) -> None:
    api.create(manifest("AgentRun", {"constraints": LIMITS}))
    response = api.change("it", {"constraints": {"wallClock": change}})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("change", ["119m", "7199s", None])
def test_the_wall_clock_is_neither_lowered_nor_taken_away(api: Api, change: str | None) -> None:
    api.create(manifest("AgentRun", {"constraints": LIMITS}))
    response = api.change("it", {"constraints": {"wallClock": change}})
    assert [(at, "can only be raised" in text) for at, text in causes(response)] == [
        ("spec.constraints.wallClock", True)
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"maxIterations": 59}, "maxIterations"),
        ({"maxIterations": None}, "maxIterations"),
        ({"tokens": {"soft": "299999"}}, "tokens.soft"),
        ({"tokens": {"hard": "499k"}}, "tokens.hard"),
        ({"tokens": {"soft": None}}, "tokens.soft"),
        ({"cost": {"hard": "7.99"}}, "cost.hard"),
        ({"cost": {"soft": "1.00"}}, "cost.soft"),
        ({"cost": None}, "cost.hard"),
    ],
    ids=str,
)
def test_limits_are_neither_lowered_nor_added_nor_taken_away(api: Api, change: dict[str, Any], field: str) -> None:
    api.create(manifest("AgentRun", {"constraints": LIMITS}))
    response = api.change("it", {"constraints": change})
    assert [(at, "can only be raised" in text) for at, text in causes(response)] == [
        (f"spec.constraints.{field}", True)
    ]


@pytest.mark.rule("C3")
@pytest.mark.parametrize(
    "change",
    [
        {"maxIterations": 61},
        {"tokens": {"hard": "1M"}},
        {"tokens": {"soft": 300001, "hard": 500001}},
        {"cost": {"hard": "8.01"}},
        {"cost": {"hard": "9"}},
    ],
    ids=str,
)
def test_limits_may_be_raised(api: Api, change: dict[str, Any]) -> None:
    api.create(manifest("AgentRun", {"constraints": LIMITS}))
    response = api.change("it", {"constraints": change})
    assert response.status_code == 200, response.text


def test_a_limit_that_may_be_its_agents_is_added_to_a_run_that_has_used_it_up(api: Api) -> None:
    api.create(manifest("AgentRun"))
    report(api, {"phase": "Paused", "reason": "Suspended"})
    assert api.change("it", {"constraints": {"tokens": {"hard": "9M"}}}).status_code == 422
    report(api, {"phase": "Paused", "reason": "BudgetExhausted"})
    assert api.change("it", {"constraints": {"tokens": {"hard": "9M"}}}).status_code == 200


def test_a_limit_is_not_added_later(api: Api) -> None:
    api.create(manifest("AgentRun"))
    response = api.change("it", {"constraints": {"wallClock": "999h", "tokens": {"hard": "9M"}}})
    assert sorted(at for at, _ in causes(response)) == ["spec.constraints.tokens.hard", "spec.constraints.wallClock"]


def test_a_raised_limit_must_still_be_readable(api: Api) -> None:
    api.create(manifest("AgentRun", {"constraints": LIMITS}))
    response = api.change("it", {"constraints": {"wallClock": "7d"}})
    assert [at for at, _ in causes(response)] == ["spec.constraints.wallClock"]


@pytest.mark.parametrize("phase", ["Queued", "Provisioning", "Running", "Verifying"])
def test_suspend_may_be_set_and_taken_back_at_any_time(api: Api, phase: str) -> None:
    api.create(manifest("AgentRun"))
    report(api, {"phase": phase, "epoch": 1})
    for suspend in (True, False, True):
        assert api.change("it", {"suspend": suspend}).status_code == 200


def test_agents_and_workspaces_may_be_edited_freely(api: Api) -> None:
    api.create(manifest("Agent", {"constraints": LIMITS}))
    assert api.change("it", {"constraints": {"maxIterations": 1}, "driver": "my-own"}, "Agent").status_code == 200
    api.create(manifest("Workspace"))
    assert api.change("it", {"remoteGit": {"url": "https://h.example/b"}}, "Workspace").status_code == 200


def test_applying_the_same_manifest_twice_changes_nothing(definitions: ApiServer, namespace: str) -> None:
    text = json.dumps(manifest("AgentRun", {"constraints": LIMITS, "delivery": {"branch": "a"}}))
    for mode in ((), (), ("--server-side", "--force-conflicts"), ("--server-side",)):
        definitions.kubectl("apply", "-n", namespace, *mode, "-f", "-", stdin=text)
    found = json.loads(definitions.kubectl("get", "ar", "it", "-n", namespace, "-o", "json"))
    assert found["metadata"]["generation"] == 1


def explained(server: ApiServer, path: str) -> str:
    return server.kubectl("explain", path, "--api-version=moorage.dev/v1alpha1")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.plural)
def test_explain_tells_about_every_field(definitions: ApiServer, definition: Any) -> None:
    crd = json.loads(definitions.kubectl("get", "crd", definition.name, "-o", "json"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    bare = [path for path, node in walk(schema, definition.model.__name__) if not node.get("description")]
    assert [path for path in bare if not path.endswith(".metadata")] == []
    for name, child in schema["properties"]["spec"]["properties"].items():
        text = explained(definitions, f"{definition.plural}.spec.{name}")
        assert " ".join(child["description"].split()) in " ".join(text.split())


def walk(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if node.get("items", {}).get("type") == "object":
        yield from walk(node["items"], f"{path}[]")


def test_columns_short_names_and_category(definitions: ApiServer, api: Api) -> None:
    api.create(manifest("AgentRun"))
    status = {"phase": "Running", "reason": "Working", "iteration": 3, "epoch": 2, "node": "n1"}
    status |= {"usage": {"tokens": 1200, "cost": "0.42"}, "workspace": {"branch": "moorage/it"}}
    report(api, status)
    get = ("get", "-n", api.namespace)
    header = ["NAME", "PHASE", "REASON", "ITER", "TOKENS", "COST", "EPOCH", "AGE"]
    row = ["it", "Running", "Working", "3", "1200", "0.42", "2"]
    assert definitions.kubectl(*get, "ar").split()[:15] == [*header, *row]
    wide = definitions.kubectl(*get, "ar", "-o", "wide").split()
    assert wide[8:12] == ["WORKSPACE", "BRANCH", "NODE", "WAITS"]
    assert wide[20:23] == ["web", "moorage/it", "n1"]
    assert "agentrun.moorage.dev/it" in definitions.kubectl(*get, "moorage", "-o", "name")
    assert "it" in definitions.kubectl(*get, "ar", "--field-selector=status.phase=Running", "-o", "name")
    for short in ("ws", "agt", "mp"):
        definitions.kubectl(*get, short)


def report(api: Api, status: dict[str, Any]) -> httpx.Response:
    kept = {"content-type": "application/merge-patch+json"}
    return api.http.patch(f"{api.path('AgentRun', 'it')}/status", json={"status": status}, headers=kept)


def test_kubectl_waits_on_conditions(definitions: ApiServer, api: Api) -> None:
    api.create(manifest("AgentRun"))
    at = "2026-01-01T00:00:00Z"
    condition = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": at}
    assert report(api, {"conditions": [condition]}).status_code == 200
    definitions.kubectl("wait", "ar/it", "-n", api.namespace, "--for=condition=Ready", "--timeout=60s")


def test_a_status_write_changes_no_spec_and_a_spec_write_no_status(api: Api) -> None:
    body = manifest("AgentRun")
    created = api.create({**body, "status": {"phase": "Succeeded"}})
    assert created["status"] == BORN.wire(), "what its author says of it counts for nothing"
    kept = {"content-type": "application/merge-patch+json"}
    sneaky = {"spec": {"cancel": True}, "status": {"phase": "Running"}}
    answer = api.http.patch(f"{api.path('AgentRun', 'it')}/status", json=sneaky, headers=kept).json()
    assert (answer["spec"]["cancel"], answer["status"]["phase"]) == (False, "Running")


def test_a_status_is_bounded(api: Api) -> None:
    api.create(manifest("AgentRun"))
    assert report(api, {"phase": "Dancing"}).status_code == 422
    assert report(api, {"message": "x" * 1025}).status_code == 422
    condition = {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    many = [{**condition, "type": f"C{i}"} for i in range(17)]
    assert report(api, {"conditions": many}).status_code == 422


def test_objects_that_an_older_schema_took(api_server: ApiServer, http: httpx.Client) -> None:
    """What doesn't touch a spec that breaks today's rules goes on working. A spec of wrong types is beyond that: rules
    can't even be evaluated over it, so the API server refuses all but the delete, and an operator must live with it.
    """
    strict = older(crd_manifest(DEFINITIONS[0]))
    loose = json.loads(json.dumps(strict))
    version = loose["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    established(api_server, loose)
    path = "/apis/old.moorage.dev/v1alpha1/namespaces/default/agentruns"
    broken = {"goal": "", "agent": {"driver": "command"}, "novelty": 1, "delivery": {"branch": "a..b"}}
    for name, spec in (("broken", broken), ("mistyped", {"goal": "x", "agent": 5})):
        body = {"apiVersion": "old.moorage.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name}, "spec": spec}
        assert http.post(path, json=body).status_code == 201
    established(api_server, strict)
    kept = {"content-type": "application/merge-patch+json"}
    for name, code in (("broken", 200), ("mistyped", 422)):
        told = http.patch(f"{path}/{name}/status", json={"status": {"phase": "Failed"}}, headers=kept)
        assert told.status_code == code, told.text
        labelled = http.patch(f"{path}/{name}", json={"metadata": {"labels": {"a": "b"}}}, headers=kept)
        assert labelled.status_code == code, labelled.text
        stored = http.get(f"{path}/{name}").json()
        assert isinstance(parse_agent_run(stored | {"apiVersion": "moorage.dev/v1alpha1"}), InvalidSpec)
        assert http.delete(f"{path}/{name}").status_code == 200


def older(crd: dict[str, Any]) -> dict[str, Any]:
    """The same definition in a group of its own, so that no other test meets it."""
    text = json.dumps(crd).replace("agentruns.moorage.dev", "agentruns.old.moorage.dev")
    moved: dict[str, Any] = json.loads(text.replace('"group": "moorage.dev"', '"group": "old.moorage.dev"'))
    moved["spec"]["names"] |= {"shortNames": [], "categories": []}
    del moved["spec"]["versions"][0]["selectableFields"]
    return moved


def established(server: ApiServer, crd: dict[str, Any]) -> None:
    """Apply, and wait until the API server really serves this schema."""
    server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(crd))
    server.kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{crd['metadata']['name']}")
    described = "goal" in json.dumps(crd["spec"]["versions"][0]["schema"])
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        probe = ("create", "--dry-run=server", "--validate=false", "-f", "-")
        body = {"apiVersion": "old.moorage.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "probe"}, "spec": {}}
        try:
            server.kubectl(*probe, stdin=json.dumps(body))
        except CommandFailedError as refusal:
            if described and "exactly one" in str(refusal):
                return
        else:
            if not described:
                return
        time.sleep(0.1)
    raise AssertionError("the API server doesn't serve the new schema")


@pytest.mark.parametrize("name", ["agentrun.yaml", "workspace.yaml", "agent.yaml"])
def test_the_examples_are_taken(definitions: ApiServer, namespace: str, name: str) -> None:
    file = Path(__file__).parents[2] / "examples" / name
    definitions.kubectl("apply", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", str(file))
